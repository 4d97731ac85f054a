"""What is promised, what it costs, what is survived, why something is not, and what would help.

``coverage`` says who has the slots that it needs, ``bound`` how little any plan needs, ``costs`` who uses how much.
``matrix`` is the state as ``tolerance`` and ``survival`` see it: which failures take which slot from whom.
``questions`` reads what a user asks about failures and words the answers. ``explain`` says why a VM has no slot,
``drain`` in what order hosts can be emptied, ``whatif`` what would be if hosts or VMs came or went. All of it is
pure.
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.failover.analysis.bound import BoundInput, BoundResult, compute_bound
    from outlive.failover.analysis.costs import AT_ONCE_VMS, CostResult, CostTable, PlanCost, costs_of, level_costs
    from outlive.failover.analysis.costs import split_amount
    from outlive.failover.analysis.coverage import Bound, CoverageInput, CoverageResult, Numbers, Reserved
    from outlive.failover.analysis.coverage import allocation_fault, assess_state, compute_coverage
    from outlive.failover.analysis.fit import FitInput, FitUnit, count_fitting_vms, limit_vms, fit_in_grids
    from outlive.failover.analysis.questions import Question, any_units, failures_text, lost_text, parse_question
    from outlive.failover.analysis.questions import render_case, survive_sentences, tolerance_sentence, units_by
    from outlive.failover.analysis.survival import FailuresInput, FailuresResult, LostReason, Method, iter_cases
    from outlive.failover.analysis.survival import match_slots, survive
    from outlive.failover.analysis.tolerance import SurvivalMatrix, ToleranceInput, ToleranceResult, compute_tolerance
    from outlive.failover.analysis.tolerance import compute_tolerances, find_fewest_masks, judge_broken, sum_tolerances
else:
    __getattr__ = load_exports(__name__)

"""What is to be done: clean up, choose who is served, assign, plan a fleet, repack.

Pure: plain data in, actions with reasons out.
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.failover.planner.actions import Action, Claim, Fail, Join, Leave, Need, Open, PlacementOffer, PlanInput
    from outlive.failover.planner.assign import AssignInput, AssignResult
    from outlive.failover.planner.cleanup import Cause, CleanInput, CleanResult, LeaveInput, clean, leave
    from outlive.failover.planner.plan import PlanResult, Reserves, shortfalls_of, sum_reserves
    from outlive.failover.planner.repack import RepackInput, RepackMove, RepackResult, apply_moves
    from outlive.failover.planner.selection import Missing, SelectInput, SelectResult, select
else:
    __getattr__ = load_exports(__name__)

"""The reconciler of failover: it keeps the promise, and is what acts.

``cache`` follows the informers and marks VMs as dirty; ``reconciler`` looks at the dirty VMs at once and at all VMs in
each tick. ``inputs`` reads where VMs are, finds what the cache missed, and makes the input of every decision. ``plans``
decides, for single VMs on the living index and for the whole fleet; what is long runs in a child process (``Decider``
in ``context``). ``apply`` checks changes again and writes them through ``writes``, which also deletes slots that have
done their work. ``coverage`` reports. ``validation`` checks one slot at a time. All removals draw on one budget.
"""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

if TYPE_CHECKING:
    from outlive.failover.reconciler.apply import ApplyOutcome
    from outlive.failover.reconciler.cache import FleetCache, Informers
    from outlive.failover.reconciler.context import ENCODED, Decider, RemovalBudget, encode_large, encode_parts
    from outlive.failover.reconciler.coverage import REREAD_S, CoverageWriter
    from outlive.failover.reconciler.inputs import COMPARED, CacheComparison, Terms
    from outlive.failover.reconciler.plans import MOST_TICKS, Assigner, Attempts, PlanBasis
    from outlive.failover.reconciler.reconciler import PASS_VMS, Reconciler, next_pause_s
    from outlive.failover.reconciler.validation import SlotValidation, unusable_reason, validity_facts
    from outlive.failover.reconciler.writes import SlotWriter, actions_of, write_plan
else:
    __getattr__ = load_exports(__name__)

"""What protection costs in a cluster that was read: by level and by flavor, beside its coverage.

Without levels in the settings there is one row, that of VMs without a level; its figures are the fleet's
(docs/reference/failover.md#costs).
"""

from __future__ import annotations

from outlive.failover.analysis.costs import CostInput, CostResult, costs
from outlive.failover.analysis.coverage import CoverageResult
from outlive.failover.analysis.tolerance import tolerances
from outlive.roles.planning import Gathered


def costs_of(gathered: Gathered, covered: CoverageResult) -> CostResult:
    """The cost of the slots that are there; ``covered`` is the coverage that they give."""
    observation, protection = gathered.observation, gathered.demands.protection
    needing = [vm for vm in observation.vms if gathered.required.get(vm.id, 0) > 0]
    uncovered = {one.vm for one in covered.uncovered}
    levels = {vm.id: protection.of(vm).name for vm in observation.vms}
    units = gathered.topology.units
    return costs(
        CostInput(
            vms=observation.vms,
            required=gathered.required,
            slots=observation.slots,
            levels={vm: level for vm, level in levels.items() if level},
            priorities={name: level.priority for name, level in protection.levels.items()},
            covered=tuple(vm.id for vm in needing if vm.id not in uncovered),
            tolerances=tolerances(needing, observation.slots, {vm.id: vm.host for vm in observation.vms}, units),
        )
    )

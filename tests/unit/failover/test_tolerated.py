"""What a cycle tells about failures that are survived equals the exact answer, though it looks at few VMs."""

from __future__ import annotations

import pytest
from tests.support.cycles import cloud_of
from tests.unit.failover.test_tolerance import broken_fleet

from outlive.base import Random
from outlive.failover import ConflictIndex, TopologyChoice
from outlive.failover.analysis import (
    CoverageInput,
    ToleranceInput,
    assess_state,
    compute_tolerance,
    judge_broken,
    sum_tolerances,
)


@pytest.mark.slow
def test_what_a_cycle_tells_is_exact_by_hosts_and_by_racks() -> None:
    for seed in range(300):
        hosts, vms, slots = broken_fleet(Random(seed))
        required = {vm.id: 1 + number % 2 for number, vm in enumerate(vms[: 1 + seed % 8])}
        for unit in ("host", "rack"):
            topology = TopologyChoice(unit=unit).topology_of(hosts)
            index = ConflictIndex.build(slots, topology=topology, locations={vm.id: vm.host for vm in vms})
            broken = frozenset(index.list_faulty())
            views, named = {vm.id: vm for vm in vms}, {slot.name: slot for slot in slots}
            exactly = judge_broken(broken, required, views, named, index, topology)
            given = CoverageInput(vms=tuple(vms), required=required, slots=tuple(slots), topology=topology)
            statuses = {vm: status for vm, status in assess_state(given).items() if status.required > 0}
            levels = {vm: exactly.get(vm, 0) if vm in broken else len(status.slots) for vm, status in statuses.items()}
            reported = sum_tolerances(unit, ((views[vm].zone, level) for vm, level in levels.items()))
            exact = compute_tolerance(
                ToleranceInput(vms=tuple(vms), required=required, slots=tuple(slots), units=topology.units)
            )
            assert reported.fleet == exact.fleet, seed
            assert reported.zones == exact.zones
            assert {str(level): count for level, count in reported.counts.items()} == exact.counts


def test_a_fleet_without_protected_vms_has_no_tolerance_rather_than_none() -> None:
    reported = sum_tolerances("host", ())
    assert (reported.fleet, reported.zones, reported.counts) == (None, {}, {})


async def test_the_metrics_follow_the_cycle() -> None:
    cloud = await cloud_of("h1", "h2", need=1, vms={"a": "h1"})
    await cloud.cycle()
    assert cloud.metric("failover_tolerance", availability_zone="") == 1
    assert cloud.metric("failover_vms_by_tolerance", tolerance="1") == 1
    await cloud.vm("b", "h1", memory=2**50)
    await cloud.cycle()
    assert cloud.metric("failover_tolerance", availability_zone="") == 0
    assert cloud.metric("failover_vms_by_tolerance", tolerance="0") == 1

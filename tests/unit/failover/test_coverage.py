"""Who is covered, why not, and the fleet in numbers."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import fleets
from tests.support.fleets import slot, vm
from tests.support.literal_rules import DependencyGraph

from outlive.base import Random
from outlive.failover import HostView, SlotView
from outlive.failover.analysis import CoverageInput, CoverageResult, compute_coverage
from outlive.failover.planner import Fail
from outlive.failover.planner.plan import plan
from outlive.placement import VmView
from outlive.resources import encode
from outlive.resources.reasons import AllocationFault, CoverageReason

GIB = 2**30


def of(vms: list[VmView], slots: list[SlotView], required: int = 1, fails: tuple[Fail, ...] = ()) -> CoverageResult:
    needs = {one.id: required for one in vms}
    return compute_coverage(CoverageInput(vms=tuple(vms), required=needs, slots=tuple(slots), fails=fails))


def reasons(result: CoverageResult) -> dict[str, str]:
    return {one.vm: one.reason for one in result.uncovered}


def test_the_document_has_the_pinned_members() -> None:
    hosts = tuple(HostView(name=f"h{number}") for number in range(1, 5))
    given_state = CoverageInput(
        vms=(vm("a", "h1", also_needs={"gpu": 1}), vm("b", "h2"), vm("free", "h3")),
        required={"a": 1, "b": 1},
        slots=(slot("s", "h4", a="h1"),),
        hosts=hosts,
        fails=(Fail(vm="b", reason=CoverageReason.NO_CAPACITY, detail="all full", remedy="add a host"),),
    )
    assert msgspec.json.decode(encode(compute_coverage(given_state))) == {
        "vms": 3,
        "required": 2,
        "covered": 1,
        "uncovered": [
            {
                "vm": "b",
                "host": "h2",
                "required": 1,
                "present": 0,
                "reason": "no-capacity",
                "message": "0 of 1 slots; all full",
                "remedy": "add a host",
            }
        ],
        "slots": 1,
        "reserved": {"cpuMilli": 1000, "memoryBytes": GIB},
        "bound": {"slots": 1, "gap": 0, "cpuMilli": 1000, "memoryBytes": GIB},
        "tolerance": 0,
        "alsoNeeds": {"gpu": 1},
    }


def test_a_slot_counts_only_when_ready_large_enough_allowed_and_right_about_the_location() -> None:
    fussy = msgspec.structs.replace(vm("fussy", "h1"), host_limit=("h1", "h2"))
    result = of(
        [vm("sick", "h1"), vm("small", "h1", 2), vm("moved", "h1"), vm("fine", "h1"), fussy],
        [
            slot("s1", "h5", ready=False, sick="h1"),
            slot("s2", "h6", small="h1"),
            slot("s3", "h7", moved="h2"),
            slot("s4", "h8", fine="h1"),
            slot("s5", "h9", fussy="h1"),
        ],
    )
    assert reasons(result) == {
        "sick": AllocationFault.NOT_READY,
        "small": AllocationFault.TOO_SMALL,
        "moved": AllocationFault.ELSEWHERE,
        "fussy": AllocationFault.NOT_ALLOWED,
    }
    assert result.covered == 1


def test_a_vm_for_which_a_rule_is_broken_is_not_covered() -> None:
    assert reasons(of([vm("a", "h1")], [slot("s", "h1", a="h1")])) == {"a": CoverageReason.MEMBERSHIPS_CLASH}


def test_nobody_who_needs_nothing_is_uncovered() -> None:
    result = of([vm("a", "h1")], [], required=0)
    assert (result.required, result.covered, result.uncovered, result.tolerance) == (0, 0, (), 0)


@pytest.mark.slow
@given(st.integers(0, 2**32))
def test_a_vm_that_is_called_covered_has_enough_valid_slots_and_no_other_has(seed: int) -> None:
    random = Random(seed)
    on = fleets.hosts(random.randint(4, 7))
    vms = fleets.vms(random, 8, on)
    needs = {one.id: random.randint(0, 2) for one in vms}
    slots = plan(fleets.plan_input(vms, on, needs)).slots
    moved = [
        VmView(id=one.id, host=random.choice(on), cpu_milli=one.cpu_milli, memory_bytes=one.memory_bytes)
        if random.random() < 0.2
        else one
        for one in vms
    ]
    result = compute_coverage(CoverageInput(vms=tuple(moved), required=needs, slots=slots))
    graph = DependencyGraph.build(slots, locations={one.id: one.host for one in moved})
    uncovered = {one.vm for one in result.uncovered}
    for one in moved:
        if not needs[one.id]:
            continue
        mine = [slot for slot in slots if slot.members.get(one.id) == one.host]
        assert (one.id not in uncovered) == (len(mine) >= needs[one.id] and graph.holds_for(one.id))

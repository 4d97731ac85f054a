"""How many host failures are survived: exact, by brute force over all sets of hosts."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from tests.support import fleets

from outlive.base.random import Random
from outlive.failover.assurance.tolerance import ToleranceInput, tolerance
from outlive.failover.model import SlotView, VmView


def brute_force(vm: VmView, slots: list[SlotView], location: dict[str, str], hosts: list[str]) -> int:
    """The largest j such that the VM survives every set of j hosts that has its own."""
    others = [host for host in hosts if host != vm.host]
    mine = [slot for slot in slots if vm.id in slot.members and slot.ready is not False]
    for failures in range(1, len(hosts) + 1):
        for more in combinations(others, failures - 1):
            down = {vm.host, *more}
            if not any(
                slot.host not in down and not any(location[w] in down for w in slot.members if w != vm.id)
                for slot in mine
            ):
                return failures - 1
    return len(hosts)


@given(st.integers(0, 2**32))
def test_tolerance_equals_brute_force_where_rules_hold_and_where_they_are_broken(seed: int) -> None:
    random = Random(seed)
    on = fleets.hosts(random.randint(3, 9))
    vms = fleets.vms(random, random.randint(1, 8), on)
    slots = fleets.filled(random, fleets.slots(random, random.randint(1, 6), on), vms, random.randint(1, 14))
    slots = [
        SlotView(
            name=slot.name,
            host=slot.host,
            cpu_milli=slot.cpu_milli,
            memory_bytes=slot.memory_bytes,
            members=slot.members,
            ready=random.random() < 0.9,
        )
        for slot in slots
    ]
    location = {vm.id: vm.host for vm in vms}
    result = tolerance(ToleranceInput(vms=tuple(vms), required={vm.id: 1 for vm in vms}, slots=tuple(slots)))
    expected = {vm.id: brute_force(vm, slots, location, on) for vm in vms}
    assert result.vms == expected
    assert result.fleet == min(expected.values())
    assert list(result.vms.values()) == sorted(result.vms.values())


def test_only_vms_that_need_slots_count_and_each_zone_has_its_weakest() -> None:
    vms = (
        VmView(id="a", host="h1", zone="x"),
        VmView(id="b", host="h2", zone="y"),
        VmView(id="c", host="h3", zone="y"),
    )
    slots = (SlotView(name="s", host="h9", members={"a": "h1", "b": "h2"}),)
    result = tolerance(ToleranceInput(vms=vms, required={"a": 1, "b": 1}, slots=slots))
    assert (result.fleet, result.zones, result.vms) == (1, {"x": 1, "y": 1}, {"a": 1, "b": 1})
    assert tolerance(ToleranceInput(vms=vms, required={}, slots=slots)).fleet == 0


def test_a_slot_that_is_too_small_saves_nobody() -> None:
    vms = (VmView(id="a", host="h1", cpu_milli=2),)
    slots = (SlotView(name="s", host="h9", cpu_milli=1, members={"a": "h1"}),)
    assert tolerance(ToleranceInput(vms=vms, required={"a": 1}, slots=slots)).fleet == 0

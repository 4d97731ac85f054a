"""What protection costs, by level and by flavor."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from tests.support import fleets

from outlive.base import Random
from outlive.failover import SlotView
from outlive.failover.analysis import CostResult, CostTable, split_amount
from outlive.placement import VmView

GIB = 2**30


def test_a_slot_is_shared_by_its_members_in_proportion_to_their_size() -> None:
    vms = (
        VmView(id="a", host="h1", flavor="big", cpu_milli=2000, memory_bytes=3 * GIB),
        VmView(id="b", host="h2", flavor="small", cpu_milli=2000, memory_bytes=GIB),
        VmView(id="c", host="h3", flavor="small", cpu_milli=1000, memory_bytes=GIB),
    )
    slots = (
        SlotView(name="s", host="h4", cpu_milli=2000, memory_bytes=4 * GIB, members={"a": "h1", "b": "h2"}),
        SlotView(name="t", host="h5", cpu_milli=2000, memory_bytes=4 * GIB, members={"gone": "h1"}),
    )
    table = CostTable({"critical": 5, "spare": 0})
    for vm in vms:
        level, survives = ("critical" if vm.id == "a" else ""), int(vm.id != "c")
        table.add_vm(vm, level, 1, covered=vm.id != "c", tolerance=survives)
    found = with_slots(table, slots)
    assert [
        (one.level, one.priority, one.vms, one.required, one.covered, one.tolerance, one.slots) for one in found.levels
    ] == [("critical", 5, 1, 1, 1, 1, 1), ("", 0, 2, 2, 1, 0, 1), ("spare", 0, 0, 0, 0, None, 0)]
    assert [(one.cpu_milli, one.memory_bytes) for one in found.levels] == [(1000, 3 * GIB), (1000, GIB), (0, 0)]
    assert [one.per_protected_byte for one in found.levels] == [1.0, 1.0, None]
    assert [(one.flavor, one.memory_bytes) for one in found.flavors] == [("big", 3 * GIB), ("small", GIB)]
    assert (found.nobody.cpu_milli, found.nobody.memory_bytes) == (2000, 4 * GIB)


@given(st.integers(0, 2**60), st.lists(st.integers(0, 2**50), min_size=1, max_size=20))
def test_shares_are_whole_and_add_up(amount: int, weights: list[int]) -> None:
    parts = split_amount(amount, weights)
    assert sum(parts) == amount
    assert all(part >= 0 for part in parts)


@given(st.integers(0, 2**32))
def test_levels_flavors_and_nobody_add_up_to_what_slots_hold(seed: int) -> None:
    random = Random(seed)
    on = fleets.hosts(6)
    vms = fleets.vms(random, 12, on, sizes=(1, 2))
    slots = fleets.filled(random, fleets.slots(random, 8, on, sizes=(1, 2)), vms, random.randrange(20))
    table = CostTable({})
    for vm in vms[:9]:
        table.add_vm(vm, random.choice(["x", "y", ""]), 1, covered=False)
    found = with_slots(table, slots)
    for rows in (found.levels, found.flavors):
        assert sum(one.memory_bytes for one in rows) + found.nobody.memory_bytes == sum(s.memory_bytes for s in slots)
        assert sum(one.cpu_milli for one in rows) + found.nobody.cpu_milli == sum(slot.cpu_milli for slot in slots)
        assert sum(one.vms for one in rows) == 9


def with_slots(table: CostTable, slots: Iterable[SlotView]) -> CostResult:
    """The costs with these slots."""
    for slot in slots:
        table.add_slot(slot)
    return table.get_result()

"""Who misses slots, who is served, and when the next cycle is."""

from __future__ import annotations

from typing import Any

from outlive.failover import FailoverConfig, SlotView
from outlive.failover.planner import SelectInput, SelectResult, select
from outlive.failover.reconciler import next_pause_s
from outlive.failover.report import CycleSummary
from outlive.placement import VmView


def vm(name: str, memory: int) -> VmView:
    return VmView(id=name, host="h1", memory_bytes=memory)


FLEET = (vm("a", 1), vm("b", 4), vm("c", 2), vm("e", 4), vm("d", 4), vm("free", 9))
NEEDS = dict.fromkeys("abcde", 2)


def ids(result: SelectResult) -> list[str]:
    return [one.vm for one in result.selected]


def chosen(limit: int = 0, rotation: int = 0, cycle: int = 1, draw: float = 0.0) -> SelectResult:
    return select(
        SelectInput(vms=FLEET, slots=(), required=NEEDS, limit=limit, rotation=rotation, cycle=cycle, draw=draw)
    )


def test_largest_memory_comes_first_then_the_smaller_id() -> None:
    assert ids(chosen()) == ["b", "d", "e", "c", "a"]


def exposed() -> list[str]:
    """``a`` has the highest priority, ``b`` one slot already."""
    slots = (SlotView(name="x", host="x", memory_bytes=9, members={"b": "h1"}),)
    given = SelectInput(vms=FLEET, slots=slots, required=NEEDS, priorities={"a": 3, "c": -1}, limit=4)
    return ids(select(given))


def test_the_highest_priority_comes_first_then_the_vm_with_the_fewest_slots() -> None:
    assert exposed() == ["a", "d", "e", "b"]


def test_no_limit_is_hit_when_everybody_is_served() -> None:
    for limit in (0, -1, 5, 6):
        assert (len(chosen(limit).selected), chosen(limit).limit_hit) == (5, False)


def test_the_limit_takes_the_first_and_counts_all_as_missing() -> None:
    result = chosen(2)
    assert (ids(result), result.limit_hit, len(result.missing), result.needed) == (["b", "d"], True, 5, 4)


def test_every_nth_cycle_starts_at_the_drawn_place_and_wraps_around() -> None:
    assert ids(chosen(3, rotation=4, cycle=8, draw=0.61)) == ["c", "a", "b"]
    assert ids(chosen(3, rotation=4, cycle=7, draw=0.61)) == ["b", "d", "e"]
    assert ids(chosen(3, rotation=0, cycle=8, draw=0.61)) == ["b", "d", "e"]
    assert chosen(1, rotation=1, draw=0.999999).start == 4


def test_slots_beyond_what_is_needed_are_left_alone() -> None:
    slots = tuple(SlotView(name=name, host=name, memory_bytes=9, members={"a": "h1"}) for name in "xyz")
    assert select(SelectInput(vms=FLEET, slots=slots, required={"a": 2})).missing == ()


def test_a_slot_that_is_not_ready_or_too_small_is_not_present() -> None:
    slots = (
        SlotView(name="x", host="x", memory_bytes=4, members={"b": "h1"}),
        SlotView(name="y", host="y", memory_bytes=4, members={"b": "h1"}, ready=False),
        SlotView(name="z", host="z", memory_bytes=3, members={"b": "h1"}),
        SlotView(name="", host="", memory_bytes=4, members={"b": "h1"}),
    )
    given = SelectInput(vms=FLEET, slots=slots, required={"b": 4})
    assert [(one.present, one.needed) for one in select(given).missing] == [(2, 2)]


def pause(*, limit_hit: bool = True, reused: int = 1, failed: int = 0, **config: Any) -> float:
    usual = {"min_success_for_short_interval": 1, "max_failures_for_short_interval": 2}
    return next_pause_s(
        CycleSummary(limit_hit=limit_hit, reused=reused, failed=failed), FailoverConfig(**{**usual, **config})
    )


def test_the_short_pause_is_for_catching_up_that_goes_well() -> None:
    assert pause() == 0.1
    assert pause(limit_hit=False) == 30.0
    assert pause(reused=0) == 30.0
    assert pause(reused=0, min_success_for_short_interval=0) == 0.1
    assert pause(failed=2) == 0.1
    assert pause(failed=3) == 30.0
    assert pause(short_reconcile_interval="0s") == 30.0

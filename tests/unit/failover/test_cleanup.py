"""Cleaning up: what leaves a slot, which slots go, and what holds the hand back."""

from __future__ import annotations

import msgspec

from outlive.failover import HostView, SlotView
from outlive.failover.planner import Cause, CleanInput, CleanResult, LeaveInput, clean, leave
from outlive.placement import VmView


def vm(name: str, host: str) -> VmView:
    return VmView(id=name, host=host)


def slot(name: str, host: str, **members: str) -> SlotView:
    return SlotView(name=name, host=host, members=members, last_changed=1.0, acknowledged_at=2.0)


def members(result: CleanResult) -> dict[str, list[str]]:
    return {one.name: sorted(one.members) for one in result.slots}


def causes(result: CleanResult) -> list[tuple[str, str, Cause]]:
    return [(drop.slot, drop.vm, drop.cause) for drop in result.dropped]


def test_a_clean_state_is_left_alone() -> None:
    asked = CleanInput(vms=(vm("a", "h1"),), slots=(slot("s", "h2", a="h1"),), now=9.0)
    assert clean(asked) == CleanResult(slots=asked.slots)


def test_a_vm_that_is_neither_listed_nor_active_leaves() -> None:
    result = clean(CleanInput(vms=(vm("a", "h1"),), slots=(slot("s", "h2", a="h1", b="h3"),), now=9.0))
    assert causes(result) == [("s", "b", Cause.GONE)]
    assert members(result) == {"s": ["a"]}
    assert (result.slots[0].last_changed, result.slots[0].acknowledged_at) == (9.0, None)
    assert (result.changed, result.updated) == (("s",), 1)


def test_the_data_loss_guard_keeps_an_unlisted_vm_that_a_host_reports() -> None:
    asked = CleanInput(vms=(), hosts=(HostView(name="h9", active=("b",)),), slots=(slot("s", "h2", b="h3"),))
    result = clean(asked)
    assert result.slots == asked.slots
    assert result.guarded == (("s", "b"),)


def test_the_guard_does_not_keep_a_vm_that_is_listed_elsewhere() -> None:
    hosts = (HostView(name="h3", active=("b",)),)
    result = clean(CleanInput(vms=(vm("b", "h4"),), hosts=hosts, slots=(slot("s", "h2", b="h3"),)))
    assert causes(result) == [("s", "b", Cause.MOVED)]
    assert result.dropped[0].host == "h4"


def test_of_one_vm_only_the_stale_membership_goes() -> None:
    slots = (slot("s1", "h2", a="h1"), slot("s2", "h3", a="h9"))
    assert causes(clean(CleanInput(vms=(vm("a", "h1"),), slots=slots))) == [("s2", "a", Cause.MOVED)]


def test_the_last_member_takes_the_slot_with_it() -> None:
    result = clean(CleanInput(vms=(), slots=(slot("s", "h2", a="h1"), slot("t", "h2"))))
    assert [(one.slot, one.cause) for one in result.deleted] == [("s", Cause.EMPTY), ("t", Cause.EMPTY)]
    assert result.slots == ()
    assert (result.changed, result.updated) == ((), 1)


def test_a_slot_without_status_is_deleted_only_after_its_grace() -> None:
    young = SlotView(name="young", initialised=False, created_at=100.0)
    old = SlotView(name="old", initialised=False, created_at=10.0)
    asked = CleanInput(vms=(), slots=(young, old), now=120.0, grace_s=60.0)
    result = clean(asked)
    assert [(one.slot, one.cause) for one in result.deleted] == [("old", Cause.NEVER_INITIALISED)]
    assert result.waiting == ("young",)


def test_a_slot_changed_by_both_steps_counts_twice() -> None:
    slots = (slot("s", "h5", gone="h1", a="h2", b="h2"),)
    result = clean(CleanInput(vms=(vm("a", "h2"), vm("b", "h2")), slots=slots))
    assert causes(result) == [("s", "a", Cause.CLASH), ("s", "gone", Cause.GONE)]
    assert result.updated == 2
    drop = result.dropped[0]
    assert (drop.rule, drop.other_vm, drop.host) == (3, "b", "h2")
    assert "a and b" in drop.detail


def test_members_at_fault_by_themselves_leave_with_their_own_cause() -> None:
    slots = (slot("s1", "h1", a="h1"), slot("s2", "h5", b="h2"), slot("s3", "h5", b="h2"))
    result = clean(CleanInput(vms=(vm("a", "h1"), vm("b", "h2")), slots=slots))
    assert causes(result) == [("s1", "a", Cause.OWN_HOST), ("s2", "b", Cause.SAME_HOST)]


def test_only_the_member_at_fault_leaves_a_slot() -> None:
    slots = (slot("s", "h5", a="h1", z="h5"),)
    vms = (vm("a", "h1"), vm("z", "h5"))
    assert causes(clean(CleanInput(vms=vms, slots=slots))) == [("s", "z", Cause.OWN_HOST)]


def fleet_that_moved(count: int) -> CleanInput:
    slots = tuple(slot(f"s{number:03}", "x", **{f"v{number:03}": "h1"}) for number in range(count))
    vms = tuple(vm(f"v{number:03}", "h1" if number >= 60 else "h2") for number in range(count))
    return CleanInput(vms=vms, slots=slots)


def test_the_brake_holds_when_too_many_would_leave() -> None:
    result = clean(fleet_that_moved(100))
    assert result.brake is not None
    assert (result.brake.would_drop, result.brake.memberships) == (60, 100)
    assert result.brake.causes == {"vm-moved": 60}
    assert result.dropped == ()
    assert result.slots == fleet_that_moved(100).slots


def test_the_brake_needs_both_the_share_and_the_number() -> None:
    assert clean(fleet_that_moved(400)).brake is None
    assert len(clean(fleet_that_moved(400)).dropped) == 60
    few = CleanInput(vms=(), slots=(slot("s", "h2", a="h1"),))
    assert clean(few).brake is None


def test_slots_that_were_empty_before_go_even_under_the_brake() -> None:
    asked = fleet_that_moved(100)
    result = clean(CleanInput(vms=asked.vms, slots=(*asked.slots, slot("empty", "h2"))))
    assert result.brake is not None
    assert [one.slot for one in result.deleted] == ["empty"]


def sized(name: str, host: str, size: int) -> VmView:
    return VmView(id=name, host=host, cpu_milli=size * 1000, memory_bytes=size)


def held(name: str, host: str, cpu: int, memory: int, **members: str) -> SlotView:
    return SlotView(name=name, host=host, cpu_milli=cpu * 1000, memory_bytes=memory, members=members)


OUTGROWN = CleanInput(
    vms=(sized("a", "h1", 2), sized("b", "h3", 1)),
    slots=(held("s1", "h2", 2, 1, a="h1", b="h3"), held("s2", "h4", 1, 2, a="h1"), held("s3", "h5", 2, 2, a="h1")),
    now=9.0,
)


def test_a_vm_that_outgrew_its_slot_in_either_resource_leaves_it() -> None:
    result = clean(OUTGROWN)
    assert causes(result) == [("s1", "a", Cause.OUTGROWN), ("s2", "a", Cause.OUTGROWN)]
    assert result.dropped[0].detail == "VM a needs 2 cpu and 2 memory, the slot holds 2 cpu and 1 memory"
    assert members(result) == {"s1": ["b"], "s3": ["a"]}
    assert [one.slot for one in result.deleted] == ["s2"]
    assert result.updated == 2


def test_a_vm_that_is_out_of_protection_leaves_its_slots() -> None:
    out = msgspec.structs.replace(sized("a", "h1", 1), unprotected=True, unprotected_why="a batch job")
    slots = (held("s1", "h2", 1, 1, a="h1", b="h3"), held("s2", "h4", 1, 1, a="h1"))
    result = clean(CleanInput(vms=(out, sized("b", "h3", 1)), slots=slots))
    assert causes(result) == [("s1", "a", Cause.NOT_PROTECTED), ("s2", "a", Cause.NOT_PROTECTED)]
    assert result.dropped[0].detail == "VM a is out of protection: a batch job"
    assert members(result) == {"s1": ["b"]}


def test_a_vm_that_moved_has_moved_whatever_its_size() -> None:
    moved = CleanInput(vms=(sized("a", "h9", 2),), slots=OUTGROWN.slots[1:])
    assert {drop.cause for drop in clean(moved).dropped} == {Cause.MOVED}


def test_the_brake_counts_those_that_outgrew_their_slots() -> None:
    slots = tuple(held(f"s{n:03}", "x", 1, 1, **{f"v{n:03}": "h1"}) for n in range(100))
    result = clean(CleanInput(vms=tuple(sized(f"v{n:03}", "h1", 2) for n in range(100)), slots=slots))
    assert result.brake is not None
    assert result.brake.causes == {"outgrown": 100}


def test_what_a_vm_gives_reason_to_leave_is_what_clean_up_would_take() -> None:
    asked = LeaveInput(vms=OUTGROWN.vms[:1], gone=("c",), slots=(*OUTGROWN.slots, slot("s4", "h6", c="h7")), now=9.0)
    left = leave(asked)
    whole = clean(msgspec.structs.replace(OUTGROWN, slots=asked.slots))
    assert (left.dropped, left.deleted, left.changed, left.updated) == (
        whole.dropped,
        whole.deleted,
        whole.changed,
        whole.updated,
    )
    assert left.slots == tuple(one for one in whole.slots if one.name in left.changed)

"""Checking all allocations from scratch: every fault is found and names everybody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import fleets

from outlive.base import Random
from outlive.failover import CheckInput, SlotView, Violation, ViolationKind
from outlive.failover.check import check
from outlive.failover.planner.plan import plan
from outlive.placement import VmView


def vm(name: str, host: str, cpu: int = 0) -> VmView:
    return VmView(id=name, host=host, cpu_milli=cpu)


def found(vms: list[VmView], slots: list[SlotView]) -> list[Violation]:
    return list(check(CheckInput(vms=tuple(vms), slots=tuple(slots))).violations)


def parts(one: Violation) -> tuple[ViolationKind, str, tuple[str, ...], str, tuple[str, ...]]:
    return (one.fault, one.vm, one.slots, one.host, one.others)


def test_a_member_that_is_gone_moved_or_too_large_is_named() -> None:
    slots = [SlotView(name="s", host="h9", cpu_milli=1, members={"a": "h1", "b": "h2", "c": "h3"})]
    assert [parts(one) for one in found([vm("a", "h1", 2), vm("b", "h4")], slots)] == [
        (ViolationKind.TOO_SMALL, "a", ("s",), "h9", ()),
        (ViolationKind.MOVED, "b", ("s",), "h4", ()),
        (ViolationKind.GONE, "c", ("s",), "h3", ()),
    ]


def test_each_rule_names_the_vm_the_other_the_host_and_the_slots() -> None:
    a, b, c = vm("a", "h1"), vm("b", "h2"), vm("c", "h2")
    own = [SlotView(name="s", host="h1", members={"a": "h1"})]
    assert [parts(one) for one in found([a], own)] == [(ViolationKind.RULE_1, "a", ("s",), "h1", ())]
    twice = [SlotView(name=name, host="h9", members={"a": "h1"}) for name in ("s", "t")]
    assert [parts(one) for one in found([a], twice)] == [(ViolationKind.RULE_2, "a", ("s", "t"), "h9", ())]
    same = [SlotView(name="s", host="h9", members={"b": "h2", "c": "h2"})]
    assert [parts(one) for one in found([b, c], same)] == [(ViolationKind.RULE_3, "b", ("s",), "h2", ("c",))]
    on_slot = [
        SlotView(name="s", host="h9", members={"a": "h1", "b": "h2"}),
        SlotView(name="t", host="h2", members={"a": "h1"}),
    ]
    assert [parts(one) for one in found([a, b], on_slot)] == [(ViolationKind.RULE_4, "a", ("t",), "h2", ("b",))]
    rivals = [
        SlotView(name="s", host="h8", members={"a": "h1", "b": "h2"}),
        SlotView(name="t", host="h9", members={"a": "h1", "c": "h2"}),
    ]
    assert [parts(one) for one in found([a, b, c], rivals)] == [
        (ViolationKind.RULE_5, "a", ("s", "t"), "h2", ("b", "c"))
    ]
    both = [SlotView(name=name, host=host, members={"a": "h1", "b": "h2"}) for name, host in (("s", "h8"), ("t", "h9"))]
    assert [parts(one) for one in found([a, b], both)] == [(ViolationKind.RULE_5, "a", ("s", "t"), "h2", ("b",))]
    assert "share more than one slot" in found([a, b], both)[0].message


def test_the_answer_says_what_clean_up_would_remove() -> None:
    slots = (SlotView(name="s", host="h9", members={"b": "h2", "c": "h2"}),)
    result = check(CheckInput(vms=(vm("b", "h2"), vm("c", "h2")), slots=slots))
    assert (result.holds, result.allocations, result.remove) == (False, 2, {"s": ["b"]})


@pytest.mark.slow
@given(st.integers(0, 2**32))
def test_one_moved_membership_or_host_is_always_found(seed: int) -> None:
    random = Random(seed)
    on = fleets.hosts(8)
    vms = fleets.vms(random, 12, on)
    slots = list(plan(fleets.plan_input(vms, on, 2)).slots)
    assert check(CheckInput(vms=tuple(vms), slots=tuple(slots))).holds
    place = random.randrange(len(slots))
    slot = slots[place]
    victim = random.choice(sorted(slot.members))
    if random.random() < 0.5:
        members = slot.members | {victim: random.choice([host for host in on if host != slot.members[victim]])}
        slots[place] = SlotView(name=slot.name, host=slot.host, cpu_milli=9000, memory_bytes=2**40, members=members)
    else:
        slots[place] = SlotView(
            name=slot.name, host=slot.members[victim], cpu_milli=9000, memory_bytes=2**40, members=slot.members
        )
    result = check(CheckInput(vms=tuple(vms), slots=tuple(slots)))
    assert not result.holds
    assert any(victim in (one.vm, *one.others) and slot.name in one.slots for one in result.violations)

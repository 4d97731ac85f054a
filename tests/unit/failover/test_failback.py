"""VMs go back to hosts that they prefer with slots that count there, groups as one, and what stays says why."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import fleets

from outlive.base import Random
from outlive.failover import FailBackInput, FailBackResult, FleetIndex, SlotView, VmMove, fail_back
from outlive.failover.planner import Join, Leave, Open
from outlive.failover.planner.plan import plan
from outlive.placement import VmConstraints, VmView
from outlive.resources import CPU, MEMORY, AffinityRule
from outlive.resources.reasons import FailBackReason

GIB = 2**30
CAPACITY = {CPU: 10_000, MEMORY: 20 * GIB}
TOGETHER = (AffinityRule(group="g", policy="affinity"),)
APART = (AffinityRule(group="a", policy="anti-affinity"),)
HOSTS = ("h1", "h2", "h3")


def vm(name: str, host: str, limit: tuple[str, ...] = ()) -> VmView:
    return VmView(id=name, host=host, cpu_milli=1000, memory_bytes=2 * GIB, host_limit=limit)


def slot(name: str, host: str, **members: str) -> SlotView:
    return SlotView(name=name, host=host, cpu_milli=1000, memory_bytes=2 * GIB, members=members, ready=True)


def prefers(name: str, host: str, rules: tuple[AffinityRule, ...] = (), limit: tuple[str, ...] = ()) -> VmConstraints:
    return VmConstraints(id=name, rules=rules, host_limit=limit, preferred={host: 10})


def asked(
    vms: list[VmView],
    demands: list[VmConstraints],
    slots: tuple[SlotView, ...] = (),
    on: tuple[str, ...] = HOSTS,
    **more: object,
) -> FailBackInput:
    left = {name: dict(CAPACITY) for name in on}
    for one in (*vms, *slots):
        left[one.host][CPU] -= one.cpu_milli
        left[one.host][MEMORY] -= one.memory_bytes
    names = tuple(one.id for one in demands)
    made = FailBackInput(
        hosts=on,
        vms=tuple(vms),
        back=names,
        willing=names,
        required={one.id: 1 for one in vms} if slots else {},
        slots=slots,
        free=left,
        places={one.id: tuple(name for name in on if name != one.host) for one in vms},
        demands={one.id: one for one in demands},
    )
    return msgspec.structs.replace(made, **more)


def why(result: FailBackResult) -> list[str]:
    return [one.why.code for one in result.blocked]


def test_a_vm_goes_to_the_host_of_its_own_slot_once_the_slot_is_elsewhere() -> None:
    result = fail_back(asked([vm("v", "h1")], [prefers("v", "h2")], (slot("s", "h2", v="h1"),)))
    opened, left = result.slots
    assert isinstance(opened, Open)
    assert (opened.vm, opened.vm_host, opened.host) == ("v", "h1", "h3")
    assert left == Leave(slot="s", vm="v")
    assert result.moves == (VmMove(vm="v", source="h1", host="h2"),)


def test_a_slot_that_is_there_is_joined_before_a_new_one_is_opened() -> None:
    vms = [vm("v", "h1"), vm("w", "h4")]
    slots = (slot("s", "h2", v="h1"), slot("t", "h3", w="h4"))
    result = fail_back(asked(vms, [prefers("v", "h2")], slots, on=(*HOSTS, "h4")))
    assert result.slots == (Join(slot="t", vm="v", vm_host="h1", host="h3"), Leave(slot="s", vm="v"))


def test_a_vm_whose_limit_leaves_no_third_host_changes_places_with_its_slot_and_any_other_stays() -> None:
    two, own = ("h1", "h2"), (slot("s", "h2", v="h1"),)
    strict = asked([vm("v", "h1", two)], [prefers("v", "h2", limit=two)], own)
    assert fail_back(strict) == FailBackResult(moves=(VmMove(vm="v", source="h1", host="h2"),))
    stays = fail_back(asked([vm("v", "h1")], [prefers("v", "h2")], own, on=two))
    assert (stays.moves, why(stays)) == ((), [FailBackReason.SLOT_STAYS])


def test_an_affinity_group_goes_together_or_not_at_all() -> None:
    group = [vm("a", "h1"), vm("b", "h1")]
    both = [prefers("a", "h2", TOGETHER), prefers("b", "h2", TOGETHER)]
    assert [move.vm for move in fail_back(asked(group, both)).moves] == ["a", "b"]
    kept_apart = [both[0], prefers("b", "h2", (*TOGETHER, *APART)), VmConstraints(id="x", rules=APART)]
    closed = fail_back(asked([*group, vm("x", "h2")], kept_apart))
    assert (closed.moves, why(closed)) == ((), [FailBackReason.AGAINST_RULE] * 2)
    unwilling = fail_back(asked(group, both, willing=("a",), back=("a",)))
    assert why(unwilling) == [FailBackReason.GROUP_STAYS]
    undecided = [both[0], VmConstraints(id="b", rules=TOGETHER, preferred={"h1": 20})]
    assert why(fail_back(asked(group, undecided, back=("a",)))) == [FailBackReason.GROUP_PREFERS]
    no_room = asked(group, both)
    short = fail_back(msgspec.structs.replace(no_room, free={**no_room.free, "h2": {CPU: 1500, MEMORY: 20 * GIB}}))
    assert (short.moves, why(short)) == ((), [FailBackReason.NO_ROOM] * 2)


def test_the_rest_of_a_group_follows_those_that_are_home_already() -> None:
    split = asked([vm("a", "h2"), vm("b", "h1")], [prefers("a", "h2", TOGETHER), prefers("b", "h2", TOGETHER)])
    assert fail_back(split).moves == (VmMove(vm="b", source="h1", host="h2"),)


def test_what_keeps_a_vm_away_is_named() -> None:
    alone, home = [vm("v", "h1")], [prefers("v", "h2")]
    assert why(fail_back(asked(alone, home, places={}))) == [FailBackReason.NOT_LIVE]
    assert why(fail_back(asked(alone, home, places={"v": ("h3",)}))) == [FailBackReason.NOT_OFFERED]
    assert fail_back(asked(alone, home, hosts=("h1", "h3"))) == FailBackResult(), "a host that takes no VMs is no wish"
    (blocked,) = fail_back(asked(alone, home, free={"h1": CAPACITY})).blocked
    assert str(blocked) == "v does not go back to h2, which it prefers: h2 has no room for v beside its VMs and slots"


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(2, 6), st.integers(1, 14), st.integers(0, 2))
def test_nobody_is_covered_less_after_any_step_on_the_way_home(seed: int, count: int, size: int, need: int) -> None:
    random, on = Random(seed), tuple(fleets.hosts(count))
    vms = fleets.vms(random, size, on, sizes=(1, 1, 2))
    required = {one.id: need for one in vms if random.random() < 0.7}
    made = plan(fleets.plan_input(vms, on, required, packing=False))
    slots = tuple(msgspec.structs.replace(one, ready=True) for one in made.slots)
    wishes = [prefers(one.id, random.choice(on)) for one in vms if random.random() < 0.6]
    result = fail_back(asked(vms, wishes, slots, on=on, required=required, free={}))
    fleet = FleetIndex.build(slots, vms, required)
    faulty, missing = set(fleet.list_faulty()), fleet.missing_slots()
    views = {one.id: one for one in vms}
    for action in result.slots:
        if isinstance(action, Open):
            cpu, memory = action.cpu_milli, action.memory_bytes
            opened = SlotView(name=action.slot_key, host=action.host, cpu_milli=cpu, memory_bytes=memory, ready=True)
            fleet.add_slot(opened)
            fleet.join(action.vm, action.slot_key)
        elif isinstance(action, Join):
            fleet.join(action.vm, action.slot)
        elif isinstance(action, Leave):
            fleet.leave(action.vm, action.slot)
            assert all(count <= missing.get(one, 0) for one, count in fleet.missing_slots().items())
            assert set(fleet.list_faulty()) <= faulty
    for move in result.moves:
        fleet.move(views[move.vm], move.host)
    assert all(count <= missing.get(one, 0) for one, count in fleet.missing_slots().items())
    assert set(fleet.list_faulty()) <= faulty

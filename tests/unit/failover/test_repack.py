from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import fleets
from tests.support.failover import Cloud, Fault
from tests.support.fleets import vm
from tests.support.literal_rules import DependencyGraph
from tests.support.loops import run

from outlive.base import Random, Unavailable
from outlive.failover import CheckInput, SlotView, is_vm_eligible_for_reservation
from outlive.failover.check import check
from outlive.failover.planner import PlacementOffer, RepackInput, RepackMove
from outlive.failover.planner.plan import plan
from outlive.failover.planner.repack import repack
from outlive.placement import VmView

HOSTS = [f"h{n}" for n in range(9)]
LITTLE = 0.03
"""Nominal seconds of search."""
ANYWHERE = {"c": PlacementOffer(hosts=tuple(HOSTS))}


def slot(name: str, host: str, **members: str) -> SlotView:
    return fleets.slot(name, host, ready=True, **members)


def asked(slots: list[SlotView], vms: list[VmView], *, need: int = 1, limit: int = 100, **more: object) -> RepackInput:
    given = RepackInput(
        slots=tuple(slots),
        vms=tuple(vms),
        required={one.id: need for one in vms},
        classes={one.id: "c" for one in vms},
        reuse=ANYWHERE,
        limit=limit,
        effort_s=LITTLE,
    )
    return msgspec.structs.replace(given, **more)


TWO = [slot("s1", "h3", a="h1"), slot("s2", "h4", b="h2", c="h5")]
THREE = [vm("a", "h1"), vm("b", "h2"), vm("c", "h5")]


def test_a_small_slot_is_emptied_into_a_fuller_one():
    assert repack(asked(TWO, THREE)).actions == (RepackMove(vm="a", vm_host="h1", leaves="s1", joins="s2"),)


def test_nothing_moves_where_there_are_no_slots():
    assert repack(asked([], THREE)).actions == ()


def test_no_more_memberships_change_than_allowed():
    assert repack(asked(TWO, THREE, limit=1)).actions == ()
    assert len(repack(asked(TWO, THREE, limit=2)).actions) == 1


def test_a_slot_to_spare_is_left_without_joining_another():
    slots = [slot("s1", "h3", a="h1"), slot("s2", "h4", a="h1", b="h2")]
    assert repack(asked(slots, THREE[:2])).actions == (RepackMove(vm="a", vm_host="h1", leaves="s1"),)


def test_nobody_moves_where_placement_or_the_rules_say_no():
    assert repack(asked(TWO, THREE, reuse={"c": PlacementOffer(hosts=("h8",))})).actions == ()
    assert repack(asked(TWO, THREE, reuse={"c": PlacementOffer(error="away")})).actions == ()
    clash = [slot("s1", "h3", a="h1"), slot("s2", "h1", b="h2", c="h5")]
    assert repack(asked(clash, THREE)).actions == ()
    unready = [TWO[0], msgspec.structs.replace(TWO[1], ready=False)]
    assert repack(asked(unready, THREE)).actions == ()


def fleet(seed: int) -> tuple[list[SlotView], list[VmView]]:
    """A valid state with a slot of its own for nearly everybody."""
    random = Random(seed)
    vms = [vm(f"v{n}", random.choice(HOSTS)) for n in range(10)]
    slots: list[SlotView] = []
    for one in vms:
        for _ in range(2):
            possible = [s for s in slots if is_vm_eligible_for_reservation(one, s, slots)]
            if possible and random.random() < 0.3:
                joined = random.choice(possible)
                more = msgspec.structs.replace(joined, members={**joined.members, one.id: one.host})
                slots[slots.index(joined)] = more
                continue
            for host in random.sample(HOSTS, len(HOSTS)):
                fresh = slot(f"s{len(slots):02}", host)
                if is_vm_eligible_for_reservation(one, fresh, slots):
                    slots.append(msgspec.structs.replace(fresh, members={one.id: one.host}))
                    break
    return slots, vms


def states(slots: list[SlotView], moves: tuple[RepackMove, ...]) -> Iterator[list[SlotView]]:
    """The slots after each join and after each leave."""
    state = {s.name: dict(s.members) for s in slots}
    for move in moves:
        if move.joins:
            state[move.joins][move.vm] = move.vm_host
            yield [msgspec.structs.replace(s, members=state[s.name]) for s in slots]
        del state[move.leaves][move.vm]
        yield [msgspec.structs.replace(s, members=dict(state[s.name])) for s in slots]


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(0, 30))
def test_every_state_in_between_is_valid_and_nobody_loses_coverage(seed: int, limit: int):
    slots, vms = fleet(seed)
    need = {one.id: sum(one.id in s.members for s in slots) for one in vms}
    moves = repack(asked(slots, vms, required=need, limit=limit, seed=seed)).actions
    assert sum(2 if move.joins else 1 for move in moves) <= limit
    held = sum(s.memory_bytes for s in slots)
    for now in states(slots, moves):
        graph = DependencyGraph.build(now)
        assert all(graph.holds_in(s.name) for s in now)
        assert all(sum(one.id in s.members for s in now) >= need[one.id] for one in vms)
        left = sum(s.memory_bytes for s in now if s.members)
        assert left <= held
        held = left


ROOM = [slot("s1", "h3", a="h1"), slot("s2", "h4", b="h1", c="h2", d="h5"), slot("s3", "h6", e="h7", f="h8")]
IN_ROOM = [vm(name, host) for one in ROOM for name, host in one.members.items()]


def test_another_makes_room_so_that_a_slot_can_be_emptied():
    offers = {"c": PlacementOffer(hosts=tuple(HOSTS)), "only": PlacementOffer(hosts=("h4",))}
    given = asked(ROOM, IN_ROOM, reuse=offers)
    given = msgspec.structs.replace(given, classes={"a": "only", "b": "c"})
    assert repack(given).actions == (
        RepackMove(vm="b", vm_host="h1", leaves="s2", joins="s3"),
        RepackMove(vm="a", vm_host="h1", leaves="s1", joins="s2"),
    )
    assert repack(msgspec.structs.replace(given, limit=3)).actions == ()
    assert repack(given, keep_going=lambda: False).actions == ()


def test_nothing_moves_while_a_rule_is_broken():
    broken = [*TWO, slot("s3", "h6", b="h2", c="h5")]
    assert repack(asked(broken, THREE)).actions == ()


@pytest.mark.slow
def test_cycles_in_a_row_empty_more_and_the_same_cycle_answers_the_same():
    on = fleets.hosts(20)
    vms = [vm(f"v{n:03}", on[n % 20]) for n in range(100)]
    given_plan = fleets.plan_input(vms, on, 2, packing=False)
    made = plan(given_plan)
    slots = list(made.slots)
    given = asked(slots, vms, need=2, limit=60, reuse={"c": given_plan.reuse[""]}, effort_s=0.5)
    assert repack(given) == repack(given)
    for cycle in range(3):
        now = msgspec.structs.replace(given, slots=tuple(slots), seed=cycle)
        for state in states(slots, repack(now).actions):
            slots = [one for one in state if one.members]
            assert check(CheckInput(vms=tuple(vms), slots=tuple(slots))).holds
    assert len(slots) < len(made.slots)


async def scattered(limit: int) -> Cloud:
    cloud = Cloud({"flavorFailoverRequirements": {"*": 1}, "repack": {"max_changes_per_cycle": limit}})
    await cloud.hosts("h1", "h2", "h3", "h4", "h5")
    await cloud.vm("a", "h1")
    await cloud.vm("b", "h2")
    await cloud.slot("s1", "h4", {"a": "h1"})
    await cloud.slot("s2", "h5", {"b": "h2"})
    return cloud


def test_a_cycle_repacks_within_its_limit_and_not_at_all_by_default():
    async def story(limit: int) -> list[dict[str, str]]:
        cloud = await scattered(limit)
        await cloud.cycle()
        assert await cloud.covered() == {"a": True, "b": True}
        return list((await cloud.members()).values())

    assert run(story(2)) == [{"a": "h1", "b": "h2"}]
    assert len(run(story(0))) == 2
    assert len(run(story(1))) == 2


def nth(number: int) -> Callable[[object], bool]:
    """True at the n-th call, beginning with 0."""
    calls = itertools.count()
    return lambda _: next(calls) == number


def test_repacking_that_is_interrupted_costs_no_coverage():
    async def story(fault: Fault) -> None:
        cloud = await scattered(10)
        cloud.store.faults.append(fault)
        await cloud.cycle()
        assert await cloud.covered() == {"a": True, "b": True}
        await cloud.cycle()
        await cloud.cycle()
        assert list((await cloud.members()).values()) == [{"a": "h1", "b": "h2"}]

    away = Unavailable("away")
    run(story(Fault("replace_status", away, nth(0))))
    run(story(Fault("delete", away)))

"""Culprits: who has to leave so that the rules hold again."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import fleets
from tests.support.literal_rules import DependencyGraph

from outlive.base import Random
from outlive.failover import (
    ConflictIndex,
    Culprit,
    SlotView,
    culprits,
    find_culprits,
    least_hitting_set,
    remove_memberships,
)

SEEDS = st.integers(0, 2**32)


def clashing_state(seed: int, memberships: int) -> tuple[list[SlotView], dict[str, str]]:
    random = Random(seed)
    on = fleets.hosts(random.randint(3, 7))
    vms = fleets.vms(random, random.randint(2, 7), on)
    slots = fleets.filled(random, fleets.slots(random, random.randint(1, 5), on), vms, random.randint(1, memberships))
    return slots, {vm.id: vm.host for vm in vms}


def all_hold(slots: list[SlotView], known: dict[str, str]) -> bool:
    graph = DependencyGraph.build(slots, locations=known)
    return all(graph.holds_for(vm) for vm in graph.vm_slots)


def pairs(found: list[Culprit]) -> list[tuple[str, str]]:
    return [(one.slot, one.vm) for one in found]


@given(SEEDS)
def test_remaining_clashes_are_resolved_by_a_minimum_set_and_the_first_of_those(seed: int) -> None:
    slots, known = clashing_state(seed, 9)
    alone = culprits._find_self_conflicting(slots, known)
    rest = remove_memberships(slots, pairs(alone))
    memberships = sorted((slot.name, vm) for slot in rest for vm in slot.members)
    best = next(
        chosen
        for size in range(len(memberships) + 1)
        for chosen in combinations(memberships, size)
        if all_hold(remove_memberships(rest, chosen), known)
    )
    assert sorted(pairs(find_culprits(slots, known))) == sorted([*pairs(alone), *best])


@given(SEEDS)
def test_nothing_clashes_after_the_culprits_left(seed: int) -> None:
    slots, known = clashing_state(seed, 40)
    found = find_culprits(slots, known)
    assert all_hold(remove_memberships(slots, pairs(found)), known)
    assert all(one.breach is not None for one in found)
    assert find_culprits(remove_memberships(slots, pairs(found)), known) == []


@given(SEEDS)
def test_large_components_are_resolved_without_anything_superfluous(seed: int) -> None:
    slots, known = clashing_state(seed, 60)
    rest = remove_memberships(slots, pairs(culprits._find_self_conflicting(slots, known)))
    for component in culprits._find_components(culprits._build_knots(rest, known)):
        members = {one for knot in component for source in knot.sources for one in source}
        leaving = culprits._find_small_set(component)
        inside = [
            SlotView(name=s.name, host=s.host, members={v: h for v, h in s.members.items() if (s.name, v) in members})
            for s in rest
        ]
        assert all_hold(remove_memberships(inside, leaving), known)
        for one in leaving:
            assert not all_hold(remove_memberships(inside, [other for other in leaving if other != one]), known)


@given(SEEDS)
def test_unknown_members_stay_and_everything_that_can_be_resolved_is(seed: int) -> None:
    slots, known = clashing_state(seed, 12)
    unknown = set(Random(seed).sample(sorted(known), len(known) // 2))
    some = {vm: host for vm, host in known.items() if vm not in unknown}
    found = find_culprits(slots, some)
    assert not {one.vm for one in found} & unknown
    rest = remove_memberships(slots, pairs(found))
    graph = DependencyGraph.build(rest, locations=some)
    for vm in graph.vm_slots:
        for breach in graph.breaches(vm):
            involved = {vm, *breach.others}
            assert involved & unknown, breach
    assert find_culprits(rest, some) == []


@given(SEEDS)
def test_meetings_tell_the_breaches_of_the_literal_rules(seed: int) -> None:
    slots, known = clashing_state(seed, 25)
    graph = DependencyGraph.build(slots, locations=known)
    literal = {breach for vm in graph.vm_slots for breach in graph.breaches(vm)}
    assert {
        breach
        for meeting in ConflictIndex.build(slots, locations=known).find_meetings()
        for breach in meeting.iter_breaches()
    } == literal


@given(st.lists(st.integers(1, 2**9 - 1), max_size=12))
def test_least_hitting_set_equals_brute_force(sets: list[int]) -> None:
    expected = next(
        chosen
        for size in range(10)
        for chosen in combinations(range(9), size)
        if all(any(one >> element & 1 for element in chosen) for one in sets)
    )
    assert least_hitting_set(sets, 9) == expected


def test_an_empty_set_cannot_be_hit() -> None:
    with pytest.raises(ValueError, match="empty"):
        least_hitting_set([0], 3)


def test_a_hub_leaves_instead_of_all_who_clash_with_it() -> None:
    slots = [
        SlotView(name=f"s{number}", host=f"x{number}", members={"hub": "h0", f"v{number}": f"h{number + 1}"})
        for number in range(3)
    ] + [SlotView(name="t", host="y", members={"v0": "h1", "v1": "h2"})]
    known = {"hub": "h0"} | {f"v{number}": f"h{number + 1}" for number in range(3)}
    assert pairs(find_culprits(slots, known)) == []
    slots[3] = SlotView(name="t", host="y", members={"hub": "h0", "v0": "h1", "v1": "h2", "v2": "h3"})
    assert pairs(find_culprits(slots, known)) == [("t", "hub")]

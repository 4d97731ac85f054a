"""The fair split: the same as the literal rounds, never more than there is, the same for any order of what is given."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlive.base import Random
from outlive.commitments import SplitGroup, SplitHost, SplitInput, slots_on
from outlive.commitments.split import split


def literal(given: SplitInput) -> dict[str, int]:
    """The rounds, word by word."""
    left = {host.name: [max(0, host.memory_bytes), max(0, host.cpu_milli)] for host in given.hosts}
    eligible = {
        group.name: {name for name in group.candidates if name in left and _fits(group, left[name])}
        for group in given.groups
    }
    taken = {group.name: 0 for group in given.groups}
    while True:
        nothing = True
        for group in sorted(
            given.groups, key=lambda one: (len(eligible[one.name]), -one.memory_bytes, -one.cpu_milli, one.name)
        ):
            if not eligible[group.name]:
                continue
            best = min(
                eligible[group.name],
                key=lambda name: (left[name][0] % group.memory_bytes, left[name][0], left[name][1], name),
            )
            left[best][0] -= group.memory_bytes
            left[best][1] -= group.cpu_milli
            taken[group.name] += 1
            nothing = False
            for other in given.groups:
                if not _fits(other, left[best]):
                    eligible[other.name].discard(best)
        if nothing:
            return taken


def _fits(group: SplitGroup, left: list[int]) -> bool:
    return left[0] >= group.memory_bytes > 0 and left[1] >= group.cpu_milli


@st.composite
def inputs(draw: st.DrawFn) -> SplitInput:
    names = [f"h{number}" for number in range(draw(st.integers(0, 6)))]
    hosts = tuple(
        SplitHost(name=name, memory_bytes=draw(st.integers(-3, 40)), cpu_milli=draw(st.integers(-2, 30)))
        for name in names
    )
    groups = tuple(
        SplitGroup(
            name=f"g{number}",
            memory_bytes=draw(st.integers(1, 9)),
            cpu_milli=draw(st.integers(0, 6)),
            candidates=tuple(draw(st.lists(st.sampled_from([*names, "gone"]), unique=True))),
        )
        for number in range(draw(st.integers(0, 5)))
    )
    return SplitInput(groups=groups, hosts=hosts)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(inputs())
def test_the_split_is_that_of_the_literal_rounds(given: SplitInput) -> None:
    assert {share.name: share.slots for share in split(given).shares} == literal(given)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(inputs(), st.integers(0, 10))
def test_shares_and_rest_are_what_the_candidates_have_whatever_the_order(given: SplitInput, seed: int) -> None:
    result = split(given)
    sizes = {group.name: group for group in given.groups}
    named = {name for group in given.groups for name in group.candidates}
    memory = sum(max(0, host.memory_bytes) for host in given.hosts if host.name in named)
    cpu = sum(max(0, host.cpu_milli) for host in given.hosts if host.name in named)
    assert sum(one.slots * sizes[one.name].memory_bytes for one in result.shares) == (
        memory - result.unassigned_memory_bytes
    )
    assert sum(one.slots * sizes[one.name].cpu_milli for one in result.shares) == cpu - result.unassigned_cpu_milli
    assert all(0 <= one.slots <= one.free_slots for one in result.shares)
    groups, hosts = list(given.groups), list(given.hosts)
    random = Random(seed)
    random.shuffle(groups)
    random.shuffle(hosts)
    assert split(SplitInput(groups=tuple(groups), hosts=tuple(hosts))) == result


def test_a_group_alone_on_its_hosts_has_all_that_fits() -> None:
    hosts = tuple(SplitHost(name=f"h{n}", memory_bytes=100, cpu_milli=9) for n in range(3))
    group = SplitGroup(name="g", memory_bytes=10, cpu_milli=1, candidates=("h0", "h1", "h2"))
    (share,) = split(SplitInput(groups=(group,), hosts=hosts)).shares
    assert (share.slots, share.free_slots) == (27, 27)


def test_a_flavor_without_cores_is_bound_by_memory_alone() -> None:
    assert slots_on(100, 0, 10, 0) == 10
    assert slots_on(100, 3, 10, 1) == 3
    assert slots_on(-5, 3, 10, 1) == 0
    assert slots_on(5, 3, 0, 1) == 0

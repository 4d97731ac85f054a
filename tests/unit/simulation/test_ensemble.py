"""Servers of an ensemble: who leads, and who reaches the store meanwhile."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import BadInput, LoopClock
from outlive.simulation import ELECTION_S, MOVE_S, NOTICE_S, Ensemble, Server, choose_leader, go

MACHINES = [f"kvm-{number}" for number in range(1, 10)]


def servers(states: list[tuple[bool, bool, bool, float]]) -> list[Server]:
    return [Server(n, up, paused, apart, lag) for n, (up, paused, apart, lag) in enumerate(states, 1)]


STATES = st.lists(
    st.tuples(st.booleans(), st.booleans(), st.booleans(), st.sampled_from((0.0, 1.0))), min_size=1, max_size=7
)


@given(STATES, st.integers(0, 7))
def test_a_leader_works_and_is_of_a_majority(states: list[tuple[bool, bool, bool, float]], present: int) -> None:
    all_servers = servers(states)
    working = [one.number for one in all_servers if one.works]
    leader = choose_leader(all_servers, present)
    assert (leader != 0) == (2 * len(working) > len(all_servers))
    assert leader == 0 or leader in working
    assert leader == present or present not in working or leader == 0


class Watched:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.changes = 0
        self.ensemble = Ensemble(3, self.clock, self._count, self._start)
        for machine in MACHINES:
            self.ensemble.is_serving(machine)

    def _count(self) -> None:
        self.changes += 1

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        go(work, name="settles")

    def served(self) -> set[str]:
        return {machine for machine in MACHINES if self.ensemble.is_serving(machine)}


async def test_nobody_is_served_until_another_one_leads_and_clients_of_the_dead_server_move() -> None:
    world = Watched()
    leader = world.ensemble.leader
    world.ensemble.change(leader, up=False)
    assert world.served() == set()
    await world.clock.sleep(ELECTION_S + 0.01)
    assert world.ensemble.leader not in (0, leader)
    assert 0 < len(world.served()) < len(MACHINES)
    await world.clock.sleep(MOVE_S)
    assert world.served() == set(MACHINES)


async def test_a_leader_that_stands_still_is_noticed_later() -> None:
    world = Watched()
    world.ensemble.change(world.ensemble.leader, paused=True)
    await world.clock.sleep(NOTICE_S + ELECTION_S - 0.01)
    assert world.served() == set()
    await world.clock.sleep(0.02 + MOVE_S)
    assert world.served() == set(MACHINES)


async def test_a_follower_that_dies_takes_only_its_own_clients_along() -> None:
    world = Watched()
    follower = 1 if world.ensemble.leader != 1 else 2
    others = {machine for machine in MACHINES if world.ensemble.server_of(machine).number != follower}
    assert others not in (set(), set(MACHINES))
    world.ensemble.change(follower, up=False)
    assert world.served() == others
    await world.clock.sleep(MOVE_S + 0.01)
    assert world.served() == set(MACHINES)


async def test_without_a_majority_nobody_is_served_until_there_is_one_again() -> None:
    world = Watched()
    world.ensemble.change(1, apart=True)
    world.ensemble.change(2, up=False)
    await world.clock.sleep(60.0)
    assert world.served() == set()
    assert not world.ensemble.undisturbed
    world.ensemble.heal()
    await world.clock.sleep(NOTICE_S + ELECTION_S + MOVE_S + 0.01)
    assert world.served() == set(MACHINES)
    assert world.ensemble.undisturbed


async def test_what_lags_is_shown_to_clients_of_that_server_alone() -> None:
    world = Watched()
    follower = 1 if world.ensemble.leader != 1 else 2
    world.ensemble.change(follower, lag_s=5.0)
    world.ensemble.change(world.ensemble.leader, lag_s=5.0)
    lag = {machine: world.ensemble.lag_s(machine) for machine in MACHINES}
    assert {machine for machine, by in lag.items() if by} == {
        machine for machine in MACHINES if world.ensemble.server_of(machine).number == follower
    }


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(BadInput, match="there is no server 4"):
        Ensemble(3, LoopClock(), lambda: None, lambda _: None).find_server(4)

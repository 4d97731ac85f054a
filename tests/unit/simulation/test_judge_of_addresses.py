"""Addresses of hosts' own networks: a rule of the product that is broken on purpose is found by the judge."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.loops import run

from outlive.base import BadInput
from outlive.node import Primary, RoleAddresses
from outlive.node.services import LeaseStore
from outlive.resources import VirtualNetwork
from outlive.simulation import World, read_scenario
from outlive.simulation.judges import ABSENT_S
from outlive.simulation.links import SimRoleGuard

CLUSTER = Path(__file__).parents[2] / "scenarios" / "floating-addresses-are-handed-over"
FLOATING = "10.0.0.100"


def told(story: Callable[[World], Awaitable[None]], *, seconds: float = 60.0) -> list[str]:
    """Play it on a cluster whose first primary has all addresses, and return what was violated."""

    async def play() -> list[str]:
        world = World(read_scenario(CLUSTER).spec, seed=1)
        await world.build()
        await world.start()
        await world.clock.sleep(20)
        await story(world)
        await world.clock.sleep(seconds)
        world.judge.judge_rest()
        await world.stop()
        return sorted({one.invariant for one in world.violations})

    return run(play())


def owners(world: World) -> tuple[str, ...]:
    assert world.addresses is not None
    found = world.addresses.find_presence(FLOATING)
    return found.hosts if found is not None else ()


async def quiet(_: World) -> None:
    pass


async def stall(world: World) -> None:
    """The daemon of the primary stands still for longer than it may have the role."""
    await world.do("maintenance", {"on": True})
    await world.do("pause-daemon", {"hosts": owners(world), "for": 40.0})


async def stand_still(world: World) -> None:
    """The same for so short a time that it has the role still."""
    await world.do("pause-daemon", {"hosts": owners(world), "for": 5.0})


async def hand_over(world: World) -> None:
    other = next(name for name in world.hosts if name not in owners(world))
    await world.do("primary", {"hosts": (other,)})


async def lose(world: World) -> None:
    await world.do("lose-addresses", {"hosts": owners(world)})


@pytest.mark.parametrize("story", [quiet, stall, stand_still, hand_over, lose])
def test_nothing_is_violated_where_no_rule_is_broken(story: Callable[[World], Awaitable[None]]) -> None:
    assert told(story) == []


async def nothing(*_: Any) -> None:
    """What a rule does that is broken."""


async def never(*_: Any) -> bool:
    return False


async def not_removed(*_: Any) -> bool:
    return True


BROKEN: dict[str, tuple[Callable[[World], Awaitable[None]], list[tuple[type, str, Any]]]] = {
    "candidate-does-not-add": (quiet, [(RoleAddresses, "_add_place", nothing)]),
    "leaver-does-not-remove": (
        hand_over,
        [(RoleAddresses, "remove", not_removed), (RoleAddresses, "remove_all", nothing)],
    ),
    "guard-does-not-remove": (stall, [(SimRoleGuard, "_remove_addresses", lambda *_: None)]),
    "addresses-do-not-come-back": (stand_still, [(Primary, "_allow_addresses", never)]),
    "leases-are-not-stored": (quiet, [(LeaseStore, "write", nothing)]),
    "lost-addresses-are-not-noticed": (lose, [(RoleAddresses, "restore", nothing)]),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_rule_is_found(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    story, edits = BROKEN[broken]
    for owner, name, other in edits:
        monkeypatch.setattr(owner, name, other)
    assert told(story) == ["lease" if "leases" in broken else "address"]


def test_an_address_of_a_network_that_is_gone_need_not_be_anywhere() -> None:
    async def story(world: World) -> None:
        network = world.store.find(VirtualNetwork, "blue")
        assert network is not None
        await world.store.delete(network.ref)
        await world.clock.sleep(10)
        assert world.addresses is not None
        gateway = world.addresses.find_presence("10.8.0.1")
        assert gateway is not None
        assert gateway.hosts == ()

    assert told(story, seconds=ABSENT_S + 10) == []


async def test_a_cluster_whose_hosts_make_no_networks_has_no_kernel_that_could_hang() -> None:
    spec = read_scenario(CLUSTER.parent / "primary-is-handed-over").spec
    world = World(spec, seed=1)
    with pytest.raises(BadInput, match="hosts make no networks of their own"):
        await world.do("hang-links", {"hosts": ("kvm-1",)})

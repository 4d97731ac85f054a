"""What happens to the servers of a ZooKeeper ensemble; ``server: 0`` is the one that leads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from outlive.base.errors import BadInput
from outlive.runtime.units import Duration
from outlive.simulation.ensemble import Ensemble
from outlive.simulation.verbs.table import after, verb

if TYPE_CHECKING:
    from outlive.simulation.world import World

Server = Annotated[int, Meta(ge=0)]


@verb("zookeeper-kill", "a server of ZooKeeper dies: {details}")
def _kill_server(world: World, server: Server, for_: Duration | None = None) -> None:
    """Without a time it stays down until the faults are over."""
    _change(world, server, for_, {"up": False}, {"up": True})


@verb("zookeeper-pause", "a server of ZooKeeper stands still{for}: {details}")
def _pause_server(world: World, server: Server, for_: Duration | None = None) -> None:
    _change(world, server, for_, {"paused": True}, {"paused": False})


@verb("zookeeper-cut", "a server of ZooKeeper is apart from the others{for}: {details}")
def _cut_server(world: World, server: Server, for_: Duration | None = None) -> None:
    _change(world, server, for_, {"apart": True}, {"apart": False})


@verb("zookeeper-lag", "a server of ZooKeeper shows changes late{for}: {details}")
def _delay_server(world: World, server: Server, by: Duration, for_: Duration | None = None) -> None:
    """Of the one that leads nothing is late."""
    _change(world, server, for_, {"lag_s": by}, {"lag_s": 0.0})


def _change(
    world: World, number: int, for_: Duration | None, states: dict[str, float | bool], back: dict[str, float | bool]
) -> None:
    ensemble = _ensemble(world)
    chosen = number or ensemble.leader or 1
    ensemble.change(chosen, **states)
    after(for_, lambda: ensemble.change(chosen, **back))


def _ensemble(world: World) -> Ensemble:
    if world.ensemble is None:
        raise BadInput("the cluster has no ensemble", remedy="write zookeeper: 3 into cluster.yaml")
    return world.ensemble

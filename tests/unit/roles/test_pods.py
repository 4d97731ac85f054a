"""The role with a cluster whose pods networks follow: in each zone mode, behind the right election."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.support.loops import run
from tests.support.northbound import WatchedNorthbound
from tests.support.pod_worlds import NODES, PodWorld, RecordedEvents, ServerVerbs

from outlive.base import Random
from outlive.failover import Inline
from outlive.network import NetworkSettings
from outlive.resources import Election
from outlive.roles import NetworkDatabases, PodCluster, Ports, RoleSettings, UpRole
from outlive.simulation.network import SimulatedSouthbound
from outlive.store import list_all


async def _write_nothing() -> None:
    await asyncio.Event().wait()


def _role(world: PodWorld, nb: WatchedNorthbound, settings: NetworkSettings) -> UpRole:
    south = SimulatedSouthbound(nb.ovn, world.clock, Random(4))
    cluster = PodCluster(world.server, ServerVerbs(world.server), RecordedEvents(), _write_nothing)  # type: ignore[arg-type]
    return UpRole(
        world.store,
        msgspec.structs.replace(RoleSettings(), network=settings),
        Ports(computer=Inline(), network=NetworkDatabases(nb, south), pods=cluster),
        identity="one",
        clock=world.clock,
        random=Random(5),
        ids=world.ids,
    )


@pytest.mark.parametrize("local", [(), (NODES[0],)])
def test_a_role_follows_pods(local: tuple[str, ...]) -> None:
    async def story() -> set[str]:
        world = PodWorld()
        nb = WatchedNorthbound(world.clock, Random(3))
        for name in NODES:
            nb.add_node(name)
        mode = {"zone_mode": "interconnect", "local_hypervisors": local} if local else {}
        role = _role(world, nb, msgspec.structs.replace(world.settings, **mode))
        await role.prepare()
        running = asyncio.create_task(role.run())
        await world.settle(30)
        world.run("cart-1", "cart", NODES[0])
        await world.settle(5)
        assert nb.port("shop_cart-1")
        assert role.explain_unready() == ""
        role.stop()
        await running
        return {one.name async for one in list_all(world.store, Election)}

    expected = {"failover", f"network-pods-{NODES[0]}"} if local else {"failover"}
    assert run(story()) == expected

"""Virtual clusters whose VMs have networks in OVN, for tests of what the network does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from outlive.network import PORTS, Columns, upsert
from outlive.resources import PortMode, Subnet
from outlive.runtime import run_virtual
from outlive.simulation import HostSpec, NetworkEntry, VmSpec, World, WorldSpec
from outlive.simulation.network import Fabric

T = TypeVar("T")
NETWORKS = {
    "routed": NetworkEntry(name="net", type="routed", subnets=(Subnet(cidr="10.44.0.0/16"), Subnet(cidr="fd44::/32"))),
    "layer2": NetworkEntry(
        name="net", type="layer2", subnets=(Subnet(cidr="192.168.40.0/24", gateway="192.168.40.1"),)
    ),
    "localnet": NetworkEntry(name="net", type="localnet", addressing="none"),
}
KINDS: tuple[tuple[str, PortMode | None], ...] = (
    ("routed", None),
    ("layer2", None),
    ("layer2", "twin"),
    ("localnet", None),
    ("localnet", "twin"),
)
"""Types of networks, and how the two hosts of a move share a port there."""
HOSTS = ("h1", "h2", "h3")


def network_world(kind: str = "layer2", mode: PortMode | None = None, *, controllers: int = 1, seed: int = 1) -> World:
    """Three hosts with a VM each, ``vm-1`` on ``h1``, all on one network."""
    spec = WorldSpec(
        hosts=tuple(HostSpec(name=host, mode="coordinator") for host in HOSTS),
        vms=tuple(
            VmSpec(name=f"vm-{number}", host=host, networks=("net",), port_mode=mode, migration_method="live")
            for number, host in enumerate(HOSTS, 1)
        ),
        networks=(NETWORKS[kind],),
        controllers=controllers,
        settings={"failover": {"flavorFailoverRequirements": {"*": 1}}},
    )
    return World(spec, seed=seed)


def play(story: Callable[[World], Awaitable[T]], make: Callable[[], World], *, starts_s: float = 15.0) -> T:
    """Start a world, let it settle, and tell the story."""

    async def run() -> T:
        world = make()
        await world.build()
        await world.start()
        await world.clock.sleep(starts_s)
        try:
            return await story(world)
        finally:
            await world.stop()

    return run_virtual(run(), limit_s=3600)


def fabric_of(world: World) -> Fabric:
    """Its OVN."""
    assert world.fabric is not None
    return world.fabric


def answers(world: World, vm: str = "vm-1") -> list[str]:
    """Hosts where it answers at its addresses."""
    return [host for host in world.running_hosts(vm) if world.truth.is_answering(host, vm)]


def port_row(world: World, name: str) -> Columns:
    """One logical port of the northbound database."""
    return next(row for row in fabric_of(world).ovn.rows[PORTS] if row["name"] == name)


def change_port(world: World, name: str, patch: Columns) -> None:
    """Write one as somebody else does; from now on northd and chassis do at once what is written."""
    fabric_of(world).ovn.defer = None
    fabric_of(world).ovn.commit([upsert(PORTS, {"name": name}, patch)], "somebody")


def broken(world: World) -> list[str]:
    """Invariants that did not hold."""
    return sorted({one.invariant for one in world.violations})

"""A server on a simulated OVN with two chassis, for tests of what the network controller does by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from outlive.base import LoopClock, Random, SeededIds
from outlive.failover import Inline
from outlive.network import PORTS, Columns, Op
from outlive.resources import (
    Assigned,
    Event,
    Fault,
    Hypervisor,
    HypervisorSpec,
    Migration,
    ObjectMeta,
    Resource,
    Subnet,
    VirtualMachine,
    VirtualMachinePort,
    VirtualMachinePortSpec,
    VirtualMachinePortStatus,
    VirtualMachineSpec,
    VirtualMachineStatus,
    VirtualNetwork,
    VirtualNetworkSpec,
    find_condition,
)
from outlive.roles import NetworkDatabases, Ports, RoleSettings, UpRole
from outlive.simulation.network import SimulatedNorthbound, SimulatedOvn, SimulatedSouthbound
from outlive.store import MemoryStore, list_all
from tests.support.loops import run
from tests.support.northbound import NEW

MAC = "02:00:00:00:00:01"
INTERFACE = "00000000-0000-4000-8000-000000000001"
NETWORKS = {
    "green": VirtualNetworkSpec(type="layer2", subnets=(Subnet(cidr="10.1.0.0/24"),)),
    "red": VirtualNetworkSpec(type="routed", subnets=(Subnet(cidr="10.44.0.0/16"),)),
    "rack": VirtualNetworkSpec(type="bridged", host_labels={"rack": "a"}),
}


def objects(network: str) -> list[Resource]:
    """Two hosts, all networks, and a VM with a port on one of them."""
    hosts = [
        Hypervisor(metadata=ObjectMeta(name=name, labels={"rack": rack}), spec=HypervisorSpec(management="node"))
        for name, rack in (("ch-1", "a"), ("ch-2", "b"))
    ]
    vm = VirtualMachine(
        metadata=ObjectMeta(name="web"),
        spec=VirtualMachineSpec(ports=(INTERFACE,)),
        status=VirtualMachineStatus(assigned=Assigned(hypervisor="ch-1")),
    )
    port = VirtualMachinePort(
        metadata=ObjectMeta(name="web.0"), spec=VirtualMachinePortSpec(vm="web", network=network, mac=MAC)
    )
    return [
        *hosts,
        *(VirtualNetwork(metadata=ObjectMeta(name=name), spec=spec) for name, spec in NETWORKS.items()),
        vm,
        port,
    ]


def guest(
    name: str,
    network: str,
    number: int,
    *,
    host: str = "ch-1",
    interface: str = "",
    hour: int = 0,
    addresses: tuple[str, ...] = (),
    granted: tuple[str, ...] = (),
) -> list[Resource]:
    """A VM with a port on a network, of a MAC and an id of their own; ``hour``: when both were created.

    ``addresses``: that its user gives it; ``granted``: that it has already.
    """
    created = datetime(2026, 1, 1, hour, tzinfo=UTC)
    vm = VirtualMachine(
        metadata=ObjectMeta(name=name, creation_timestamp=created),
        spec=VirtualMachineSpec(ports=(interface or f"00000000-0000-4000-8000-{number:012x}",)),
        status=VirtualMachineStatus(assigned=Assigned(hypervisor=host) if host else None),
    )
    port = VirtualMachinePort(
        metadata=ObjectMeta(name=f"{name}.0", creation_timestamp=created),
        spec=VirtualMachinePortSpec(vm=name, network=network, mac=f"02:00:00:00:01:{number:02x}", addresses=addresses),
        status=VirtualMachinePortStatus(addresses=granted),
    )
    return [vm, port]


@dataclass
class Cloud:
    """One server on a simulated OVN with two chassis."""

    store: MemoryStore
    ovn: SimulatedOvn
    role: UpRole
    databases: NetworkDatabases

    async def port(self) -> VirtualMachinePort:
        return await self.port_of("web")

    async def vm(self) -> VirtualMachine:
        return await self.store.get(VirtualMachine, "web")

    async def set_vm(self, **status: Any) -> None:
        now = await self.vm()
        await self.store.replace_status(
            msgspec.structs.replace(now, status=msgspec.structs.replace(now.status, **status))
        )

    async def port_of(self, vm: str) -> VirtualMachinePort:
        """Its first port."""
        return await self.store.get(VirtualMachinePort, f"{vm}.0")

    async def programmed(self, vm: str) -> str:
        """Why its first port is not in OVN; empty: it is."""
        found = find_condition((await self.port_of(vm)).status.conditions, "Programmed")
        return "nobody has looked at it" if found is None else found.reason if found.status != "True" else ""

    def row(self, name: str) -> Columns | None:
        """The logical port of that name."""
        return next((row for row in self.ovn.rows.get(PORTS, ()) if row["name"] == name), None)

    async def plug(self, host: str) -> None:
        self.ovn.plug((await self.port()).status.interfaces[host], host)

    async def move(self, *, announces: bool = False) -> None:
        """From the first host to the second one, live."""
        await self.plug("ch-1")
        await self.set_vm(migration=Migration(id="m1", source="ch-1", target="ch-2"))
        await asyncio.sleep(1)
        await self.plug("ch-2")
        await asyncio.sleep(5)
        if announces:
            self.ovn.announce(INTERFACE, "ch-2")
            await asyncio.sleep(1)
        await self.set_vm(migration=None, assigned=Assigned(hypervisor="ch-2"))
        await asyncio.sleep(5)

    async def check(self, name: str = "") -> list[tuple[str, str]]:
        found = await self.role.check_network({"name": name})
        return [(one["code"], one["about"]) for one in found["findings"]]

    async def faults(self) -> set[str]:
        return {one.name async for one in list_all(self.store, Fault) if not one.ended}

    async def events(self) -> set[str]:
        return {one.reason async for one in list_all(self.store, Event)}


def in_cloud(
    network: str,
    story: Callable[[Cloud], Awaitable[None]],
    *,
    on_ovn: bool = True,
    beside: Iterable[Resource] = (),
    rows: Iterable[Op] = (),
    version: str = NEW,
) -> None:
    """Tell a story of a cloud that has run for a while; ``beside``: what else is there, instead of what has that name.

    ``rows``: what OVN has at first, ``version``: its own.
    """

    async def scene() -> None:
        clock, random = LoopClock(), Random(1)
        ids = SeededIds(random)
        store, ovn = MemoryStore(clock, ids), SimulatedOvn("ch-1", "ch-2", version=version)
        there = {(one.kind(), one.name): one for one in (*objects(network), *beside)}
        store.load(there.values())
        ovn.commit(list(rows), "somebody")
        databases = NetworkDatabases(
            SimulatedNorthbound(ovn, clock, random.fork("nb")), SimulatedSouthbound(ovn, clock, random.fork("sb"))
        )
        ports = Ports(computer=Inline(), network=databases if on_ovn else None)
        role = UpRole(store, RoleSettings(), ports, identity="a", clock=clock, random=random, ids=ids)
        await role.prepare()
        task = asyncio.create_task(role.run())
        await asyncio.sleep(5)
        try:
            await story(Cloud(store, ovn, role, databases))
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(scene())

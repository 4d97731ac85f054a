"""A network controller over a store in memory and a simulated OVN, for tests of what it does with rows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from outlive.base import LoopClock, Random, SeededIds
from outlive.network import PORTS, Columns, upsert
from outlive.resources import (
    Assigned,
    Hypervisor,
    HypervisorSpec,
    ObjectMeta,
    ObjectRef,
    Subnet,
    VirtualMachine,
    VirtualMachinePort,
    VirtualMachinePortSpec,
    VirtualMachineSpec,
    VirtualMachineStatus,
    VirtualNetwork,
    VirtualNetworkSpec,
    find_condition,
)
from outlive.roles import NetworkDatabases
from outlive.runtime import run_virtual
from outlive.simulation.network import LoneNetworkController, SimulatedNorthbound, SimulatedOvn, SimulatedSouthbound
from outlive.store import Half, MemoryStore, compare_and_swap

SETTLE_S = 10.0
"""After so long the controller has done what a change asks for."""
MAC = "0a:58:c0:a8:28:09"


def interface(number: int = 1) -> str:
    """The id of an interface in a VM's definition."""
    return f"b3a4f0d0-0000-4000-8000-{number:012d}"


def host(name: str, *, labels: dict[str, str] | None = None, chassis: str = "") -> Hypervisor:
    return Hypervisor(
        metadata=ObjectMeta(name=name, labels=labels or {}), spec=HypervisorSpec(management="node", chassis=chassis)
    )


def network(name: str = "green", type: Any = "layer2", cidr: str = "192.168.40.0/24", **spec: Any) -> VirtualNetwork:
    return VirtualNetwork(
        metadata=ObjectMeta(name=name), spec=VirtualNetworkSpec(type=type, subnets=(Subnet(cidr=cidr),), **spec)
    )


def vm(
    name: str = "web", on: str = "kvm-1", *, ports: tuple[str, ...] = (interface(),), **status: Any
) -> VirtualMachine:
    assigned = Assigned(hypervisor=on) if on else None
    return VirtualMachine(
        metadata=ObjectMeta(name=name),
        spec=VirtualMachineSpec(ports=ports),
        status=VirtualMachineStatus(assigned=assigned, **status),
    )


def port(name: str = "web.0", network: str = "green", mac: str = MAC, **spec: Any) -> VirtualMachinePort:
    return VirtualMachinePort(
        metadata=ObjectMeta(name=name),
        spec=VirtualMachinePortSpec(vm=name.rpartition(".")[0], network=network, mac=mac, **spec),
    )


def _with_status(status: Any, now: Any) -> Any:
    return msgspec.structs.replace(now, status=status)


class Controlled:
    """A controller that runs; its store and its OVN may be changed at any time."""

    def __init__(self, *chassis: str) -> None:
        self.clock = LoopClock()
        self.store = MemoryStore(self.clock, SeededIds(Random(1)))
        self.ovn = SimulatedOvn(*(chassis or ("kvm-1", "kvm-2", "kvm-3")))
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """The controller begins; what there is is done afterwards."""
        databases = NetworkDatabases(
            SimulatedNorthbound(self.ovn, self.clock, Random(2)), SimulatedSouthbound(self.ovn, self.clock, Random(3))
        )
        controller = LoneNetworkController(self.store, databases, clock=self.clock, random=Random(4))
        self._running = asyncio.ensure_future(controller.run())
        await self.settle()

    async def stop(self) -> None:
        """The controller ends."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait((self._running,))

    async def settle(self) -> None:
        """Until it has done what there is to do."""
        await self.clock.sleep(SETTLE_S)

    async def create(self, *objects: Any) -> None:
        """Some seconds apart, so that one is older than the next."""
        for one in objects:
            await self.store.create(one)
            if hasattr(one, "status"):
                await self._write(type(one), one.name, partial(_with_status, one.status))
            await self.clock.sleep(1.0)

    async def change(self, kind: Any, name: str, **changes: Any) -> None:
        """Change ``status``, or else ``spec`` and ``metadata``, of an object, and let that be done."""

        def write(now: Any) -> Any:
            parts = {part: msgspec.structs.replace(getattr(now, part), **fields) for part, fields in changes.items()}
            return msgspec.structs.replace(now, **parts)

        await self._write(kind, name, write, "status" if "status" in changes else "spec")
        await self.settle()

    async def change_at_once(self, *changes: tuple[Any, str, dict[str, Any]]) -> None:
        """Change statuses of several objects as a restore does: without anything that happens in between."""
        for kind, name, fields in changes:
            found = await self.store.get(kind, name)
            await self.store.replace_status(_with_status(msgspec.structs.replace(found.status, **fields), found))
        await self.settle()

    async def _write(self, kind: Any, name: str, change: Callable[[Any], Any], half: Half = "status") -> None:
        await compare_and_swap(self.store, kind, name, change, clock=self.clock, half=half)

    async def delete(self, kind: Any, name: str) -> None:
        """Delete an object, and let that be done."""
        await self.store.delete(ObjectRef(kind=kind.__name__, name=name))
        await self.settle()

    def write(self, table: str, row: Columns) -> None:
        """Somebody else writes a row of OVN."""
        self.ovn.commit([upsert(table, {"name": row["name"]}, row)], "somebody")

    def rows(self, table: str = PORTS) -> dict[str, Columns]:
        """Rows by name."""
        return {row["name"]: row for row in self.ovn.rows.get(table, ())}

    async def problem_of(self, kind: Any, name: str) -> str:
        """Why it is not programmed: a code; empty: it is."""
        found = find_condition((await self.store.get(kind, name)).status.conditions, "Programmed")
        return found.reason if found is not None and found.status == "False" else ""


def control(story: Callable[[Controlled], Awaitable[None]], *objects: Any, starts: bool = True) -> None:
    """Tell the story with these objects in the store."""

    async def run() -> None:
        controlled = Controlled()
        await controlled.create(*objects)
        if starts:
            await controlled.start()
        try:
            await story(controlled)
        finally:
            await controlled.stop()

    run_virtual(run(), limit_s=36_000)

"""All of failover on a memory store at 100,000 VMs: how long it holds the event loop, and how soon it reacts.

Placement is the engine in process; decisions that are large run in the child process, and the garbage collector is set
as ``outlive up`` sets it. Each part runs in a process of its own, because that setting is for good.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from bench.failover_cloud import ZONE, Cloud, hypervisor
from bench.failover_events import reservation
from bench.figures import Figure
from outlive.base import Random, SeededIds, SystemClock, freeze_objects, limit_collections
from outlive.drivers import ChildComputer
from outlive.failover import HOST_INDEX, Failover, FailoverConfig, FailoverUpkeepSettings, InProcessPlacement
from outlive.failover.reconciler import Informers
from outlive.placement import blocked_hosts
from outlive.resources import (
    Amounts,
    Assigned,
    FlavorGroup,
    Hypervisor,
    Instance,
    ObjectMeta,
    ObjectRef,
    Reservation,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)
from outlive.runtime import DecisionLog, Informer, Metrics, OrderedTaskGroup
from outlive.store import MemoryStore

VMS, HOSTS = 100_000, 5_000
MOVES = 20
_replace = msgspec.structs.replace


class NoEvents:
    """Nobody listens."""

    def emit(self, regarding: ObjectRef, reason: str, note: str, *, type: str = "Normal", action: str = "") -> None:
        """Nothing."""


class Heartbeat:
    """How long the event loop was not free, at most, since the last look."""

    def __init__(self) -> None:
        self._longest = 0.0

    async def run(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0)
            self._longest = max(self._longest, time.perf_counter() - before)

    def longest_ms(self) -> float:
        longest, self._longest = self._longest, 0.0
        return longest * 1000


class World:
    """A planned fleet in a memory store, and failover on it."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.store = MemoryStore(self.clock, SeededIds(Random(3)))
        self.cloud = Cloud(VMS, HOSTS, 2, (1, 2, 4, 8), even=False)
        how: dict[str, Any] = {"clock": self.clock, "random": Random(1)}
        self.informers = Informers(
            hypervisors=Informer(self.store, Hypervisor, **how),
            reservations=Informer(self.store, Reservation, indexes={HOST_INDEX: blocked_hosts}, **how),
            groups=Informer(self.store, FlavorGroup, **how),
            vms=Informer(self.store, VirtualMachine, **how),
        )
        self.computer = ChildComputer()
        fleet = self.cloud.fleet
        self.failover = Failover(
            self.store,
            informers=self.informers,
            fleet=fleet,
            placement=InProcessPlacement(self.cloud, fleet),
            computer=self.computer,
            config=msgspec.convert({"maxVMsToProcess": -1}, FailoverConfig),
            settings=FailoverUpkeepSettings(),
            metrics=Metrics(),
            events=NoEvents(),
            decisions=DecisionLog(self.clock),
            clock=self.clock,
            random=Random(4),
            ids=SeededIds(Random(5)),
        )
        self.informers.reservations.subscribe(
            lambda old, new: fleet.upsert_reservation(new) if new else fleet.remove_reservation(old.name if old else "")
        )
        self.informers.hypervisors.subscribe(
            lambda old, new: fleet.upsert_host(new) if new else fleet.remove_host(old.name if old else "")
        )

    async def fill(self) -> None:
        """Hosts, VMs and the slots of a plan."""
        plan = await asyncio.to_thread(self.cloud.plan)
        active: dict[str, list[Instance]] = {}
        used: dict[str, int] = {}
        for vm in self.cloud.vms:
            active.setdefault(vm.host, []).append(Instance(id=vm.id, name=vm.id))
            used[vm.host] = used.get(vm.host, 0) + vm.cpu_milli
        for name in self.cloud.names:
            host = hypervisor(name, used.get(name, 0))
            made = await self.store.create(host)
            status = _replace(host.status, instances=tuple(active.get(name, ())))
            await self.store.replace_status(_replace(made, status=status))
        for vm in self.cloud.vms:
            size = Amounts(cpu=vm.cpu_milli, memory=vm.memory_bytes)
            spec = VirtualMachineSpec(flavor=vm.flavor, zone=ZONE, resources=size)
            made_vm = await self.store.create(VirtualMachine(metadata=ObjectMeta(name=vm.id), spec=spec))
            placed = VirtualMachineStatus(phase="ACTIVE", assigned=Assigned(hypervisor=vm.host))
            await self.store.replace_status(_replace(made_vm, status=placed))
        for slot in plan.slots:
            wanted = reservation(slot)
            made_slot = await self.store.create(wanted)
            await self.store.replace_status(_replace(made_slot, status=wanted.status))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Heartbeat]:
        """With informers, events and a heartbeat; ticks are run by hand."""
        heart, informers = Heartbeat(), self.informers
        async with OrderedTaskGroup() as group:
            tasks = [
                group.create_task(one.run(), name=one.name)
                for one in (informers.hypervisors, informers.reservations, informers.groups, informers.vms)
            ]
            for informer in (informers.hypervisors, informers.reservations, informers.groups, informers.vms):
                await informer.wait_synced()
            freeze_objects()
            tasks.append(group.create_task(heart.run(), name="heart"))
            tasks.append(group.create_task(self.failover.reconciler.run_events(), name="events"))
            yield heart
            for task in tasks:
                task.cancel()
        await self.computer.close()

    async def move(self, number: int) -> float:
        """Move one VM as a mirror would tell it; seconds until it has left its slots and has others."""
        name, state = self.cloud.vms[number].id, self.failover.cache
        target = self.cloud.names[(number * 7 + 1) % HOSTS]
        vm = await self.store.get(VirtualMachine, name)
        assert vm.status.assigned is not None
        await self._instances(vm.status.assigned.hypervisor, name, here=False)
        await self.store.replace_status(_replace(vm, status=_replace(vm.status, assigned=Assigned(hypervisor=target))))
        begun = time.perf_counter()
        await self._instances(target, name, here=True)
        while True:
            await asyncio.sleep(0.001)
            view = state.vms.get(name)
            if (
                view is not None
                and view.host == target
                and not state.departs(name)
                and not state.index.count_missing(name)
            ):
                return time.perf_counter() - begun

    async def _instances(self, host: str, name: str, *, here: bool) -> None:
        found = await self.store.get(Hypervisor, host)
        others = tuple(one for one in found.status.instances if one.id != name)
        more = (Instance(id=name, name=name),) if here else ()
        await self.store.replace_status(_replace(found, status=_replace(found.status, instances=(*others, *more))))


async def _measure() -> dict[str, float]:
    limit_collections()
    world = World()
    await world.fill()
    async with world.running() as heart:
        await world.failover.cache.follow()
        found = {"follow": heart.longest_ms()}
        await world.failover.reconciler.tick()
        heart.longest_ms()
        begun = time.process_time()
        await world.failover.reconciler.tick()
        found["cpu"] = time.process_time() - begun
        found["steady"] = heart.longest_ms()
        found["idle"] = statistics.median([await world.move(number) for number in range(1, MOVES)]) * 1000
        found["moves"] = heart.longest_ms()
        cycle = asyncio.create_task(world.failover.reconciler.tick())
        await asyncio.sleep(0)
        found["during"] = await world.move(MOVES) * 1000
        assert not cycle.done()
        await cycle
    return found


def live_child() -> None:
    """Measure and print."""
    print(json.dumps(asyncio.run(_measure())))


def live() -> list[Figure]:
    """Turns of the event loop and reactions."""
    child = subprocess.run(
        [sys.executable, "-c", "from bench.failover_live import live_child; live_child()"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=900,
    )
    found = json.loads(child.stdout.splitlines()[-1])
    return [
        Figure(
            "longest turn of the event loop in a steady cycle, 100,000 VMs",
            found["steady"],
            "ms",
            50.0,
            note=f"{found['cpu']:.1f} s of computing in all",
        ),
        Figure("the same while the cache is built", found["follow"], "ms", 50.0),
        Figure("the same while VMs move", found["moves"], "ms", 50.0),
        Figure(
            "a VM moves, 100,000 VMs, memory store: whole reaction",
            found["idle"],
            "ms",
            1000.0,
            note="50 ms of it gather changes",
        ),
        Figure("the same while a cycle runs", found["during"], "ms", 1000.0),
    ]

"""The small cloud of ``tests.support.failover`` with everything running: informers, cycle, upkeep, validation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from outlive.failover.assembly import HOST_INDEX, Failover, Informers, hosts_of
from outlive.failover.ports import Inline, VMSource
from outlive.resources import FlavorGroup, Hypervisor, Reservation, VirtualMachine
from outlive.runtime.informer import Informer
from outlive.runtime.manager import Manager
from outlive.runtime.tasks import OrderedTaskGroup
from tests.support.failover import Cloud


class LiveCloud(Cloud):
    """A cloud whose failover runs by itself. Cycles are far apart, so that what happens between them is seen."""

    def __init__(self, config: Any = None, settings: Any = None, *, source: VMSource | None = None) -> None:
        far = {"reconcileInterval": "1h", "shortReconcileInterval": "1s", "flavorFailoverRequirements": {"*": 1}}
        super().__init__({**far, **(config or {})}, settings or {}, source=source)
        how = {"clock": self.clock, "random": self.random.fork("informers")}
        self.informers = Informers(
            hypervisors=Informer(self.own, Hypervisor, **how),
            reservations=Informer(self.own, Reservation, indexes={HOST_INDEX: hosts_of}, **how),
            groups=Informer(self.own, FlavorGroup, **how),
            vms=Informer(self.own, VirtualMachine, **how),
        )
        self.failover_run = Failover(
            self.own,
            informers=self.informers,
            fleet=self.fleet,
            placement=self.parts.placement,
            computer=Inline(),
            config=self.failover,
            settings=self.upkeep_settings,
            metrics=self.metrics,
            events=self.events,
            decisions=self.decisions,
            clock=self.clock,
            random=self.random.fork("failover"),
            ids=self.ids,
            source=source,
        )
        self.manager = Manager(clock=self.clock, random=self.random.fork("manager"), metrics=self.metrics, ids=self.ids)
        self.failover_run.attach(self.manager)
        self.informers.hypervisors.subscribe(self._host_changed)
        self.informers.reservations.subscribe(self._slot_changed)

    def _host_changed(self, old: Hypervisor | None, new: Hypervisor | None) -> None:
        if new is not None:
            self.fleet.upsert_host(new)
        elif old is not None:
            self.fleet.remove_host(old.name)

    def _slot_changed(self, old: Reservation | None, new: Reservation | None) -> None:
        if new is not None:
            self.fleet.upsert_reservation(new)
        elif old is not None:
            self.fleet.remove_reservation(old.name)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with OrderedTaskGroup() as group:
            task = group.create_task(self.manager.run(), name="manager")
            yield
            task.cancel()

    async def settle(self, seconds: float = 1.0) -> None:
        """Let a second pass: what is to be reacted to at once has been."""
        await self.clock.sleep(seconds)

    async def within_a_second(self, holds: Callable[[], Awaitable[bool]]) -> bool:
        """Whether it comes true within a second."""
        for _ in range(20):
            if await holds():
                return True
            await self.clock.sleep(0.05)
        return await holds()


async def started(cloud: LiveCloud, hosts: int = 6) -> None:
    """Hosts are there and the first cycle, which finds nothing to do, is over."""
    await cloud.hosts(*(f"h{n + 1}" for n in range(hosts)))
    await cloud.settle(5)
    assert cloud.metric("failover_reconciliation_runs_total") == 1


@asynccontextmanager
async def live(config: Any = None, settings: Any = None, *, source: VMSource | None = None) -> AsyncIterator[LiveCloud]:
    """Six hosts and everything running; the first cycle is over."""
    cloud = LiveCloud(config, settings, source=source)
    async with cloud.running():
        await started(cloud)
        yield cloud

"""The small cloud of ``tests.support.failover`` with everything running: informers, cycle, upkeep, validation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from outlive.placement import VMSource
from outlive.runtime import Manager, OrderedTaskGroup
from tests.support.failover import Cloud


class LiveCloud(Cloud):
    """A cloud whose failover runs by itself. Cycles are far apart, so that what happens between them is seen."""

    def __init__(self, config: Any = None, settings: Any = None, *, source: VMSource | None = None) -> None:
        far = {"reconcileInterval": "1h", "shortReconcileInterval": "1s", "flavorFailoverRequirements": {"*": 1}}
        super().__init__({**far, **(config or {})}, settings or {}, source=source)
        self.manager = Manager(clock=self.clock, random=self.random.fork("manager"), metrics=self.metrics, ids=self.ids)
        self.failover_run.attach(self.manager)

    async def follow(self) -> None:
        """The manager has the caches follow."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with OrderedTaskGroup() as group:
            task = group.create_task(self.manager.run(), name="manager")
            yield
            task.cancel()

    async def settle(self, seconds: float = 1.0) -> None:
        """Let a second pass: what is to be reacted to at once has been."""
        await self.clock.sleep(seconds)


async def started(cloud: LiveCloud, hosts: int = 6) -> None:
    """Hosts are there and the first cycle, which finds nothing to do, is over."""
    await cloud.hosts(*(f"h{n + 1}" for n in range(hosts)))
    await cloud.settle(5)
    assert cloud.metric("failover_reconciliation_runs_total") == 1


@asynccontextmanager
async def live(
    config: Any = None, settings: Any = None, *, source: VMSource | None = None, vms: Mapping[str, str] | None = None
) -> AsyncIterator[LiveCloud]:
    """Six hosts with these VMs and everything running; the first cycle is over, and upkeep has answered the VMs."""
    cloud = LiveCloud(config, settings, source=source)
    async with cloud.running():
        await started(cloud)
        for name, host in (vms or {}).items():
            await cloud.vm(name, host)
        if vms:
            await cloud.settle()
        yield cloud

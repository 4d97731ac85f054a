"""Hosts in namespaces on one switch, each with the reconciler of its links, and one store for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

from outlive.base.clock import SystemClock
from outlive.base.errors import Unavailable
from outlive.base.random import Random
from outlive.drivers.links import KernelLinks
from outlive.drivers.links.netlink import Netlink
from outlive.node.links import LinkMemoryKeeper, LinkReconciler, LinkSettings
from outlive.node.ports import LinkNotes, LinkOp
from outlive.resources import R, VirtualNetwork
from outlive.runtime.decisions import DecisionLog
from outlive.runtime.faults import FaultRecorder, FaultSet
from outlive.runtime.informer import Informer
from outlive.store import Change, Selector, Store
from outlive.store.proxy import StoreProxy
from tests.support.link_namespaces import cable, inside, namespaces

T = TypeVar("T")


class Notes(LinkNotes):
    """Kept in the test."""

    def __init__(self) -> None:
        self.raw: bytes | None = None

    async def load(self) -> bytes | None:
        return self.raw

    async def save(self, notes: bytes) -> None:
        self.raw = notes


class ReachableStore(StoreProxy):
    """A store that answers as long as a host reaches an address."""

    def __init__(self, inner: Store, space: str, address: str) -> None:
        self._inner = inner
        self._ping = ["ip", "netns", "exec", space, "ping", "-c1", "-W1", "-q", address]

    async def _read(self, call: Callable[[Store], Awaitable[T]]) -> T:
        done = await asyncio.to_thread(subprocess.run, self._ping, check=False, capture_output=True, timeout=5)
        if done.returncode:
            raise Unavailable("the store is not reached")
        return await call(self._inner)

    async def _write(self, call: Callable[[Store], Awaitable[T]]) -> T:
        return await call(self._inner)

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> AsyncIterator[Change[R]]:
        return self._inner.observe(kind, selector=selector)

    async def close(self) -> None:
        await self._inner.close()


@contextlib.contextmanager
def switched(*hosts: str) -> Iterator[str]:
    """Namespaces of hosts, each with ``eth0`` on one switch; the namespace of the switch."""
    switch = f"{hosts[0]}-sw"
    with namespaces(switch, *hosts):
        inside(switch, "ip", "link", "add", "sw0", "type", "bridge", "forward_delay", "0")
        inside(switch, "ip", "link", "set", "sw0", "up")
        for number, host in enumerate(hosts):
            cable(host, "eth0", switch, f"p{number}")
            inside(switch, "ip", "link", "set", f"p{number}", "master", "sw0")
        yield switch


class OwnLinks:
    """The reconciler of one host, in its namespace."""

    def __init__(self, space: str, host: str, store: Store, settings: LinkSettings, notes: Notes | None = None) -> None:
        clock = SystemClock()
        self.port = CountedLinks(clock, Netlink(f"/run/netns/{space}"))
        self.notes = notes if notes is not None else Notes()
        self.networks = Informer(store, VirtualNetwork, clock=clock, random=Random(1))
        self.faults = FaultSet(FaultRecorder(store, clock, "daemon", host), clock)
        self.links = LinkReconciler(
            store,
            self.port,
            LinkMemoryKeeper(self.notes),
            settings,
            self.networks,
            host=host,
            labels=dict,
            guard_timeout_s=lambda: 25.0,
            cluster_address="",
            faults=self.faults,
            decisions=DecisionLog(clock),
            clock=clock,
        )

    async def start(self) -> None:
        """As a new process begins."""
        await self.links.start()

    async def settle(self) -> int:
        """Looks until nothing is changed any more; how many that took."""
        for number in range(1, 9):
            ops = self.port.changes
            await self.links.check_links()
            if self.port.changes == ops:
                return number
        raise AssertionError(f"the links do not settle: {self.problem()}")

    def problem(self) -> str:
        """The faults of this host."""
        return "; ".join(str(one.fields.get("why", "")) for one in self.faults.active)


class CountedLinks(KernelLinks):
    """Counts the changes that it makes."""

    changes = 0

    async def carry_out(self, op: LinkOp) -> None:
        self.changes += 1
        await super().carry_out(op)


@contextlib.asynccontextmanager
async def following(*hosts: OwnLinks) -> AsyncIterator[None]:
    """With their caches of networks running; at the end their sockets are closed."""
    tasks = [asyncio.ensure_future(one.networks.run()) for one in hosts]
    try:
        for one in hosts:
            await one.networks.wait_synced()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        for one in hosts:
            await one.port.close()

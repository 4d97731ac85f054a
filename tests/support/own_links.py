"""Hosts in namespaces on one switch, each with the reconciler of its links, and one store for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

import msgspec

from outlive.base import Random, SystemClock, SystemIds, Unavailable
from outlive.drivers.links import KernelLinks, Netlink
from outlive.node.links import LinkMemoryKeeper, LinkReconciler, LinkSettings
from outlive.node.ports import LinkNotes, LinkOp
from outlive.resources import Cluster, R, VirtualNetwork, convert
from outlive.runtime import DecisionLog, Duration, FaultRecorder, FaultSet, Informer
from outlive.store import Change, MemoryStore, Selector, Store, StoreProxy
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


CLUSTER_NET = {"cidr": "10.91.0.0/24", "floating": "10.91.0.250"}


def settings(**more: Any) -> LinkSettings:
    limit = Duration(more.pop("confirmTimeout", 10.0))
    found = convert(LinkSettings, {"systemNetworks": {"cluster": {"device": "eth0"}}, **more})
    return msgspec.structs.replace(found, confirm_timeout=limit)


def cluster(**networks: Any) -> Cluster:
    return convert(Cluster, {"metadata": {"name": "default"}, "spec": {"systemNetworks": networks}})


def network(name: str, **spec: Any) -> VirtualNetwork:
    return convert(VirtualNetwork, {"metadata": {"name": name}, "spec": spec})


async def new_store(**networks: Any) -> MemoryStore:
    store = MemoryStore(SystemClock(), SystemIds())
    await store.create(cluster(**networks))
    return store


async def set_networks(store: Store, **networks: Any) -> None:
    found = await store.get(Cluster, "default")
    await store.replace(convert(Cluster, {"metadata": found.metadata, "spec": cluster(**networks).spec}))


def shown(space: str, device: str) -> Any:
    (found,) = json.loads(inside(space, "ip", "-j", "-d", "addr", "show", "dev", device))
    return found


def addresses(space: str, device: str) -> list[str]:
    return [f"{one['local']}/{one['prefixlen']}" for one in shown(space, device)["addr_info"] if one["scope"] != "link"]


def devices(space: str) -> set[str]:
    return {one["ifname"] for one in json.loads(inside(space, "ip", "-j", "link"))} - {"lo"}


def pings(space: str, address: str) -> bool:
    command = ["ip", "netns", "exec", space, "ping", "-c3", "-i0.2", "-W2", "-q", address]
    return subprocess.run(command, check=False, capture_output=True, timeout=20).returncode == 0


def guest(space: str, bridge: str, name: str, address: str) -> None:
    """A namespace at a port of a host's bridge, in place of a VM."""
    cable(name, "ens3", space, f"tap{name[-1]}")
    inside(space, "ip", "link", "set", f"tap{name[-1]}", "master", bridge)
    inside(name, "ip", "link", "set", "ens3", "mtu", "1450")
    inside(name, "ip", "addr", "add", address, "dev", "ens3")

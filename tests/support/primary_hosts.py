"""Coordinators as network namespaces: real addresses, announcements, guards and services, over one store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path

from outlive.base import Random, SeededIds, SystemClock
from outlive.drivers.links import KernelLinks, Netlink
from outlive.drivers.services import ARGV, MetadataServer, RoleGuard, service_ports
from outlive.node import ROLE, Primary, PrimaryElector, RoleAddresses
from outlive.node.ports import AnswerCaller, ServicePorts
from outlive.node.services import NameSettings, NetworkServices
from outlive.node.services.role_places import role_places
from outlive.resources import (
    Cluster,
    ClusterSpec,
    Election,
    ElectionRecord,
    ObjectMeta,
    PrimaryRequest,
    SystemNetwork,
    SystemNetworkName,
    VirtualNetwork,
)
from outlive.runtime import FaultRecorder, FaultSet, Informer
from outlive.store import MemoryStore
from tests.support.network_hosts import NetworkHosts

FLOATING = "192.0.2.10"
SYSTEM: dict[SystemNetworkName, SystemNetwork] = {"upstream": SystemNetwork(cidr="192.0.2.0/24", floating=FLOATING)}


class TimedLinks(KernelLinks):
    """Notes since when a host has an address, and until when."""

    def __init__(self, clock: SystemClock, namespace: str, times: list[tuple[float, str, str, str]], host: str) -> None:
        super().__init__(clock, Netlink(namespace))
        self._times, self._host = times, host

    async def add_address(self, device: str, address: str) -> None:
        self._times.append((self._clock.monotonic(), self._host, "add", address))
        await super().add_address(device, address)

    async def remove_address(self, device: str, address: str) -> None:
        await super().remove_address(device, address)
        self._times.append((self._clock.monotonic(), self._host, "remove", address))


class PlacedMetadata(MetadataServer):
    """Listens in the namespace of a host."""

    def __init__(self, hosts: NetworkHosts, host: str) -> None:
        super().__init__()
        self._hosts, self._host = hosts, host

    async def listen(self, bridges: Collection[str], answer: AnswerCaller) -> None:
        with self._hosts.inside(self._host):
            await super().listen(bridges, answer)


class PrimaryHost:
    """One coordinator."""

    def __init__(self, fleet: PrimaryHosts, host: str, number: int) -> None:
        clock, store, folder = fleet.clock, fleet.store, fleet.folder / host
        self.host = host
        self.links = TimedLinks(clock, f"/run/netns/{fleet.hosts.prefix}-{host}", fleet.times, host)
        enter = ("ip", "netns", "exec", f"{fleet.hosts.prefix}-{host}")
        self.guard = RoleGuard(folder / "addresses", (*enter, *ARGV))
        folder.mkdir(mode=0o755)
        programs = {}
        for program in ("dnsmasq", "pdns_server", "nft"):
            path = folder / program
            path.write_text(f'#!/bin/sh\nexec {" ".join(enter)} {program} "$@"\n')
            path.chmod(0o755)
            programs[program] = str(path)
        ports = service_ports(
            folder / "state",
            folder / "public",
            clock,
            watch=self.guard.watch,
            dnsmasq=programs["dnsmasq"],
            pdns=programs["pdns_server"],
        )
        firewall = type(ports.firewall)(programs["nft"])  # type: ignore[call-arg]
        ports = ServicePorts(ports.dhcp, ports.names, firewall, PlacedMetadata(fleet.hosts, host))
        self.faults = FaultSet(FaultRecorder(store, clock, "daemon", host), clock)
        self.networks = Informer(store, VirtualNetwork, clock=clock, random=Random(number))
        self.services = NetworkServices(
            store,
            ports,
            self.networks,
            host=host,
            names=NameSettings(tuple, "ns.example"),
            has_gateways=lambda one: all(
                (one.bridge, subnet.interface) in self.addresses.have for subnet in one.subnets
            ),
            faults=self.faults,
            clock=clock,
            random=Random(number + 50),
        )
        self.addresses = RoleAddresses(
            self.links,
            self.guard,
            lambda: role_places(SYSTEM, {"upstream": "brup"}, self.services.list_networks()[0].values()),
        )
        elector = PrimaryElector(store, host, clock=clock, ids=SeededIds(Random(number + 7)))
        self.primary = Primary(
            store, host, [self.services], elector=elector, faults=self.faults, clock=clock, addresses=self.addresses
        )
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self.tasks = [asyncio.create_task(one.run()) for one in (self.networks, self.services, self.primary)]

    def freeze(self) -> None:
        """As a daemon that was killed: nothing of it ends in order."""
        for task in self.tasks:
            task.cancel()


class PrimaryHosts:
    """All of them. Bridges are there before: ``brup``, and ``vmbr<vni>`` of each network."""

    def __init__(self, hosts: NetworkHosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self.clock = SystemClock()
        self.store = MemoryStore(self.clock, SeededIds(Random(1)))
        self.times: list[tuple[float, str, str, str]] = []
        """When, host, verb, address."""
        self.each = {host: PrimaryHost(self, host, number) for number, host in enumerate(hosts.hosts)}

    async def start(self) -> None:
        await self.store.create(Cluster(metadata=ObjectMeta(name="default"), spec=ClusterSpec()))
        for one in self.each.values():
            one.start()
            await asyncio.sleep(0.2)

    async def record(self) -> ElectionRecord:
        return (await self.store.get(Election, ROLE, fresh=True)).record

    async def settled(self, host: str, limit_s: float = 30.0) -> float:
        """Wait until this host is the primary and the hand-over is over; how long that took."""
        began = self.clock.monotonic()
        async with asyncio.timeout(limit_s):
            while True:
                try:
                    record = await self.record()
                    if record.holder == host and not record.phase:
                        return self.clock.monotonic() - began
                except Exception:
                    pass
                await asyncio.sleep(0.02)

    async def ask(self, host: str, number: str) -> None:
        import msgspec

        cluster = await self.store.get(Cluster, "default", fresh=True)
        request = PrimaryRequest(id=number, verb="primary", host=host)
        spec = msgspec.structs.replace(cluster.spec, primary=request)
        await self.store.replace(msgspec.structs.replace(cluster, spec=spec))

    def overlap_s(self, address: str) -> float:
        """For how long two hosts had the address, in all of the hand-overs together at most."""
        longest, since = 0.0, dict[str, float]()
        for moment, host, verb, what in self.times:
            if what.partition("/")[0] != address:
                continue
            if verb == "add":
                since.setdefault(host, moment)
            elif since.pop(host, None) is not None and since:
                longest = max(longest, moment - max(since.values()))
        return longest

    async def end(self) -> None:
        for one in self.each.values():
            one.freeze()
        await asyncio.gather(*(task for one in self.each.values() for task in one.tasks), return_exceptions=True)
        for one in self.each.values():
            await one.links.close()


def lost_pings(output: str) -> tuple[int, int]:
    """Sent and lost, of what ping printed."""
    words = output.rpartition("packets transmitted")
    sent = int(words[0].split()[-1])
    return sent, sent - int(words[2].split(",")[1].split()[0])

"""Programs that serve managed networks on a virtual host (``ServicePorts``), and the guests that ask for addresses.

A DHCP server answers while its daemon lives and its host has the gateway of the network. It knows the leases that it
was started with and those that it gave, and pings an address before it gives it to somebody new, as dnsmasq does. What
it gave is in a spool on the disk of the host, which the daemon reads.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from outlive.base import set_within, stable_hash
from outlive.node.ports import AnswerCaller
from outlive.node.services import (
    LeaseChange,
    ServedLease,
    ServedNetwork,
    ZoneChange,
    ZoneRecord,
    ZoneState,
    needs_restart,
)
from outlive.simulation.machines import Machine
from outlive.simulation.process import Process

LEASE_S: Final = 48 * 3600
STOP_S: Final = 0.05
"""How long programs take to end."""


class LeaseSpool:
    """The file on the disk of a host into which lease scripts write."""

    def __init__(self) -> None:
        self.changes: list[LeaseChange] = []
        self.taken = 0
        """So many of them the daemon has read."""
        self.written = asyncio.Event()

    def write(self, change: LeaseChange) -> None:
        """Add a line, and wake the daemon."""
        self.changes.append(change)
        self.written.set()


class DhcpServer:
    """One of a network."""

    def __init__(self, network: ServedNetwork, leases: Collection[ServedLease]) -> None:
        self.network = network
        self.leases = {one.mac: one for one in leases}

    def choose(self, mac: str, answering: Collection[str]) -> str:
        """The address that this interface is given; empty: there is none. ``answering``: those that a ping finds."""
        network, v4 = self.network, self.network.v4
        kept = {one.address: one.mac.lower() for one in network.reservations}
        own = next((address for address, owner in kept.items() if owner == mac and ":" not in address), "")
        if own or v4 is None or not v4.dhcp:
            return own
        taken = {one.address for one in self.leases.values() if one.mac != mac} | kept.keys() | {v4.gateway}
        if mac in self.leases and self.leases[mac].address not in taken:
            return self.leases[mac].address
        first, last = int(ipaddress.ip_address(v4.start)), int(ipaddress.ip_address(v4.end))
        count = last - first + 1
        for number in range(count):
            address = str(ipaddress.ip_address(first + (stable_hash(mac) + number) % count))
            if address not in taken and address not in answering:
                return address
        return ""


class SimDhcp:
    """``DhcpPort`` of one daemon: its servers end with it."""

    def __init__(self, spool: LeaseSpool, machine: Machine, process: Process) -> None:
        self.servers: dict[str, DhcpServer] = {}
        self._spool = spool
        self._machine = machine
        self._process = process

    @property
    def alive(self) -> bool:
        """Whether its servers may run."""
        return self._process.alive

    def give(self, network: str, mac: str, answering: Collection[str]) -> str:
        """A guest asks: the address that it is given; empty: none."""
        server = self.servers[network]
        address = server.choose(mac, answering)
        if address:
            now_s = int(self._machine.clock.now())
            action = "old" if mac in server.leases and server.leases[mac].address == address else "add"
            lease = ServedLease(address=address, mac=mac, expires=now_s + LEASE_S)
            server.leases[mac] = lease
            self._spool.write(LeaseChange(vni=server.network.vni, action=action, lease=lease, time=now_s))
        return address

    async def serve(self, network: ServedNetwork, leases: Callable[[], Collection[ServedLease]]) -> None:
        """As ``DhcpPort``."""
        self._process.check()
        server = self.servers.get(network.name)
        if server is None or needs_restart(server.network, network):
            self.servers[network.name] = DhcpServer(network, leases())
        else:
            server.network = network

    async def end(self, names: Collection[str]) -> None:
        """As ``DhcpPort``."""
        for name in names:
            self.servers.pop(name, None)
        await asyncio.sleep(STOP_S)
        self._process.check()

    def list_failures(self) -> Mapping[str, str]:
        """None."""
        return {}

    async def take_changes(self) -> Sequence[LeaseChange]:
        """As ``DhcpPort``."""
        self._process.check()
        self._spool.taken = len(self._spool.changes)
        return tuple(self._spool.changes)

    async def forget_changes(self) -> None:
        """As ``DhcpPort``."""
        self._process.check()
        del self._spool.changes[: self._spool.taken]
        self._spool.taken = 0

    async def wait_changed(self, limit_s: float) -> None:
        """As ``DhcpPort``."""
        await set_within(self._spool.written, limit_s)
        self._process.check()
        self._spool.written.clear()

    def close(self) -> None:
        """Nothing is open."""


class SimNames:
    """``NamePort``: zones are kept on the disk of the host."""

    def __init__(self, zones: dict[str, ZoneState], process: Process) -> None:
        self._zones = zones
        self._process = process

    async def start(self, addresses: Collection[str]) -> None:
        """As ``NamePort``."""
        self._process.check()

    async def stop(self) -> None:
        """As ``NamePort``."""
        await asyncio.sleep(STOP_S)
        self._process.check()

    def explain_failure(self) -> str:
        """None."""
        return ""

    async def transfer(self, network: ServedNetwork) -> Sequence[ZoneRecord]:
        """Guests say no names."""
        self._process.check()
        return ()

    async def read_zone(self, zone: str) -> ZoneState:
        """As ``NamePort``."""
        self._process.check()
        return self._zones.get(zone, ZoneState())

    async def change_zone(self, change: ZoneChange) -> None:
        """As ``NamePort``."""
        self._process.check()
        records = (self._zones.get(change.zone, ZoneState()).records - set(change.remove)) | set(change.add)
        self._zones[change.zone] = ZoneState(int(change.soa.content.split()[2]), change.soa.content, records)

    async def keep_zones(self, zones: Collection[str]) -> None:
        """As ``NamePort``."""
        self._process.check()
        for name in [one for one in self._zones if one not in zones]:
            del self._zones[name]


class SimFirewall:
    """``FirewallPort`` that takes every document."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._loaded = False

    async def load(self, document: str) -> None:
        """As ``FirewallPort``."""
        self._process.check()
        self._loaded = True

    async def check(self, document: str) -> None:
        """As ``FirewallPort``."""
        self._process.check()

    async def has_chain(self, table: str, chain: str) -> bool:
        """As ``FirewallPort``."""
        self._process.check()
        return self._loaded


class SimMetadata:
    """``MetadataPort``; no guest asks."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def listen(self, bridges: Collection[str], answer: AnswerCaller) -> None:
        """As ``MetadataPort``."""
        self._process.check()

    async def stop(self) -> None:
        """As ``MetadataPort``."""
        self._process.check()

    def list_failures(self) -> Mapping[str, str]:
        """None."""
        return {}


class GivenAddress(NamedTuple):
    """What a guest was given, and by whom."""

    network: str
    mac: str
    run_id: str
    """Of the VM: a guest that starts anew asks anew."""
    address: str
    host: str
    at_s: float


class GuestLeases:
    """Addresses that guests use."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], GivenAddress] = {}

    def address_of(self, network: str, mac: str, run_id: str) -> str:
        """The address that this run of the guest has."""
        found = self._given.get((network, mac))
        return found.address if found is not None and found.run_id == run_id else ""

    def note(self, given: GivenAddress) -> None:
        """A guest was given this."""
        self._given[given.network, given.mac] = given

    def list_leases(self, network: str) -> Iterator[GivenAddress]:
        """Of every interface of a network that was given one."""
        return (one for one in self._given.values() if one.network == network)

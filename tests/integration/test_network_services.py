"""A managed network in namespaces: real dnsmasq, PowerDNS, nft and metadata server answer real guests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.network_hosts import NetworkHosts

from outlive.base import Random, SeededIds, SystemClock
from outlive.drivers.services import service_ports
from outlive.node.services import NameSettings, NetworkServices
from outlive.resources import (
    DhcpLease,
    DhcpRange,
    DhcpReservation,
    FirewallRule,
    ObjectMeta,
    Subnet,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualNetwork,
    VirtualNetworkSpec,
)
from outlive.runtime import FaultRecorder, FaultSet, Informer
from outlive.store import MemoryStore, list_all

pytestmark = [pytest.mark.component("network-services"), pytest.mark.slow]

MAC = "02:00:00:00:00:07"
DEFINITION = (
    f"<domain><devices><interface><mac address='{MAC}'/><source bridge='vmbr10'/></interface></devices></domain>"
)


def network(name: str, vni: int, **changes: Any) -> VirtualNetwork:
    subnet = Subnet(
        cidr=f"10.{vni}.0.0/24",
        gateway=f"10.{vni}.0.1",
        dhcp=DhcpRange(start=f"10.{vni}.0.100", end=f"10.{vni}.0.110"),
    )
    spec: dict[str, Any] = {"type": "managed", "vni": vni, "subnets": (subnet,), **changes}
    return VirtualNetwork(metadata=ObjectMeta(name=name), spec=VirtualNetworkSpec(**spec))


@pytest.fixture
def hosts() -> Iterator[NetworkHosts]:
    made = NetworkHosts(f"svc{os.getpid()}", ("a",), ("vmbr10", "vmbr20"))
    try:
        made.make()
        yield made
    finally:
        made.close()


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that users without rights can read, which those of pytest are not."""
    with tempfile.TemporaryDirectory(prefix="outlive-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


class Services:
    """The services of host a over a store."""

    def __init__(self, folder: Path, public: Path) -> None:
        self.clock = SystemClock()
        self.store = MemoryStore(self.clock, SeededIds(Random(1)))
        self.faults = FaultSet(FaultRecorder(self.store, self.clock, "daemon", "a"), self.clock)
        self.ports = service_ports(folder, public, self.clock)
        self.networks = Informer(self.store, VirtualNetwork, clock=self.clock, random=Random(2))
        self.services = NetworkServices(
            self.store,
            self.ports,
            self.networks,
            host="a",
            names=NameSettings(lambda: ("192.0.2.1",), "ns.example"),
            has_gateways=lambda _network: True,
            faults=self.faults,
            clock=self.clock,
            random=Random(1),
        )

    @asynccontextmanager
    async def serving(self, *networks: VirtualNetwork) -> AsyncIterator[Services]:
        for one in networks:
            await self.store.create(one)
        following = [asyncio.create_task(self.services.run()), asyncio.create_task(self.networks.run())]
        try:
            await self.services.start(3)
            yield self
        finally:
            await self.services.stop()
            for task in following:
                task.cancel()
            await asyncio.wait(following)

    def codes(self) -> dict[str, Any]:
        return {str(one.code): one.fields for one in self.faults.active}


async def until(true: Callable[[], Awaitable[bool]], limit_s: float = 30.0) -> None:
    async with asyncio.timeout(limit_s):
        while not await true():  # noqa: ASYNC110 - it is others that change it
            await asyncio.sleep(0.05)


async def until_printed(wanted: str, ask: Callable[..., str], *given: Any) -> None:
    """Return once that is what a program prints; while nobody answers it, it fails."""

    async def printed() -> bool:
        try:
            return (await asyncio.to_thread(ask, *given)).strip() == wanted.strip()
        except (AssertionError, subprocess.TimeoutExpired):
            return False

    await until(printed)


def test_guests_get_addresses_names_and_metadata(hosts: NetworkHosts, tmp_path: Path, public: Path) -> None:
    hosts.ip("a", "addr", "add", "10.10.0.1/24", "dev", "vmbr10")
    hosts.ip("a", "addr", "add", "169.254.169.254/32", "dev", "lo")
    hosts.ip("a", "addr", "add", "192.0.2.1/32", "dev", "lo")
    hosts.guest("g1", "vmbr10", mac=MAC)
    hosts.guest("g2", "vmbr10", mac="02:00:00:00:00:09")
    reservation = DhcpReservation(mac="02:00:00:00:00:09", address="10.10.0.9", hostname="kept")
    blue = network(
        "blue",
        10,
        reservations=(reservation,),
        rules=(FirewallRule(name="web", direction="in", rule="tcp dport 80 accept"),),
    )
    vm = VirtualMachine(
        metadata=ObjectMeta(name="vm-1", annotations={"outlive.dev/user-data": "#cloud-config\n"}),
        spec=VirtualMachineSpec(flavor="small", ports=(MAC,), definition=DEFINITION),
    )

    async def story() -> None:
        services = Services(tmp_path, public)
        async with services.serving(blue):
            await services.store.create(vm)
            given = await asyncio.to_thread(hosts.lease, "g1", tmp_path, hostname="one")
            assert given.startswith("10.10.0.1")
            assert await asyncio.to_thread(hosts.lease, "g2", tmp_path) == "10.10.0.9"

            async def stored() -> bool:
                return len([one async for one in list_all(services.store, DhcpLease)]) == 2

            await until(stored)
            lease = await services.store.get(DhcpLease, f"blue.{given}")
            assert (lease.hostname, lease.mac) == ("one", MAC)
            dig = ("dig", "+short", "+time=1")
            await until_printed("10.10.0.9", hosts.run, "g1", *dig, "kept.blue.local", "@10.10.0.1")

            async def fetch(guest: str, path: str) -> str:
                return await asyncio.to_thread(hosts.run, guest, "curl", "-s", f"http://169.254.169.254{path}")

            await until_printed("vm-1", hosts.run, "g1", "curl", "-s", "http://169.254.169.254/latest/meta-data/name")
            assert await fetch("g1", "/latest/user-data") == "#cloud-config\n"
            assert await fetch("g2", "/latest/meta-data/name") == ""
            await until_printed(lease.address, hosts.run, "a", *dig, "one.blue.local", "@192.0.2.1")

            async def is_well() -> bool:
                rules = await asyncio.to_thread(hosts.run, "a", "nft", "list", "ruleset")
                return services.codes() == {} and "vmbr10-host" in rules

            await until(is_well)
        assert hosts.run("a", "ss", "-Hlnu") == ""

    with hosts.inside("a"):
        asyncio.run(story())

"""A managed network in namespaces: real dnsmasq, PowerDNS, nft and metadata server answer real guests."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.network_hosts import NetworkHosts

from outlive.base.clock import SystemClock
from outlive.base.ids import SeededIds
from outlive.base.random import Random
from outlive.drivers.services.programs import service_ports
from outlive.node.services.network_services import NameSettings, NetworkServices
from outlive.resources import DhcpLease, ObjectMeta, VirtualMachine, VirtualNetwork
from outlive.resources.networks import DhcpRange, DhcpReservation, FirewallRule, Subnet, VirtualNetworkSpec
from outlive.resources.vms import VirtualMachineSpec
from outlive.runtime.faults import FaultRecorder, FaultSet
from outlive.runtime.informer import Informer
from outlive.store.contract import list_all
from outlive.store.memory import MemoryStore

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


async def until(true: Callable[[], Awaitable[bool]], limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not await true():  # noqa: ASYNC110 - it is others that change it
            await asyncio.sleep(0.05)


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
            answer = await asyncio.to_thread(
                hosts.run, "g1", "dig", "+short", "+time=1", "kept.blue.local", "@10.10.0.1"
            )
            assert answer.split() == ["10.10.0.9"]

            async def fetch(guest: str, path: str) -> str:
                return await asyncio.to_thread(hosts.run, guest, "curl", "-s", f"http://169.254.169.254{path}")

            assert await fetch("g1", "/latest/meta-data/name") == "vm-1"
            assert await fetch("g1", "/latest/user-data") == "#cloud-config\n"
            assert await fetch("g2", "/latest/meta-data/name") == ""

            async def named() -> bool:
                found = await asyncio.to_thread(
                    hosts.run, "a", "dig", "+short", "+time=1", "one.blue.local", "@192.0.2.1"
                )
                return found.split() == [lease.address]

            await until(named, 9.0)
            assert services.codes() == {}
            assert "vmbr10-host" in hosts.run("a", "nft", "list", "table", "inet", "outlive_networks")
        assert hosts.run("a", "ss", "-Hlnu") == ""

    with hosts.inside("a"):
        asyncio.run(story())

"""Leases of managed networks in the store: nothing that a server gave is lost, and each address has its own lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from tests.support.plain_services import PlainDhcp, plain_ports

from outlive.base import LoopClock, Random, SeededIds, Unavailable
from outlive.node.services import (
    DROP_S,
    LAST_LEASES_S,
    SYNC_S,
    LeaseChange,
    NameSettings,
    NetworkServices,
    ServedLease,
    lease_name,
)
from outlive.resources import DhcpLease, DhcpRange, ObjectMeta, Subnet, VirtualNetwork, VirtualNetworkSpec
from outlive.resources.reasons import FaultCode
from outlive.runtime import FaultRecorder, FaultSet, Informer
from outlive.store import MemoryStore, list_all

MAC = "02:00:00:00:00:07"
FAR = 4_000_000_000


def network(name: str, vni: int, domain: str = "") -> VirtualNetwork:
    dhcp = DhcpRange(start=f"10.{vni}.0.100", end=f"10.{vni}.0.110")
    subnet = Subnet(cidr=f"10.{vni}.0.0/24", gateway=f"10.{vni}.0.1", dhcp=dhcp)
    spec = VirtualNetworkSpec(type="managed", vni=vni, domain=domain, subnets=(subnet,))
    return VirtualNetwork(metadata=ObjectMeta(name=name), spec=spec)


def change(action: str, address: str, mac: str = MAC, *, vni: int = 10, **more: str) -> LeaseChange:
    return LeaseChange(vni=vni, action=action, lease=ServedLease(address=address, mac=mac, expires=FAR, **more))


class Services:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.store = MemoryStore(self.clock, SeededIds(Random(1)))
        self.ports = plain_ports()
        self.faults = FaultSet(FaultRecorder(self.store, self.clock, "daemon", "a"), self.clock)
        self.networks = Informer(self.store, VirtualNetwork, clock=self.clock, random=Random(2))
        self.services = NetworkServices(
            self.store,
            self.ports,
            self.networks,
            host="a",
            names=NameSettings(tuple, "ns.example"),
            has_gateways=lambda _network: True,
            faults=self.faults,
            clock=self.clock,
            random=Random(1),
        )

    @property
    def dhcp(self) -> PlainDhcp:
        assert isinstance(self.ports.dhcp, PlainDhcp)
        return self.ports.dhcp

    @asynccontextmanager
    async def serving(self, *networks: VirtualNetwork) -> AsyncIterator[None]:
        for one in networks:
            await self.store.create(one)
        following = [asyncio.create_task(self.services.run()), asyncio.create_task(self.networks.run())]
        try:
            await self.services.start(3)
            yield
        finally:
            await self.services.stop()
            for task in following:
                task.cancel()
            await asyncio.wait(following)

    async def stored(self) -> dict[str, str]:
        return {one.address: one.mac async for one in list_all(self.store, DhcpLease)}


async def test_an_interface_keeps_all_its_addresses() -> None:
    it = Services()
    async with it.serving(network("blue", 10)):
        it.dhcp.tell(
            change("add", "10.10.0.100", client_id="01:02"),
            change("add", "10.10.0.101", client_id="ff:firmware"),
            change("add", "fd00:10::9", client_id="00:01", iaid="7"),
            change("add", "fd00:10::8", mac="", client_id="00:03:00:01:02:00:00:00:00:08", iaid="8"),
            change("add", "no address"),
        )
        await it.clock.sleep(2)
        assert await it.stored() == {
            "10.10.0.100": MAC,
            "10.10.0.101": MAC,
            "fd00:10::9": MAC,
            "fd00:10::8": "02:00:00:00:00:08",
        }
        assert it.dhcp.spool == []
        name = lease_name("blue", "fd00:10::9")
        assert name == "blue.fd00-0010-0000-0000-0000-0000-0000-0009"
        assert (await it.store.get(DhcpLease, name)).iaid == "7"


async def test_a_lease_of_the_last_moment_is_in_the_store_before_the_role_goes() -> None:
    it = Services()
    async with it.serving(network("blue", 10)):
        await it.clock.sleep(2)
        it.dhcp.spool.append(change("add", "10.10.0.100"))  # its script has not come to waking the daemon
    assert await it.stored() == {"10.10.0.100": MAC}
    assert it.dhcp.spool == []


async def test_a_store_that_does_not_answer_keeps_nobody_from_giving_the_role_back() -> None:
    it = Services()
    async with it.serving(network("blue", 10)):
        await it.clock.sleep(2)
        it.dhcp.spool.append(change("add", "10.10.0.100"))

        async def never(_networks: object) -> None:
            await it.clock.sleep(3600)

        it.services._leases.write = never  # type: ignore[method-assign,assignment]
        began_s = it.clock.monotonic()
        await it.services.stop()
        assert it.clock.monotonic() - began_s <= LAST_LEASES_S + 0.1
        assert it.dhcp.spool, "and it is not lost"


async def test_a_lease_that_ends_before_its_write_was_seen_is_deleted() -> None:
    it = Services()
    async with it.serving(network("blue", 10)):
        it.dhcp.tell(change("add", "10.10.0.100"))
        await it.clock.sleep(2)
        cache = it.services._stored
        cache.get = lambda _name: None  # type: ignore[method-assign,assignment] # a watch that is late
        it.dhcp.tell(change("del", "10.10.0.100"))
        await it.clock.sleep(2)
        assert await it.stored() == {}


async def test_a_network_that_makes_no_sense_for_a_while_loses_no_lease() -> None:
    """A user's slip of a minute: its server is stopped, and what it gave before stays known."""
    it = Services()
    async with it.serving(network("blue", 10), network("red", 20)):
        it.dhcp.tell(change("add", "10.10.0.100"), change("add", "10.20.0.100", vni=20))
        await it.clock.sleep(2)
        blue = await it.store.get(VirtualNetwork, "blue")
        await it.store.replace(network_with(blue, domain="a b"))
        it.dhcp.tell(change("add", "10.10.0.101", "02:00:00:00:00:08"))
        await it.clock.sleep(DROP_S + 5)
        assert it.dhcp.served.keys() == {"red"}
        assert (await it.stored()).keys() == {"10.10.0.100", "10.10.0.101", "10.20.0.100"}

        await it.store.delete((await it.store.get(VirtualNetwork, "blue")).ref)
        await it.clock.sleep(DROP_S + 5)
        assert (await it.stored()).keys() == {"10.20.0.100"}


def network_with(found: VirtualNetwork, *, domain: str) -> VirtualNetwork:
    changed = network(found.name, found.spec.vni, domain)
    return VirtualNetwork(metadata=found.metadata, spec=changed.spec, status=found.status)


async def test_leases_that_have_ended_are_deleted() -> None:
    it = Services()
    ended = datetime.fromtimestamp(it.clock.now() + 10, UTC)
    lease = DhcpLease(
        metadata=ObjectMeta(name="blue.10.10.0.100"),
        network="blue",
        mac=MAC,
        address="10.10.0.100",
        expires_at=ended,
    )
    await it.store.create(lease)
    async with it.serving(network("blue", 10)):
        assert [len(leases) for _, leases in it.dhcp.served.values()] == [1]
        await it.clock.sleep(DROP_S + 5)
        assert await it.stored() == {}


async def test_a_primary_whose_store_is_slow_when_it_takes_over_serves_once_it_answers() -> None:
    it = Services()
    await it.store.create(network("blue", 10))
    began = it.clock.monotonic()
    await it.services.start(3)  # its caches do not follow yet
    assert it.clock.monotonic() - began <= SYNC_S + 0.1
    following = [asyncio.create_task(it.services.run()), asyncio.create_task(it.networks.run())]
    await it.clock.sleep(2)
    assert it.dhcp.served.keys() == {"blue"}
    await it.services.stop()
    for task in following:
        task.cancel()
    await asyncio.wait(following)


async def test_a_part_that_crashes_holds_up_no_other() -> None:
    it = Services()

    async def crash(_limit_s: float) -> None:
        raise ValueError("nobody has thought of this")

    it.dhcp.wait_changed = crash  # type: ignore[method-assign]
    async with it.serving(network("blue", 10)):
        await it.clock.sleep(2)
        await it.store.create(network("red", 20))
        await it.clock.sleep(2)
        assert it.dhcp.served.keys() == {"blue", "red"}
        assert FaultCode.WORKER_CRASHED in {one.code for one in it.faults.active}


async def test_a_firewall_that_somebody_has_flushed_is_put_in_force_again() -> None:
    it = Services()
    async with it.serving(network("blue", 10)):
        await it.clock.sleep(1)
        firewall = it.ports.firewall
        assert "vmbr10" in firewall.document  # type: ignore[attr-defined]
        firewall.document = ""  # type: ignore[attr-defined]
        await it.clock.sleep(7)
        assert "vmbr10" in firewall.document  # type: ignore[attr-defined]

        async def away(*_names: str) -> bool:
            raise Unavailable("nft does not end")

        firewall.has_chain = away  # type: ignore[method-assign]
        await it.clock.sleep(7)
        assert FaultCode.FIREWALL_REFUSED in {one.code for one in it.faults.active}

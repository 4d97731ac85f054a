"""IPv6 of managed networks, on the wire: leases after a hand-over, router advertisements, announced addresses."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest
from tests.integration.test_network_services import (  # noqa: F401 - fixtures
    Services,
    hosts,
    network,
    public,
    until,
    until_printed,
)
from tests.support.network_hosts import NetworkHosts

from outlive.base import SystemClock
from outlive.drivers.links import KernelLinks
from outlive.node.services import lease_name
from outlive.resources import DhcpLease, DhcpRange, ObjectMeta, Subnet
from outlive.store import list_all

pytestmark = [pytest.mark.component("network-services"), pytest.mark.slow]

GATEWAY: Final = "fd00:10::1"
SUBNET: Final = Subnet(cidr="fd00:10::/64", gateway=GATEWAY, dhcp=DhcpRange())
ETH_P_IPV6: Final = 0x86DD
ROUTER_SOLICITATION, ROUTER_ADVERTISEMENT, NEIGHBOUR_ADVERTISEMENT = 133, 134, 136
SOLICITED, OVERRIDE = 0x40, 0x20


@contextlib.contextmanager
def wire(hosts: NetworkHosts, guest: str) -> Iterator[socket.socket]:  # noqa: F811
    """What arrives at a guest's interface from now on."""
    with hosts.inside(guest):
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IPV6))
        opened.bind(("eth0", ETH_P_IPV6))
    opened.settimeout(0.2)
    with opened:
        yield opened


def wait_icmp(opened: socket.socket, kind: int, fits: Callable[[bytes], bool], limit_s: float = 30.0) -> bytes:
    """The first ICMPv6 message of this kind that fits, without its headers."""
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        with contextlib.suppress(TimeoutError):
            frame = opened.recv(2048)
            if frame[20] == socket.IPPROTO_ICMPV6 and frame[54] == kind and fits(frame[54:]):
                return frame[54:]
    raise AssertionError(f"no ICMPv6 message {kind} within {limit_s} s")


def solicit_router(hosts: NetworkHosts, guest: str) -> None:  # noqa: F811
    """Ask for a router advertisement, as a guest that boots does."""
    with hosts.inside(guest), socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as opened:
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
        opened.sendto(bytes((ROUTER_SOLICITATION, *7 * [0])), ("ff02::2", 0, 0, socket.if_nametoindex("eth0")))


@pytest.fixture
def guest(hosts: NetworkHosts) -> str:  # noqa: F811
    hosts.ip("a", "addr", "add", f"{GATEWAY}/64", "dev", "vmbr10", "nodad")
    hosts.guest("g1", "vmbr10", mac="02:00:00:00:00:06")
    hosts.run("g1", "sysctl", "-q", "net.ipv6.conf.eth0.accept_dad=0")
    hosts.ip("g1", "link", "set", "eth0", "down")
    hosts.ip("g1", "link", "set", "eth0", "up")
    return "g1"


def test_a_new_primary_knows_ipv6_leases_and_is_the_same_server_to_guests(
    hosts: NetworkHosts,  # noqa: F811
    guest: str,
    tmp_path: Path,
    public: Path,  # noqa: F811
) -> None:
    async def story() -> None:
        (tmp_path / "one").mkdir()
        (public / "one").mkdir(mode=0o755)
        first = Services(tmp_path / "one", public / "one")

        async with first.serving(network("blue", 10, subnets=(SUBNET,))):
            with wire(hosts, guest) as opened:
                solicit_router(hosts, guest)
                told = await asyncio.to_thread(wait_icmp, opened, ROUTER_ADVERTISEMENT, lambda _message: True)
            assert told[5] & 0x80, "it says that addresses are managed"
            given = await asyncio.to_thread(hosts.lease6, guest, tmp_path, hostname="six")
            assert ipaddress.ip_address(given[0]) in ipaddress.ip_network(SUBNET.cidr)

            async def stored() -> bool:
                return len([one async for one in list_all(first.store, DhcpLease)]) == 1

            await until(stored)
        lease = await first.store.get(DhcpLease, lease_name("blue", given[0]))
        assert (lease.address, bool(lease.iaid), bool(lease.client_id)) == (given[0], True, True)

        second = Services(tmp_path / "two", public / "two")
        await second.store.create(msgspec.structs.replace(lease, metadata=ObjectMeta(name=lease.name)))
        async with second.serving(network("blue", 10, subnets=(SUBNET,))):
            hosts.ip(guest, "addr", "add", "fd00:10::99/64", "dev", "eth0", "nodad")

            words = ("dig", "+short", "+time=1", "AAAA", "six.blue.local", f"@{GATEWAY}")
            await until_printed(given[0], hosts.run, guest, *words)  # before the guest has asked again
            assert await asyncio.to_thread(hosts.lease6, guest, tmp_path, hostname="six") == given

    with hosts.inside("a"):
        asyncio.run(story())


def test_an_ipv6_address_that_is_added_is_announced_twice_to_everybody(
    hosts: NetworkHosts,  # noqa: F811
    guest: str,
) -> None:
    async def story() -> None:
        links = KernelLinks(SystemClock())
        address = ipaddress.ip_address("fd00:10::2").packed
        with wire(hosts, guest) as opened:
            await links.add_address("vmbr10", "fd00:10::2/64")
            for _ in range(2):
                message = await asyncio.to_thread(
                    wait_icmp, opened, NEIGHBOUR_ADVERTISEMENT, lambda message: message[8:24] == address
                )
                assert message[4] & (SOLICITED | OVERRIDE) == OVERRIDE
        await links.close()

    with hosts.inside("a"):
        asyncio.run(story())

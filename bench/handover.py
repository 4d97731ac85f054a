"""How quickly the primary coordinator's addresses and services go to another host, measured in network namespaces.

It needs root, dnsmasq, nft, dhclient and ping.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from tests.integration.test_network_services import network
from tests.support.network_hosts import NetworkHosts
from tests.support.primary_hosts import FLOATING, PrimaryHosts, lost_pings

from bench.figures import Figure
from outlive.resources import DhcpReservation
from outlive.runtime import SILENCE_S

NETWORKS = 200
GUEST = "02:00:00:00:00:20"
FIRST = 11
"""VNI of the first of the networks; the address of each contains it."""


async def hand_over(hosts: NetworkHosts, folder: Path) -> list[Figure]:
    """The figures of one hand-over, of a network that is added after it, and of a loss of power."""
    fleet = PrimaryHosts(hosts, folder)
    for vni in range(FIRST, FIRST + NETWORKS):
        await fleet.store.create(network(f"net-{vni}", vni))
    await fleet.start()
    found: list[Figure] = []
    try:
        await fleet.settled("a", 60)
        ping = ("ping", "-q", "-i", "0.025", "-W", "1", FLOATING, "-c")
        pinging = asyncio.create_task(asyncio.to_thread(hosts.run, "out", *ping, "480", limit_s=30))
        await asyncio.sleep(1.0)
        await fleet.ask("b", "1")
        found.append(Figure(f"hand-over with {NETWORKS} networks", await fleet.settled("b", 60), "s", 15.0))
        sent, lost = lost_pings(await pinging)
        found.append(Figure("pings of 25 ms lost in it", lost, "pings", 2, note=f"of {sent}"))
        found.append(Figure("floating address on both hosts", 1000 * fleet.overlap_s(FLOATING), "ms", 100.0))
        failures = dict(fleet.each["b"].services._ports.dhcp.list_failures())
        found.append(Figure("DHCP servers that do not run after it", len(failures), "servers", 0))

        began = fleet.clock.monotonic()
        kept = DhcpReservation(mac=GUEST, address="10.10.0.20")
        await fleet.store.create(network("new", 10, reservations=(kept,)))
        await asyncio.to_thread(hosts.lease, "g", folder)
        found.append(Figure("network added, to an answer by DHCP", fleet.clock.monotonic() - began, "s", 3.0))

        hosts.ip("b", "link", "set", "u0", "down")  # the host loses its power
        fleet.each["b"].primary.elector._store = Silent()  # type: ignore[assignment]
        fleet.each["b"].primary.elector.withdrawn = True
        began = fleet.clock.monotonic()
        while True:
            try:
                await asyncio.to_thread(hosts.run, "out", "ping", "-q", "-c", "1", "-W", "1", FLOATING)
                break
            except AssertionError:
                await asyncio.sleep(0.05)
        found.append(Figure("power loss to an answer elsewhere", fleet.clock.monotonic() - began, "s", SILENCE_S + 3))
    finally:
        await fleet.end()
    return found


class Silent:
    """A store that a host without power does not reach."""

    def __getattr__(self, _name: str) -> object:
        async def away(*_args: object, **_options: object) -> None:
            raise OSError("no power")

        return away


def measure() -> list[Figure]:
    """The figures."""
    hosts = NetworkHosts(f"bho{os.getpid()}", ("a", "b"), ("brup", "vmbr10"))
    with tempfile.TemporaryDirectory(prefix="outlive-") as folder:
        Path(folder).chmod(0o755)
        try:
            hosts.make()
            for vni in range(FIRST, FIRST + NETWORKS):
                for host in ("a", "b"):
                    hosts.ip(host, "link", "add", f"vmbr{vni}", "up", "type", "bridge")
            hosts.guest("out", "brup")
            hosts.ip("out", "addr", "add", "192.0.2.99/24", "dev", "eth0")
            hosts.guest("g", "vmbr10", mac=GUEST)
            return asyncio.run(hand_over(hosts, Path(folder)))
        finally:
            hosts.close()

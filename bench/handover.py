"""How quickly the primary coordinator's addresses and services go to another host, measured in network namespaces.

``python -m bench.handover [NETWORKS]``, as root; needs dnsmasq, nft, dhclient and ping. It prints one line for each
figure, with its bar, and ends with 1 where a bar is missed.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from tests.integration.test_network_services import network
from tests.support.network_hosts import NetworkHosts
from tests.support.primary_hosts import FLOATING, PrimaryHosts, lost_pings

from outlive.resources.networks import DhcpReservation
from outlive.runtime.election import SILENCE_S

GUEST = "02:00:00:00:00:20"
FIRST = 11
"""VNI of the first of the networks; the address of each contains it."""


async def measure(hosts: NetworkHosts, folder: Path, count: int) -> list[tuple[str, float, float, str]]:
    """Name, figure, bar and unit of each."""
    fleet = PrimaryHosts(hosts, folder)
    for vni in range(FIRST, FIRST + count):
        await fleet.store.create(network(f"net-{vni}", vni))
    await fleet.start()
    found: list[tuple[str, float, float, str]] = []
    try:
        await fleet.settled("a", 60)
        ping = ("ping", "-q", "-i", "0.025", "-W", "1", FLOATING, "-c")
        pinging = asyncio.create_task(asyncio.to_thread(hosts.run, "out", *ping, "480", limit_s=30))
        await asyncio.sleep(1.0)
        await fleet.ask("b", "1")
        found.append((f"hand-over with {count} networks", await fleet.settled("b", 60), 15.0, "s"))
        sent, lost = lost_pings(await pinging)
        found.append((f"pings of 25 ms lost, of {sent}", float(lost), 2.0, ""))
        found.append(("floating address on both hosts", 1000 * fleet.overlap_s(FLOATING), 100.0, "ms"))
        failures = dict(fleet.each["b"].services._ports.dhcp.failures())
        found.append(("DHCP servers that do not run", float(len(failures)), 0.0, ""))

        began = fleet.clock.monotonic()
        kept = DhcpReservation(mac=GUEST, address="10.10.0.20")
        await fleet.store.create(network("new", 10, reservations=(kept,)))
        await asyncio.to_thread(hosts.lease, "g", folder)
        found.append(("network added to DHCP answering", fleet.clock.monotonic() - began, 3.0, "s"))

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
        found.append(("power loss to an answer elsewhere", fleet.clock.monotonic() - began, SILENCE_S + 3, "s"))
    finally:
        await fleet.end()
    return found


class Silent:
    """A store that a host without power does not reach."""

    def __getattr__(self, _name: str) -> object:
        async def away(*_args: object, **_options: object) -> None:
            raise OSError("no power")

        return away


def main(count: int) -> int:
    """Print the figures; 1 where one misses its bar."""
    hosts = NetworkHosts("bho", ("a", "b"), ("brup", "vmbr10"))
    with tempfile.TemporaryDirectory(prefix="outlive-") as folder:
        Path(folder).chmod(0o755)
        try:
            hosts.make()
            for vni in range(FIRST, FIRST + count):
                for host in ("a", "b"):
                    hosts.ip(host, "link", "add", f"vmbr{vni}", "up", "type", "bridge")
            hosts.guest("out", "brup")
            hosts.ip("out", "addr", "add", "192.0.2.99/24", "dev", "eth0")
            hosts.guest("g", "vmbr10", mac=GUEST)
            found = asyncio.run(measure(hosts, Path(folder), count))
        finally:
            hosts.close()
    for name, figure, bar, unit in found:
        sys.stdout.write(f"{name}: {figure:.2f} {unit} (bar {bar:g} {unit})\n")
    return int(any(figure > bar for _, figure, bar, _ in found))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))

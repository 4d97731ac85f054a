"""Real hosts in namespaces hand the primary's addresses and services over, while somebody pings."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.test_network_services import network
from tests.support.network_hosts import NetworkHosts
from tests.support.primary_hosts import FLOATING, PrimaryHosts, lost_pings

from outlive.resources import DhcpReservation

# Hundredths of a second are counted here, so nothing runs beside it.
pytestmark = [pytest.mark.component("network-services"), pytest.mark.slow, pytest.mark.alone]


@pytest.fixture
def hosts() -> Iterator[NetworkHosts]:
    made = NetworkHosts(f"hov{os.getpid()}", ("a", "b"), ("brup", "vmbr10", "vmbr20"))
    try:
        made.make()
        made.guest("out", "brup")
        made.ip("out", "addr", "add", "192.0.2.99/24", "dev", "eth0")
        yield made
    finally:
        made.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="outlive-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


def test_a_hand_over_loses_two_pings_at_most_and_dhcp_goes_on_with_all_leases(
    hosts: NetworkHosts, folder: Path, tmp_path: Path
) -> None:
    hosts.guest("g1", "vmbr10")
    hosts.guest("g2", "vmbr20", mac="02:00:00:00:00:20")

    async def story() -> None:
        fleet = PrimaryHosts(hosts, folder)
        await fleet.store.create(network("blue", 10))
        await fleet.start()
        try:
            await fleet.settled("a")
            first = await asyncio.to_thread(hosts.lease, "g1", tmp_path)
            pinging = asyncio.create_task(
                asyncio.to_thread(
                    hosts.run, "out", "ping", "-q", "-i", "0.025", "-c", "200", "-W", "1", FLOATING, limit_s=15
                )
            )
            await asyncio.sleep(1.0)
            await fleet.ask("b", "1")
            await fleet.settled("b")
            sent, lost = lost_pings(await pinging)
            assert (sent, lost <= 2) == (200, True), f"{lost} of {sent} pings were lost"
            assert fleet.overlap_s(FLOATING) <= 0.1
            assert fleet.overlap_s("10.10.0.1") <= 0.2
            assert "10.10.0.1" not in hosts.ip("a", "addr")
            assert await asyncio.to_thread(hosts.lease, "g1", tmp_path) == first, "the new primary knows the lease"
            began = fleet.clock.monotonic()
            # of an address that is reserved the server does not first see for 3 s whether somebody has it
            kept = DhcpReservation(mac="02:00:00:00:00:20", address="10.20.0.20")
            await fleet.store.create(network("red", 20, reservations=(kept,)))
            await asyncio.to_thread(hosts.lease, "g2", tmp_path)
            assert fleet.clock.monotonic() - began <= 3.0
            assert fleet.each["b"].faults.active == ()
        finally:
            await fleet.end()
        assert "10.10.0.1" not in hosts.ip("b", "addr")

    asyncio.run(story())

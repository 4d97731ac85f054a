"""What is missing, dead or killed around services of managed networks: told by name, others served, nothing lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.integration.test_network_services import (  # noqa: F401 - fixtures
    Services,
    hosts,
    network,
    public,
    until,
    until_printed,
)
from tests.support import guarded_primary
from tests.support.guarded_primary import SILENCE_S
from tests.support.network_hosts import NetworkHosts

from outlive.base import Unavailable
from outlive.drivers.services import ARGV, STUCK_S, RoleGuard
from outlive.node import GUARD_S, MARGIN_S
from outlive.node.services import BANNER
from outlive.resources import DhcpLease, DhcpReservation
from outlive.runtime import BELIEF, election
from outlive.store import list_all

pytestmark = [pytest.mark.component("network-services"), pytest.mark.slow]
WAIT_S = 30.0
"""For whatever must happen in the end."""
MACHINE_LOOK_S = 0.2
"""A look at all addresses of a host."""


def test_a_server_that_dies_or_cannot_start_is_named_and_the_others_serve(
    hosts: NetworkHosts,  # noqa: F811
    tmp_path: Path,
    public: Path,  # noqa: F811
) -> None:
    hosts.ip("a", "addr", "add", "10.10.0.1/24", "dev", "vmbr10")
    hosts.guest("g1", "vmbr10", mac="02:00:00:00:00:09")
    kept = DhcpReservation(mac="02:00:00:00:00:09", address="10.10.0.9")

    async def story() -> None:
        services = Services(tmp_path, public)
        # network red has no gateway on this host, so that its server ends again and again
        async with services.serving(network("blue", 10, reservations=(kept,)), network("red", 20)):

            async def told() -> bool:
                return bool(services.codes().get("dhcp-failed", {}).get("networks") == "red")

            await until(told)
            assert await asyncio.to_thread(hosts.lease, "g1", tmp_path) == "10.10.0.9"
            here = ("--ns", str(os.getpid()), "--nslist", "net")
            (leader,) = [
                pid
                for pid in hosts.run("a", "pgrep", "-f", "domain=blue.local", *here).split()
                if os.getpgid(int(pid)) == int(pid)
            ]
            os.kill(int(leader), signal.SIGKILL)
            await until_printed("10.10.0.9", hosts.lease, "g1", tmp_path)  # it was started again

    with hosts.inside("a"):
        asyncio.run(story())


def test_a_lease_that_is_given_while_the_store_is_away_is_written_afterwards(
    hosts: NetworkHosts,  # noqa: F811
    tmp_path: Path,
    public: Path,  # noqa: F811
) -> None:
    hosts.ip("a", "addr", "add", "10.10.0.1/24", "dev", "vmbr10")
    hosts.guest("g1", "vmbr10", mac="02:00:00:00:00:09")
    kept = DhcpReservation(mac="02:00:00:00:00:09", address="10.10.0.9")

    async def story() -> None:
        services = Services(tmp_path, public)
        async with services.serving(network("blue", 10, reservations=(kept,))):
            store = services.services._leases._store
            services.services._leases._store = Away()  # type: ignore[assignment]
            await asyncio.to_thread(hosts.lease, "g1", tmp_path)
            await asyncio.sleep(1.2)
            assert [one async for one in list_all(store, DhcpLease)] == []
            services.services._leases._store = store

            async def stored() -> bool:
                return [one.address async for one in list_all(store, DhcpLease)] == ["10.10.0.9"]

            await until(stored)

    with hosts.inside("a"):
        asyncio.run(story())


def test_a_bridge_that_was_made_anew_is_served_again_and_so_is_a_host_whose_tables_were_flushed(
    hosts: NetworkHosts,  # noqa: F811
    tmp_path: Path,
    public: Path,  # noqa: F811
) -> None:
    hosts.ip("a", "addr", "add", "10.10.0.1/24", "dev", "vmbr10")
    hosts.ip("a", "addr", "add", "169.254.169.254/32", "dev", "lo")
    hosts.guest("g1", "vmbr10", mac="02:00:00:00:00:09")
    kept = DhcpReservation(mac="02:00:00:00:00:09", address="10.10.0.9")

    def ask_metadata() -> str:
        hosts.ip("g1", "route", "replace", "169.254.169.254", "via", "10.10.0.1")
        return hosts.run("g1", "curl", "-s", "-m", "2", "http://169.254.169.254/")

    async def story() -> None:
        services = Services(tmp_path, public)
        async with services.serving(network("blue", 10, reservations=(kept,))):
            assert await asyncio.to_thread(hosts.lease, "g1", tmp_path) == "10.10.0.9"
            await until_printed(BANNER, ask_metadata)
            hosts.ip("a", "link", "del", "vmbr10")
            hosts.ip("a", "link", "add", "vmbr10", "type", "bridge")
            hosts.ip("a", "link", "set", "u0", "master", "vmbr10")
            hosts.ip("a", "link", "set", "vmbr10", "up")
            hosts.ip("a", "addr", "add", "10.10.0.1/24", "dev", "vmbr10")
            hosts.run("a", "nft", "flush", "ruleset")
            await until_printed("10.10.0.9", hosts.lease, "g1", tmp_path)
            await until_printed(BANNER, ask_metadata)

            async def is_in_force() -> bool:
                return "vmbr10-host" in await asyncio.to_thread(hosts.run, "a", "nft", "list", "ruleset")

            await until(is_in_force)

    with hosts.inside("a"):
        asyncio.run(story())


class Away:
    """A store that does not answer."""

    def __getattr__(self, _name: str) -> object:
        async def away(*_args: object, **_options: object) -> None:
            raise OSError("away")

        return away


@pytest.mark.parametrize("how", ["killed", "time"])
def test_addresses_and_programs_go_with_a_daemon_that_is_gone_or_stands_still(
    hosts: NetworkHosts,  # noqa: F811
    tmp_path: Path,
    how: str,
) -> None:
    async def story() -> None:
        guard = RoleGuard(tmp_path / "addresses", ARGV)
        await guard.start()
        await guard.extend(60.0)
        hosts.ip("a", "addr", "add", "10.10.0.1/24", "dev", "vmbr10")
        hosts.ip("a", "addr", "add", "fd00:10::1/64", "dev", "vmbr10")
        await guard.hold("vmbr10", "10.10.0.1/24")
        await guard.hold("vmbr10", "fd00:10::1/64")
        program = subprocess.Popen(["sleep", "60"], start_new_session=True)  # noqa: ASYNC220
        guard.watch(program.pid)
        assert "10.10.0.1" in hosts.ip("a", "addr")
        if how == "killed":
            await guard.close()
        else:
            await guard.extend(1.0)
        try:
            assert await asyncio.to_thread(program.wait, WAIT_S) == -signal.SIGKILL
            found = hosts.ip("a", "addr")
            assert "10.10.0.1" not in found
            assert "fd00:10::1" not in found
        finally:
            program.kill()
            await guard.close()
        assert list(await RoleGuard(tmp_path / "addresses").list_leftovers()) == [
            ("vmbr10", "10.10.0.1/24"),
            ("vmbr10", "fd00:10::1/64"),
        ]

    with hosts.inside("a"):
        asyncio.run(story())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_addresses_of_a_primary_whose_daemon_is_killed_or_stopped_are_gone_with_its_role(
    hosts: NetworkHosts,  # noqa: F811
    tmp_path: Path,
    how: signal.Signals,
) -> None:
    """The daemon is a process, with an election of 2 s instead of one of 15 s; nobody else takes its addresses."""
    assert BELIEF * election.SILENCE_S + MARGIN_S < GUARD_S, "with the times of a real daemon"
    addresses = ("10.10.0.1/24", "fd00:10::1/64")
    argv = [sys.executable, "-m", guarded_primary.__name__, str(tmp_path), "vmbr10", *addresses]
    with hosts.inside("a"):
        daemon = subprocess.Popen(argv, start_new_session=True)

    def has(count: int, limit_s: float) -> None:
        """Return once the host has so many of the addresses. A look that takes longer counts as a short one: then the
        machine stands still, and with it who has to remove them."""
        counted_s, looked_s = 0.0, time.monotonic()
        while sum(one in hosts.ip("a", "addr") for one in addresses) != count:
            time.sleep(0.02)
            counted_s += min(time.monotonic() - looked_s, MACHINE_LOOK_S)
            assert counted_s < limit_s
            looked_s = time.monotonic()

    try:
        has(2, WAIT_S)
        time.sleep(SILENCE_S)
        has(2, WAIT_S)  # renewals keep them
        daemon.send_signal(how)
        has(0, 1.0 if how == signal.SIGKILL else SILENCE_S)
    finally:
        daemon.kill()
        daemon.wait(5)


def test_a_guard_that_is_stopped_is_replaced_by_one_that_knows_all(
    hosts: NetworkHosts,  # noqa: F811
    tmp_path: Path,
) -> None:
    async def story() -> None:
        guard = RoleGuard(tmp_path / "addresses", ARGV)
        await guard.start()
        hosts.ip("a", "addr", "add", "10.10.0.1/24", "dev", "vmbr10")
        program = subprocess.Popen(["sleep", "60"], start_new_session=True)  # noqa: ASYNC220
        try:
            await guard.extend(30.0)
            await guard.hold("vmbr10", "10.10.0.1/24")
            guard.watch(program.pid)
            assert guard._process is not None
            stopped = guard._process
            stopped.send_signal(signal.SIGSTOP)
            for _ in range(int(STUCK_S / 0.25) + 4):
                await guard.start()
                await guard.extend(30.0)
                await asyncio.sleep(0.25)
            assert await stopped.wait() == -signal.SIGKILL
            assert "10.10.0.1" in hosts.ip("a", "addr")
            assert program.poll() is None
            await guard.extend(0.0)
            assert await asyncio.to_thread(program.wait, WAIT_S) == -signal.SIGKILL
            assert "10.10.0.1" not in hosts.ip("a", "addr")
        finally:
            program.kill()
            await guard.close()

    with hosts.inside("a"):
        asyncio.run(story())


def test_notes_of_addresses_are_whole_or_those_of_before(tmp_path: Path) -> None:
    async def story() -> None:
        guard = RoleGuard(tmp_path / "addresses", ARGV)
        await guard.start()
        try:
            await guard.hold("vmbr10", "10.10.0.1/24")
            (tmp_path / ".addresses.new").mkdir()  # the disk takes no more
            with pytest.raises(Unavailable, match="cannot be noted"):
                await guard.hold("vmbr10", "10.10.0.2/24")
            assert list(await RoleGuard(tmp_path / "addresses").list_leftovers()) == [("vmbr10", "10.10.0.1/24")]
        finally:
            await guard.close()

    asyncio.run(story())


def test_a_service_manager_that_has_killed_the_daemon_and_its_guard_removes_what_is_noted(
    hosts: NetworkHosts,  # noqa: F811
    tmp_path: Path,
) -> None:
    notes = tmp_path / "addresses"
    command = [sys.executable, "-m", "outlive.drivers.services.role_guard_program", str(notes)]
    addresses = (("vmbr10", "10.10.0.1/24"), ("vmbr10", "fd00:10::1/64"))
    for device, address in addresses:
        hosts.ip("a", "addr", "add", address, "dev", device)
    hosts.ip("a", "addr", "add", "10.10.0.200/24", "dev", "vmbr10")
    notes.write_text(json.dumps([*addresses, ("gone0", "10.99.0.1/24")]))
    with hosts.inside("a"):
        assert subprocess.run(command, check=False, timeout=20).returncode == 0
        notes.write_text("no notes")
        assert subprocess.run(command, check=False, timeout=20).returncode == 0
    left = hosts.run("a", "ip", "-o", "addr", "show", "dev", "vmbr10")
    assert "10.10.0.200" in left
    assert not any(address in left for _, address in addresses)

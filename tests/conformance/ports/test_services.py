"""What the ports of network services promise: of the real programs, and of those in memory that tests run on."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.conformance.claims import until
from tests.support.loops import run_real
from tests.support.network_hosts import NetworkHosts
from tests.support.plain_services import PlainDhcp, PlainFirewall, PlainMetadata, PlainNames

from outlive.base import Refused, SystemClock, Unavailable
from outlive.drivers.services import (
    DnsmasqServers,
    MetadataServer,
    NftFirewall,
    PowerDnsServer,
    RoleGuard,
    Supervisor,
    lease_script,
)
from outlive.node.ports import DhcpPort, FirewallPort, MetadataPort, NamePort
from outlive.node.services import (
    LeaseChange,
    MetadataAnswer,
    ServedLease,
    ServedNetwork,
    ServedSubnet,
    ZoneChange,
    ZoneRecord,
    ZoneState,
)

pytestmark = pytest.mark.component("network-services")
BLUE = ServedNetwork(
    name="blue",
    vni=10,
    domain="blue.local",
    v4=ServedSubnet(cidr="10.10.0.0/24", gateway="10.10.0.1", dhcp=True, start="10.10.0.100", end="10.10.0.110"),
)
both = pytest.mark.parametrize("build", [pytest.param(name, id=name) for name in ("plain", "real")])


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that programs without rights can read."""
    with tempfile.TemporaryDirectory(prefix="outlive-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture(scope="module")
def hosts() -> Iterator[NetworkHosts]:
    made = NetworkHosts(f"cs{os.getpid()}", ("a",), ("vmbr10", "vmbr20"))
    try:
        made.make()
        made.ip("a", "addr", "add", "10.10.0.1/24", "dev", "vmbr10")
        made.ip("a", "addr", "add", "169.254.169.254/32", "dev", "lo")
        made.guest("g", "vmbr10")
        made.ip("g", "addr", "add", "10.10.0.9/24", "dev", "eth0")
        made.ip("g", "route", "add", "169.254.169.254", "via", "10.10.0.1")
        yield made
    finally:
        made.close()


# DHCP


@asynccontextmanager
async def dhcp_port(build: str, folder: Path) -> AsyncIterator[tuple[DhcpPort, Callable[[str, str], None]]]:
    """The port, and what has a script write a change of an address."""
    if build == "plain":
        plain = PlainDhcp()
        yield plain, lambda action, address: plain.tell(change(action, address))
        return
    (folder / "own").mkdir()
    supervisor = Supervisor(folder / "programs", SystemClock())
    port = DnsmasqServers(folder / "own", folder / "public", supervisor, SystemClock())

    def write(action: str, address: str) -> None:
        given = [str(folder / "own"), "10", action, "02:00:00:00:00:01", address]
        assert lease_script.main(given, {"DNSMASQ_LEASE_EXPIRES": "9"}) == 0

    try:
        yield port, write
    finally:
        await supervisor.stop_all()
        port.close()


def change(action: str, address: str) -> LeaseChange:
    lease = ServedLease(address=address, mac="02:00:00:00:00:01", expires=9)
    return LeaseChange(vni=10, action=action, lease=lease)


@both
def test_changes_of_leases_stay_until_they_are_forgotten_and_later_ones_beyond_that(build: str, folder: Path) -> None:
    async def story() -> None:
        async with dhcp_port(build, folder) as (port, write):

            async def taken() -> list[tuple[str, str]]:
                return [(one.action, one.lease.address) for one in await port.take_changes()]

            assert await taken() == []
            write("add", "10.10.0.100")
            write("del", "10.10.0.100")
            first = [("add", "10.10.0.100"), ("del", "10.10.0.100")]
            assert await taken() == first
            assert await taken() == first, "nobody has forgotten them"
            write("old", "10.10.0.101")
            await port.forget_changes()
            assert await taken() == [("old", "10.10.0.101")]
            await port.forget_changes()
            assert await taken() == []

    run_real(story())


@pytest.mark.parametrize("full", [True, False])
def test_a_crash_or_a_full_disk_in_the_middle_of_a_line_costs_no_other_change(full: bool, folder: Path) -> None:
    async def story() -> None:
        async with dhcp_port("real", folder) as (port, write):
            write("add", "10.10.0.100")
            if full:
                limits = resource.getrlimit(resource.RLIMIT_FSIZE)
                resource.setrlimit(resource.RLIMIT_FSIZE, ((folder / "own/spool").stat().st_size + 9, limits[1]))
                try:
                    with pytest.raises(AssertionError):
                        write("add", "10.10.0.101")
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            else:
                await port.take_changes()
                with (folder / "own/taken").open("ab") as taken:
                    taken.write(b'{"vni": 10, "act')  # the daemon was killed as it moved the spool
            write("add", "10.10.0.102")
            found = [one.lease.address for one in await port.take_changes()]
            assert found == ["10.10.0.100", "10.10.0.102"]

    run_real(story())


@both
def test_a_change_of_a_lease_ends_the_wait_for_one(build: str, folder: Path) -> None:
    async def story() -> None:
        async with dhcp_port(build, folder) as (port, write):
            await port.wait_changed(0.01)
            asyncio.get_running_loop().call_later(0.1, write, "add", "10.10.0.100")
            async with asyncio.timeout(30):
                await port.wait_changed(60)
            assert len(await port.take_changes()) == 1

    run_real(story())


def test_a_server_that_cannot_be_prepared_is_a_failure_by_name_and_runs_once_it_can(
    folder: Path, hosts: NetworkHosts
) -> None:
    async def story() -> None:
        async with dhcp_port("real", folder) as (port, _):
            (folder / "own/script-10").mkdir()  # a file cannot be written there
            await port.serve(BLUE, list)
            assert "script-10: Is a directory" in port.list_failures()["blue"]
            (folder / "own/script-10").rmdir()
            await port.serve(BLUE, list)
            await asyncio.sleep(0.7)
            assert port.list_failures() == {}
            await port.end(["blue", "nobody"])

    with hosts.inside("a"):
        run_real(story())


def test_a_server_that_is_not_installed_is_a_failure_by_name(folder: Path, hosts: NetworkHosts) -> None:
    async def story() -> None:
        supervisor = Supervisor(folder / "programs", SystemClock())
        port = DnsmasqServers(folder, folder / "public", supervisor, SystemClock(), program="/opt/no/dnsmasq")
        await port.serve(BLUE, list)
        await until(port.list_failures, "it fails")
        assert port.list_failures() == {"blue": "/opt/no/dnsmasq is not installed"}
        await port.end(["blue"])
        assert port.list_failures() == {}

    with hosts.inside("a"):
        run_real(story())


# Names


@asynccontextmanager
async def name_port(build: str, folder: Path) -> AsyncIterator[NamePort]:
    if build == "plain":
        yield PlainNames()
        return
    supervisor = Supervisor(folder / "programs", SystemClock())
    try:
        yield PowerDnsServer(folder / "names", supervisor, port=5399)
    finally:
        await supervisor.stop_all()


SOA = ZoneRecord("blue.local", "SOA", "ns.example hostmaster.blue.local 7 1 1 1 1")
WEB = ZoneRecord("web.blue.local", "A", "10.10.0.100")
MAIL = ZoneRecord("mail.blue.local", "A", "10.10.0.101")


@both
def test_zones_are_what_was_written_and_only_those_that_are_kept(build: str, folder: Path, hosts: NetworkHosts) -> None:
    async def story() -> None:
        async with name_port(build, folder) as port:
            await port.start(["127.0.0.1"])
            assert port.explain_failure() == ""
            assert await port.read_zone("blue.local") == ZoneState()
            await port.change_zone(ZoneChange("blue.local", SOA, (WEB,)))
            await port.change_zone(ZoneChange("blue.local", SOA, (MAIL,), (WEB,)))
            found = await port.read_zone("blue.local")
            assert (found.serial, found.records) == (7, frozenset({MAIL}))
            await port.change_zone(ZoneChange("red.local", ZoneRecord("red.local", "SOA", SOA.content)))
            await port.keep_zones(["red.local"])
            assert await port.read_zone("blue.local") == ZoneState()
            assert (await port.read_zone("red.local")).serial == 7
            with pytest.raises(Unavailable):
                await port.transfer(BLUE)
            await port.stop()
            await port.stop()

    with hosts.inside("a"):  # where the port is nobody else's
        run_real(story())


@pytest.mark.parametrize("spoilt", [b"", b"no database", b"SQLite format 3\0" + bytes(4080)])
def test_a_database_that_a_crash_has_spoilt_is_made_anew(folder: Path, spoilt: bytes, hosts: NetworkHosts) -> None:
    async def story() -> None:
        (folder / "names").mkdir()
        (folder / "names/zones.db").write_bytes(spoilt)
        async with name_port("real", folder) as port:
            await port.start(["127.0.0.1"])
            await port.change_zone(ZoneChange("blue.local", SOA, (WEB,)))
            assert (await port.read_zone("blue.local")).records == frozenset({WEB})

    with hosts.inside("a"):
        run_real(story())


# Firewall


TABLE = (
    "table inet outlive_test\ndelete table inet outlive_test\ntable inet outlive_test {\n  chain %s {\n    %s\n  }\n}\n"
)


@both
def test_rules_are_in_force_as_one_or_nothing_of_them_is(build: str, hosts: NetworkHosts) -> None:
    async def story() -> None:
        port: FirewallPort = PlainFirewall() if build == "plain" else NftFirewall()
        assert not await port.has_chain("outlive_test", "one")
        await port.check(TABLE % ("one", "accept"))
        assert not await port.has_chain("outlive_test", "one"), "that was a check"
        await port.load(TABLE % ("one", "accept"))
        assert await port.has_chain("outlive_test", "one")
        for call in (port.check, port.load):
            with pytest.raises(Refused) as refused:
                await call(TABLE % ("two", "tcp dport ssssh accept"))
            assert refused.value.remedy
        assert await port.has_chain("outlive_test", "one"), "what was in force stays"
        await port.load(TABLE % ("two", "drop"))
        assert (await port.has_chain("outlive_test", "one"), await port.has_chain("outlive_test", "two")) == (
            False,
            True,
        )

    with hosts.inside("a"):
        run_real(story())


# Metadata


@both
def test_a_question_is_answered_with_the_bridge_that_it_came_by(build: str, hosts: NetworkHosts) -> None:
    async def story() -> None:
        port: MetadataPort = PlainMetadata() if build == "plain" else MetadataServer()

        async def answer(bridge: str, address: str, path: str) -> MetadataAnswer:
            return MetadataAnswer(200, f"{bridge} {address} {path}")

        async def ask() -> str:
            if isinstance(port, PlainMetadata):
                try:
                    return (await port.ask("vmbr10", "10.10.0.9", "/latest")).text
                except ConnectionRefusedError:
                    return ""
            words = ("sh", "-c", "curl -s -m 20 http://169.254.169.254/latest || true")
            return await asyncio.to_thread(hosts.run, "g", *words, limit_s=30.0)

        await port.listen(["vmbr10", "vmbr20"], answer)
        assert port.list_failures() == {}
        assert await ask() == "vmbr10 10.10.0.9 /latest"
        await port.listen(["vmbr20"], answer)
        assert await ask() == ""
        await port.listen(["vmbr10"], answer)
        assert await ask() == "vmbr10 10.10.0.9 /latest"
        await port.stop()
        await port.stop()
        assert await ask() == ""

    with hosts.inside("a"):
        run_real(story())


def test_a_bridge_that_is_not_there_is_a_failure_by_name(hosts: NetworkHosts) -> None:
    async def story() -> None:
        port = MetadataServer()

        async def answer(*_given: str) -> MetadataAnswer:
            return MetadataAnswer(200)

        await port.listen(["vmbr10", "vmbr99"], answer)
        assert port.list_failures().keys() == {"vmbr99"}
        await port.stop()

    with hosts.inside("a"):
        run_real(story())


# The guard


def test_what_a_guard_holds_is_left_over_until_it_is_released(folder: Path, hosts: NetworkHosts) -> None:
    async def story() -> None:
        first = RoleGuard(folder / "addresses")
        with pytest.raises(Unavailable):
            await first.hold("vmbr20", "10.20.0.1/24")
        await first.start()
        await first.start()
        await first.extend(30)
        await first.hold("vmbr20", "10.20.0.1/24")
        await first.hold("vmbr20", "10.20.0.2/24")
        await first.release("vmbr20", "10.20.0.2/24")
        await first.release("vmbr20", "10.20.0.77/24")
        await first.close()
        assert json.loads((folder / "addresses").read_text()) == [["vmbr20", "10.20.0.1/24"]]
        second = RoleGuard(folder / "addresses")
        assert await second.list_leftovers() == [("vmbr20", "10.20.0.1/24")]
        await second.start()
        await second.hold("vmbr20", "10.20.0.3/24")
        assert len(await RoleGuard(folder / "addresses").list_leftovers()) == 2, "what is left over stays noted"
        for address in ("10.20.0.1/24", "10.20.0.3/24"):
            await second.release("vmbr20", address)
        await second.close()
        assert await RoleGuard(folder / "addresses").list_leftovers() == []

    with hosts.inside("a"):
        run_real(story())

"""What a host publishes of itself, and that it says so where nobody brings its figures, after the third time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support.field_writers import WriterStore
from tests.support.loops import run, run_by
from tests.support.node_worlds import at, faults, play

from outlive.base import LoopClock, NotUnderstood, Random, SeededIds, Unavailable
from outlive.node import STALE_CYCLES, HostReporter, StorageLosses
from outlive.node.fencing import DesiredState
from outlive.node.ports import Domain, NoNetworks
from outlive.node.vm import GuestCounts, LocalDomains, NodeSettings
from outlive.resources import Amounts, Capabilities, Cluster, Hypervisor, HypervisorStatus, HypervisorUsage, ObjectMeta
from outlive.resources.reasons import FaultCode
from outlive.runtime import DecisionLog, Duration, FaultRecorder, FaultSet
from outlive.simulation import World
from outlive.store import MemoryStore, decode_object

INTERVAL_S = 5.0
LIMIT_S = 3.0
_replace = msgspec.structs.replace


class Service:
    """A hypervisor service, and the machine it runs on."""

    def __init__(self) -> None:
        self.silent: set[str] = set()
        """Who does not answer: ``domains``, ``guests``, ``machine``."""
        self.hangs = False
        """Whether those hang instead of saying so."""
        self.guests: list[GuestCounts] = []

    async def _answer(self, who: str) -> None:
        if who in self.silent:
            await asyncio.sleep(1e6 if self.hangs else 0)
            raise Unavailable("no answer")

    async def list_domains(self) -> list[Domain]:
        await self._answer("domains")
        return []

    async def statistics(self) -> list[GuestCounts]:
        await self._answer("guests")
        return self.guests

    def read_capacity(self) -> Amounts:
        return Amounts(cpu=1000, memory=1 << 30)

    def read_capabilities(self) -> Capabilities:
        return Capabilities(cpu_arch="x86_64", cpus=4, kernel="6.1.0", os="Debian GNU/Linux 12 (bookworm)")

    def read_usage(self) -> None:
        if "machine" in self.silent:
            raise OSError("/proc is not there")

    def read_load(self) -> float:
        return 0.75


class NoVms:
    """A cache without VMs, and a gauge that measured nothing."""

    published = None

    def items(self) -> list[Any]:
        return []

    def get(self, name: str) -> None:
        return None

    def read_figures(self) -> tuple[dict[str, int], dict[str, float]]:
        return {}, {}


class Switch(NoNetworks):
    """Networks of a host that may say which chassis it is."""

    chassis: str | None = ""

    async def find_chassis(self) -> str | None:
        return self.chassis


class Host:
    """A reporter, with what it needs of a daemon."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.memory = MemoryStore(self.clock, SeededIds(Random(1)))
        self.service = Service()
        self.network = Switch()
        self.store = WriterStore(self.memory, writer="daemon")
        self.faults = FaultSet(FaultRecorder(self.store, self.clock, "daemon", "h1"), self.clock)
        service: Any = self.service
        nobody: Any = NoVms()
        shared: Any = SimpleNamespace(
            host="h1",
            store=self.store,
            desired=SimpleNamespace(cluster=None),
            domains=LocalDomains(service, self.clock, limit_s=LIMIT_S),
            lease=SimpleNamespace(held=True),
            machine=service,
            statistics=self.service.statistics,
            storage=SimpleNamespace(own_address=lambda: ""),
            networks={},
            network=self.network,
            links=None,
            traffic=None,
            losses=StorageLosses(),
            informer=nobody,
            clock=self.clock,
            decisions=DecisionLog(self.clock),
            faults=self.faults,
            settings=NodeSettings(usage=Duration(INTERVAL_S), call_limit=Duration(LIMIT_S)),
        )
        self.domains = shared.domains
        self.reporter = HostReporter(shared, nobody)

    async def intervals(self, count: int) -> list[str]:
        """So many publications; the faults after them."""
        for _ in range(count):
            await self.reporter.publish_figures()
            await self.clock.sleep(INTERVAL_S)
        return [one.message.text for one in self.faults.active]

    async def usage(self) -> Any:
        return (await self.memory.get(HypervisorUsage, "h1")).usage


def told(story: Callable[[Host], Awaitable[None]]) -> None:
    async def whole() -> None:
        await story(Host())

    run(whole())


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize(
    ("silent", "who"),
    [
        ({"domains"}, "its hypervisor service does"),
        ({"guests"}, "its hypervisor service does"),
        ({"domains", "guests"}, "its hypervisor service does"),
        ({"machine"}, "its kernel does"),
    ],
)
@run_by(told)
async def test_who_brings_no_figures_three_times_is_a_fault_until_it_does(
    host: Host, *, silent: set[str], who: str, hangs: bool
) -> None:
    assert await host.intervals(1) == []
    assert (await host.usage()).stale == ()
    host.service.silent, host.service.hangs = silent, hangs
    assert await host.intervals(STALE_CYCLES - 1) == []
    assert (await host.usage()).stale == tuple(sorted(silent))
    assert (await host.usage()).load == 0.75, "what is not brought anew keeps its value"
    assert await host.intervals(1) == [f"figures of h1 are old: {who} not answer"]
    host.service.silent = set()
    assert await host.intervals(1) == []
    assert (await host.usage()).stale == ()


def test_what_guests_use_is_by_the_second_and_nothing_where_one_was_started_anew() -> None:
    async def story(host: Host) -> None:
        used = GuestCounts(vm="a", cpu_s=7.0, resident_bytes=9, read_bytes=1000, sent_bytes=50)
        for cpu_s, read_bytes in ((2.0, 100), (7.0, 1100), (1.0, 200)):
            host.service.guests = [_replace(used, cpu_s=cpu_s, read_bytes=read_bytes)]
            await host.intervals(1)
            found.append((await host.usage()).guests["a"])

    found: list[Amounts] = []
    told(story)
    assert [(one.cpu_milli, one.memory_bytes, one["diskRead"]) for one in found] == [
        (0, 9, 0),
        (1000, 9, 200),
        (0, 9, 0),
    ]
    assert set(found[0]) == {"cpu", "memory", "diskRead", "diskWritten", "netReceived", "netSent"}


@run_by(told)
async def test_all_are_asked_for_their_figures_at_once(host: Host) -> None:
    host.service.silent, host.service.hangs = {"domains", "guests"}, True
    began = host.clock.monotonic()
    await host.reporter.publish_figures()
    assert host.clock.monotonic() - began == pytest.approx(LIMIT_S)


@run_by(told)
async def test_host_says_what_runs_its_vms_so_that_placement_offers_it(host: Host) -> None:
    await host.domains.refresh()
    before = HypervisorStatus(capabilities=Capabilities(cpu_arch="imported"))
    await host.memory.create(Hypervisor(metadata=ObjectMeta(name="h1"), status=before))
    assert await host.reporter.report()
    status = (await host.memory.get(Hypervisor, "h1")).status
    assert status.domain_capabilities.hypervisor_type == "kvm"
    assert status.capabilities == host.service.read_capabilities()
    assert status.version


@run_by(told)
async def test_host_says_which_chassis_of_ovn_it_is_and_keeps_what_it_said_while_its_switch_is_silent(
    host: Host,
) -> None:
    await host.domains.refresh()
    await host.memory.create(Hypervisor(metadata=ObjectMeta(name="h1")))
    said = []
    for host.network.chassis in ("", "kvm-1", None):
        written = await host.reporter.report()
        assert written == (host.network.chassis is not None), "else it is asked again"
        said.append((await host.memory.get(Hypervisor, "h1")).status.chassis)
    assert said == ["", "kvm-1", "kvm-1"]


def test_daemon_that_is_older_than_the_server_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotUnderstood, match="newMember"):
        decode_object(Cluster, b'{"kind": "Cluster", "metadata": {"name": "default"}, "newMember": 1}', writing=False)
    look = DesiredState.refresh

    async def story(world: World) -> None:
        async def newer(desired: DesiredState) -> None:
            if desired.host == "kvm-1":
                raise NotUnderstood("it has a member that this version does not know")
            await look(desired)

        def said() -> list[str]:
            return [name for name in faults(world) if FaultCode.VERSION_BEHIND in name]

        assert said() == []
        monkeypatch.setattr(DesiredState, "refresh", newer)
        await at(world, 20)
        assert said() == ["version-behind.kvm-1"]
        monkeypatch.undo()
        await at(world, 40)
        assert said() == []

    play(story)

"""A host whose hypervisor service does not answer says so, after the third time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.support.field_writers import WriterStore
from tests.support.loops import run

from outlive.base.clock import LoopClock
from outlive.base.errors import Unavailable
from outlive.base.ids import SeededIds
from outlive.base.random import Random
from outlive.node.ports import Domain
from outlive.node.status import STALE_CYCLES, HostReporter
from outlive.node.vm.context import NodeSettings
from outlive.node.vm.domains import LocalDomains
from outlive.resources import Amounts, Hypervisor, HypervisorUsage, ObjectMeta
from outlive.runtime.decisions import DecisionLog
from outlive.runtime.faults import FaultRecorder, FaultSet
from outlive.runtime.units import Duration
from outlive.store.memory import MemoryStore

INTERVAL_S = 5.0


class Service:
    """A hypervisor service, and the machine it runs on."""

    answers = True

    async def domains(self) -> list[Domain]:
        if not self.answers:
            raise Unavailable("no answer")
        return []

    def capacity(self) -> Amounts:
        return Amounts(cpu=1000, memory=1 << 30)

    def used(self) -> None:
        return None

    def load(self) -> float:
        return 0.75


class NoVms:
    """A cache without VMs, and a gauge that measured nothing."""

    def items(self) -> list[Any]:
        return []

    def get(self, name: str) -> None:
        return None

    def figures(self) -> tuple[dict[str, int], dict[str, float]]:
        return {}, {}


def test_service_that_does_not_answer_three_times_is_a_fault_until_it_answers() -> None:
    async def story() -> list[list[str]]:
        clock = LoopClock()
        memory = MemoryStore(clock, SeededIds(Random(1)))
        store = WriterStore(memory, writer="daemon")
        service: Any = Service()
        nobody: Any = NoVms()
        faults = FaultSet(FaultRecorder(store, clock, "daemon", "h1"), clock)
        shared: Any = SimpleNamespace(
            host="h1",
            store=store,
            domains=LocalDomains(service, clock, limit_s=1.0),
            lease=nobody,
            machine=service,
            statistics=None,
            informer=nobody,
            clock=clock,
            decisions=DecisionLog(clock),
            faults=faults,
            settings=NodeSettings(usage=Duration(INTERVAL_S)),
        )
        reporter = HostReporter(shared, nobody)
        seen: list[list[str]] = []

        async def intervals(count: int) -> None:
            for _ in range(count):
                await reporter.figures()
                await clock.sleep(INTERVAL_S)
            seen.append([one.name for one in faults.active])

        await intervals(1)
        assert (await memory.get(HypervisorUsage, "h1")).usage.load == 0.75
        service.answers = False
        await intervals(STALE_CYCLES - 1)
        await intervals(1)
        service.answers = True
        await intervals(1)
        return seen

    assert run(story()) == [[], [], ["figures-stale.h1"], []]


def test_host_says_what_runs_its_vms_so_that_placement_offers_it() -> None:
    async def story() -> str:
        clock = LoopClock()
        memory = MemoryStore(clock, SeededIds(Random(1)))
        service: Any = Service()
        nobody: Any = NoVms()
        shared: Any = SimpleNamespace(
            host="h1",
            store=WriterStore(memory, writer="daemon"),
            domains=LocalDomains(service, clock, limit_s=1.0),
            lease=SimpleNamespace(held=True),
            machine=service,
            statistics=None,
            storage=SimpleNamespace(address=lambda: ""),
            networks={},
            informer=nobody,
            clock=clock,
            settings=NodeSettings(),
        )
        await shared.domains.look()
        reporter = HostReporter(shared, SimpleNamespace(published=None))  # type: ignore[arg-type]
        await memory.create(Hypervisor(metadata=ObjectMeta(name="h1")))
        assert await reporter.report()
        return (await memory.get(Hypervisor, "h1")).status.domain_capabilities.hypervisor_type

    assert run(story()) == "kvm"

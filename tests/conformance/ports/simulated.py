"""The simulated drivers as subjects of the suites: at rest, slow, and with lost answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
from tests.conformance.claims import Subject
from tests.conformance.ports import harness
from tests.support.loops import run
from tests.support.virtual_hosts import Bench, GuardedHost, small_vm

from outlive.base import Random, SeededIds
from outlive.guard import Instants
from outlive.node.ports import DomainState
from outlive.resources import Amounts, FencingSpec, Hypervisor, HypervisorSpec, ObjectMeta, VirtualMachine, with_device
from outlive.simulation import (
    Bmc,
    HypervisorClient,
    Machine,
    MachineClient,
    PowerClient,
    Process,
    SimDisks,
    SimDomain,
    SimGuardClient,
    StorageClient,
    domain_of,
)

T = TypeVar("T")
BOOT_S = 10.0


class Processes:
    """Of drivers: each has one of its own, and the last one may be killed."""

    def __init__(self) -> None:
        self.last = Process("none")
        self._runs = 0

    def new(self) -> Process:
        self._runs += 1
        self.last = Process("driver", self._runs)
        self.last.alive = True
        return self.last

    def kill(self) -> None:
        self.last.kill()


class Hypervisors(Processes):
    """See ``harness.HypervisorHarness``."""

    settle_s = 300.0
    pace = 1.0

    def __init__(self, *, lag_s: float = 0.0, lost_answers: float = 0.0) -> None:
        super().__init__()
        self._both: dict[str, None] = {}
        self._bench = Bench(("a", "b"))
        self._bench.watch = self._look
        self._hypervisors = self._bench.hypervisors
        self._bench.boot()
        for one in self._hypervisors.values():
            one.faults.lag_s, one.faults.lost_answers = lag_s, lost_answers

    def _look(self, host: str, vm: str) -> None:
        if all(one.runs(vm) for one in self._hypervisors.values()):
            self._both[vm] = None

    def driver(self, host: str = "a") -> HypervisorClient:
        return HypervisorClient(self._hypervisors[host], self.new())

    def vm(self, name: str) -> VirtualMachine:
        return small_vm(name)

    busy_vm = vm

    def vm_with_disk(self, name: str, target: str) -> VirtualMachine:
        xml = (
            f"<domain type='qemu'><name>{name}</name><uuid>00000000-0000-4000-8000-000000000002</uuid>"
            "<memory unit='MiB'>16</memory><vcpu>1</vcpu><features><acpi/></features>"
            "<devices><controller type='scsi'/></devices></domain>"
        )
        vm = small_vm(name)
        definition, _ = with_device(
            xml, f"<disk type='file'><source file='/{target}.img'/><target dev='{target}'/></disk>"
        )
        disks = (*vm.spec.disks, f"file:/{target}.img")
        return msgspec.structs.replace(vm, spec=msgspec.structs.replace(vm.spec, definition=definition, disks=disks))

    def processes(self, vm: str, host: str = "a") -> int:
        domain = self._hypervisors[host].domains.get(vm)
        return int(domain is not None and domain.state is not DomainState.OFF)

    def executes(self, vm: str, host: str = "a") -> bool:
        return self._hypervisors[host].runs(vm)

    def both_ran(self, vm: str) -> bool:
        return vm in self._both

    def stop_service(self, host: str = "a") -> None:
        self._hypervisors[host].stop_service()

    def lose_track(self, vm: str) -> None:
        self._hypervisors["a"].lose_track(vm)

    def outside_slice(self) -> None:
        self._hypervisors["a"].move_outside()

    def autostart(self) -> None:
        self._hypervisors["a"].faults.autostart = ("the service starts domain other by itself: disable that",)

    def foreign(self, name: str) -> str:
        uuid = "00000000-0000-4000-8000-000000000001"
        self._hypervisors["a"].add_domain(SimDomain(vm=name, run_id="", epoch=0, state=DomainState.RUNNING, uuid=uuid))
        return uuid

    def crash(self, vm: str) -> None:
        self._hypervisors["a"].crash(vm)

    def hang(self, vm: str) -> None:
        self._hypervisors["a"].faults.unkillable[vm] = True

    def fail_start(self, vm: str) -> None:
        self._hypervisors["a"].faults.start_fails[vm] = ("no memory", 1, False)

    def fail_migration(self, phase: str) -> None:
        self._hypervisors["a"].faults.migration = phase

    def freeze(self, host: str = "a") -> None:
        self.last.halt()
        self._hypervisors[host].pause()

    def thaw(self, host: str = "a") -> None:
        self._hypervisors[host].go_on()
        self.last.go_on()

    def reboot(self, host: str = "a") -> None:
        self.kill()
        self._hypervisors[host].lose_power()
        self._hypervisors[host].boot()


def _machine(name: str, **given: object) -> Machine:
    machine = Machine(
        name,
        ids=SeededIds(Random(name.encode()[0])),
        capacity=Amounts(cpu=32000, memory=2**36),
        boot_s=BOOT_S,
        up=lambda: None,
        down=lambda how: None,
    )
    machine.plug(at_once=True)
    return machine


class Power(Processes):
    """See ``harness.PowerHarness``."""

    settle_s = 90.0

    def __init__(self, mode: str = "ok") -> None:
        super().__init__()
        self._machines = {name: _machine(name) for name in ("a", "b", "c")}
        self._bmcs = {name: Bmc(one, random=Random(7).fork(name)) for name, one in self._machines.items()}
        self._bmcs["c"].mode = "none"
        for name in ("a", "b"):
            self.set_mode(name, mode)

    def driver(self) -> PowerClient:
        return PowerClient(self.new(), self._bmcs, lambda host: True)

    def host(self, name: str) -> Hypervisor:
        fencing = FencingSpec(driver="simulated", address=name, system_uuid=self._machines[name].system_uuid)
        return Hypervisor(metadata=ObjectMeta(name=name), spec=HypervisorSpec(fencing=fencing))

    def is_on(self, host: str) -> bool:
        return self._machines[host].powered

    def boots(self, host: str) -> int:
        return self._machines[host].boots

    def commands(self, host: str) -> int:
        return self._bmcs[host].commands

    def set_mode(self, host: str, mode: str) -> None:
        self._bmcs[host].mode = mode  # type: ignore[assignment]

    def wire(self, host: str, to: str) -> None:
        self._bmcs[host].machine = self._machines[to]


class Isolation(Processes):
    """See ``harness.IsolationHarness``."""

    scope = ("disk:d1", "disk:d2", "port:p1")
    settle_s = 60.0

    def __init__(self, ability: str = "all") -> None:
        super().__init__()
        self._disks = SimDisks(ability, lambda host: None, Random(3))  # type: ignore[arg-type]
        self._off: dict[str, None] = {}

    def _client(self, host: str) -> StorageClient:
        return StorageClient(self._disks, self.new(), host, lambda: host not in self._off)

    driver = storage = lambda self, host="b": self._client(host)

    def reaches(self, host: str, epoch: int, one: str) -> bool:
        kind, _, name = one.partition(":")
        domain = domain_of(small_vm(), "r", epoch, DomainState.RUNNING)
        domain.disks, domain.ports = ((name,), ()) if kind == "disk" else ((), (name,))
        if kind == "disk":
            return self._disks.reaches_disks(host, domain)
        return self._disks.reaches_network(host, domain)

    def slow_servers(self, seconds: float) -> None:
        self._disks.spreads_s = (seconds, seconds)

    def partition(self, host: str = "b") -> None:
        self._off[host] = None

    def open_disk(self, disk: str, host: str) -> None:
        domain = domain_of(small_vm(), "r", 1, DomainState.RUNNING)
        domain.disks = (disk,)
        self._disks.open_disks(host, domain)


class OneMachine(Processes):
    """See ``harness.MachineHarness``."""

    def __init__(self) -> None:
        super().__init__()
        self._machine = _machine("m")

    def driver(self) -> MachineClient:
        return MachineClient(self._machine, self.new())

    def halt(self) -> None:
        self.last.halt()

    def lose_power(self) -> None:
        self.kill()
        self._machine.unplug()
        self._machine.plug(at_once=True)

    def fill_disk(self, full: bool) -> None:
        self._machine.disk_full = full


class Guards(Processes):
    """See ``harness.GuardHarness``."""

    def __init__(self) -> None:
        super().__init__()
        self._host = GuardedHost()
        self._host.start()

    def driver(self) -> SimGuardClient:
        return SimGuardClient(self._host.answering_guard, self._host.machine, self.new())

    def instants(self, ago_s: float = 0.0) -> Instants:
        now = self._host.machine.clock.read_clocks()
        return Instants(*(each - ago_s for each in now))

    def kill_guard(self) -> None:
        self._host.process.kill()

    def halt_guard(self) -> None:
        self._host.process.halt()


def _subject(name: str, make: Callable[[], T]) -> Subject[T]:
    @asynccontextmanager
    async def opened(_: Path) -> AsyncIterator[T]:
        yield make()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def open_(path: Path) -> AbstractAsyncContextManager[T]:
        return opened(path)

    return Subject(name, open_, run)


HYPERVISORS: tuple[Subject[harness.HypervisorHarness], ...] = (
    _subject("simulated", Hypervisors),
    _subject("simulated, slow", lambda: Hypervisors(lag_s=3.0)),
    _subject("simulated, loses answers", lambda: Hypervisors(lost_answers=0.5)),
    _subject("simulated, answers nothing", lambda: Hypervisors(lag_s=1.0, lost_answers=1.0)),
)
POWER: tuple[Subject[harness.PowerHarness], ...] = (
    _subject("simulated", Power),
    _subject("simulated, slow", lambda: Power("slow")),
)
ISOLATION: tuple[Subject[harness.IsolationHarness], ...] = (_subject("simulated", Isolation),)
MACHINES: tuple[Subject[harness.MachineHarness], ...] = (_subject("simulated", OneMachine),)
GUARDS: tuple[Subject[harness.GuardHarness], ...] = (_subject("simulated", Guards),)

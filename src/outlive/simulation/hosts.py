"""One virtual host: a machine with a hypervisor, a guard, a node daemon and a service manager that starts them again.

The daemon is the product's; everything below it is virtual. When the machine ends, all of it ends; when it is halted,
all of it stands still but the watchdog device and the world around.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from outlive.base import OutliveError, Refused, Unavailable, get_logger
from outlive.guard import GuardState
from outlive.node.ports import DiskIo, Domain, DomainState, MigrationProgress, MigrationSettings
from outlive.resources import CPU, MEMORY, Amounts, VirtualMachine
from outlive.runtime import outside_parts
from outlive.simulation.controllers import Bmc
from outlive.simulation.functions import SimCards
from outlive.simulation.guards import SimGuard
from outlive.simulation.history import History
from outlive.simulation.hypervisors import SimDomain, SimHypervisor
from outlive.simulation.machines import Machine
from outlive.simulation.narration import narrate_end
from outlive.simulation.process import Process, go
from outlive.simulation.spec import HostSpec

T = TypeVar("T")
_log = get_logger("simulation.hosts")
BUSY_SHARE: Final = 0.25
"""How much of its cores a guest keeps busy."""
START_S: Final = 0.2
"""From the boot of the kernel to the start of the daemon."""
RESTART_S: Final = 2.0
"""From the end of a service to its next start."""
RESTART_CAP_S: Final = 30.0
"""The same after many failures in a row."""


class Program(Protocol):
    """The program that a process runs."""

    async def run(self) -> None:
        """Until cancelled or stopped."""
        ...


class SimService:
    """One program under a service manager: started, and started again when it ends without being asked to."""

    def __init__(self, name: str, make: Callable[[Process], Program], history: History, restart_s: float) -> None:
        self.name = name
        self.process: Process | None = None
        self.role: Program | None = None
        self.runs = 0
        self.wanted = False
        self._make = make
        self._history = history
        self._restart_s = restart_s
        self._failures = 0
        self._halts = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def alive(self) -> bool:
        """Whether a process of it runs, halted or not."""
        return self.process is not None and self.process.alive

    @property
    def active(self) -> bool:
        """Whether a process of it runs and is not halted."""
        return self.process is not None and self.process.alive and not self.process.part.halted

    def start(self, after_s: float = 0.0) -> None:
        """See to it that it runs, from then on."""
        self.wanted = True
        self._cancel()
        if not self.alive:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(after_s, self._start, context=outside_parts())

    def kill(self, *, again: bool = True) -> None:
        """Kill it; the service manager starts it again, unless it is gone as well."""
        self._cancel()
        if self.process is not None and self.process.alive:
            self.process.kill()
            self._history.add("process", self.name, "killed")
        self.wanted = again
        if again:
            self.start(self._restart_s)

    def stop(self, *, leave_vms: bool = False, going_down: bool = False) -> None:
        """Ask it to end, and do not start it again."""
        self.wanted = False
        self._cancel()
        ask = getattr(self.role, "stop", None)
        if self.alive and ask is not None:
            assert self.process is not None
            context = self.process.part.make_context()
            asyncio.get_running_loop().call_soon(
                lambda: ask(leave_vms=leave_vms, going_down=going_down), context=context
            )

    async def ask(self, call: Callable[[Program], Coroutine[Any, Any, T]], *, name: str, limit_s: float) -> T:
        """A request from outside, and its answer or error; ``Unavailable`` where no answer comes."""
        process, role = self.process, self.role
        if process is None or role is None or not process.alive:
            raise Unavailable(f"{self.name} does not run")
        asked = go(call(role), name=name, part=process.part)
        await asyncio.wait({asked}, timeout=limit_s)
        if not asked.done():
            asked.cancel()
            raise Unavailable(f"{self.name} gives no answer in {limit_s:g} s")
        if asked.cancelled():
            raise Unavailable(f"{self.name} ended before it answered")
        try:
            return asked.result()
        except OutliveError:
            raise
        except Exception as error:
            _log.exception("request.failed", request=name)  # a defect, also if the program goes on after it
            raise Unavailable(f"{self.name} failed: {error!r}") from error

    def halt(self) -> None:
        """Let it stand still."""
        self._halts += 1
        if self.process is not None:
            self.process.halt()

    def go_on(self) -> None:
        """Let it go on, once for each halt."""
        if self._halts:
            self._halts -= 1
            if self.process is not None:
                self.process.go_on()

    def forget_halts(self) -> None:
        """The machine boots."""
        self._halts = 0

    def _start(self) -> None:
        self._timer = None
        if not self.wanted or self.alive:
            return
        self.runs += 1
        process = Process(self.name, self.runs)
        self.process = process
        self.role = self._make(process)
        process.start(self.role.run, self._handle_end)
        for _ in range(self._halts):
            process.halt()
        if self.runs > 1:
            self._history.add("process", self.name, "started again")

    def _handle_end(self, process: Process) -> None:
        why = "ended" if process.error is None else f"failed: {process.error}"
        self._history.add("process", self.name, why)
        if self.wanted:
            self._failures = self._failures + 1 if process.error is not None else 0
            self.start(min(RESTART_CAP_S, self._restart_s * 2 ** min(self._failures, 8)))

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class SimHost:
    """See the module."""

    def __init__(
        self,
        spec: HostSpec,
        *,
        machine: Machine,
        hypervisor: SimHypervisor,
        bmc: Bmc,
        daemon: Callable[[SimHost, Process], Program],
        guarded: Callable[[str, GuardState], None],
        history: History,
        guests_use: dict[str, Amounts],
        paced: Callable[[str], None] = lambda _: None,
    ) -> None:
        """``guarded``: called once its guard was armed, or disarmed; ``paced``: once it stands still, or goes on."""
        self.name = spec.name
        self.spec = spec
        self.machine = machine
        machine.load = self._load
        machine.measured = self._measure_use
        self.used: Amounts | None = None
        """What is in use of it by others than its guests, as a timeline says."""
        self.guests_use: dict[str, Amounts] = guests_use
        """The same of each VM, wherever it runs; of others it is a share of their cores, and all of their memory."""
        self.hypervisor = hypervisor
        self.bmc = bmc
        self.cards = SimCards(machine, spec.functions)
        self.paused = False
        self.guard = SimService(f"{spec.name}/guard", self._make_guard, history, 1.0)
        self.daemon = SimService(f"{spec.name}/daemon", lambda process: daemon(self, process), history, RESTART_S)
        self.beside: SimService | None = None
        """The controller of a coordinator that has no machine of its own: it comes and goes with this one."""
        self.second: SimService | None = None
        """A daemon that somebody started beside the first, by hand: no boot starts it again."""
        self._history = history
        self._guarded = guarded
        self._paced = paced

    def _load(self) -> float:
        running = [one for one in self.hypervisor.domains.values() if one.state is DomainState.RUNNING]
        busy_milli = sum(self._measure_domain(one).cpu_milli for one in running)
        return (busy_milli + (self.used.cpu_milli if self.used is not None else 0)) / 1000

    def _measure_use(self) -> Amounts | None:
        domains = self.hypervisor.domains.values()
        if self.used is None and not any(one.vm in self.guests_use for one in domains):
            return None
        running = [one for one in domains if one.state is DomainState.RUNNING]
        return sum((self._measure_domain(one) for one in running), self.used or Amounts(cpu=0, memory=0))

    def _measure_domain(self, domain: SimDomain) -> Amounts:
        said = self.guests_use.get(domain.vm, Amounts())
        return Amounts(
            cpu=said.get(CPU, round(BUSY_SHARE * domain.cpu_milli)), memory=said.get(MEMORY, domain.memory_bytes)
        )

    @property
    def services(self) -> tuple[SimService, ...]:
        """All programs that run on it."""
        return tuple(one for one in (self.daemon, self.guard, self.beside, self.second) if one is not None)

    def answering_guard(self) -> SimGuard | None:
        """The guard, if it lives and is not halted."""
        guard = self.guard.role if self.guard.active else None
        return guard if isinstance(guard, SimGuard) else None

    @property
    def lives(self) -> bool:
        """Whether its machine runs."""
        return self.machine.running

    def handle_boot(self) -> None:
        """The kernel has started."""
        self.hypervisor.boot()
        self.paused = False
        for service in self.services:
            service.forget_halts()
        self.guard.start()
        self.daemon.start(START_S)
        if self.beside is not None:
            self.beside.start()
        self._history.add("machine", self.name, f"booted ({self.machine.boots}. boot)")

    def handle_end(self, how: str) -> None:
        """The machine has ended."""
        for service in self.services:
            service.kill(again=False)
        self.second = None
        self.hypervisor.lose_power()
        self.paused = False
        self._history.record(narrate_end(self.name, how))

    def pause(self, *, asleep: bool = False) -> None:
        """Everything on it stands still; ``asleep``: one of its clocks as well."""
        if self.lives and not self.paused:
            self.paused = True
            self.machine.clock.set_asleep(asleep)
            for service in self.services:
                service.halt()
            self.hypervisor.pause()
            self._paced(self.name)
            self._history.add("machine", self.name, "sleeps" if asleep else "stands still")

    def go_on(self) -> None:
        """It goes on."""
        if self.paused:
            self.paused = False
            self.machine.clock.set_asleep(False)
            self._history.add("machine", self.name, "goes on")
            self.hypervisor.go_on()
            self._paced(self.name)
            for service in self.services:
                service.go_on()

    def end_second(self) -> None:
        """The operator who started a second daemon ends it."""
        if self.second is not None:
            self.second.kill(again=False)
            self.second = None

    def _make_guard(self, process: Process) -> Program:
        changed = partial(self._guarded, self.name)
        return SimGuard(self.machine, self.hypervisor, process, self._history, changed)


class HypervisorClient:
    """The hypervisor as one process of its host reaches it: ``HypervisorPort``."""

    def __init__(self, hypervisor: SimHypervisor, process: Process) -> None:
        self._hypervisor = hypervisor
        self._process = process

    async def list_domains(self) -> tuple[Domain, ...]:
        """All that exist. Looking changes nothing, so it needs nobody who goes on without the caller."""
        self._check()
        answer = await self._hypervisor.list_domains()
        self._check()
        return answer

    async def list_problems(self) -> tuple[str, ...]:
        """What else starts domains here."""
        self._check()
        return self._hypervisor.faults.autostart

    async def create(
        self, vm: VirtualMachine, *, run_id: str, epoch: int, incoming: MigrationSettings | None = None
    ) -> None:
        """Create and start; goes on whatever becomes of the caller."""
        await self._call(lambda: self._hypervisor.create(vm, run_id, epoch, incoming is not None), f"create {vm.name}")

    async def destroy(self, vm: str, *, run_id: str = "", uuid: str = "") -> None:
        """Stop hard."""
        await self._call(lambda: self._hypervisor.destroy(vm, run_id, uuid), f"destroy {vm}")

    async def decline(self, vm: str, run_id: str) -> None:
        """End what waits for a guest."""
        await self._call(lambda: self._hypervisor.decline(vm, run_id), f"decline {vm}")

    async def shutdown(self, vm: str) -> None:
        """Ask the guest."""
        await self._call(lambda: self._hypervisor.shutdown(vm), f"shutdown {vm}")

    async def list_devices(self, vm: str, *, run_id: str) -> dict[str, str]:
        """What it has now."""
        return await self._call(lambda: self._hypervisor.list_devices(vm, run_id), f"devices {vm}")

    async def disk_io(self) -> tuple[DiskIo, ...]:
        """How the disks of its guests do."""
        self._process.check()
        found = await self._hypervisor.disk_io()
        self._process.check()
        return found

    async def attach(self, vm: VirtualMachine, device: str, *, run_id: str) -> None:
        """Give it a device; goes on whatever becomes of the caller."""
        await self._call(lambda: self._hypervisor.attach(vm, device, run_id), f"attach {vm.name}")

    async def detach(self, vm: str, device: str, *, run_id: str) -> None:
        """Take a device away."""
        await self._call(lambda: self._hypervisor.detach(vm, device, run_id), f"detach {vm}")

    async def resume(self, vm: str, *, run_id: str) -> None:
        """Let it go on."""
        await self._call(lambda: self._hypervisor.resume(vm, run_id), f"resume {vm}")

    async def migrate(self, vm: str, target: str, *, listens: str, settings: MigrationSettings) -> None:
        """Send; the downtime is the network's, not the caller's."""
        limit_s, post_copy = settings.time_limit_s, settings.post_copy
        await self._call(lambda: self._hypervisor.migrate(vm, target, limit_s, post_copy), f"migrate {vm}")

    async def cancel(self, vm: str) -> None:
        """Call off what is being sent."""
        self._check()
        if vm not in self._hypervisor.sending:
            raise Refused(f"{vm} is not being moved from {self._hypervisor.host}")
        self._hypervisor.sending[vm] = True

    async def read_progress(self, vm: str) -> MigrationProgress | None:
        """How far it is."""
        self._process.check()
        return MigrationProgress(phase="active") if vm in self._hypervisor.sending else None

    async def start_service(self) -> None:
        """See to it that the service runs."""
        self._process.check()
        await self._process.call(go(self._hypervisor.start_service(), name="start service", part=self._hypervisor.part))

    async def _call(self, work: Callable[[], Coroutine[Any, Any, T]], what: str) -> T:
        self._check()
        hypervisor = self._hypervisor
        return await self._process.call(go(work(), name=f"{hypervisor.host}/{what}", part=hypervisor.part))

    def _check(self) -> None:
        self._process.check()
        if not self._hypervisor.service:
            raise Unavailable(f"the hypervisor service of {self._hypervisor.host} is stopped", remedy="start it")

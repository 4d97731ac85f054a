"""The hypervisor of one virtual host: domains, how long things take, and how they fail.

Its work belongs to the host and not to the caller: a create goes on after the daemon that asked for it was killed,
and its domain appears. A migration hands over as QEMU does: the source pauses, sends its state, the target runs; at no
moment do both run, whichever message is lost. Guests run on when the service is stopped; only a kill of the process or
the end of the machine ends them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from outlive.base import BadInput, InUse, Random, Refused, Unavailable, Unknown
from outlive.node.ports import POST_COPY_STALL_S, DiskIo, Domain, DomainState
from outlive.resources import VirtualMachine, cache_refusal, devices_named
from outlive.runtime import LoopPart
from outlive.simulation.machines import HypervisorFaults, Latencies
from outlive.simulation.process import go

MIGRATION_LOOK_S: Final = 0.2
"""How often a migration looks whether both sides are still there."""
SETTLE_LOOKS: Final = 10_000
LAGS: Final = 5
"""So many times as slow as an answer is the sending of memory on a host that is slow."""
DeadDisks = Literal["stall", "pause", "hang"]
"""How guests fare whose disks do not answer: they wait; an error pauses them; or they wait and no signal ends them."""
LATENCY_S: Final = 0.001
"""Of the answer to how their disks do."""
LIVE: Final = (DomainState.RUNNING, DomainState.PAUSED)
GONE_WITH_HOST: Final = "gone with the host"
CRASHED: Final = "crashed"
ACCIDENTS: Final = (GONE_WITH_HOST, CRASHED)
"""Ends of domains that nobody asks for."""
PHASES: Final = ("precopy", "paused", "sent", "last")
"""Where a migration may fail."""


@dataclass(slots=True)
class SimDomain:
    """One domain as it really is."""

    vm: str
    run_id: str
    epoch: int
    state: DomainState
    cpu_milli: int = 0
    memory_bytes: int = 0
    devices: dict[str, str] = field(default_factory=dict)
    """Its disks and interfaces by name, and the id of each disk."""
    disks: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    """Those of them that domains of other VMs may write as well."""
    ports: tuple[str, ...] = ()
    accept_duplicate: bool = False
    crashed: bool = False
    guarded: bool = True
    """Whether its process is in the slice that the guard empties."""
    listed: bool = True
    """Whether the service knows of it."""
    split: bool = False
    """Whether parts of its memory are on either host of a move by post-copy."""
    left: bool = False
    """Whether its state has run elsewhere since: what is here is of the past, and must never run again."""
    uuid: str = ""
    """Of one that the service, or somebody by hand, has started."""
    io_error: bool = False
    """Whether an error of a disk has paused it."""
    answered: int = 0
    """Requests that its disks have answered."""

    def to_domain(self) -> Domain:
        """As the port shows it."""
        return Domain(
            vm=self.vm,
            run_id=self.run_id,
            epoch=self.epoch,
            state=self.state,
            cpu_milli=self.cpu_milli,
            memory_bytes=self.memory_bytes,
            crashed=self.crashed,
            guarded=self.guarded,
            listens=self.run_id if self.state is DomainState.INCOMING else "",
            uuid=self.uuid,
            split=self.split,
            io_error=self.io_error and self.state is DomainState.PAUSED,
        )


def domain_of(vm: VirtualMachine, run_id: str, epoch: int, state: DomainState) -> SimDomain:
    """The domain that a definition makes."""
    spec = vm.spec
    return SimDomain(
        vm=vm.name,
        run_id=run_id,
        epoch=epoch,
        state=state,
        cpu_milli=spec.resources.cpu_milli,
        memory_bytes=spec.resources.memory_bytes,
        devices=devices_named(spec.definition) if spec.definition else {disk: disk for disk in spec.disks},
        disks=spec.disks,
        shared=spec.shared_disks,
        ports=spec.ports,
        accept_duplicate=spec.network_policy == "accept-duplicate",
    )


class SimHypervisor:
    """See the module. ``changed(vm)`` is called after every change of a domain."""

    def __init__(
        self,
        host: str,
        *,
        random: Random,
        changed: Callable[[str, str], None],
        peer: Callable[[str], SimHypervisor | None],
    ) -> None:
        self.host = host
        self.faults = HypervisorFaults()
        self.latencies = Latencies()
        self.domains: dict[str, SimDomain] = {}
        self.service = False
        self.powered = False
        self.paused = False
        """Whether the whole host stands still."""
        self.dead_disks: DeadDisks | None = None
        """How guests fare whose storage is not reached; ``None``: it is."""
        self.peer = peer
        """The hypervisor of another host, if this one reaches it."""
        self._random = random
        self._changed = changed
        self._boots = 0
        self._creates: dict[str, SimDomain] = {}
        self._never_ran: dict[str, str] = {}
        """VM → its run that ended here while it waited for a guest."""
        self.sending: dict[str, bool] = {}
        """VMs that are being sent elsewhere, and whether that was called off."""
        self.part = LoopPart(f"{host}/hypervisor")

    # The machine below

    def boot(self) -> None:
        """The machine has started; nothing runs yet."""
        self._boots += 1
        self.powered, self.service, self.paused = True, True, False
        self.part = LoopPart(f"{self.host}/hypervisor#{self._boots}")

    def lose_power(self) -> None:
        """The machine ends, and everything on it."""
        self.powered = self.service = self.paused = False
        while self.part.halted:
            self.part.go_on()
        self.part.cancel()
        gone, self.domains, self._creates, self._never_ran = list(self.domains), {}, {}, {}
        for vm in gone:
            self._changed(vm, GONE_WITH_HOST)

    def pause(self) -> None:
        """The machine stands still, its domains as well."""
        self.paused = True
        self.part.halt()

    def go_on(self) -> None:
        """It goes on, and its domains go on writing."""
        self.paused = False
        self.part.go_on()
        for vm in list(self.domains):
            self._changed(vm, "goes on with the host")

    def add_domain(self, domain: SimDomain) -> None:
        """A domain that runs since before the story."""
        self.domains[domain.vm] = domain
        self._changed(domain.vm, f"{domain.state} as run {domain.run_id} of epoch {domain.epoch}")

    # The truth

    def runs(self, vm: str) -> bool:
        """Whether its domain runs here at this moment, so that it may write and answer."""
        domain = self.domains.get(vm)
        return domain is not None and domain.state is DomainState.RUNNING and self.powered and not self.paused

    @property
    def creating(self) -> tuple[str, ...]:
        """VMs whose create is under way."""
        return tuple(self._creates)

    # What the guard does

    def stop_service(self) -> None:
        """Nothing new starts; what was under way may yet appear."""
        self.service = False

    def kill_all(self) -> int:
        """Kill all guests in the slice; how many are left there."""
        for vm, domain in list(self.domains.items()):
            if domain.guarded and not self.faults.unkillable.get(vm) and not self._is_hanging(domain):
                self._remove(vm, "killed")
        return self.count_guests()

    def count_guests(self) -> int:
        """Guests that have a process in the slice: a guard that empties it sees no other."""
        return sum(domain.guarded and domain.state is not DomainState.OFF for domain in self.domains.values())

    def move_outside(self) -> None:
        """Somebody moves all processes out of the slice, and those to come begin outside it."""
        self.faults.outside = True
        for vm, domain in self.domains.items():
            domain.guarded = False
            self._changed(vm, "its process is outside the guests' slice")

    def heal(self) -> None:
        """Nothing goes wrong any more, and the service finds every guest again."""
        self.faults = HypervisorFaults()
        for domain in self.domains.values():
            domain.listed = True

    def lose_storage(self, how: DeadDisks) -> None:
        """No disk answers any more."""
        self.dead_disks = how
        for domain in list(self.domains.values()):
            self._starve(domain)

    def regain_storage(self) -> None:
        """The disks answer again; what an error has paused stays so until somebody lets it go on."""
        self.dead_disks = None

    def _starve(self, domain: SimDomain) -> None:
        if self.dead_disks == "pause" and domain.disks and domain.state is DomainState.RUNNING:
            domain.io_error = True
            self._set_state(domain, DomainState.PAUSED, "paused by an error of a disk")

    def _is_hanging(self, domain: SimDomain) -> bool:
        """Whether no signal ends its process: the kernel waits for a disk."""
        return self.dead_disks == "hang" and bool(domain.disks)

    def lose_track(self, vm: str) -> None:
        """The service does not know of the guest any more, which runs on."""
        if vm in self.domains:
            self.domains[vm].listed = False
            self._changed(vm, "the hypervisor service has lost track of it")

    def crash(self, vm: str) -> None:
        """The guest crashes."""
        domain = self.domains.get(vm)
        if domain is not None and domain.state in LIVE:
            domain.crashed = True
            self._set_state(domain, DomainState.OFF, CRASHED)
        elif domain is not None and domain.state in (DomainState.INCOMING, DomainState.HANDED_OVER):
            self._remove(vm, CRASHED)

    # Calls

    async def list_domains(self) -> tuple[Domain, ...]:
        """All domains, in the order of VM names: what the service lists, and every other process of a guest."""
        await self._wait_latency(self.latencies.look, self.faults.lag_s)
        listed = {**self._creates, **self.domains}
        return tuple(listed[vm].to_domain() for vm in sorted(listed))

    async def create(self, vm: VirtualMachine, run_id: str, epoch: int, incoming: bool) -> None:
        """A new domain, after a while."""
        if vm.name in self.domains or vm.name in self._creates:
            raise InUse(f"a domain of {vm.name} is on {self.host} already", remedy="destroy it first")
        if why := "; ".join(self.faults.autostart) or cache_refusal(vm.spec.disk_cache):
            raise Refused(f"{vm.name} does not start on {self.host}: {why}", remedy="change that")
        self._never_ran.pop(vm.name, None)
        self._creates[vm.name] = domain_of(vm, run_id, epoch, DomainState.STARTING)
        try:
            await self._wait_latency(self.latencies.create, self.faults.slow_starts_s + self.faults.lag_s)
            self._fail_start(vm.name)
            domain = domain_of(vm, run_id, epoch, DomainState.INCOMING if incoming else DomainState.RUNNING)
            domain.guarded = not self.faults.outside
            self.domains[vm.name] = domain
        finally:
            self._creates.pop(vm.name, None)
        self._changed(vm.name, f"{domain.state} as run {run_id} of epoch {epoch}")
        self._starve(domain)
        self._lose_answer()

    async def destroy(self, vm: str, run_id: str, uuid: str = "") -> None:
        """Gone when this returns, also what was being created."""
        await self._wait_latency(self.latencies.destroy)
        if vm in self._creates:
            await self._wait_settled(vm)
        domain = self.domains.get(vm)
        if domain is None or domain.uuid != uuid or (run_id and domain.run_id != run_id):
            return
        if self.faults.unkillable.get(vm) or self._is_hanging(domain):
            raise Unavailable(f"{vm} does not end: its process hangs", remedy="reset the host")
        self._remove(vm, "destroyed")
        self._lose_answer()

    async def decline(self, vm: str, run_id: str) -> None:
        """The incoming domain of that run goes, if it did not begin to run meanwhile."""
        await self._wait_latency(self.latencies.destroy)
        domain = self.domains.get(vm)
        if domain is None and self._never_ran.get(vm) == run_id:
            del self._never_ran[vm]
            return
        if domain is None or domain.run_id != run_id or domain.state is not DomainState.INCOMING:
            raise Refused(f"{vm} on {self.host} does not wait for a guest any more", remedy="look at its state")
        if self.faults.unkillable.get(vm):
            raise Unavailable(f"{vm} does not end: its process hangs", remedy="reset the host")
        self._remove(vm, "declined")
        self._lose_answer()

    async def _wait_settled(self, vm: str) -> None:
        """Wait until no create of it is under way."""
        for _ in range(SETTLE_LOOKS):
            await asyncio.sleep(self.latencies.look[1])
            if vm not in self._creates:
                return
        raise Unavailable(f"{vm} is being created on {self.host} and does not end", remedy="try again")

    async def shutdown(self, vm: str) -> None:
        """Ask the guest; it ends later, or not at all."""
        await self._wait_latency(self.latencies.look, self.faults.lag_s)
        domain = self.domains.get(vm)
        if domain is not None and not domain.listed:
            raise Refused(f"the hypervisor service of {self.host} does not know of {vm}", remedy="destroy it")
        if domain is None or domain.state is not DomainState.RUNNING or self.faults.ignores_shutdown.get(vm):
            return
        go(self._end(domain), name=f"{self.host}/{vm}/shutdown", part=self.part)

    async def _end(self, domain: SimDomain) -> None:
        await self._wait_latency(self.latencies.shutdown)
        if self.domains.get(domain.vm) is domain and domain.state is DomainState.RUNNING:
            self._set_state(domain, DomainState.OFF, "shut down")

    async def list_devices(self, vm: str, run_id: str) -> dict[str, str]:
        """What that run has now."""
        await self._wait_latency(self.latencies.look, self.faults.lag_s)
        return dict(self._run(vm, run_id).devices)

    async def disk_io(self) -> tuple[DiskIo, ...]:
        """Guests are busy all the time: what is asked of disks that answer is answered from look to look."""
        await asyncio.sleep(LATENCY_S)
        found = []
        for vm, domain in sorted(self.domains.items()):
            if domain.state is not DomainState.RUNNING or domain.uuid or not domain.disks:
                continue
            domain.answered += int(self.dead_disks is None)
            pending = int(self.dead_disks is not None)
            found.append(DiskIo(vm=vm, run_id=domain.run_id, pending=pending, done=domain.answered))
        return tuple(found)

    async def attach(self, vm: VirtualMachine, device: str, run_id: str) -> None:
        """It has the device, and may write to it, when this returns."""
        await self._wait_latency(self.latencies.destroy, self.faults.lag_s)
        domain = self._run(vm.name, run_id)
        known = devices_named(vm.spec.definition) if vm.spec.definition else {}
        if device not in known:
            raise Refused(f"{vm.name} is defined without device {device}", remedy="see its definition")
        if domain.state is not DomainState.RUNNING:
            raise Refused(f"{vm.name} does not run on {self.host}", remedy="look at its state")
        if domain.devices.setdefault(device, known[device]) != known[device]:
            raise Refused(f"{vm.name} has another disk as {device}", remedy="take that away first")
        if known[device]:
            domain.disks = tuple(dict.fromkeys((*domain.disks, known[device])))
        else:
            domain.ports = tuple(dict.fromkeys((*domain.ports, device)))
        self._changed(vm.name, f"has device {device}")
        self._lose_answer()

    async def detach(self, vm: str, device: str, run_id: str) -> None:
        """Its guest lets go of the device, unless it ignores that."""
        await self._wait_latency(self.latencies.destroy, self.faults.lag_s)
        domain = self._run(vm, run_id)
        if device not in domain.devices:
            return
        if self.faults.ignores_shutdown.get(vm):
            return
        gone = (domain.devices.pop(device), device)
        domain.disks = tuple(one for one in domain.disks if one not in gone)
        domain.ports = tuple(one for one in domain.ports if one not in gone)
        self._changed(vm, f"has device {device} no more")
        self._lose_answer()

    def _run(self, vm: str, run_id: str) -> SimDomain:
        """``Refused`` where the service knows of no such run."""
        domain = self.domains.get(vm)
        if domain is None or domain.run_id != run_id or not domain.listed:
            raise Refused(f"{vm} has no run {run_id} on {self.host}", remedy="look at its state")
        return domain

    async def resume(self, vm: str, run_id: str) -> None:
        """Let that run go on."""
        await self._wait_latency(self.latencies.look, self.faults.lag_s)
        domain = self.domains.get(vm)
        paused = domain is not None and domain.state in (DomainState.PAUSED, DomainState.HANDED_OVER)
        if domain is None or not paused or domain.split or domain.run_id != run_id:
            raise Refused(f"{vm} on {self.host} cannot be resumed", remedy="look at its state")
        domain.io_error = False
        self._set_state(domain, DomainState.RUNNING, "resumed")
        self._starve(domain)
        self._lose_answer()

    async def start_service(self) -> None:
        """The service runs when this returns."""
        await self._wait_latency(self.latencies.service)
        self.service = True

    async def migrate(self, vm: str, target: str, limit_s: float = 0.0, post_copy: bool = False) -> None:
        """Hand over as QEMU does; see the module."""
        if vm in self.sending:
            raise Refused(f"{vm} is being moved already")
        self.sending[vm] = False
        try:
            await self._migrate(vm, target, limit_s, post_copy)
        finally:
            self.sending.pop(vm, None)

    async def _migrate(self, vm: str, target: str, limit_s: float, post_copy: bool) -> None:
        domain = self.domains.get(vm)
        if domain is None or domain.state is not DomainState.RUNNING or not domain.listed:
            raise Refused(f"{vm} does not run on {self.host}")
        broken, self.faults.migration = self.faults.migration, ""
        left_s = self._random.uniform(*self.latencies.migrate) + self.faults.lag_s
        sent_s = 0.0
        while left_s > 0:
            if self.sending.get(vm) or 0 < limit_s < sent_s:
                raise Refused(f"migration of {vm} to {target} was called off")
            sent_s += MIGRATION_LOOK_S
            await asyncio.sleep(min(left_s, MIGRATION_LOOK_S))
            left_s -= MIGRATION_LOOK_S
            self._find_incoming(vm, target)
            if not self.service:
                raise Refused(f"migration of {vm} to {target} was called off: the hypervisor service was stopped")
            if self.domains.get(vm) is not domain or domain.state is not DomainState.RUNNING:
                raise Refused(f"{vm} ended while it was sent")
        if broken == "precopy":
            raise Refused(f"migration of {vm} to {target} failed: the connection was reset")
        if self.dead_disks is not None and domain.disks:
            raise Refused(f"migration of {vm} to {target} failed: its disks do not answer")
        self._set_state(domain, DomainState.PAUSED, f"paused to be handed over to {target}")
        await self._wait_latency(self.latencies.downtime)
        try:
            if broken == "paused":
                raise Refused(f"migration of {vm} to {target} failed: the last round was not received")
            incoming = self._find_incoming(vm, target)
        except Refused:
            if self.domains.get(vm) is domain:
                self._set_state(domain, DomainState.RUNNING, "runs on here after all")
            raise
        if not self._is_in_state(domain, DomainState.PAUSED):
            raise Unknown(f"{vm} ended while it was handed over", remedy="look at both sides")
        self._set_state(domain, DomainState.HANDED_OVER, f"handed over to {target}")
        await self._wait_latency(self.latencies.downtime)
        if broken != "sent":
            self._hand_over(vm, target, incoming)
            domain.left = True
            if post_copy:
                await self._send_memory(domain, target, incoming)
        await self._wait_latency(self.latencies.downtime)
        if broken in ("sent", "last"):
            raise Unknown(f"{target} did not say whether {vm} runs", remedy="look at both sides")

    async def _send_memory(self, domain: SimDomain, target: str, received: SimDomain) -> None:
        """The rest of its memory, while it runs there. A side that is lost is seen by the other if its host lives."""
        left_s = self._random.uniform(*self.latencies.migrate) + LAGS * self.faults.lag_s
        stalled_s = 0.0
        domain.split = received.split = True
        for side in (domain, received):
            self._changed(side.vm, "its memory is on two hosts")
        while left_s > 0:
            await asyncio.sleep(MIGRATION_LOOK_S)
            if self.domains.get(domain.vm) is not domain:
                raise Unknown(f"{domain.vm} was lost while its memory was sent", remedy="look at both sides")
            other = self.peer(target)
            if other is None or not other.powered or other.paused:
                stalled_s += MIGRATION_LOOK_S
                if stalled_s >= POST_COPY_STALL_S:
                    domain.split = False
                    self._set_state(domain, DomainState.OFF, f"of no use: nothing arrives at {target}")
                    raise Unknown(f"nothing arrives at {target} any more", remedy="look at both sides")
                continue
            stalled_s = 0.0
            if other.domains.get(domain.vm) is not received or received.state is not DomainState.RUNNING:
                domain.split = False
                self._set_state(domain, DomainState.OFF, f"of no use: {target} has ended it")
                raise Unknown(f"{target} has ended {domain.vm}", remedy="look at both sides")
            left_s -= MIGRATION_LOOK_S
        domain.split = received.split = False
        self._changed(domain.vm, f"all of its memory is on {target}")

    def _is_in_state(self, domain: SimDomain, state: DomainState) -> bool:
        """Whether it is still there, and in that state; others act on it meanwhile."""
        return self.domains.get(domain.vm) is domain and domain.state is state

    def _find_incoming(self, vm: str, target: str) -> SimDomain:
        """The domain on the target that waits; ``Refused`` where there is none."""
        other = self.peer(target)
        domain = other.domains.get(vm) if other is not None and not other.paused else None
        if domain is None or domain.state is not DomainState.INCOMING:
            raise Refused(f"nothing listens for {vm} on {target}", remedy="see the daemon of the target")
        return domain

    def _hand_over(self, vm: str, target: str, incoming: SimDomain) -> None:
        """The complete state is there: the target runs, if it is still the one that listened."""
        other = self.peer(target)
        if other is not None and other.domains.get(vm) is incoming and incoming.state is DomainState.INCOMING:
            other._set_state(incoming, DomainState.RUNNING, f"runs, handed over by {self.host}")
            return
        raise Unknown(f"{target} was lost while {vm} was handed over", remedy="look at both sides")

    # Inside

    async def _wait_latency(self, latency: tuple[float, float], more_s: float = 0.0) -> None:
        await asyncio.sleep(self._random.uniform(*latency) + more_s)

    def _fail_start(self, vm: str) -> None:
        for key in (vm, "*"):
            reason, times, definition = self.faults.start_fails.get(key, ("", 0, False))
            if times > 0:
                self.faults.start_fails[key] = (reason, times - 1, definition)
                if definition:
                    raise BadInput(f"{vm} does not start: {reason}", remedy="correct its definition")
                raise Refused(f"{vm} does not start on {self.host}: {reason}", remedy="see the hypervisor's log")

    def _lose_answer(self) -> None:
        if self.faults.lost_answers and self._random.random() < self.faults.lost_answers:
            raise Unknown(f"the hypervisor of {self.host} did not answer", remedy="look what is there")

    def _remove(self, vm: str, how: str) -> None:
        domain = self.domains.pop(vm)
        if domain.state is DomainState.INCOMING and how != "declined":
            self._never_ran[vm] = domain.run_id
        self._changed(vm, how)

    def _set_state(self, domain: SimDomain, state: DomainState, how: str) -> None:
        domain.state = state
        self._changed(domain.vm, how)

"""What the node daemon and its fencer need of the outside: hypervisor, guard, power, isolation, storage, the machine.

Real drivers run behind a deadline, those of power controllers each in a child process that is killed then; the
simulated ones run in virtual time.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from outlive.node.membership.steps import Remembered
from outlive.resources import Amounts, Hypervisor, VirtualMachine


class DomainState(StrEnum):
    """What a domain is doing."""

    STARTING = "starting"
    """Its creation was asked for, by this daemon or by one before it, and has not ended: it may yet run, or not."""
    RUNNING = "running"
    PAUSED = "paused"
    """It exists and does not run: before its first start, or because somebody paused it."""
    INCOMING = "incoming"
    """It waits for the state of a migration."""
    HANDED_OVER = "handed-over"
    """Its state was sent completely; it must not run again unless the target is known never to have run."""
    OFF = "off"
    """It ended by itself: the guest shut down, or crashed."""


class Domain(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One domain; ``run_id`` and ``epoch`` are kept in its own metadata, so that a new daemon knows them."""

    vm: str
    run_id: str
    epoch: int
    state: DomainState
    cpu_milli: int = 0
    memory_bytes: int = 0
    crashed: bool = False
    """For ``OFF``: whether nobody asked for it."""


class HypervisorPort(Protocol):
    """The hypervisor of one host.

    Every call may raise ``Unavailable`` (nothing happened) and ``Unknown`` (it may have). After
    ``Unknown`` the daemon looks with ``domains``, which is what is really there.
    """

    async def domains(self) -> tuple[Domain, ...]:
        """All domains that exist on this host, in the order of VM names.

        From the moment at which ``create`` is called until that call has ended, the domain is among them as
        ``starting``, whoever asked for it and whether they still wait: also what a driver has not handed on yet. What
        a process that is gone has asked for and that is not listed never happens any more.
        """
        ...

    async def create(self, vm: VirtualMachine, *, run_id: str, epoch: int, incoming: bool = False) -> None:
        """Create and start a transient domain (``incoming``: let it wait for a migration).

        ``Refused`` says why the hypervisor will not; ``InUse`` if there is a domain of this VM.
        """
        ...

    async def destroy(self, vm: str, *, run_id: str = "") -> None:
        """Stop it hard (only that run, where one is named) and return once it is seen to be gone; fine if it was.

        A creation under way is waited for or broken off: once this returned, nothing that was asked for before
        appears any more.
        """
        ...

    async def decline(self, vm: str, run_id: str) -> None:
        """End the incoming domain of that run, in one step with the look whether it ever ran: afterwards it never did.

        ``Refused`` where it is not there any more or has begun to run; then nothing happened. Real drivers stop the
        process first, look at it while it cannot begin, and kill it or let it go on.
        """
        ...

    async def shutdown(self, vm: str) -> None:
        """Ask the guest to end; it may ignore that."""
        ...

    async def resume(self, vm: str) -> None:
        """Let a paused or handed-over domain run."""
        ...

    async def migrate(self, vm: str, target: str, *, max_downtime_ms: int) -> None:
        """Send a running domain to the incoming one on ``target``; returns once it is handed over.

        ``Refused``: it failed, and the domain runs on here. ``Unknown``: look at its state.
        """
        ...

    async def start_service(self) -> None:
        """See to it that the hypervisor service runs, which a guard may have stopped."""
        ...


class GuardReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the guard says of itself; of a guard that does not answer, that it is not armed."""

    armed: bool = False
    timeout_s: float = 0.0
    """T: how long after the sending of the last acknowledged renewal the host is emptied."""
    watchdog_s: float = 0.0
    """W: how long after its last feed the watchdog resets the host."""
    gate_open: bool = True
    hardware: bool = True
    """Whether what it feeds resets the host; a rehearsal resets nothing, and must never be published as armed."""
    closed_epochs: tuple[int, ...] = ()
    """In which epochs the gate was shut since the guard started; the newest 64."""
    creates: tuple[str, ...] = ()
    """Runs that were begun and not ended, whoever asked."""


class GuardPort(Protocol):
    """The guard beside the daemon: a gate for starting VMs, and somebody who is notified of renewals.

    Fencers trust what a membership says of the guard, so order matters: arm first, then publish that it is armed;
    publish that it is not, then disarm. Larger times are published as unarmed first too, because a running wait of a
    fencer counts on the smaller ones.
    """

    async def report(self) -> GuardReport:
        """Its state now. Never raises: a guard that cannot be reached proves nothing and is not armed."""
        ...

    async def beat(self, sent_at_s: float, epoch: int) -> None:
        """A renewal was acknowledged that was sent at ``sent_at_s`` of ``boot_time``.

        Notified whether armed or not: arming needs a fresh one. ``Unavailable`` where it did not arrive.
        """
        ...

    def boot_time(self) -> float:
        """The guard's clock, to be read right before a renewal is sent."""
        ...

    async def arm(self, timeout_s: float, watchdog_s: float) -> None:
        """Enforce from now on. ``Refused`` with the reason, ``Unavailable`` where there is no guard."""
        ...

    async def disarm(self) -> None:
        """Enforce nothing any more. ``Refused`` while the gate is shut, ``Unavailable`` where there is no guard."""
        ...

    async def begin_create(self, run_id: str) -> bool:
        """Whether this run may be started; ``False``: the gate is shut, do not. Never raises.

        Asked again after the hold was written, right before the domain is created.
        """
        ...

    async def end_create(self, run_id: str) -> None:
        """That start is over, well or badly. ``Unavailable`` where it did not arrive: repeat it.

        A start that is never ended keeps the guard from calling the host empty, for ten minutes; but the daemon ends
        those that nobody follows any more (``outlive.node.vm.start``).
        """
        ...


class PowerState(StrEnum):
    """What a power controller says of its system."""

    ON = "on"
    OFF = "off"
    UNKNOWN = "unknown"


class PowerReading(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One answer of a power controller."""

    state: PowerState
    system_uuid: str = ""
    """What the controller says that its system is."""


class PowerPort(Protocol):
    """Power controllers of hosts. ``Unavailable`` where one does not answer, ``NotFound`` where a host has none.

    Nothing that a controller says counts before its identity was checked (``outlive.node.fencing.proofs``).
    """

    async def read(self, host: Hypervisor) -> PowerReading:
        """Identity and state, by one answer."""
        ...

    async def off(self, host: Hypervisor) -> None:
        """Cut the power; returning says only that the command was taken."""
        ...

    async def on(self, host: Hypervisor) -> None:
        """Switch on."""
        ...


class CutReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a host is shut out of, as it was read back."""

    scope: tuple[str, ...] = ()
    """``disk:<id>`` and ``port:<id>``."""
    evidence: str = ""
    expires_in_s: float | None = None
    """When it ends unless renewed; ``None``: never."""


class CutPort(Protocol):
    """Who can shut a host out. ``NotFound`` where nobody can."""

    async def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        """Shut the host out of as much of ``scope`` as is in its power; renewing is the same call."""
        ...

    async def read_back(self, host: str, epoch: int) -> CutReport:
        """What is really shut out."""
        ...

    async def lift(self, host: str, epoch: int) -> None:
        """Let it in again, as far as it was shut out through that epoch: what was cut through a later one stays."""
        ...


class MachinePort(Protocol):
    """The machine that a daemon runs on: who it is, how often it booted, and what it remembers over a boot."""

    def machine_id(self) -> str:
        """The machine's own identity; another machine of the same name has another one."""
        ...

    def boot_id(self) -> str:
        """Of the running kernel; new at every boot."""
        ...

    async def remembered(self) -> Remembered | None:
        """What ``remember`` wrote last; ``None`` on a machine that never was a member."""
        ...

    async def remember(self, remembered: Remembered) -> None:
        """Write it down, durably, before returning."""
        ...

    def lock(self) -> bool:
        """Take the lock that admits one daemon; ``False`` if another one has it."""
        ...

    def capacity(self) -> Amounts:
        """What the machine has for VMs."""
        ...

    def load(self) -> float:
        """How many of its cores are busy, as the kernel averages it."""
        ...

    def disk_stall(self) -> float | None:
        """The share of the last seconds, 0 to 1, in which work stood still for the machine's own disks.

        As the kernel averages it over about ten seconds (Linux: ``full avg10`` of ``/proc/pressure/io``); ``None``
        where it does not say.
        """
        ...


class DiskLock(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One lock on one volume."""

    volume: str
    id: str
    address: str
    """Of the client that holds it, such as ``10.0.0.1:0/77`` or ``[fd00::1]:0/77``."""
    locker: str = ""


class StoragePort(Protocol):
    """Locks on a VM's disks, looked at before a domain is created. ``Unavailable`` where storage does not answer."""

    def address(self) -> str:
        """This host's own address on the storage network."""
        ...

    async def locks(self, volumes: tuple[str, ...]) -> tuple[DiskLock, ...]:
        """Locks of these volumes."""
        ...

    async def release(self, lock: DiskLock) -> None:
        """Remove a lock; ``Refused`` where that fails."""
        ...

"""The machine that a daemon runs on, BMCs, and the guard beside the daemon."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from outlive.base import Unavailable
from outlive.guard import Instants
from outlive.node.membership.steps import RememberedMembership
from outlive.resources import Amounts, Capabilities, Hypervisor


class MachinePort(Protocol):
    """The machine that a daemon runs on: its identity, its boots, and what it remembers over a boot."""

    def machine_id(self) -> str:
        """The machine's own identity; another machine of the same name has another one."""
        ...

    def boot_id(self) -> str:
        """Of the running kernel; new at every boot, and the same until the next."""
        ...

    async def read_remembered(self) -> RememberedMembership | None:
        """What ``remember`` wrote last; ``None`` on a machine that never was a member.

        What was being written when the process was killed or the power failed is there whole, or not at all.
        """
        ...

    async def remember(self, remembered: RememberedMembership) -> None:
        """Write it down; when this returns it survives a kill of the process and a loss of power.

        A new file is written and synced, renamed over the old one, and its directory is synced. ``OSError`` where the
        disk refuses: what was there before is there still.
        """
        ...

    def lock(self) -> bool:
        """Take the lock that admits one daemon; ``False`` if another one has it.

        It ends with the process that has it, however that ends, and with nothing else: a halted process keeps it.
        """
        ...

    def read_capacity(self) -> Amounts:
        """What the machine has for VMs."""
        ...

    def read_capabilities(self) -> Capabilities:
        """What the machine and its operating system are; what is not known is empty. It does not change."""
        ...

    def read_load(self) -> float:
        """How many of its cores are busy, as the kernel averages it."""
        ...

    def read_usage(self) -> Amounts | None:
        """Usage of the whole machine: processors since the last call, memory now.

        ``None`` if it is not measured.
        """
        ...

    def disk_stall(self) -> float | None:
        """The share of the last seconds, 0 to 1, in which work stood still for the machine's own disks.

        As the kernel averages it over about ten seconds (Linux: ``full avg10`` of ``/proc/pressure/io``); ``None``
        where it does not say.
        """
        ...


class PowerState(StrEnum):
    """What a BMC says of its system."""

    ON = "on"
    OFF = "off"
    UNKNOWN = "unknown"


class PowerReading(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One answer of a BMC."""

    state: PowerState
    """``power_off`` only where the controller says so itself: a state on the way to it, or none, is ``unknown``."""
    system_uuid: str = ""
    """What the controller says that its system is."""


class PowerRefused(Unavailable):
    """The BMC answered that it does not do that: nothing happened, and nothing will."""


class PowerPort(Protocol):
    """BMCs of hosts. ``Unavailable`` if one does not answer (``PowerRefused`` if it refuses), ``NotFound`` if a host
    has none.

    A driver runs each call in a child process that is killed when the caller gives up. One call sends one command at
    most: neither the driver nor its library nor the tool that it starts sends it again, and nothing is sent once the
    call has ended. A BMC may carry out a command late, even after the call failed. No answer of a BMC counts before its
    identity was checked (``outlive.node.fencing.proofs``).
    """

    async def read(self, host: Hypervisor) -> PowerReading:
        """Identity and state from one answer of one session, asked for after this call.

        Nothing is cached.
        """
        ...

    async def power_off(self, host: Hypervisor) -> None:
        """Cut the power, hard; returning says only that the command was taken. ``power_off`` of what is off does
        nothing.
        """
        ...

    async def power_on(self, host: Hypervisor) -> None:
        """Switch on; returning says only that the command was taken. ``power_on`` of what is on does nothing: no
        reset.
        """
        ...

    async def check(self, host: Hypervisor) -> str:
        """Why it would refuse the command to switch off, by what it says of itself; empty: nothing that is known."""
        ...


class GuardReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the guard says of itself; of a guard that does not answer, that it is not armed."""

    armed: bool = False
    timeout_s: float = 0.0
    """T: how long after the sending of the last acknowledged renewal the host is emptied."""
    watchdog_s: float = 0.0
    """W: how long after its last feed the watchdog resets the host."""
    gate_open: bool = True
    misses: str = ""
    """Why it would not end the guests of this host; empty: it would, as far as is known."""
    gave_up: bool = False
    """Whether it could not empty the host in time, and feeds its watchdog no more: nothing starts before a boot."""
    hardware: bool = True
    """Whether what it feeds resets the host; a rehearsal resets nothing, and must never be published as armed."""
    laboratory: bool = False
    """Whether what it feeds is a laboratory's stand-in, which resets no machine."""
    closed_epochs: tuple[int, ...] = ()
    """In which epochs the gate was shut since the guard started; the newest 64."""
    creates: tuple[str, ...] = ()
    """Runs that were begun and not ended, of every daemon of this host."""


class GuardPort(Protocol):
    """The guard beside the daemon: it controls starts of VMs and is notified of renewals.

    Fencers trust what a membership says of the guard, so order matters: arm first, then publish that it is armed;
    publish that it is not, then disarm. Larger times are published as unarmed first too, because a running wait of a
    fencer counts on the smaller ones. The guard outlives its daemon: what a dead one armed stays armed, and a create
    that it began stays begun.
    """

    async def report(self) -> GuardReport:
        """Its state now. Never raises: a guard that cannot be reached proves nothing and is not armed.

        Its gate then counts as shut if it was armed at its last answer.
        """
        ...

    async def beat(self, sent: Instants, epoch: int) -> None:
        """A renewal was acknowledged that was sent at ``sent`` of ``read_clocks``.

        Notified whether armed or not: arming needs a fresh one. ``Unavailable`` where it did not arrive. An older
        moment than the last changes nothing.
        """
        ...

    def read_clocks(self) -> Instants:
        """The guard's clocks, to be read right before a renewal is sent."""
        ...

    async def arm(self, timeout_s: float, watchdog_s: float) -> None:
        """Enforce from now on. ``Refused`` with the reason, ``Unavailable`` where there is no guard."""
        ...

    async def disarm(self) -> None:
        """Stop enforcing. ``Refused`` while the gate is shut, ``Unavailable`` if there is no guard."""
        ...

    async def begin_create(self, run_id: str) -> bool:
        """Whether this run may be started; ``False``: the gate is shut, do not. Never raises.

        Asked again after the hold was written, right before the domain is created. From a yes until ``end_create``
        the guard does not call the host empty.
        """
        ...

    async def end_create(self, run_id: str) -> None:
        """That start is over, well or badly. ``Unavailable`` where it did not arrive: repeat it.

        A start that is never ended keeps the guard from calling the host empty for ten minutes; the daemon ends starts
        without a worker (``outlive.node.vm.start``).
        """
        ...

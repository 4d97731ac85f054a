"""The guard beside the daemon: a gate for starting VMs, and who empties the host when nothing is renewed."""

from __future__ import annotations

from typing import Protocol

import msgspec

from outlive.guard.clocks import Instants


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
    """Runs that were begun and not ended, whoever asked."""


class GuardPort(Protocol):
    """The guard beside the daemon: a gate for starting VMs, and somebody who is notified of renewals.

    Fencers trust what a membership says of the guard, so order matters: arm first, then publish that it is armed;
    publish that it is not, then disarm. Larger times are published as unarmed first too, because a running wait of a
    fencer counts on the smaller ones. The guard outlives its daemon: what a dead one armed stays armed, and a create
    that it began stays begun.
    """

    async def report(self) -> GuardReport:
        """Its state now. Never raises: a guard that cannot be reached proves nothing and is not armed.

        Its gate then counts as shut where it was armed when it was last heard of.
        """
        ...

    async def beat(self, sent: Instants, epoch: int) -> None:
        """A renewal was acknowledged that was sent at ``sent`` of ``instants``.

        Notified whether armed or not: arming needs a fresh one. ``Unavailable`` where it did not arrive. An older
        moment than the last changes nothing.
        """
        ...

    def instants(self) -> Instants:
        """The guard's clocks, to be read right before a renewal is sent."""
        ...

    async def arm(self, timeout_s: float, watchdog_s: float) -> None:
        """Enforce from now on. ``Refused`` with the reason, ``Unavailable`` where there is no guard."""
        ...

    async def disarm(self) -> None:
        """Enforce nothing any more. ``Refused`` while the gate is shut, ``Unavailable`` where there is no guard."""
        ...

    async def begin_create(self, run_id: str) -> bool:
        """Whether this run may be started; ``False``: the gate is shut, do not. Never raises.

        Asked again after the hold was written, right before the domain is created. From a yes until ``end_create``
        the guard does not call the host empty.
        """
        ...

    async def end_create(self, run_id: str) -> None:
        """That start is over, well or badly. ``Unavailable`` where it did not arrive: repeat it.

        A start that is never ended keeps the guard from calling the host empty, for ten minutes; but the daemon ends
        those that nobody follows any more (``outlive.node.vm.start``).
        """
        ...

"""The hypervisor of one host, as the daemon needs it.

Real drivers run behind a thread with a deadline, the simulated one in virtual time. What a call did not confirm may
have happened: after ``Unknown`` the daemon looks with ``domains``, which is what is really there.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import msgspec

from outlive.resources import VirtualMachine


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
    """See the module. Every call may raise ``Unavailable`` (nothing happened) and ``Unknown`` (it may have)."""

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

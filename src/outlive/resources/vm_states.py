"""What is wanted of a VM, by its spec and its phase: the one rule for hosts, recovery, slots, status and the CLI.

A VM is to run if its spec and its phase both say so. ``spec.powerState`` is what its user wrote for good; the phase
holds what a request, a drain or a failed start made of that. Pure.

::

    request      while it is done      once the guest is down
    start        start                 -
    restart      restart               start
    shutdown     shutdown              stop
    stop         stop                  stop
    disable      shutdown, or stop     disable
    (drain)      shutdown              stop      (stopped-by-drain)
    (no start)   start                 fail
"""

from __future__ import annotations

import enum
from typing import Final

from outlive.resources.reasons import VmReason
from outlive.resources.vms import Migration, MigrationPhase, VirtualMachine


class VmState(enum.StrEnum):
    """What is wanted of a VM, or being done: the words of ``status.phase`` on hosts with our daemon."""

    START = "start"
    """It is to run, or runs."""
    STOP = "stop"
    SHUTDOWN = "shutdown"
    RESTART = "restart"
    DISABLE = "disable"
    FAIL = "fail"
    """Its host could not start it, and an operator has to act."""
    MIGRATE = "migrate"
    MIGRATE_LIVE = "migrate-live"
    UNMIGRATE = "unmigrate"
    """From older clients."""


RUNNING_WORDS: Final = frozenset({"", VmState.START, "ACTIVE", "active", "running"})
"""Phases of all sources that mean ``start`` …"""
STOPPED_WORDS: Final = frozenset(
    {VmState.STOP, "SHUTOFF", "STOPPED", "PAUSED", "SUSPENDED", "SHELVED", "SHELVED_OFFLOADED"}
)
"""… and ``stop``."""
MIGRATING: Final = frozenset({VmState.MIGRATE, VmState.MIGRATE_LIVE, VmState.UNMIGRATE})
ON_THE_WAY: Final = frozenset({VmState.START, VmState.RESTART, *MIGRATING})
"""Phases in which somebody wants it to run."""
HALTED: Final = frozenset({VmState.STOP, VmState.DISABLE})
"""Phases that a user asks for while it moves, and that its arrival does not undo."""
DOWN: Final = frozenset({*HALTED, VmState.SHUTDOWN, VmState.FAIL})
"""Phases in which nobody starts it before a user asks for that, or its host is ready again."""


def phase_word(phase: str) -> str:
    """``start`` or ``stop`` for the words of all sources that mean it; any other word as it is."""
    if phase in RUNNING_WORDS:
        return VmState.START
    return VmState.STOP if phase in STOPPED_WORDS else phase


def active_move(vm: VirtualMachine) -> Migration | None:
    """The move that is under way."""
    move = vm.status.migration
    return None if move is None or move.phase is MigrationPhase.ABORTED else move


def state_of(vm: VirtualMachine) -> str:
    """What is wanted, or being done, as ``vm.event`` names it; that of another source where it has no meaning.

    One that was deleted is to stop at once, as soon as a move of it has ended.
    """
    if vm.deleting and active_move(vm) is None:
        return VmState.STOP
    phase = phase_word(vm.status.phase)
    if vm.spec.power_state == "stopped" and phase in ON_THE_WAY and active_move(vm) is None:
        return VmState.SHUTDOWN
    if phase == VmState.STOP and vm.spec.power_state == "running" and vm.status.reason == VmReason.STOPPED_BY_SPEC:
        return VmState.START
    return phase


def is_to_run(vm: VirtualMachine) -> bool:
    """True if it is to run: its host starts it, and recovery restarts it elsewhere."""
    return vm.spec.power_state == "running" and not vm.deleting and state_of(vm) in ON_THE_WAY


def is_down_for_good(vm: VirtualMachine) -> bool:
    """True if nobody is to start it: stopped, shut down, disabled or deleted by a user, stopped by a drain, or failed.

    Such a VM needs no slots once no host reports it. A phase of another source that is not understood is not down.
    """
    return vm.deleting or vm.spec.power_state == "stopped" or state_of(vm) in DOWN

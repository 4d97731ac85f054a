"""What a virtual machine's document says to its host: state, who may run it, what its migration is about. Pure.

The words of the phase are those of the daemon's decisions (``outlive.node.vm.events``); those of other sources mean
``start`` or ``stop``. A virtual machine runs if its spec and its phase both say so.
"""

from __future__ import annotations

from typing import Final

from outlive.node.membership.death import Reach
from outlive.node.membership.holding import Me, is_mine
from outlive.resources import Holder, VirtualMachine
from outlive.resources.vms import Migration

START: Final = "start"
STOP: Final = "stop"
FAIL: Final = "fail"
RUNNING_WORDS: Final = frozenset({"", START, "ACTIVE", "active", "running"})
STOPPED_WORDS: Final = frozenset({STOP, "SHUTOFF", "STOPPED", "PAUSED", "SUSPENDED", "SHELVED", "SHELVED_OFFLOADED"})
ON_THE_WAY: Final = frozenset({START, "restart", "migrate", "migrate-live", "unmigrate"})
"""Phases in which somebody wants it to run."""
HALTED: Final = frozenset({STOP, "disable"})
"""Phases that a user asks for while it moves, and that its arrival does not undo."""
ENDED: Final = frozenset({"committed", "aborted"})
"""Phases in which a move is over."""

STOPPED_BY_SPEC: Final = "spec.powerState is stopped"
"""Reason of a stop that ends when the spec says ``running`` again."""
STOPPED_BY_DRAIN: Final = "no other host took it; it starts again when this one is ready"
"""Reason of a stop that ends when its host takes virtual machines again."""
THEN_DISABLE: Final = "to be disabled"
"""Reason of a stop after which the virtual machine is disabled."""


def state_of(vm: VirtualMachine) -> str:
    """What is wanted, or being done, as ``vm.event`` names it."""
    phase = vm.status.phase
    if phase in RUNNING_WORDS:
        phase = START
    elif phase in STOPPED_WORDS:
        phase = STOP
    if vm.spec.power_state == "stopped" and phase in ON_THE_WAY and active_move(vm) is None:
        return "shutdown"
    if phase == STOP and vm.spec.power_state == "running" and vm.status.reason == STOPPED_BY_SPEC:
        return START
    return phase


def wanted(vm: VirtualMachine) -> bool:
    """Whether it is to run."""
    return vm.spec.power_state == "running" and state_of(vm) in ON_THE_WAY


def assigned_to(vm: VirtualMachine) -> str:
    """The host that it is assigned to; empty: none."""
    return vm.status.assigned.hypervisor if vm.status.assigned is not None else ""


def fence_of(vm: VirtualMachine) -> str:
    """The fence that brought it where it is assigned."""
    return vm.status.assigned.fence if vm.status.assigned is not None else ""


def active_move(vm: VirtualMachine) -> Migration | None:
    """The move that is under way."""
    move = vm.status.migration
    return None if move is None or move.phase in ENDED else move


def reach_of(vm: VirtualMachine) -> Reach:
    """What it could do harm to."""
    return Reach(
        disks=vm.spec.disks, ports=vm.spec.ports, accept_duplicate=vm.spec.network_policy == "accept-duplicate"
    )


def mine(vm: VirtualMachine, me: Me) -> tuple[Holder, ...]:
    """Its entries of this host's present epoch."""
    return tuple(one for one in vm.status.holders if is_mine(one, me))


def of_host(vm: VirtualMachine, me: Me) -> tuple[Holder, ...]:
    """Its entries of this host, of whatever epoch."""
    host, uid = me.host, me.uid
    return tuple([one for one in vm.status.holders if one.hypervisor == host and one.member_uid == uid])


def brought(vm: VirtualMachine) -> bool:
    """Whether a recovery that is not over has brought it where it is assigned: that one heeds what the host says."""
    recovery = vm.status.recovery
    return fence_of(vm) != "" and (recovery is None or recovery.unfinished)


def rejected_by(vm: VirtualMachine, host: str) -> bool:
    """Whether the host has rejected what it is assigned now, for good, and somebody heeds that."""
    said = vm.status.rejection
    if said is None or said.stays or said.hypervisor != host or said.fence != fence_of(vm):
        return False
    return brought(vm)

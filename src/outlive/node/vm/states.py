"""What a host does about a virtual machine, as a table; and what a virtual machine's document says. Pure.

A virtual machine runs if its spec and its phase both say so. The table is evaluated again whenever a job ends, so
``defer`` loses nothing. Whether the host may start the virtual machine at all is another question, answered by its
holders (docs/reference/node-decisions.md#vmevent).
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from outlive.node.membership.holders import Me, is_mine
from outlive.node.membership.states import Reach
from outlive.resources import Holder, VirtualMachine
from outlive.resources.vms import Migration
from outlive.runtime.decisions import Decision

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


SHUTTING_DOWN: Final = frozenset({"shutdown", "restart", "migrate"})
"""States in which a guest that is being shut down goes on being shut down."""
MOVING: Final = frozenset({"migrate", "migrate-live", "unmigrate"})
"""States of a virtual machine on its way; ``unmigrate`` comes from older clients."""


class Job(enum.StrEnum):
    """What the worker of a virtual machine may be doing."""

    START = "start"
    RESTART = "restart"
    MIGRATE = "migrate"
    RECEIVE = "receive"
    SHUTDOWN = "shutdown"
    STOP = "stop"


class VmAction(enum.StrEnum):
    """What to do."""

    NONE = "none"
    DEFER = "defer"
    """A job is running; look again when it ends."""
    ABORT_SHUTDOWN = "abort_shutdown"
    ADOPT = "adopt"
    """It runs already: watch it and list it."""
    SETTLE_START = "settle_start"
    """It is where it should be: write ``start`` and adopt it."""
    SETTLE_STOP = "settle_stop"
    """It ended: write ``stop`` and forget it."""
    WRITE_START = "write_start"
    START = "start"
    RECEIVE = "receive"
    RESTART = "restart"
    SHUTDOWN = "shutdown"
    DESTROY = "destroy"
    """Stop it hard and write so."""
    TERMINATE = "terminate"
    """Stop it hard, writing nothing: it belongs to another host now."""
    FORGET = "forget"
    SEND = "send"
    SEND_LIVE = "send_live"


class VmEventInput(msgspec.Struct, frozen=True, kw_only=True):
    """One virtual machine as one host sees it."""

    this_node: str
    state: str
    """What is wanted, or being done."""
    node: str | None
    """Where it belongs."""
    running: bool
    """Whether it runs on this host."""
    busy: Job | None = None


class VmEventResult(msgspec.Struct, frozen=True, kw_only=True):
    """What to do."""

    action: VmAction


def vm_event(given: VmEventInput) -> VmEventResult:
    """One action, always."""
    return VmEventResult(action=_action(given))


VM_EVENT: Final = Decision(
    "vm.event",
    vm_event,
    VmEventInput,
    VmEventResult,
    "What a host does about a virtual machine",
    lambda output: output.action in (VmAction.NONE, VmAction.DEFER),
)


def _action(given: VmEventInput) -> VmAction:
    if given.busy is Job.SHUTDOWN and given.state not in SHUTTING_DOWN:
        return VmAction.ABORT_SHUTDOWN
    if given.busy is not None:
        return VmAction.DEFER
    match given.node == given.this_node, given.running:
        case True, True:
            return _here_and_running(given.state)
        case True, False:
            return _here_and_down(given.state)
        case False, True:
            return _belongs_elsewhere(given.state)
        case _:
            return VmAction.NONE


def _here_and_running(state: str) -> VmAction:
    match state:
        case "start":
            return VmAction.ADOPT
        case "restart":
            return VmAction.RESTART
        case "shutdown":
            return VmAction.SHUTDOWN
        case "stop" | "disable":
            return VmAction.DESTROY
        case _ if state in MOVING:
            return VmAction.SETTLE_START
        case _:
            return VmAction.NONE


def _here_and_down(state: str) -> VmAction:
    match state:
        case "start":
            return VmAction.START
        case "restart":
            return VmAction.WRITE_START
        case "shutdown":
            return VmAction.SETTLE_STOP
        case "stop":
            return VmAction.FORGET
        case _ if state in MOVING:
            return VmAction.RECEIVE
        case _:
            return VmAction.NONE


def _belongs_elsewhere(state: str) -> VmAction:
    match state:
        case "migrate" | "unmigrate":
            return VmAction.SEND
        case "migrate-live":
            return VmAction.SEND_LIVE
        case "shutdown":
            return VmAction.SHUTDOWN
        case _:
            return VmAction.TERMINATE

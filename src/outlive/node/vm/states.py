"""What a host does about a virtual machine, as a table; and what a virtual machine's document says. Pure.

``resources.vm_states`` says what is wanted. The table is evaluated again whenever a job ends, so ``defer`` loses
nothing. Whether the host may start the virtual machine at all is another question, answered by its holders
(docs/design/node-decisions.md#vmevent).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from outlive.base import Transitions, follow, join_parts
from outlive.node.membership.holders import Me, is_mine
from outlive.node.membership.states import Reach
from outlive.resources import HALTED as HALTED
from outlive.resources import MIGRATING as MIGRATING
from outlive.resources import Holder, Rejection, StartOrder, VirtualMachine, VirtualMachineStatus, phase_word
from outlive.resources import VmState as VmState
from outlive.resources import active_move as active_move
from outlive.resources import is_to_run as is_to_run
from outlive.resources import state_of as state_of
from outlive.resources.reasons import HoldReason, Message, Reason, VmReason, make_reason, render
from outlive.runtime import Decision

_replace = msgspec.structs.replace


ACCEPTED: Final = "accepted"
"""The answer to a request that is carried out."""
TO_RUN: Final = frozenset({"start", "restart", "migrate", "unmigrate", "move"})
"""Requests by which a user wants it to run."""
_ASKED: Final = frozenset({VmState.START, VmState.STOP, VmState.DISABLE})
"""What a user may ask for at any time."""
PHASES: Final[Transitions[VmState]] = {
    VmState.START: _ASKED | MIGRATING | {VmState.SHUTDOWN, VmState.RESTART, VmState.FAIL},
    VmState.STOP: _ASKED,
    VmState.SHUTDOWN: _ASKED | {VmState.FAIL},
    VmState.RESTART: _ASKED | {VmState.SHUTDOWN, VmState.FAIL},
    VmState.DISABLE: _ASKED,
    VmState.FAIL: _ASKED,
    VmState.MIGRATE: _ASKED | {VmState.FAIL},
    VmState.MIGRATE_LIVE: _ASKED | {VmState.FAIL},
    VmState.UNMIGRATE: _ASKED | {VmState.FAIL},
}
"""Which phase may follow which, by any writer."""


def check_phase(vm: VirtualMachine, phase: str) -> str:
    """``phase``, if it may follow that of the virtual machine; raises ``IllegalTransition``. Other sources are free."""
    before, after = phase_word(vm.status.phase), phase_word(phase)
    if before in _WORDS and after in _WORDS:
        follow(PHASES, VmState(before), VmState(after), what=vm.name)
    return phase


_WORDS: Final = frozenset(VmState)


def set_phase(status: VirtualMachineStatus, phase: str, why: Reason | None = None) -> VirtualMachineStatus:
    """The status in this phase, for this reason; what was said of it stays where the reason stays."""
    said = render(why) if why is not None else Message("")
    if why is not None and why.code == status.reason and not why.fields:
        said = Message(status.message)
    return _replace(status, phase=phase, reason=why.code if why is not None else "", message=said.text)


def end_phase(vm: VirtualMachine) -> tuple[VmState, Reason | None]:
    """Phase and reason of a virtual machine that is down as it was asked for."""
    if vm.status.reason == VmReason.TO_BE_DISABLED:
        return VmState.DISABLE, None
    if vm.spec.power_state == "stopped":
        return VmState.STOP, Reason(VmReason.STOPPED_BY_SPEC)
    return VmState.STOP, Reason(VmReason.STOPPED_BY_DRAIN) if vm.status.reason == VmReason.STOPPED_BY_DRAIN else None


def deletion_of(vm: VirtualMachine) -> Message:
    """What a virtual machine that was deleted waits for, and what helps."""
    hosts = sorted({one.hypervisor for one in vm.status.holders})
    said = join_parts(hosts) if hosts else ""
    return render(make_reason(VmReason.BEING_DELETED, vm=vm.name, hosts=said, host=next(iter(hosts), "")))


def fence_of(vm: VirtualMachine) -> str:
    """The fence that brought it where it is assigned."""
    return vm.status.assigned.fence if vm.status.assigned is not None else ""


def current_order(vm: VirtualMachine) -> StartOrder | None:
    """What the host that it is assigned to says of those that it starts after."""
    order = vm.status.start_order
    return order if order is not None and (order.hypervisor, order.fence) == (vm.host, fence_of(vm)) else None


def current_rejection(vm: VirtualMachine) -> Rejection | None:
    """What the host that it is assigned to says of why it does not start it."""
    said = vm.status.rejection
    return said if said is not None and (said.hypervisor, said.fence) == (vm.host, fence_of(vm)) else None


def reach_of(vm: VirtualMachine) -> Reach:
    """What it could do harm to."""
    return Reach(
        disks=vm.spec.disks, ports=vm.spec.ports, accept_duplicate=vm.spec.network_policy == "accept-duplicate"
    )


def own_entries(vm: VirtualMachine, me: Me) -> tuple[Holder, ...]:
    """Its entries of this host's present epoch."""
    return tuple(one for one in vm.status.holders if is_mine(one, me))


def entries_of_host(vm: VirtualMachine, me: Me) -> tuple[Holder, ...]:
    """Its entries of this host, of whatever epoch."""
    host, uid = me.host, me.uid
    return tuple([one for one in vm.status.holders if one.hypervisor == host and one.member_uid == uid])


def was_brought(vm: VirtualMachine) -> bool:
    """Whether a recovery that is not over has brought it where it is assigned: its host does not try twice."""
    recovery = vm.status.recovery
    return fence_of(vm) != "" and (recovery is None or recovery.unfinished)


def rejected_by(vm: VirtualMachine, host: str) -> bool:
    """Whether the host has rejected it as it is assigned now, for good: it is for recovery to find another one."""
    said = current_rejection(vm)
    return said is not None and not said.stays and vm.host == host


def restarts_elsewhere(vm: VirtualMachine) -> bool:
    """Whether another host may start it where this one does not."""
    return vm.spec.recovery.mode in ("", "restart") or was_brought(vm)


def was_requested_since(vm: VirtualMachine) -> bool:
    """Whether a user has asked for it to run since its recovery began."""
    record, request, answered = vm.status.recovery, vm.spec.request, vm.status.answered
    if record is None or not record.unfinished or request is None or answered is None:
        return False
    accepted = answered.id == request.id and answered.code == ACCEPTED
    return accepted and request.id != record.request and request.verb in TO_RUN


def is_ignored(vm: VirtualMachine) -> bool:
    """Whether nobody recovers it: its policy says so, and no user has asked for it since its host is gone."""
    return vm.spec.recovery.mode == "ignore" and not was_requested_since(vm)


def brings_down_hosts(vm: VirtualMachine) -> bool:
    """Whether it waits for a person because too many hosts died soon after it was started there."""
    record = vm.status.recovery
    return record is not None and record.unfinished and record.reason == HoldReason.BRINGS_DOWN_HOSTS


def is_kept_down(vm: VirtualMachine, me: Me) -> bool:
    """Whether it stays down until a user asks for it: its host died, be it this one, and by its policy, or because
    hosts died under it before."""
    if brings_down_hosts(vm) and not was_requested_since(vm):
        return True
    if vm.spec.recovery.mode != "hold" or was_requested_since(vm):
        return False
    record = vm.status.recovery
    held = record is not None and record.unfinished and record.reason == HoldReason.KEPT_DOWN
    return held or len(own_entries(vm, me)) < len(vm.status.holders)


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


SHUTTING_DOWN: Final = frozenset({VmState.SHUTDOWN, VmState.RESTART, VmState.MIGRATE})
"""States in which a guest that is being shut down goes on being shut down."""
EVENTS: Final[Mapping[tuple[bool, bool], Mapping[str, VmAction]]] = {
    (True, True): {
        VmState.START: VmAction.ADOPT,
        VmState.RESTART: VmAction.RESTART,
        VmState.SHUTDOWN: VmAction.SHUTDOWN,
        VmState.STOP: VmAction.DESTROY,
        VmState.DISABLE: VmAction.DESTROY,
        **dict.fromkeys(sorted(MIGRATING), VmAction.SETTLE_START),
    },
    (True, False): {
        VmState.START: VmAction.START,
        VmState.RESTART: VmAction.WRITE_START,
        VmState.SHUTDOWN: VmAction.SETTLE_STOP,
        VmState.STOP: VmAction.FORGET,
        **dict.fromkeys(sorted(MIGRATING), VmAction.RECEIVE),
    },
    (False, True): {
        VmState.MIGRATE: VmAction.SEND,
        VmState.UNMIGRATE: VmAction.SEND,
        VmState.MIGRATE_LIVE: VmAction.SEND_LIVE,
        VmState.SHUTDOWN: VmAction.SHUTDOWN,
    },
    (False, False): {},
}
"""What is done in each state, by whether it belongs here and whether it runs here. In states that are not named: what
runs here and belongs elsewhere is ended, and else nothing is done."""


def vm_event(given: VmEventInput) -> VmEventResult:
    """One action, always."""
    if given.busy is Job.SHUTDOWN and given.state not in SHUTTING_DOWN:
        return VmEventResult(action=VmAction.ABORT_SHUTDOWN)
    if given.busy is not None:
        return VmEventResult(action=VmAction.DEFER)
    here = given.node == given.this_node
    otherwise = VmAction.TERMINATE if given.running and not here else VmAction.NONE
    return VmEventResult(action=EVENTS[here, given.running].get(given.state, otherwise))


VM_EVENT: Final = Decision(
    "vm.event",
    vm_event,
    VmEventInput,
    VmEventResult,
    "What a host does about a virtual machine",
    lambda output: output.action in (VmAction.NONE, VmAction.DEFER),
)

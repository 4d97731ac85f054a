"""What a host does about one virtual machine, given what is wanted, what is true, and what it is already doing.

The table is evaluated again whenever a job ends, so ``defer`` loses nothing. Whether the host may start the virtual
machine at all is another question, answered by its holders (docs/reference/node-decisions.md#vmevent).
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

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

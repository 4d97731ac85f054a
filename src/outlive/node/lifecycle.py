"""In which order a daemon stops: keepalives go on until nearly the end, or a peer fences a host that is only slow.

Virtual machines are not part of it: they go on running (docs/reference/node-decisions.md#lifecycleshutdown).
"""

from __future__ import annotations

import enum
from typing import Final, Literal

import msgspec

from outlive.node.numbers import Amount, Count

HANDOVER_LIMIT_S: Final = 120.0
"""How long the daemon waits for another one to take over the role of primary."""


class ShutdownStep(enum.StrEnum):
    """A step, in the order in which they come."""

    STATE_SHUTDOWN = "state_shutdown"
    WAIT_FLUSH = "wait_flush"
    STOP_CONSOLE = "stop_console"
    RELEASE_PRIMARY = "release_primary"
    STOP_KEEPALIVE = "stop_keepalive"
    FINAL_KEEPALIVE = "final_keepalive"
    STOP_NETSTATS = "stop_netstats"
    KILL_DHCP = "kill_dhcp"
    STATE_STOP = "state_stop"
    DISCONNECT = "disconnect"
    DRAIN_LOGS = "drain_logs"


class ShutdownInput(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon that is to stop."""

    flush_active: bool
    primary: bool
    node_count: Count
    reason: Literal["signal", "failure"]
    handover_seconds: Amount | None = None
    """How long the hand-over takes; null: it never ends."""


class ShutdownResult(msgspec.Struct, frozen=True, kw_only=True):
    """What it does, and how it ends."""

    steps: tuple[ShutdownStep, ...]
    exit_code: int
    handover: Literal["none", "done", "timeout"]


def shutdown(given: ShutdownInput) -> ShutdownResult:
    """All steps but those that have nothing to do."""
    releases = given.primary and given.node_count > 1
    skipped = {
        ShutdownStep.WAIT_FLUSH: not given.flush_active,
        ShutdownStep.RELEASE_PRIMARY: not releases,
    }
    return ShutdownResult(
        steps=tuple(step for step in ShutdownStep if not skipped.get(step, False)),
        exit_code=0 if given.reason == "signal" else 1,
        handover=_handover(given.handover_seconds) if releases else "none",
    )


def _handover(seconds: Amount | None) -> Literal["done", "timeout"]:
    return "done" if seconds is not None and seconds <= HANDOVER_LIMIT_S else "timeout"

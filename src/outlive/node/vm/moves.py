"""The course of one move from host to host, fault by fault: a model of the move's record.

The record itself is a state machine in the store, advanced by both hosts; tests hold it to this model. Whatever
happens, no lock is held at the end, and the outcome names where the virtual machine is or who decides about it
(docs/reference/node-decisions.md#migrationrun).
"""

from __future__ import annotations

import enum
from typing import Final, Literal

import msgspec

from outlive.base.errors import BadInput
from outlive.node.numbers import Count

LIVE_ATTEMPTS: Final = 3
"""Attempts to move a running guest."""


class Phase(enum.StrEnum):
    """How far a move has come."""

    REQUESTED = "requested"
    TARGET_READY = "target_ready"
    TRANSFERRING = "transferring"
    STOPPING = "stopping"
    TRANSFERRED = "transferred"
    STOPPED = "stopped"
    COMMITTED = "committed"
    ABORTED = "aborted"
    ORPHANED = "orphaned"
    """A side died on the way; recovery decides."""


class FaultKind(enum.StrEnum):
    """What may go wrong."""

    TARGET_SILENT = "target_silent"
    NODE_CHANGED = "node_changed"
    """The virtual machine is meant for another host by now."""
    MAX_DOWNTIME_ERROR = "max_downtime_error"
    LIVE_ERROR = "live_error"
    SOURCE_LOST = "source_lost"
    TARGET_LOST = "target_lost"
    GUEST_IGNORES = "guest_ignores"
    STATE_CHANGED = "state_changed"


class MoveReason(enum.StrEnum):
    """Why a move did not end at its target."""

    SELF_TARGET = "self_target"
    PEER_TIMEOUT = "peer_timeout"
    TARGET_CHANGED = "target_changed"
    MAX_DOWNTIME = "max_downtime"
    LIVE_FAILED = "live_failed"
    LIVE_FORBIDDEN = "live_forbidden"
    TARGET_LOST = "target_lost"
    SOURCE_LOST = "source_lost"
    CANCELLED = "cancelled"


class MoveFault(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that goes wrong. In a phase where it means nothing it is ignored."""

    phase: Phase
    fault: FaultKind
    count: Count = 1
    """Attempts that fail, of ``live_error``."""
    to: Literal["start", "stop"] | None = None
    """The new state, of ``state_changed``."""


class MoveInput(msgspec.Struct, frozen=True, kw_only=True):
    """A move, and what goes wrong with it."""

    source: str
    target: str
    state: Literal["migrate", "migrate-live"]
    method: Literal["none", "live", "shutdown"] = "none"
    prior_last_node: str | None = ""
    new_last_node: str | None = ""
    faults: tuple[MoveFault, ...] = ()


class MoveFinal(msgspec.Struct, frozen=True, kw_only=True):
    """The virtual machine afterwards."""

    state: Literal["start", "stop"]
    node: str
    last_node: str | None
    running_on: str | None


class MoveResult(msgspec.Struct, frozen=True, kw_only=True):
    """How the move went, and what is left."""

    phases: tuple[Phase, ...]
    result: Literal["live", "shutdown", "stopped", "aborted", "orphaned"]
    reason: MoveReason | None
    attempts: int
    """Live attempts begun."""
    forced_off: bool
    """The guest did not stop in time and was stopped hard."""
    final: MoveFinal
    locks_held: int


def run_move(given: MoveInput) -> MoveResult:
    """Follow the move to its end; ``BadInput`` for a changed state that does not say into what."""
    if any(fault.fault is FaultKind.STATE_CHANGED and fault.to is None for fault in given.faults):
        raise BadInput("a state_changed does not say to what", remedy='add "to": "start" or "stop"')
    return _Move(given).run()


class _Move:
    """One move, growing phase by phase."""

    def __init__(self, given: MoveInput) -> None:
        self._given = given
        self._faults = {(fault.phase, fault.fault): fault for fault in reversed(given.faults)}
        self._phases = [Phase.REQUESTED]
        self._attempts = 0
        self._forced_off = False
        self._live_only = given.state == "migrate-live" or given.method == "live"

    def run(self) -> MoveResult:
        given = self._given
        if given.source == given.target:
            return self._aborted(MoveReason.SELF_TARGET)
        if self._has(Phase.REQUESTED, FaultKind.TARGET_SILENT):
            return self._aborted(MoveReason.PEER_TIMEOUT)
        if self._has(Phase.REQUESTED, FaultKind.NODE_CHANGED):
            return self._aborted(MoveReason.TARGET_CHANGED)
        self._phases.append(Phase.TARGET_READY)
        if self._has(Phase.TARGET_READY, FaultKind.NODE_CHANGED):
            return self._aborted(MoveReason.TARGET_CHANGED)
        if given.method == "shutdown":
            return self._aborted(MoveReason.LIVE_FORBIDDEN) if self._live_only else self._stop()
        if self._has(Phase.TARGET_READY, FaultKind.MAX_DOWNTIME_ERROR):
            return self._aborted(MoveReason.MAX_DOWNTIME)
        return self._transfer()

    def _transfer(self) -> MoveResult:
        self._phases.append(Phase.TRANSFERRING)
        self._attempts = 1
        if self._has(Phase.TRANSFERRING, FaultKind.SOURCE_LOST):
            return self._orphaned(MoveReason.SOURCE_LOST)
        if self._has(Phase.TRANSFERRING, FaultKind.TARGET_LOST):
            return self._aborted(MoveReason.TARGET_LOST)
        fault = self._faults.get((Phase.TRANSFERRING, FaultKind.LIVE_ERROR))
        failed = 0 if fault is None else fault.count
        if failed < LIVE_ATTEMPTS:
            self._attempts = failed + 1
            return self._arrive(Phase.TRANSFERRED, "live")
        self._attempts = LIVE_ATTEMPTS
        return self._aborted(MoveReason.LIVE_FAILED) if self._live_only else self._stop()

    def _stop(self) -> MoveResult:
        self._phases.append(Phase.STOPPING)
        changed = self._faults.get((Phase.STOPPING, FaultKind.STATE_CHANGED))
        # The new wish ends the wait for the guest, so it is never stopped hard for being late.
        if changed is not None and changed.to == "start":
            return self._aborted(MoveReason.CANCELLED)
        if changed is not None:
            self._phases.append(Phase.STOPPED)
            return self._ended("stopped", final=self._at_target(state="stop", running=False))
        self._forced_off = self._has(Phase.STOPPING, FaultKind.GUEST_IGNORES)
        return self._arrive(Phase.STOPPED, "shutdown")

    def _arrive(self, phase: Phase, result: Literal["live", "shutdown"]) -> MoveResult:
        self._phases.append(phase)
        if self._has(phase, FaultKind.TARGET_LOST):
            return self._orphaned(MoveReason.TARGET_LOST)
        self._phases.append(Phase.COMMITTED)
        return self._ended(result, final=self._at_target(state="start", running=True))

    def _aborted(self, reason: MoveReason) -> MoveResult:
        given = self._given
        self._phases.append(Phase.ABORTED)
        final = MoveFinal(state="start", node=given.source, last_node=given.prior_last_node, running_on=given.source)
        return self._ended("aborted", final=final, reason=reason)

    def _orphaned(self, reason: MoveReason) -> MoveResult:
        self._phases.append(Phase.ORPHANED)
        return self._ended("orphaned", final=self._at_target(state="start", running=False), reason=reason)

    def _at_target(self, *, state: Literal["start", "stop"], running: bool) -> MoveFinal:
        given = self._given
        return MoveFinal(
            state=state,
            node=given.target,
            last_node=given.new_last_node,
            running_on=given.target if running else None,
        )

    def _ended(
        self,
        result: Literal["live", "shutdown", "stopped", "aborted", "orphaned"],
        *,
        final: MoveFinal,
        reason: MoveReason | None = None,
    ) -> MoveResult:
        return MoveResult(
            phases=tuple(self._phases),
            result=result,
            reason=reason,
            attempts=self._attempts,
            forced_off=self._forced_off,
            final=final,
            locks_held=0,
        )

    def _has(self, phase: Phase, fault: FaultKind) -> bool:
        return (phase, fault) in self._faults

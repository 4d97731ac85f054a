"""Phases of a migration: which may follow which."""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.base.transitions import Transitions, follow
from outlive.resources.reasons import Reason, render
from outlive.resources.vms import Migration, MigrationPhase

LIVE_ATTEMPTS: Final = 3
"""Attempts to move a running guest."""

P = MigrationPhase
PHASES: Final[Transitions[MigrationPhase]] = {
    P.REQUESTED: frozenset({P.TARGET_READY, P.TRANSFERRED, P.ABORTED}),
    P.TARGET_READY: frozenset({P.REQUESTED, P.TRANSFERRING, P.STOPPING, P.TRANSFERRED, P.ABORTED}),
    P.TRANSFERRING: frozenset({P.REQUESTED, P.TRANSFERRED, P.ABORTED}),
    P.STOPPING: frozenset({P.STOPPED, P.TRANSFERRED, P.ABORTED}),
    P.TRANSFERRED: frozenset({P.ABORTED}),
    P.STOPPED: frozenset({P.ABORTED}),
    P.ABORTED: frozenset(),
}
"""A guest that is found paused at its source counts as transferred, whatever was recorded. A migration that succeeded
leaves no record."""
BEFORE_HANDOVER: Final = frozenset({P.REQUESTED, P.TARGET_READY, P.TRANSFERRING, P.STOPPING})
"""Phases in which either side may abort."""


def to_phase(move: Migration, phase: MigrationPhase) -> MigrationPhase:
    """The phase, if it may follow; raises ``IllegalTransition``."""
    return follow(PHASES, move.phase, phase, what=f"migration {move.id}")


def aborted(move: Migration, why: Reason) -> Migration:
    """The record of a migration that did not end at its target; raises ``IllegalTransition``."""
    phase = to_phase(move, MigrationPhase.ABORTED)
    return msgspec.structs.replace(move, phase=phase, reason=why.code, message=render(why).text)

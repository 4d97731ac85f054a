"""How often a lock is tried for, and what the tries come to.

A connection that fails is worth another try; an answer is not, be it that the key is missing or that the wait was too
long (docs/reference/node-decisions.md#lockacquire). Locks only reduce noise here: nothing is safe because of one.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

TRIES: Final = 5
"""Tries in all."""
PAUSE_S: Final = 0.5
"""Between two tries."""


class LockOutcome(enum.StrEnum):
    """How one try ended."""

    CONN_ERROR = "conn_error"
    NO_NODE = "no_node"
    TIMEOUT = "timeout"
    OK = "ok"


class LockInput(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of successive tries; the last one repeats."""

    outcomes: Annotated[tuple[LockOutcome, ...], Meta(min_length=1)]


class LockResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the tries came to."""

    result: Literal["acquired", "none", "timeout", "failed"]
    attempts: int
    waited: float
    """Seconds between tries, together."""


def acquire_lock(given: LockInput) -> LockResult:
    """Try until there is an answer, five times at most."""
    attempts = 1
    while attempts < TRIES and _outcome(given.outcomes, attempts) is LockOutcome.CONN_ERROR:
        attempts += 1
    return LockResult(
        result=_RESULTS[_outcome(given.outcomes, attempts)], attempts=attempts, waited=PAUSE_S * (attempts - 1)
    )


_RESULTS: Final[dict[LockOutcome, Literal["acquired", "none", "timeout", "failed"]]] = {
    LockOutcome.OK: "acquired",
    LockOutcome.NO_NODE: "none",
    LockOutcome.TIMEOUT: "timeout",
    LockOutcome.CONN_ERROR: "failed",
}


def _outcome(outcomes: Sequence[LockOutcome], attempt: int) -> LockOutcome:
    return outcomes[min(attempt, len(outcomes)) - 1]

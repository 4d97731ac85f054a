"""``lock.acquire``: how often a lock of the store is tried, and what comes of it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

TRIES: Final = 5
"""How often a lock is tried while the connection fails."""
PAUSE_S: Final = 0.5
"""Between two tries."""


class LockOutcome(enum.StrEnum):
    """How one try ended."""

    CONNECTION_ERROR = "conn_error"
    NO_NODE = "no_node"
    """The path that is locked does not exist."""
    TIMEOUT = "timeout"
    """Somebody else kept the lock for longer than was waited."""
    OK = "ok"


class LockAnswer(enum.StrEnum):
    """What came of all tries."""

    ACQUIRED = "acquired"
    NONE = "none"
    """There is nothing to lock."""
    TIMEOUT = "timeout"
    FAILED = "failed"
    """The connection failed at every try."""


_ANSWERS: Final = {
    LockOutcome.CONNECTION_ERROR: LockAnswer.FAILED,
    LockOutcome.NO_NODE: LockAnswer.NONE,
    LockOutcome.TIMEOUT: LockAnswer.TIMEOUT,
    LockOutcome.OK: LockAnswer.ACQUIRED,
}


class LockInput(msgspec.Struct, frozen=True, kw_only=True):
    """How the tries of a lock end."""

    outcomes: Annotated[tuple[LockOutcome, ...], msgspec.Meta(min_length=1)]
    """One after the other; the last one stands for those that follow."""


class LockResult(msgspec.Struct, frozen=True, kw_only=True):
    """What comes of them."""

    result: LockAnswer
    """Whether the lock was acquired, or why not."""
    attempts: int
    """How often it was tried."""
    waited: float
    """Seconds of pauses between tries."""


def retry_pause_s(outcomes: Sequence[LockOutcome]) -> float | None:
    """Return the seconds after which the lock is tried again; ``None``: the last outcome is final."""
    return PAUSE_S if outcomes[-1] is LockOutcome.CONNECTION_ERROR and len(outcomes) < TRIES else None


def count_tries(given: LockInput) -> LockResult:
    """Return what comes of these tries: only a failed connection is tried again, ``TRIES`` times in all."""
    tried: list[LockOutcome] = []
    waited = 0.0
    while True:
        tried.append(given.outcomes[min(len(tried), len(given.outcomes) - 1)])
        pause_s = retry_pause_s(tried)
        if pause_s is None:
            return LockResult(result=_ANSWERS[tried[-1]], attempts=len(tried), waited=waited)
        waited += pause_s

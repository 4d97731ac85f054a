"""What failed with an error that nobody expected: a fault with the name of its object, and a pause that doubles.

Every loop that goes on after such an error uses ``Crashes`` or ``keep_running``, so that none fails in silence or
retries without a pause. An ``OutliveError`` is no crash: its message says what is wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from outlive.base import Clock, OutliveError, get_logger
from outlive.resources import ObjectRef
from outlive.resources.reasons import Value

FIRST_PAUSE_S: Final = 1.0
"""After the first crash of a part; it doubles …"""
LONGEST_PAUSE_S: Final = 60.0
"""… up to this."""
CALM_S: Final = 60.0
"""A part that says nothing of itself works again once it has not crashed for so long after its pause."""
PARTS_LIMIT: Final = 1_000
"""Crashed parts that are remembered; the oldest is forgotten first."""
WHY_CHARACTERS: Final = 200
"""Of an error, in the fault."""
_log = get_logger("crashes")


@dataclass(slots=True)
class _Crash:
    count: int
    again_s: float
    """When it is tried again (monotonic)."""
    why: str


class Crashes:
    """The parts of one process that crashed and are not known to work again."""

    def __init__(self, clock: Clock, changed: Callable[[], None] = lambda: None) -> None:
        """``changed``: called where ``active`` may differ."""
        self._clock = clock
        self._changed = changed
        self._parts: dict[tuple[str, str, str], _Crash] = {}
        """By kind and name of the object, and part."""

    def record_crash(self, subject: ObjectRef, part: str, error: Exception) -> float:
        """Remember and log the crash, called where the error is handled; seconds to wait before the next try."""
        key = (subject.kind, subject.name, part)
        self._forget_calm()
        before = self._parts.pop(key, None)
        count = 1 if before is None else before.count + 1
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(count - 1, 16), LONGEST_PAUSE_S)
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"[:WHY_CHARACTERS]
        self._parts[key] = _Crash(count, self._clock.monotonic() + pause_s, why)
        while len(self._parts) > PARTS_LIMIT:
            del self._parts[next(iter(self._parts))]
        _log.exception("part.crashed", part=part, subject=subject.name, count=count, pause_s=pause_s)
        self._changed()
        return pause_s

    def is_due(self, subject: ObjectRef, part: str) -> bool:
        """Whether the pause after its last crash is over."""
        crash = self._parts.get((subject.kind, subject.name, part))
        return crash is None or self._clock.monotonic() >= crash.again_s

    def record_success(self, subject: ObjectRef, part: str) -> None:
        """It was done without a crash."""
        if self._parts.pop((subject.kind, subject.name, part), None) is not None:
            self._changed()

    @property
    def active(self) -> Mapping[ObjectRef, Mapping[str, Value]]:
        """Object → the fields of its fault ``worker-crashed``, about the part of it that crashed last."""
        self._forget_calm()
        return {
            ObjectRef(kind=kind, name=name): {"part": part, "why": crash.why}
            for (kind, name, part), crash in self._parts.items()
        }

    def _forget_calm(self) -> None:
        now_s = self._clock.monotonic()
        self._parts = {key: one for key, one in self._parts.items() if now_s < one.again_s + CALM_S}


async def keep_running(
    part: str,
    run: Callable[[], Awaitable[None]],
    *,
    subject: ObjectRef,
    crashes: Crashes,
    clock: Clock,
    pause_s: float,
    longest_s: float,
) -> None:
    """Run it until it returns; after an error again. The pause doubles from ``pause_s`` to ``longest_s`` while it fails
    with errors of ours, and after a crash as ``Crashes`` says, where that is longer."""
    while True:
        try:
            await run()
            return
        except OutliveError as error:
            _log.error("part.failed", part=part, subject=subject.name, error=str(error))
            wait_s = pause_s
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - a fault says so; the other parts go on
            wait_s = max(pause_s, crashes.record_crash(subject, part, error))
        await clock.sleep(wait_s)
        pause_s = min(2 * pause_s, longest_s)

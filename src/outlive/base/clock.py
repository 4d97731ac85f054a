"""Where all time comes from.

``now`` is for showing and recording (seconds since 1970, UTC); ``monotonic`` is for measuring and
judging silence. Both are seconds as floats. Under the event loop of ``outlive.runtime.virtual`` the
very same ``LoopClock`` runs on virtual time. No clock promises that ``now`` never jumps.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import NewType, Protocol

Instant = NewType("Instant", float)
"""Seconds since 1970-01-01T00:00:00Z."""


class Clock(Protocol):
    """Time, as everything in Outlive sees it."""

    def now(self) -> Instant:
        """Wall clock, seconds since 1970 (UTC)."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``; zero or less yields once."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> Instant:
        """Wall clock, seconds since 1970 (UTC)."""
        return Instant(time.time())

    def monotonic(self) -> float:
        """The same clock that asyncio's own timers use."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""
        await asyncio.sleep(max(0.0, seconds))


class LoopClock:
    """The running event loop's time, plus a fixed start: virtual whenever the loop is."""

    def __init__(self, start: float = 1_767_225_600.0) -> None:
        self._start = start

    def now(self) -> Instant:
        """The start moment plus the loop's time."""
        return Instant(self._start + self.monotonic())

    def monotonic(self) -> float:
        """The running loop's time."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds`` of the loop's time."""
        await asyncio.sleep(max(0.0, seconds))


def boot_time_s() -> float:
    """Seconds since this host started, its sleep included (``CLOCK_BOOTTIME``): what its processes agree upon."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def as_datetime(instant: float) -> datetime:
    """The instant as an aware UTC datetime of whole seconds, as resources carry it."""
    return datetime.fromtimestamp(int(instant), UTC)


def as_instant(moment: datetime) -> Instant:
    """Seconds since 1970 of an aware datetime."""
    return Instant(moment.timestamp())

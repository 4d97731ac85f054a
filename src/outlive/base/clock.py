"""Where all time comes from.

``now`` is for showing and recording (seconds since 1970, UTC); ``monotonic`` is for measuring and
judging silence. Both are seconds as floats. Under the event loop of ``outlive.runtime.virtual`` the
very same ``LoopClock`` runs on virtual time. No clock promises that ``now`` never jumps.

``monotonic`` never runs ahead: what it says has passed has passed by every clock of the kernel, whatever a time
service does to them (docs/concepts/safety.md#clocks). What expires elsewhere meanwhile is measured by ``latest``, which
never falls behind. Readings are compared with those of the same method of the same object only, and never with the
event loop's time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Lock
from types import TracebackType
from typing import Final, NewType, Protocol

Instant = NewType("Instant", float)
"""Seconds since 1970-01-01T00:00:00Z."""


class Clock(Protocol):
    """Time, as everything in Outlive sees it."""

    def now(self) -> Instant:
        """Wall clock, seconds since 1970 (UTC)."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back, and never runs ahead of the time that passed."""
        ...

    def latest(self) -> float:
        """Seconds since some fixed moment; never goes back, and never falls behind the time that passed."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds`` of ``monotonic``; zero or less yields once."""
        ...


SHORTEST_SLEEP_S: Final = 0.001
"""A sleep that ended a hair too early goes on for so long."""


class SlowerOf:
    """One clock made of two: each of its steps is the smaller of theirs since the reading before.

    Two readings of it therefore never differ by more than either clock advanced. As long as both agree it says what the
    first says.
    """

    def __init__(self, first: Callable[[], float], second: Callable[[], float]) -> None:
        self._first, self._second = first, second
        self._read = first(), second()
        self._ahead: float = 0
        """Of this clock, the first."""
        self._one_reading = Lock()

    def __call__(self) -> float:
        """What it says now."""
        with self._one_reading:
            first, second = self._first(), self._second()
            step, other = first - self._read[0], second - self._read[1]
            self._read = first, second
            self._ahead += step - self._choose_step(step, other)
            return first - self._ahead

    def _choose_step(self, step: float, other: float) -> float:
        return min(step, other)


class FasterOf(SlowerOf):
    """The same, where each step is the larger: two readings never differ by less than a clock advanced."""

    def _choose_step(self, step: float, other: float) -> float:
        return max(step, other)


class SystemClock:
    """The machine's clock."""

    def __init__(self) -> None:
        self._slower_ns, self._faster_ns = SlowerOf(_boot_ns, _raw_ns), FasterOf(_boot_ns, _raw_ns)

    def now(self) -> Instant:
        """Wall clock, seconds since 1970 (UTC)."""
        return Instant(time.time())

    def monotonic(self) -> float:
        """The slower of the clock that goes on while the machine sleeps and the one that nobody steers."""
        return self._slower_ns() / 1e9

    def latest(self) -> float:
        """The faster of the two."""
        return self._faster_ns() / 1e9

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``, which may take longer than a timer of the event loop does."""
        until = self.monotonic() + seconds
        await asyncio.sleep(max(0.0, seconds))
        while (left := until - self.monotonic()) > 0:  # noqa: ASYNC110 - it is time alone that is waited for
            await asyncio.sleep(max(left, SHORTEST_SLEEP_S))


def _boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def _raw_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


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

    def latest(self) -> float:
        """The same."""
        return self.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds`` of the loop's time."""
        await asyncio.sleep(max(0.0, seconds))


def as_datetime(instant: float) -> datetime:
    """The instant as an aware UTC datetime of whole seconds, as resources carry it."""
    return datetime.fromtimestamp(int(instant), UTC)


def as_instant(moment: datetime) -> Instant:
    """Seconds since 1970 of a datetime; one without a zone, as somebody else may have written it, is one of UTC."""
    return Instant((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp())


# A deadline for what a task awaits, cheaper than ``asyncio.timeout``: daemons set one for every call.
#
# ``with deadline(2.0): await …`` raises ``TimeoutError`` if the block has not ended in time, as ``async with
# asyncio.timeout(2.0)`` does: the block is cancelled, and a cancellation from outside stays a cancellation. Limits: a
# deadline cannot be moved, and it works only inside a task.


class deadline:  # noqa: N801 - used like the function asyncio.timeout
    """See above. ``seconds`` are of the event loop; with zero or less the block ends at its first wait."""

    __slots__ = ("_cancelling", "_seconds", "_task", "_timer", "expired")

    def __init__(self, seconds: float) -> None:
        self.expired = False
        """Whether the deadline passed before the block ended."""
        self._seconds = seconds

    def __enter__(self) -> deadline:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("a deadline needs a task that it can cancel")
        self._task = task
        self._cancelling = task.cancelling()
        now = loop.time()
        when = now + self._seconds
        self._timer: asyncio.Handle = loop.call_soon(self._expire) if when <= now else loop.call_at(when, self._expire)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _expire(self) -> None:
        self._task.cancel()
        self.expired = True


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait until the event is set, at most so long; whether it is."""
    try:
        with deadline(seconds):
            return await event.wait()
    except TimeoutError:
        return False

"""What is free at another time: commitments that begin and end until then (docs/design/commitment-rules.md#calendar).

A commitment books its memory from its start to its end. Those that have slots hold it already; the others, such as one
that is guaranteed from next month on, take it when they begin.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import ceil

import msgspec

from outlive.base import as_datetime, as_instant
from outlive.commitments.state import Commitment, has_slots


class Booking(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One commitment of memory in one group and zone. Times are seconds since 1970."""

    uuid: str
    memory_bytes: int
    start: float
    end: float | None = None
    """Absent: it does not end."""
    held_bytes: int = 0
    """What its slots hold now, so that what is free now leaves it out."""


class ArrivingCapacity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Memory that somebody plans to add to a group and zone."""

    at: float
    memory_bytes: int


class CalendarInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One group in one zone."""

    free_bytes: int
    """Now, beside everything that runs and is reserved."""
    bookings: tuple[Booking, ...] = ()
    arriving: tuple[ArrivingCapacity, ...] = ()
    now: float


class RetryInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """When so much more can be promised, for good or until ``until``."""

    calendar: CalendarInput
    memory_bytes: int
    until: float | None = None


class RetryResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The earliest time; absent: as far as is known never."""

    at: float | None


def list_bookings(commitments: Iterable[Commitment], now: float, held: Mapping[str, int]) -> tuple[Booking, ...]:
    """What commitments of memory of one group and zone book; those that are over, or only planned, book nothing.

    ``held``: uuid → bytes of its slots.
    """
    return tuple(
        Booking(
            uuid=one.uuid,
            memory_bytes=one.memory_bytes,
            start=as_instant(one.start) if one.start is not None else now,
            end=as_instant(one.end) if one.end is not None else None,
            held_bytes=held.get(one.uuid, 0),
        )
        for one in commitments
        if has_slots(one, now)
    )


def count_free_at(given: CalendarInput, at: float) -> int:
    """Bytes that are free at an instant, now or later; less than 0 where more is booked than there is."""
    return _Ledger(given).count_free_at(at)


def find_earliest(given: RetryInput) -> RetryResult:
    """The first instant from which so much is free until the end. The present counts only if it is free now."""
    ledger = _Ledger(given.calendar)
    found: float | None = None
    for at in reversed((given.calendar.now, *ledger.changes_between(given.calendar.now, given.until))):
        if ledger.count_free_at(at) < given.memory_bytes:
            break
        found = at
    return RetryResult(at=found)


def retry_at(given: RetryInput) -> datetime | None:
    """The same as a time, rounded up to whole seconds."""
    at = find_earliest(given).at
    return as_datetime(ceil(at)) if at is not None else None


class _Ledger:
    """Changes of what is free, in order of time."""

    def __init__(self, given: CalendarInput) -> None:
        changes: dict[float, int] = {}
        now = given.now
        for one in given.bookings:
            begin, booked = max(one.start, now), one.held_bytes
            if one.end is None or one.end > begin:
                changes[begin] = changes.get(begin, 0) - (one.memory_bytes - one.held_bytes)
                booked = one.memory_bytes
            if one.end is not None:
                end = max(one.end, now)
                changes[end] = changes.get(end, 0) + booked
        for more in given.arriving:
            at = max(more.at, now)
            changes[at] = changes.get(at, 0) + more.memory_bytes
        self.times: Sequence[float] = sorted(changes)
        self._free: list[int] = []
        free = given.free_bytes
        for at in self.times:
            free += changes[at]
            self._free.append(free)
        self._now = given.free_bytes

    def count_free_at(self, at: float) -> int:
        """After all changes up to and at this instant."""
        count = bisect_right(self.times, at)
        return self._free[count - 1] if count else self._now

    def changes_between(self, start: float, end: float | None) -> tuple[float, ...]:
        """The changes after ``start`` and before ``end``."""
        stop = len(self.times) if end is None else bisect_left(self.times, end)
        return tuple(self.times[bisect_right(self.times, start) : stop])

"""What a fencer does over time to one host, given when that host was heard: a model to reason with and to test against.

It says when a host is suspected, when each check after that finds it still silent, and when its power would be cut.
The daemon does not run it: it runs the transitions of memberships (docs/reference/node-decisions.md#fencetimeline).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from outlive.base.errors import LimitExceeded
from outlive.node.numbers import Amount, Count, Number, Positive

TICKS_LIMIT: Final = 100_000
"""Ticks and checks of one timeline."""


class TimelineInput(msgspec.Struct, frozen=True, kw_only=True):
    """A host's keepalives and the fencer's settings. Times in seconds."""

    keepalive_interval: Positive
    fence_intervals: Amount
    saving_throws: Count
    keepalives: tuple[Number, ...]
    first_tick: Number
    horizon: Number
    maintenance: tuple[tuple[Number, Number], ...] = ()
    """Each from the first instant up to, and without, the second."""


class TimelineEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happens."""

    t: Number
    event: Literal["dead", "throw", "cancelled", "power"]
    n: int | UnsetType = UNSET
    """Which check, of a throw."""
    why: Literal["maintenance", "keepalive"] | UnsetType = UNSET
    """Of a cancellation."""


class TimelineResult(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, in time."""

    events: tuple[TimelineEvent, ...]


def timeline(given: TimelineInput) -> TimelineResult:
    """Follow the fencer up to the horizon, or until it cuts the power; ``LimitExceeded`` for too many ticks."""
    if given.fence_intervals == 0:
        return TimelineResult(events=())
    ticks = (given.horizon - given.first_tick) / given.keepalive_interval
    if ticks >= TICKS_LIMIT:
        raise LimitExceeded(
            f"the horizon {given.horizon} is {ticks:.0f} ticks away", remedy=f"at most {TICKS_LIMIT}; follow less"
        )
    return TimelineResult(events=tuple(_Fencer(given).events()))


class _Fencer:
    def __init__(self, given: TimelineInput) -> None:
        self._given = given
        self._keepalives: Sequence[Number] = sorted(given.keepalives)

    def events(self) -> Iterator[TimelineEvent]:
        given = self._given
        tick = 0
        while (t := given.first_tick + tick * given.keepalive_interval) <= given.horizon:
            tick += 1
            if self._in_maintenance(t) or not self._silent(t):
                continue
            yield TimelineEvent(t=t, event="dead")
            throws = 0
            for event in self._throws(t):
                throws += event.event in ("throw", "cancelled")
                yield event
                if event.event == "power":
                    return
            # Checks fall on the instants of ticks and take their places.
            tick += throws

    def _throws(self, dead: Number) -> Iterator[TimelineEvent]:
        given, t = self._given, dead
        for number in range(1, given.saving_throws + 1):
            t = dead + number * given.keepalive_interval
            if t > given.horizon:
                return
            if self._in_maintenance(t):
                yield TimelineEvent(t=t, event="cancelled", why="maintenance")
                return
            if self._heard(after=dead, until=t):
                yield TimelineEvent(t=t, event="cancelled", why="keepalive")
                return
            yield TimelineEvent(t=t, event="throw", n=number)
        yield TimelineEvent(t=t, event="power")

    def _silent(self, t: Number) -> bool:
        heard = bisect_right(self._keepalives, t)
        if heard == 0:
            return True
        return t - self._keepalives[heard - 1] > self._given.fence_intervals * self._given.keepalive_interval

    def _heard(self, *, after: Number, until: Number) -> bool:
        return bisect_right(self._keepalives, until) > bisect_right(self._keepalives, after)

    def _in_maintenance(self, t: Number) -> bool:
        return any(since <= t < until for since, until in self._given.maintenance)

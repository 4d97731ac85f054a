"""How well a host does, from what its daemon measures anyway: a score of each part, its slope, and whether it degrades.

A host that gets slow falls silent later, if at all: slow disks, a hypervisor that lags, renewals that come late, a
store that is far away. One bad measurement says nothing. A host degrades when most of what was measured over a window
was bad, or when a part sinks all through it towards nothing; it has recovered only after a longer time in which the
windows were good, so that what comes and goes does not turn the host over and over
(docs/reference/node-decisions.md#hostscore).
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from outlive.base.errors import BadInput
from outlive.node.numbers import Amount, Number, Positive

FULL: Final = 100
"""The score of a part that is as fast as it should be."""
BAD: Final = 50
"""A sample that scores less is bad."""
BAD_SHARE: Final = 0.6
"""So much of a window is bad in a part that degrades …"""
LEAST: Final = 4
"""… of at least so many samples …"""
SPREAD: Final = 1 / 3
"""… and the bad ones lie apart by at least so much of the window: one hiccup that delays many things is one."""
SINKING_BELOW: Final = 75
"""A part that sinks degrades once its line is below this now …"""
SINKS_TO: Final = 25
"""… and will be below that a window later, if it goes on."""
FALL: Final = 10
"""Points by which each third of the window is worse than the one before in a part that sinks."""
SAMPLES_LIMIT: Final = 1024
"""Samples of one part in one decision."""


class Gauged(enum.StrEnum):
    """The parts of a host that are measured."""

    KEEPALIVE = "keepalive"
    """From when a renewal was due to its end, in renewal intervals."""
    STORE = "store"
    """A compare-and-swap of the store, in seconds."""
    DISK = "disk"
    """The share of time in which work stood still for the host's own disks."""
    HYPERVISOR = "hypervisor"
    """A listing of the domains, in seconds."""


class Bounds(NamedTuple):
    """Measured values that score 100 and 0; what lies between scores by the straight line."""

    good: float
    bad: float


BOUNDS: Final[dict[Gauged, Bounds]] = {
    Gauged.KEEPALIVE: Bounds(0.25, 1.0),
    Gauged.STORE: Bounds(0.2, 1.0),
    Gauged.DISK: Bounds(0.1, 0.6),
    Gauged.HYPERVISOR: Bounds(0.5, 5.0),
}


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One measurement: when, in seconds of the daemon's monotonic clock, and how much."""

    at: Number
    value: Amount


Samples = Annotated[tuple[Sample, ...], Meta(max_length=SAMPLES_LIMIT)]


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What was last said of the host. Times as those of the samples."""

    level: Literal["well", "degrading"] = "well"
    since: Number = 0
    bad_at: Number = 0
    """When a window was bad last."""
    causes: tuple[Gauged, ...] = ()
    """The parts that were bad then."""


class ScoreInput(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, the oldest first, and what was said before. Times in seconds."""

    now: Number
    window: Positive
    quiet: Positive
    samples: dict[Gauged, Samples]
    before: Standing = Standing()


class PartScore(msgspec.Struct, frozen=True, kw_only=True):
    """Of one part of the host, over the window."""

    score: int
    """The middle one of its samples' scores."""
    slope: float
    """Of the straight line through them, in points a minute; 0 where they are too close to each other to say."""
    samples: int
    bad: int
    degrades: bool


class ScoreResult(msgspec.Struct, frozen=True, kw_only=True):
    """Parts that were measured, the worst of them, and what is to be said of the host from now on."""

    parts: dict[Gauged, PartScore]
    score: int
    standing: Standing


def score_host(given: ScoreInput) -> ScoreResult:
    """Score each part and say whether the host degrades. ``BadInput`` for samples that are not in the order of time."""
    parts = {part: found for part in Gauged if (found := _part(part, given)) is not None}
    causes = tuple(part for part, found in parts.items() if found.degrades)
    return ScoreResult(
        parts=parts,
        score=min((found.score for found in parts.values()), default=FULL),
        standing=_standing(given, causes),
    )


def score_of(part: Gauged, value: Number) -> float:
    """Of one measurement, 0 to 100."""
    good, bad = BOUNDS[part]
    return FULL * min(1.0, max(0.0, (bad - value) / (bad - good)))


def scores_over(part: Gauged, samples: Sequence[Sample], *, now: Number, window: Number) -> list[tuple[float, float]]:
    """Time and score of each sample of the window."""
    return [(float(one.at), score_of(part, one.value)) for one in samples if now - window < one.at <= now]


def middle(scores: Sequence[float]) -> float:
    """The middle one, of two the lower."""
    return sorted(scores)[(len(scores) - 1) // 2]


def _part(part: Gauged, given: ScoreInput) -> PartScore | None:
    samples = given.samples.get(part, ())
    if any(later.at < earlier.at for earlier, later in itertools.pairwise(samples)):
        raise BadInput(f"samples of {part.value} are not in the order of time", remedy="write the oldest first")
    points = scores_over(part, samples, now=given.now, window=given.window)
    if not points:
        return None
    bad = [at for at, score in points if score < BAD]
    fall = _line(points, given.now, given.window)
    most = len(points) >= LEAST and len(bad) >= BAD_SHARE * len(points)
    spread = bool(bad) and bad[-1] - bad[0] >= SPREAD * given.window
    return PartScore(
        score=round(middle([score for _, score in points])),
        slope=round(fall.slope_s * 60, 1),
        samples=len(points),
        bad=len(bad),
        degrades=(most and spread) or fall.sinks,
    )


class _Line(NamedTuple):
    slope_s: float
    """Points a second."""
    sinks: bool


def _line(points: Sequence[tuple[float, float]], now: Number, window: Number) -> _Line:
    """The straight line of least squares, where the points lie far enough apart."""
    if len(points) < LEAST or points[-1][0] - points[0][0] < window / 2:
        return _Line(0.0, False)
    mean_at = sum(at for at, _ in points) / len(points)
    mean_score = sum(score for _, score in points) / len(points)
    spread = sum((at - mean_at) ** 2 for at, _ in points)
    slope_s = sum((at - mean_at) * (score - mean_score) for at, score in points) / spread
    present = mean_score + slope_s * (float(now) - mean_at)
    later = present + slope_s * float(window)
    low = present < SINKING_BELOW and later < SINKS_TO
    return _Line(slope_s, low and _falls_throughout(points, float(now), float(window)))


def _falls_throughout(points: Sequence[tuple[float, float]], now: float, window: float) -> bool:
    """Whether each third of the window is worse than the one before: a step down, or one deep sample, is no slope."""
    thirds: list[list[float]] = [[], [], []]
    for at, score in points:
        thirds[min(2, int(3 * (at - (now - window)) / window))].append(score)
    if not all(thirds):
        return False
    first, second, third = (middle(scores) for scores in thirds)
    return first - second >= FALL and second - third >= FALL


def _standing(given: ScoreInput, causes: tuple[Gauged, ...]) -> Standing:
    before = given.before
    if causes:
        since = before.since if before.level == "degrading" else given.now
        return Standing(level="degrading", since=since, bad_at=given.now, causes=causes)
    if before.level == "degrading" and given.now - before.bad_at < max(given.quiet, given.window):
        return before
    return Standing(level="well", since=before.since if before.level == "well" else given.now)

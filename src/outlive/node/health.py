"""Whether a host degrades, and whether its VMs leave it then: decisions ``host.score`` and ``host.leave``.

A host that gets slow falls silent later, if at all: slow disks, a hypervisor that lags, renewals that come late, a
store that is far away. One bad measurement says nothing. A host degrades when most of what was measured over a window
was bad, or when a part sinks all through it towards nothing; it has recovered only after a longer time in which the
windows were good, so that what comes and goes does not turn the host over and over
(docs/design/node-decisions.md#hostscore).

A live move is cheap and a mass of them is not, so every doubt keeps VMs where they are: many hosts that degrade
together share a cause, and it is not theirs; a host that is no slower than the others has nothing of its own; one host
is left at a time. Moves have their own protocol: nothing is safe or unsafe because of these decisions.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from outlive.base import BadInput, count_of, join_parts, natural_key
from outlive.node.vm.states import VmState
from outlive.resources import Degrading
from outlive.runtime import Amount, Count, Decision, Number, Positive

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


class HealthPart(enum.StrEnum):
    """The parts of a host that are measured."""

    KEEPALIVE = "keepalive"
    """From when a renewal was due to its end, in renewal intervals."""
    STORE = "store"
    """A compare-and-swap of the store, in seconds."""
    DISK = "disk"
    """The share of time in which work stood still for the host's own disks."""
    HYPERVISOR = "hypervisor"
    """A listing of the domains, in seconds."""
    STORAGE = "storage"
    """A question to the storage of its virtual machines, in seconds."""


class Bounds(NamedTuple):
    """Measured values that score 100 and 0; what lies between scores by the straight line."""

    good: float
    bad: float


BOUNDS: Final[dict[HealthPart, Bounds]] = {
    HealthPart.KEEPALIVE: Bounds(0.25, 1.0),
    HealthPart.STORE: Bounds(0.2, 1.0),
    HealthPart.DISK: Bounds(0.1, 0.6),
    HealthPart.HYPERVISOR: Bounds(0.5, 5.0),
    HealthPart.STORAGE: Bounds(0.5, 3.0),
}


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """One measurement: when, in seconds of the daemon's monotonic clock, and how much."""

    at: Number
    value: Amount


Samples = Annotated[tuple[Sample, ...], Meta(max_length=SAMPLES_LIMIT)]


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """What was last said of the host. Times as those of the samples."""

    level: Literal["well", "degrading"] = "well"
    since: Number = 0
    bad_at: Number = 0
    """When a window was bad last."""
    causes: tuple[HealthPart, ...] = ()
    """The parts that were bad then."""


class ScoreInput(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, the oldest first, and what was said before. Times in seconds."""

    now: Number
    window: Positive
    quiet: Positive
    samples: dict[HealthPart, Samples]
    before: Level = Level()


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

    parts: dict[HealthPart, PartScore]
    score: int
    standing: Level


def score_host(given: ScoreInput) -> ScoreResult:
    """Score each part and say whether the host degrades. ``BadInput`` for samples that are not in the order of time."""
    parts = {part: found for part in HealthPart if (found := _score_part(part, given)) is not None}
    causes = tuple(part for part, found in parts.items() if found.degrades)
    before = standing = given.before
    if causes:
        since = before.since if before.level == "degrading" else given.now
        standing = Level(level="degrading", since=since, bad_at=given.now, causes=causes)
    elif before.level == "well" or given.now - before.bad_at >= max(given.quiet, given.window):
        standing = Level(level="well", since=before.since if before.level == "well" else given.now)
    score = min((found.score for found in parts.values()), default=FULL)
    return ScoreResult(parts=parts, score=score, standing=standing)


def lower_median(scores: Sequence[float]) -> float:
    """The middle one, of two the lower."""
    return sorted(scores)[(len(scores) - 1) // 2]


def _score_part(part: HealthPart, given: ScoreInput) -> PartScore | None:
    samples = given.samples.get(part, ())
    if any(later.at < earlier.at for earlier, later in itertools.pairwise(samples)):
        raise BadInput(f"samples of {part.value} are not in the order of time", remedy="write the oldest first")
    good, poor = BOUNDS[part]
    points = [
        (float(one.at), FULL * min(1.0, max(0.0, (poor - one.value) / (poor - good))))
        for one in samples
        if given.now - given.window < one.at <= given.now
    ]
    if not points:
        return None
    bad = [at for at, score in points if score < BAD]
    fall = _fit_line(points, given.now, given.window)
    most = len(points) >= LEAST and len(bad) >= BAD_SHARE * len(points)
    spread = bool(bad) and bad[-1] - bad[0] >= SPREAD * given.window
    return PartScore(
        score=round(lower_median([score for _, score in points])),
        slope=round(fall.slope_s * 60, 1),
        samples=len(points),
        bad=len(bad),
        degrades=(most and spread) or fall.sinks,
    )


class _TrendLine(NamedTuple):
    slope_s: float
    """Points a second."""
    sinks: bool


def _fit_line(points: Sequence[tuple[float, float]], now: Number, window: Number) -> _TrendLine:
    """The straight line of least squares, where the points lie far enough apart."""
    if len(points) < LEAST or points[-1][0] - points[0][0] < window / 2:
        return _TrendLine(0.0, False)
    mean_at = sum(at for at, _ in points) / len(points)
    mean_score = sum(score for _, score in points) / len(points)
    spread = sum((at - mean_at) ** 2 for at, _ in points)
    slope_s = sum((at - mean_at) * (score - mean_score) for at, score in points) / spread
    present = mean_score + slope_s * (float(now) - mean_at)
    later = present + slope_s * float(window)
    low = present < SINKING_BELOW and later < SINKS_TO
    thirds: list[list[float]] = [[], [], []]
    for at, score in points:
        thirds[min(2, int(3 * (at - (float(now) - float(window))) / float(window)))].append(score)
    medians = [lower_median(scores) for scores in thirds if scores]
    # each third of the window is worse than the one before: a step down, or one deep sample, is no slope
    falls = len(medians) == len(thirds) and all(one - other >= FALL for one, other in itertools.pairwise(medians))
    return _TrendLine(slope_s, low and falls)


WORSE_BY: Final = 25
"""Points by which a host must be below the middle one of the others for the trouble to be its own."""
SAME_TROUBLE: Final[dict[HealthPart, str]] = {
    HealthPart.KEEPALIVE: "store",
    HealthPart.STORE: "store",
    HealthPart.DISK: "disk",
    HealthPart.HYPERVISOR: "hypervisor",
    HealthPart.STORAGE: "storage",
}
"""Renewals are writes to the store: they are late where it is slow."""


class LeaveVerdict(enum.StrEnum):
    """Why virtual machines do not leave, in the order in which it is looked at."""

    GO = ""
    WELL = "well"
    """The host does not degrade."""
    OFF = "off"
    """The policy does not say ``leave``."""
    DRAINING = "draining"
    """Somebody empties the host anyway."""
    MAINTENANCE = "maintenance"
    """Somebody works on it."""
    STORAGE_LOST = "storage_lost"
    """Storage does not serve some of them any more: no live move of those gets to its end."""
    UNSETTLED = "unsettled"
    """It degrades for too short a time for the others to have said how they do."""
    FAILING = "failing"
    """Moves failed one after the other."""
    ALONE = "alone"
    """No other host works and does well."""
    COMMON_CAUSE = "common_cause"
    """Too many hosts have the same trouble."""
    UNCONFIRMED = "unconfirmed"
    """No other host has said that it reaches their storage."""
    LIKE_OTHERS = "like_others"
    """The others are hardly faster."""
    IN_LINE = "in_line"
    """Others are left first."""
    NO_ROOM = "no_room"
    """They may leave, and no other host takes those that are still there …"""
    LEFT = "left"
    """… or nobody is there any more who may: found out by trying, and no answer of the decision."""


WAITS: Final = frozenset({LeaveVerdict.UNSETTLED, LeaveVerdict.IN_LINE})
"""Answers that change by themselves soon: the host waits in line."""


class HealthPeer(msgspec.Struct, frozen=True, kw_only=True):
    """Another host, as it has published itself."""

    name: str
    works: bool = True
    degrading: bool = False
    causes: tuple[HealthPart, ...] = ()
    leaving: Literal["", "waits", "leaves", "stays"] = ""
    scores: dict[str, int] = {}
    storage_lost: bool = False
    """Whether storage does not serve some of its virtual machines any more."""
    reaches: tuple[str, ...] = ()
    """Places of storage that some host does not reach, and that this one has lately said to reach."""
    coordinator: bool = False


class EvacuationInput(msgspec.Struct, frozen=True, kw_only=True):
    """A host that degrades, the policy, and the other hosts. Times in seconds."""

    host: str
    action: Literal["leave", "tell", "off"] = "leave"
    degrading_for: Amount | None
    """Null: it does well."""
    settle: Amount = 30
    common_share: Amount = 0.25
    leaving_share: Amount = 0
    failures_limit: Count = 3
    causes: tuple[HealthPart, ...] = ()
    scores: dict[str, int] = {}
    leaves: bool = False
    """Whether it is being left already."""
    draining: bool = False
    maintenance: bool = False
    storage_lost: bool = False
    failures: Count = 0
    """Live moves in a row that failed."""
    peers: tuple[HealthPeer, ...] = ()


class LeaveResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether they leave, else why not; and how many hosts count as having the same trouble, of how many."""

    go: bool
    why: LeaveVerdict
    together: int = 0
    working: int = 0


def decide_leave(given: EvacuationInput) -> LeaveResult:
    """Look at each reason to stay in turn."""
    working = [peer for peer in given.peers if peer.works]
    troubles = {SAME_TROUBLE[cause] for cause in given.causes}
    together = 1 + sum(
        peer.degrading and any(SAME_TROUBLE[cause] in troubles for cause in peer.causes) for peer in working
    )
    why = _decide_leave(given, working, together)
    return LeaveResult(go=why is LeaveVerdict.GO, why=why, together=together, working=len(working) + 1)


def has_common_cause(together: int, working: int, share: float | int) -> bool:
    """Whether so many hosts with the same trouble have it from outside."""
    return together > 1 and together > share * working


def _decide_leave(given: EvacuationInput, working: Sequence[HealthPeer], together: int) -> LeaveVerdict:
    own = _check_own(given)
    if own is not LeaveVerdict.GO:
        return own
    if not any(not peer.degrading for peer in working):
        return LeaveVerdict.ALONE if together == 1 else LeaveVerdict.COMMON_CAUSE
    if has_common_cause(together, len(working) + 1, given.common_share):
        return LeaveVerdict.COMMON_CAUSE
    if all(_is_shared(cause, given, working) for cause in given.causes):
        return LeaveVerdict.LIKE_OTHERS
    # hosts that are left already go first, and then those that wait, by name
    named_before = [peer.leaving for peer in working if natural_key(peer.name) < natural_key(given.host)]
    ahead = named_before.count("leaves")
    if not given.leaves:
        ahead = sum(peer.leaving == "leaves" for peer in working) + named_before.count("waits")
    limit = max(1, int(given.leaving_share * (len(working) + 1)))
    return LeaveVerdict.IN_LINE if ahead >= limit else LeaveVerdict.GO


def _check_own(given: EvacuationInput) -> LeaveVerdict:
    """Reasons of the host itself, for which nobody else is looked at."""
    if given.degrading_for is None:
        return LeaveVerdict.WELL
    if given.action != "leave":
        return LeaveVerdict.OFF
    if given.draining:
        return LeaveVerdict.DRAINING
    if given.maintenance:
        return LeaveVerdict.MAINTENANCE
    if given.storage_lost:
        return LeaveVerdict.STORAGE_LOST
    if given.degrading_for < given.settle:
        return LeaveVerdict.UNSETTLED
    return LeaveVerdict.FAILING if given.failures_limit and given.failures >= given.failures_limit else LeaveVerdict.GO


def _is_shared(cause: HealthPart, given: EvacuationInput, working: Sequence[HealthPeer]) -> bool:
    """Whether the others do hardly better in this; where nobody says how he does, they do."""
    others = sorted(peer.scores[cause] for peer in working if cause in peer.scores)
    if not others:
        return False
    return given.scores.get(cause, FULL) > others[(len(others) - 1) // 2] - WORSE_BY


class Leaver(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine on such a host."""

    state: str
    power: str = "running"
    method: str = ""
    moving: bool = False
    required: Count | None = None
    """Slots that it needs; null: nobody has said."""


def explain_stay(vm: Leaver) -> str:
    """Why this virtual machine does not leave, in a stable word; empty if it may."""
    if vm.moving:
        return "moving"
    if vm.state != VmState.START or vm.power != "running":
        return "not_running"
    if vm.method == "shutdown":
        return "cold_only"
    return "unprotected" if vm.required == 0 else ""


_SLOW: Final[dict[str, str]] = {
    HealthPart.KEEPALIVE: "its renewals come late",
    HealthPart.STORE: "the store answers it slowly",
    HealthPart.DISK: "its disks make everything wait",
    HealthPart.HYPERVISOR: "its hypervisor lags",
    HealthPart.STORAGE: "the storage of its VMs answers it slowly",
}
_SEE_TO: Final[dict[str, str]] = {
    HealthPart.KEEPALIVE: "what keeps its daemon from running",
    HealthPart.STORE: "its way to the store",
    HealthPart.DISK: "its disks",
    HealthPart.HYPERVISOR: "its hypervisor service",
    HealthPart.STORAGE: "its way to the storage of its VMs",
}
_STAY: Final[dict[str, str]] = {
    LeaveVerdict.OFF: "its VMs stay, as the policy says",
    LeaveVerdict.DRAINING: "somebody empties it",
    LeaveVerdict.MAINTENANCE: "its VMs stay while somebody works on it",
    LeaveVerdict.STORAGE_LOST: "its VMs stay, because guests without their disks cannot be moved live",
    LeaveVerdict.UNSETTLED: "its VMs stay until it is seen whether other hosts degrade as well",
    LeaveVerdict.FAILING: "its VMs stay, because live moves failed one after the other",
    LeaveVerdict.ALONE: "its VMs stay, because no other host does well",
    LeaveVerdict.COMMON_CAUSE: "its VMs stay, because other hosts have the same trouble",
    LeaveVerdict.UNCONFIRMED: "its VMs stay, because no other host has said that it reaches their storage",
    LeaveVerdict.LIKE_OTHERS: "its VMs stay, because other hosts are hardly faster",
    LeaveVerdict.IN_LINE: "its VMs stay while other hosts are left",
    LeaveVerdict.NO_ROOM: "its VMs stay, because no other host takes them",
    LeaveVerdict.LEFT: "those of its VMs that may leave have left",
}
_SHARED: Final = frozenset({LeaveVerdict.COMMON_CAUSE, LeaveVerdict.LIKE_OTHERS})
"""Reasons that lie outside the host."""


def describe_slowness(causes: Iterable[str]) -> str:
    """What is slow, as a sentence's part; "it gets slow" where nobody says what."""
    said = [_SLOW[one] for one in causes if one in _SLOW]
    return join_parts(said) if said else "it gets slow"


def describe_outcome(degrading: Degrading) -> str:
    """What becomes of its virtual machines."""
    if degrading.leaving == "leaves":
        return "its VMs leave it by live moves"
    return _STAY.get(degrading.why, "its VMs stay")


def describe_degrading(host: str, degrading: Degrading) -> str:
    """All of it."""
    return f"{host} degrades: {describe_slowness(degrading.causes)}; {describe_outcome(degrading)}"


def suggest_remedy(host: str, degrading: Degrading, *, together: int = 0) -> str:
    """What helps; ``together``: how many hosts have the same trouble, where that is known."""
    if degrading.why in _SHARED:
        hosts = count_of(together, "host") if together > 1 else "the hosts"
        return f"check the store, the network or the storage that {hosts} share"
    see_to = join_parts([_SEE_TO[one] for one in degrading.causes if one in _SEE_TO] or [host])
    return f"check {see_to}; to empty it now: outlive drain {host}"


SCORE_HOST: Final = Decision(
    "host.score",
    score_host,
    ScoreInput,
    ScoreResult,
    "How well a host does, and whether it degrades",
    lambda output: output.standing.level == "well",
)
LEAVE_HOST: Final = Decision(
    "host.leave",
    decide_leave,
    EvacuationInput,
    LeaveResult,
    "Whether virtual machines leave a host that degrades",
    lambda output: not output.go,
)

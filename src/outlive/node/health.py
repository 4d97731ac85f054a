"""Whether a host degrades, and whether its VMs leave it then: decisions ``host.score`` and ``host.leave``.

A host that gets slow falls silent later, if at all: slow disks, a hypervisor that lags, renewals that come late, a
store that is far away. One bad measurement says nothing. A host degrades when most of what was measured over a window
was bad, or when a part sinks all through it towards nothing; it has recovered only after a longer time in which the
windows were good, so that what comes and goes does not turn the host over and over
(docs/reference/node-decisions.md#hostscore).

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

from outlive.base.errors import BadInput
from outlive.base.natural import natural_key
from outlive.base.phrases import count_of, listing
from outlive.node.vm.states import VmState
from outlive.resources import Degrading
from outlive.runtime.decisions import Decision
from outlive.runtime.units import Amount, Count, Number, Positive

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


class Part(enum.StrEnum):
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


BOUNDS: Final[dict[Part, Bounds]] = {
    Part.KEEPALIVE: Bounds(0.25, 1.0),
    Part.STORE: Bounds(0.2, 1.0),
    Part.DISK: Bounds(0.1, 0.6),
    Part.HYPERVISOR: Bounds(0.5, 5.0),
    Part.STORAGE: Bounds(0.5, 3.0),
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
    causes: tuple[Part, ...] = ()
    """The parts that were bad then."""


class ScoreInput(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured, the oldest first, and what was said before. Times in seconds."""

    now: Number
    window: Positive
    quiet: Positive
    samples: dict[Part, Samples]
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

    parts: dict[Part, PartScore]
    score: int
    standing: Level


def score_host(given: ScoreInput) -> ScoreResult:
    """Score each part and say whether the host degrades. ``BadInput`` for samples that are not in the order of time."""
    parts = {part: found for part in Part if (found := _part(part, given)) is not None}
    causes = tuple(part for part, found in parts.items() if found.degrades)
    return ScoreResult(
        parts=parts,
        score=min((found.score for found in parts.values()), default=FULL),
        standing=_standing(given, causes),
    )


def score_of(part: Part, value: Number) -> float:
    """Of one measurement, 0 to 100."""
    good, bad = BOUNDS[part]
    return FULL * min(1.0, max(0.0, (bad - value) / (bad - good)))


def scores_over(part: Part, samples: Sequence[Sample], *, now: Number, window: Number) -> list[tuple[float, float]]:
    """Time and score of each sample of the window."""
    return [(float(one.at), score_of(part, one.value)) for one in samples if now - window < one.at <= now]


def middle(scores: Sequence[float]) -> float:
    """The middle one, of two the lower."""
    return sorted(scores)[(len(scores) - 1) // 2]


def _part(part: Part, given: ScoreInput) -> PartScore | None:
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


def _standing(given: ScoreInput, causes: tuple[Part, ...]) -> Level:
    before = given.before
    if causes:
        since = before.since if before.level == "degrading" else given.now
        return Level(level="degrading", since=since, bad_at=given.now, causes=causes)
    if before.level == "degrading" and given.now - before.bad_at < max(given.quiet, given.window):
        return before
    return Level(level="well", since=before.since if before.level == "well" else given.now)


WORSE_BY: Final = 25
"""Points by which a host must be below the middle one of the others for the trouble to be its own."""
SAME_TROUBLE: Final[dict[Part, str]] = {
    Part.KEEPALIVE: "store",
    Part.STORE: "store",
    Part.DISK: "disk",
    Part.HYPERVISOR: "hypervisor",
    Part.STORAGE: "storage",
}
"""Renewals are writes to the store: they are late where it is slow."""


class Answer(enum.StrEnum):
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


WAITS: Final = frozenset({Answer.UNSETTLED, Answer.IN_LINE})
"""Answers that change by themselves soon: the host waits in line."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """Another host, as it has published itself."""

    name: str
    works: bool = True
    degrading: bool = False
    causes: tuple[Part, ...] = ()
    leaving: Literal["", "waits", "leaves", "stays"] = ""
    scores: dict[str, int] = {}
    storage_lost: bool = False
    """Whether storage does not serve some of its virtual machines any more."""
    reaches: tuple[str, ...] = ()
    """Places of storage that some host does not reach, and that this one has lately said to reach."""
    coordinator: bool = False


class LeaveInput(msgspec.Struct, frozen=True, kw_only=True):
    """A host that degrades, the policy, and the other hosts. Times in seconds."""

    host: str
    action: Literal["leave", "tell", "off"] = "leave"
    degrading_for: Amount | None
    """Null: it does well."""
    settle: Amount = 30
    common_share: Amount = 0.25
    leaving_share: Amount = 0
    failures_limit: Count = 3
    causes: tuple[Part, ...] = ()
    scores: dict[str, int] = {}
    leaves: bool = False
    """Whether it is being left already."""
    draining: bool = False
    maintenance: bool = False
    storage_lost: bool = False
    failures: Count = 0
    """Live moves in a row that failed."""
    peers: tuple[Peer, ...] = ()


class LeaveResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether they leave, else why not; and how many hosts count as having the same trouble, of how many."""

    go: bool
    why: Answer
    together: int = 0
    working: int = 0


def decide_leave(given: LeaveInput) -> LeaveResult:
    """Look at each reason to stay in turn."""
    working = [peer for peer in given.peers if peer.works]
    together = 1 + sum(_shares(given.causes, peer) for peer in working)
    why = _why(given, working, together)
    return LeaveResult(go=why is Answer.GO, why=why, together=together, working=len(working) + 1)


def same_cause(together: int, working: int, share: float | int) -> bool:
    """Whether so many hosts with the same trouble have it from outside."""
    return together > 1 and together > share * working


def _why(given: LeaveInput, working: Sequence[Peer], together: int) -> Answer:
    own = _own(given)
    if own is not Answer.GO:
        return own
    if not any(not peer.degrading for peer in working):
        return Answer.ALONE if together == 1 else Answer.COMMON_CAUSE
    if same_cause(together, len(working) + 1, given.common_share):
        return Answer.COMMON_CAUSE
    if all(_alike(cause, given, working) for cause in given.causes):
        return Answer.LIKE_OTHERS
    return Answer.IN_LINE if _ahead(given, working) >= _places(given, len(working) + 1) else Answer.GO


def _own(given: LeaveInput) -> Answer:
    """Reasons of the host itself, for which nobody else is looked at."""
    if given.degrading_for is None:
        return Answer.WELL
    if given.action != "leave":
        return Answer.OFF
    if given.draining:
        return Answer.DRAINING
    if given.maintenance:
        return Answer.MAINTENANCE
    if given.storage_lost:
        return Answer.STORAGE_LOST
    if given.degrading_for < given.settle:
        return Answer.UNSETTLED
    return Answer.FAILING if given.failures_limit and given.failures >= given.failures_limit else Answer.GO


def _shares(causes: Sequence[Part], peer: Peer) -> bool:
    troubles = {SAME_TROUBLE[cause] for cause in causes}
    return peer.degrading and any(SAME_TROUBLE[cause] in troubles for cause in peer.causes)


def _alike(cause: Part, given: LeaveInput, working: Sequence[Peer]) -> bool:
    """Whether the others do hardly better in this; where nobody says how he does, they do."""
    others = sorted(peer.scores[cause] for peer in working if cause in peer.scores)
    if not others:
        return False
    return given.scores.get(cause, FULL) > others[(len(others) - 1) // 2] - WORSE_BY


def _places(given: LeaveInput, working: int) -> int:
    return max(1, int(given.leaving_share * working))


def _ahead(given: LeaveInput, working: Sequence[Peer]) -> int:
    """Hosts that are left already, and then those that wait, by name."""
    leaving = sum(peer.leaving == "leaves" for peer in working)
    if given.leaves:
        return sum(peer.leaving == "leaves" and natural_key(peer.name) < natural_key(given.host) for peer in working)
    waiting = sum(peer.leaving == "waits" and natural_key(peer.name) < natural_key(given.host) for peer in working)
    return leaving + waiting


class Leaver(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine on such a host."""

    state: str
    power: str = "running"
    method: str = ""
    moving: bool = False
    required: Count | None = None
    """Slots that it needs; null: nobody has said."""


def stays(vm: Leaver) -> str:
    """Why this virtual machine does not leave, in a stable word; empty if it may."""
    if vm.moving:
        return "moving"
    if vm.state != VmState.START or vm.power != "running":
        return "not_running"
    if vm.method == "shutdown":
        return "cold_only"
    return "unprotected" if vm.required == 0 else ""


_SLOW: Final[dict[str, str]] = {
    Part.KEEPALIVE: "its renewals come late",
    Part.STORE: "the store answers it slowly",
    Part.DISK: "its disks make everything wait",
    Part.HYPERVISOR: "its hypervisor lags",
    Part.STORAGE: "the storage of its VMs answers it slowly",
}
_SEE_TO: Final[dict[str, str]] = {
    Part.KEEPALIVE: "what keeps its daemon from running",
    Part.STORE: "its way to the store",
    Part.DISK: "its disks",
    Part.HYPERVISOR: "its hypervisor service",
    Part.STORAGE: "its way to the storage of its VMs",
}
_STAY: Final[dict[str, str]] = {
    Answer.OFF: "its VMs stay, as the policy says",
    Answer.DRAINING: "somebody empties it",
    Answer.MAINTENANCE: "its VMs stay while somebody works on it",
    Answer.STORAGE_LOST: "its VMs stay, because guests without their disks cannot be moved live",
    Answer.UNSETTLED: "its VMs stay until it is seen whether other hosts degrade as well",
    Answer.FAILING: "its VMs stay, because live moves failed one after the other",
    Answer.ALONE: "its VMs stay, because no other host does well",
    Answer.COMMON_CAUSE: "its VMs stay, because other hosts have the same trouble",
    Answer.UNCONFIRMED: "its VMs stay, because no other host has said that it reaches their storage",
    Answer.LIKE_OTHERS: "its VMs stay, because other hosts are hardly faster",
    Answer.IN_LINE: "its VMs stay while other hosts are left",
    Answer.NO_ROOM: "its VMs stay, because no other host takes them",
    Answer.LEFT: "those of its VMs that may leave have left",
}
_SHARED: Final = frozenset({Answer.COMMON_CAUSE, Answer.LIKE_OTHERS})
"""Reasons that lie outside the host."""


def slow(causes: Iterable[str]) -> str:
    """What is slow, as a sentence's part; "it gets slow" where nobody says what."""
    said = [_SLOW[one] for one in causes if one in _SLOW]
    return listing(said) if said else "it gets slow"


def becomes(degrading: Degrading) -> str:
    """What becomes of its virtual machines."""
    if degrading.leaving == "leaves":
        return "its VMs leave it by live moves"
    return _STAY.get(degrading.why, "its VMs stay")


def message(host: str, degrading: Degrading) -> str:
    """All of it."""
    return f"{host} degrades: {slow(degrading.causes)}; {becomes(degrading)}"


def remedy(host: str, degrading: Degrading, *, together: int = 0) -> str:
    """What helps; ``together``: how many hosts have the same trouble, where that is known."""
    if degrading.why in _SHARED:
        hosts = count_of(together, "host") if together > 1 else "the hosts"
        return f"see to the store, the network or the storage that {hosts} share"
    see_to = listing([_SEE_TO[one] for one in degrading.causes if one in _SEE_TO] or [host])
    return f"see to {see_to}; to empty it now: outlive drain {host}"


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
    LeaveInput,
    LeaveResult,
    "Whether virtual machines leave a host that degrades",
    lambda output: not output.go,
)

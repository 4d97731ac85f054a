"""What a fencer has seen of every host, since when on its own monotonic clock, and which silent ones it suspects.

Only a change of a Membership's version restarts an age. A listing that shows the same version again changes nothing,
and what is seen for the first time is as old as that moment. From when a version was first *received* everything else
follows: the host sent it before (docs/concepts/safety.md#condemning). Each change costs the same small work however
many hosts there are; who is silent is asked of a heap that holds every host once.

A suspected host is looked at a few times more before it is condemned. Each look needs a fencer that sees, and lies at
least one pause after the one before: a fencer that was itself stopped for a while, and finds everybody silent, first
has to go on finding them silent. How many looks there are is asked again at each of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from outlive.base import Clock, get_logger
from outlive.node.fencing.states import is_open
from outlive.node.fencing.suspicion import LooksResult
from outlive.resources import MemberRecord, Membership

FIRST_LOOK_S: Final = 1.0
"""When a host is first looked at after it was first seen."""
AGAIN_S: Final = 1.0
"""When a silent host is looked at again, about which nothing could be done."""
LOOK_S: Final = 5.0
"""How often everybody is looked at at least: a limit may become shorter, as when a host that stopped is there again."""
HAIR_S: Final = 0.001
"""A host is looked at so long after its limit, because silence must exceed it."""

_log = get_logger("fencing")


@dataclass(slots=True)
class SeenHost:
    """One host as it was last seen."""

    membership: Membership
    since: float
    """When this version was first received."""
    fence: str = ""
    """The open fence, if there is one."""
    quiet_since: float = 0.0
    """Since when no renewal can have happened, for the open fence: what the wait for its guard counts from."""

    @property
    def record(self) -> MemberRecord:
        """The document."""
        return self.membership.record

    @property
    def version(self) -> str:
        """Of the document; for equality only."""
        return self.membership.metadata.resource_version


class Watcher:
    """See the module. ``me`` is the fencer's own name."""

    def __init__(self, clock: Clock, me: str) -> None:
        self.open: dict[str, None] = {}
        """Hosts with an open fence, in the order in which they were seen."""
        self._clock = clock
        self._me = me
        self._seen: dict[str, SeenHost] = {}
        self._heap: list[tuple[float, str]] = []
        self._scheduled: set[str] = set()
        self._mine: dict[str, tuple[Membership, float]] = {}
        """Host → the version on which I condemn it, and when I first received that."""

    def __iter__(self) -> Iterator[tuple[str, SeenHost]]:
        return iter(self._seen.items())

    def get(self, host: str) -> SeenHost | None:
        """What was last seen of the host."""
        return self._seen.get(host)

    def on_membership(self, old: Membership | None, new: Membership | None) -> None:
        """A change of the informer's cache."""
        if new is None:
            if old is not None:
                self._seen.pop(old.name, None)
                self.open.pop(old.name, None)
            return
        host, meta = new.metadata.name, new.metadata
        seen = self._seen.get(host)
        now = self._clock.monotonic()
        if seen is None:
            seen = self._seen[host] = SeenHost(new, now)
            if host not in self._scheduled:
                self._scheduled.add(host)
                heapq.heappush(self._heap, (now + FIRST_LOOK_S, host))
        else:
            before = seen.membership.metadata
            if meta.resource_version == before.resource_version and meta.uid == before.uid:
                return
            seen.membership = new
            seen.since = now
        if new.record.state == "Held" and not seen.fence:
            return
        self._follow_fence(host, seen, now)

    def note_condemnation(self, host: str, on: Membership, since: float) -> None:
        """I am about to condemn ``host`` on exactly this version, which I first received at ``since``."""
        self._mine[host] = (on, since)

    def _follow_fence(self, host: str, seen: SeenHost, now: float) -> None:
        record = seen.record
        if not is_open(record):
            self.open.pop(host, None)
            self._mine.pop(host, None)
            seen.fence = ""
            return
        if seen.fence != record.fence.id:
            seen.fence = record.fence.id
            seen.quiet_since = self._first_quiet(host, seen, now)
        self.open[host] = None

    def _first_quiet(self, host: str, seen: SeenHost, now: float) -> float:
        """If it is my own swap on the very renewal that I had seen, since I had seen that; else since now."""
        mine = self._mine.pop(host, None)
        if mine is None:
            return now
        on, since = mine
        record = seen.record
        same = (on.metadata.uid, on.record.epoch, on.record.nonce, on.record.seq)
        if record.fence.by == self._me and same == (
            seen.membership.metadata.uid,
            record.epoch,
            record.nonce,
            record.seq,
        ):
            return since
        return now

    def find_due(self, now: float, limit_s: Callable[[str, SeenHost], float]) -> list[str]:
        """Hosts that hold their membership and are silent for longer than their limit, longest first."""
        found: list[str] = []
        while self._heap and self._heap[0][0] <= now:
            _, host = heapq.heappop(self._heap)
            seen = self._seen.get(host)
            if seen is None:
                self._scheduled.discard(host)
                continue
            at = seen.since + limit_s(host, seen) + HAIR_S
            if at <= now:
                at = now + AGAIN_S
                if seen.record.state == "Held":
                    found.append(host)
            heapq.heappush(self._heap, (min(at, now + LOOK_S), host))
        return found

    def read_clock(self) -> float:
        """The clock that all times are of."""
        return self._clock.monotonic()

    def next_at(self) -> float:
        """When somebody is to be looked at next."""
        return self._heap[0][0] if self._heap else self._clock.monotonic() + FIRST_LOOK_S


@dataclass(slots=True)
class Suspicion:
    """One silent host."""

    version: str
    next_at: float
    looked: int = 0
    """Looks that it had."""
    ripe_at: float | None = None
    """When it had had all of them."""


@dataclass(frozen=True, slots=True)
class Ripe:
    """A host that had all its looks and is still silent."""

    host: str
    seen: SeenHost
    waited_s: float
    """Since it had had them."""
    looks: str
    """Why there were fewer of them than usual, or not, where that has to be explained."""


class Suspicions:
    """See the module. ``looks``: how often a host is looked at, as of now."""

    def __init__(self, watcher: Watcher, looks: Callable[[str, SeenHost], LooksResult]) -> None:
        self._watcher = watcher
        self._looks = looks
        self._all: dict[str, Suspicion] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def next_at(self) -> float:
        """When one of them is to be looked at; infinite if there is none."""
        return min((one.next_at for one in self._all.values()), default=float("inf"))

    def begin(self, host: str, now: float) -> None:
        """The host is silent; fine if that is known."""
        seen = self._watcher.get(host)
        if seen is None or host in self._all:
            return
        self._all[host] = Suspicion(seen.version, now)

    def note_answer(self, host: str) -> None:
        """Its BMC has answered: that may be reason enough, if the host had more than its first look."""
        suspicion = self._all.get(host)
        if suspicion is not None and suspicion.looked > 1:
            suspicion.next_at = self._watcher.read_clock()

    def drop_the_living(self) -> None:
        """Forget those of which anything new was seen."""
        for host, suspicion in list(self._all.items()):
            seen = self._watcher.get(host)
            if seen is None or seen.version != suspicion.version or seen.record.state != "Held":
                del self._all[host]
                _log.info("fence.suspicion_over", host=host)

    def put_off(self, until: float) -> None:
        """Nobody can be judged before ``until``."""
        for suspicion in self._all.values():
            suspicion.next_at = max(suspicion.next_at, until)

    def clear(self) -> None:
        """Begin anew with everybody."""
        self._all.clear()

    def postpone(self, host: str, at: float) -> None:
        """Look at a ripe one again at ``at``."""
        if host in self._all:
            self._all[host].next_at = at

    def find_ripe(self, suspects: Iterable[str], now: float) -> Iterator[Ripe]:
        """Have a look at those whose time has come; yields the ones that have had all their looks."""
        suspects = tuple(suspects)
        for host in suspects:
            self.begin(host, now)
            suspicion, seen = self._all.get(host), self._watcher.get(host)
            if suspicion is None or seen is None or seen.record.state != "Held" or suspicion.next_at > now:
                continue
            looks = self._looks(host, seen)
            if suspicion.looked < looks.throws:
                left = looks.throws - suspicion.looked
                _log.info("fence.suspected", host=host, left=left, age_s=round(now - seen.since, 3), why=looks.why)
                suspicion.looked += 1
                suspicion.next_at = now + looks.throw_s
                continue
            suspicion.next_at = now + AGAIN_S
            suspicion.ripe_at = now if suspicion.ripe_at is None else suspicion.ripe_at
            yield Ripe(host, seen, now - suspicion.ripe_at, looks.why)
        named = set(suspects)
        for host, suspicion in self._all.items():
            if host not in named:
                suspicion.next_at = max(suspicion.next_at, now + AGAIN_S)

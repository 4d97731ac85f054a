"""What a fencer has seen of every host, and since when on its own monotonic clock.

Only a change of a Membership's version restarts an age. A listing that shows the same version again changes
nothing, and what is seen for the first time is as old as that moment. From when a version was first *received*
everything else follows: the host sent it before (docs/concepts/safety.md#condemning). Each change costs the same
small work however many hosts there are; who is silent is asked of a heap that holds every host once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from outlive.base.clock import Clock
from outlive.resources import MemberRecord, Membership
from outlive.runtime.informer import Informer

FIRST_LOOK_S: Final = 1.0
"""When a host is first looked at after it was first seen."""
AGAIN_S: Final = 1.0
"""When a silent host is looked at again, about which nothing could be done."""
LOOK_S: Final = 5.0
"""How often everybody is looked at at least: a limit may become shorter, as when a host that stopped is there again."""
HAIR_S: Final = 0.001
"""A host is looked at so long after its limit, because silence must exceed it."""


@dataclass(slots=True)
class Seen:
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


def is_open(record: MemberRecord) -> bool:
    """Whether somebody still has to prove this host's condemned epoch dead."""
    return record.state == "Revoked" and record.dead_through < record.fence.epoch


class Watching:
    """See the module. ``me`` is the fencer's own name."""

    def __init__(self, memberships: Informer[Membership], clock: Clock, me: str) -> None:
        self.open: dict[str, None] = {}
        """Hosts with an open fence, in the order in which they were seen."""
        self._memberships = memberships
        self._clock = clock
        self._me = me
        self._seen: dict[str, Seen] = {}
        self._heap: list[tuple[float, str]] = []
        self._scheduled: set[str] = set()
        self._mine: dict[str, tuple[Membership, float]] = {}
        """Host → the version on which I condemn it, and when I first received that."""

    def __iter__(self) -> Iterator[tuple[str, Seen]]:
        return iter(self._seen.items())

    def __len__(self) -> int:
        return len(self._seen)

    def get(self, host: str) -> Seen | None:
        """What was last seen of the host."""
        return self._seen.get(host)

    def stalled_s(self) -> float:
        """For how long what was seen is in doubt; 0 while the store's changes arrive."""
        return self._memberships.stalled_s()

    def changed(self, old: Membership | None, new: Membership | None) -> None:
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
            seen = self._seen[host] = Seen(new, now)
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

    def condemning(self, host: str, on: Membership, since: float) -> None:
        """I am about to condemn ``host`` on exactly this version, which I first received at ``since``."""
        self._mine[host] = (on, since)

    def _follow_fence(self, host: str, seen: Seen, now: float) -> None:
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

    def _first_quiet(self, host: str, seen: Seen, now: float) -> float:
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

    def due(self, now: float, limit_s: Callable[[str, Seen], float]) -> list[str]:
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

    def next_at(self) -> float:
        """When somebody is to be looked at next."""
        return self._heap[0][0] if self._heap else self._clock.monotonic() + FIRST_LOOK_S

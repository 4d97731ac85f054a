"""Suspicions: silent hosts that are looked at a few times more before they are condemned.

Each look needs a fencer that sees, and lies at least one pause after the one before. So a fencer that was itself
stopped for a while, and wakes up to find everybody silent, first has to go on finding them silent
(docs/concepts/safety.md#condemning). How many looks there are is asked again at each of them: what makes them fewer has
to hold until the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from outlive.base.logging import get_logger
from outlive.node.fencing.deadlines import LooksResult
from outlive.node.fencing.watching import Seen, Watching

AGAIN_S: Final = 1.0
"""When a host is looked at again that could not be condemned, or is not suspected for now."""

_log = get_logger("fencing")


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
    seen: Seen
    waited_s: float
    """Since it had had them."""
    looks: str
    """Why there were fewer of them than usual, or not, where that is to be told."""


class Suspicions:
    """See the module. ``looks``: how often a host is looked at, as of now."""

    def __init__(self, watching: Watching, looks: Callable[[str, Seen], LooksResult]) -> None:
        self._watching = watching
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
        seen = self._watching.get(host)
        if seen is None or host in self._all:
            return
        self._all[host] = Suspicion(seen.version, now)

    def drop_the_living(self) -> None:
        """Forget those of which anything new was seen."""
        for host, suspicion in list(self._all.items()):
            seen = self._watching.get(host)
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

    def again(self, host: str, at: float) -> None:
        """Look at a ripe one again at ``at``."""
        if host in self._all:
            self._all[host].next_at = at

    def ripe(self, suspects: Iterable[str], now: float) -> Iterator[Ripe]:
        """Have a look at those whose time has come; yields the ones that have had all their looks."""
        suspects = tuple(suspects)
        for host in suspects:
            self.begin(host, now)
            suspicion, seen = self._all.get(host), self._watching.get(host)
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

"""When planning anew is worth another try: after each one in vain the next waits twice as many ticks."""

from __future__ import annotations

from typing import Final, NamedTuple

MOST_TICKS: Final = 32
"""From one try in vain to the next."""


class Ground(NamedTuple):
    """What a plan rests on, as far as it tells whether another may succeed."""

    revision: int
    """Of the cache."""
    missing: int
    """Slots that VMs miss, together."""
    hosts: frozenset[str]
    """Those where slots can be used."""
    free: tuple[int, ...]
    """What hosts have free together, by resource."""

    def offers_more_than(self, other: Ground) -> bool:
        """Whether more is missing, a host is there that was not, or more is free."""
        freer = any(now > then for now, then in zip(self.free, other.free, strict=True))
        return self.missing > other.missing or not self.hosts <= other.hosts or freer

    def beside(self, other: Ground) -> Ground:
        """With the higher of each figure."""
        free = tuple(map(max, self.free, other.free))
        return self._replace(missing=max(self.missing, other.missing), free=free)


class Attempts:
    """Remembers what was tried in vain since the last success."""

    def __init__(self) -> None:
        self._last: Ground | None = None
        self._most: Ground | None = None
        """The highest figures with which it was in vain."""
        self._wait = 0
        self._next = 0

    def is_due(self, tick: int, now: Ground) -> bool:
        """Whether this tick is to try. On the very same ground it never is."""
        if self._most is None or now.offers_more_than(self._most):
            return True
        return tick >= self._next and now != self._last

    def in_vain(self, tick: int, ground: Ground) -> None:
        """It was tried on this ground, and nothing changed."""
        begins = self._most is None or ground.offers_more_than(self._most)
        self._wait = 2 if begins else min(2 * self._wait, MOST_TICKS)
        self._next = tick + self._wait
        self._last, self._most = ground, ground if self._most is None else ground.beside(self._most)

    def forget(self) -> None:
        """It succeeded, or nobody misses anything."""
        self._last = self._most = None

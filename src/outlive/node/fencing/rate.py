"""The rate at which failure domains may be fenced without anybody looking.

A fencer counts every domain in which it saw a host condemned or proven dead, whoever did it, on its own monotonic
clock. A domain that was counted already may lose more hosts: a rack that dies slowly is one failure. A restarted fencer
begins to count anew; the others have not forgotten (docs/concepts/safety.md#condemning).
"""

from __future__ import annotations

from typing import Final

UNITS_LIMIT: Final = 10_000
"""Domains that are remembered; the oldest goes first."""


class RateRule:
    """See the module."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._reserved: dict[str, int] = {}

    def count(self, unit: str, now: float) -> None:
        """A host of this unit was condemned, or proven dead."""
        self._at.pop(unit, None)
        self._at[unit] = now
        if len(self._at) > UNITS_LIMIT:
            del self._at[next(iter(self._at))]

    def reserve(self, unit: str, now: float, *, limit: int, window_s: float) -> bool:
        """Count the unit until ``release``, if one more is allowed; ``False`` if not."""
        counted = {one for one, at in self._at.items() if now - at < window_s} | set(self._reserved)
        if unit not in counted and len(counted) >= limit:
            return False
        self._reserved[unit] = self._reserved.get(unit, 0) + 1
        return True

    def release(self, unit: str) -> None:
        """What was reserved has been tried; if a host was condemned, that is counted now."""
        left = self._reserved.get(unit, 0) - 1
        if left > 0:
            self._reserved[unit] = left
        else:
            self._reserved.pop(unit, None)

    def clear(self) -> None:
        """Somebody looked: begin anew."""
        self._at.clear()

"""Moments of an expectation: looked at when their time has come, and again for a while where the store takes time.

On the memory store nothing takes time, and a moment is looked at once. What is not said: that a state which came about
late has been there ever since.
"""

from __future__ import annotations

from outlive.simulation.expectations import Moment
from outlive.simulation.states import Seen, differences


class Late:
    """Looks at moments, and again at those that are not as expected until that is too late."""

    def __init__(self, world: Seen, tolerance_s: float) -> None:
        self._world = world
        self._tolerance_s = tolerance_s
        self._pending: list[Moment] = []
        self.missed: list[str] = []
        """What was not as expected, in time or later."""

    def looked(self, moment: Moment, now_s: float) -> None:
        """Its time has come."""
        self._pending.append(moment)
        self.pending(now_s)

    def pending(self, now_s: float) -> bool:
        """Look at all that has not come about; whether something has not and still may."""
        left: list[Moment] = []
        for moment in self._pending:
            found = differences(self._world, moment.states)
            if found and now_s < moment.at_s + self._tolerance_s:
                left.append(moment)
            else:
                self.missed += [f"at {moment.at_s:g} s: {text}" for text in found]
        self._pending = left
        return bool(left)

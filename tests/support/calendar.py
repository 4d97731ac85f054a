"""A clock whose day a test turns."""

from __future__ import annotations

from datetime import timedelta

from outlive.base import Instant, SystemClock

DAY_S = timedelta(days=1).total_seconds()


class Calendar(SystemClock):
    """The machine's clock, ahead by so much; ``at``: it stands still there (seconds since 1970)."""

    def __init__(self, at: float | None = None) -> None:
        super().__init__()
        self.ahead_s = 0.0
        self._at = at

    def now(self) -> Instant:
        return Instant((super().now() if self._at is None else self._at) + self.ahead_s)

"""What a server sees that hears of every host."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from outlive.resources import RenewalSight

SEEN: Final = RenewalSight(at=datetime(2026, 1, 1, 0, 5, tzinfo=UTC), started_s=300.0)

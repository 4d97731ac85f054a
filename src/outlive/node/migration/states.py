"""Phases of a migration, and why one does not end at its target."""

from __future__ import annotations

from typing import Final

LIVE_ATTEMPTS: Final = 3
"""Attempts to move a running guest."""

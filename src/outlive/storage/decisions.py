"""The decisions of the storage agent by name, for ``outlive decide`` and for replay.

Each is the function that the agent itself uses, on plain data (docs/reference/storage-decisions.md).
"""

from __future__ import annotations

from typing import Any, Final

from outlive.runtime.decisions import Decision
from outlive.storage.eviction import EVICT_METHOD
from outlive.storage.health import HEALTH
from outlive.storage.options import OPTIONS

DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (
    OPTIONS,
    HEALTH,
    EVICT_METHOD,
)
"""All of them."""

"""The decisions of the storage agent by name, for ``outlive decide`` (docs/design/storage-decisions.md)."""

from __future__ import annotations

from typing import Any, Final

from outlive.runtime import Decision
from outlive.storage.calls import NEXT_CALLS
from outlive.storage.drbd import FACTS, MERGE, PARSE_SHOW, PARSE_STATUS
from outlive.storage.executor import EVICT_METHOD
from outlive.storage.explain import EXPLAIN
from outlive.storage.failover import FAILOVER
from outlive.storage.mapping import INDEX, NODE_NAMES, NODE_READY, RESOURCE_NAME, TRIM_POD, VOLUME_SAFE
from outlive.storage.metrics import HEALTH
from outlive.storage.observer import POLL
from outlive.storage.options import OPTIONS
from outlive.storage.own_node import FORCED_ERRORS_DECISION, OWN_TAINTS, SUSPENDED

DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (
    PARSE_STATUS,
    PARSE_SHOW,
    MERGE,
    FACTS,
    POLL,
    RESOURCE_NAME,
    INDEX,
    TRIM_POD,
    NODE_NAMES,
    VOLUME_SAFE,
    NODE_READY,
    OPTIONS,
    HEALTH,
    EVICT_METHOD,
    FAILOVER,
    SUSPENDED,
    FORCED_ERRORS_DECISION,
    OWN_TAINTS,
    NEXT_CALLS,
    EXPLAIN,
)
"""All of them."""

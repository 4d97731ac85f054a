"""The decisions of the node daemon as ``outlive decide`` calls them: JSON in, JSON out; and hosts to choose from."""

from __future__ import annotations

import json
from typing import Any, Final

from outlive.node import DECISIONS
from outlive.recovery import FENCE_RECOVER
from outlive.runtime import DecisionTable

TABLE: Final = DecisionTable((*DECISIONS, FENCE_RECOVER))


def decide(name: str, **given: object) -> dict[str, Any]:
    """The answer to an input."""
    answer: dict[str, Any] = json.loads(TABLE.decide_json(name, json.dumps(given).encode()))
    return answer


def node(name: str, *, free: float = 0, used: float = 0, provisioned: float = 0, **more: Any) -> dict[str, Any]:
    """A host that works and takes virtual machines, unless told otherwise. Memory in MiB."""
    memory = {
        "total": used + free,
        "used": used,
        "free": free,
        "allocated": used,
        "provisioned": provisioned,
        "reserved": more.pop("reserved", 0),
    }
    figures = {"vcpu_allocated": 0, "load": 0.0, "domains_count": 0}
    return {"name": name, "daemon_state": "run", "domain_state": "ready", "memory": memory, **figures, **more}

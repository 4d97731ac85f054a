"""All decisions that ``outlive decide`` knows."""

from __future__ import annotations

from outlive.failover import decisions as failover
from outlive.node import decisions as node
from outlive.placement import decisions as placement
from outlive.recovery import plan as recovery
from outlive.runtime.decisions import DecisionTable


def decision_table() -> DecisionTable:
    """The decisions of every part."""
    return DecisionTable(
        (*failover.DECISIONS, *node.DECISIONS, *node.SAFETY_STEPS, *placement.DECISIONS, *recovery.DECISIONS)
    )

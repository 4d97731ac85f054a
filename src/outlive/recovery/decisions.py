"""The decisions of recovery by name, for ``outlive decide`` and for replay."""

from __future__ import annotations

from typing import Any, Final

from outlive.recovery.model import ActionKind, RecoveryPlan, RecoveryView
from outlive.recovery.plan import plan_recovery
from outlive.recovery.steps import PROTOCOL_DECISIONS
from outlive.runtime.decisions import Decision


def _only_waits(plan: RecoveryPlan) -> bool:
    return all(action.kind is ActionKind.WAIT for action in plan.actions) and not plan.releases and not plan.reclaims


RECOVERY_PLAN: Final = Decision(
    "recovery.plan",
    plan_recovery,
    RecoveryView,
    RecoveryPlan,
    "Where each virtual machine of dead hosts restarts, or why it is held",
    _only_waits,
)
DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (RECOVERY_PLAN, *PROTOCOL_DECISIONS)
"""All of them."""

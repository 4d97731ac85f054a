"""All steps of the safety protocol that hosts and fencers take, in the order of the page that explains them.

The model checker walks this table and leaves out one precondition after the other; ``outlive decide`` repeats any of
them from what was recorded (docs/concepts/safety.md).
"""

from __future__ import annotations

from typing import Any, Final

from outlive.node.fencing.attestation import ATTEST
from outlive.node.fencing.proofs import FIND_CUT, LIFT_CUT, PROVE_CUT, PROVE_OPERATOR, PROVE_POWER, PROVE_WATCHDOG
from outlive.node.fencing.states import ATTEMPT, CONDEMN, SWITCH_ON, SWITCHED_ON, TAKE_OVER, TRUST_AGAIN
from outlive.node.membership.holders import ADOPT, CREATE, ENTER, HOLD, REHOLD, RELEASE, RESUME, SEND
from outlive.node.membership.steps import LEAVE, RENEW, ROWS, SELF_CLEAN, LeaseResult, LeaseView, lease_state
from outlive.runtime.decisions import Decision
from outlive.runtime.steps import ProtocolStep

HOST_STEPS: Final[tuple[ProtocolStep[Any, Any], ...]] = (
    *ROWS,
    SELF_CLEAN,
    RENEW,
    LEAVE,
    HOLD,
    CREATE,
    RELEASE,
    REHOLD,
    ENTER,
    SEND,
    ADOPT,
    RESUME,
)
FENCER_STEPS: Final[tuple[ProtocolStep[Any, Any], ...]] = (
    CONDEMN,
    TAKE_OVER,
    ATTEMPT,
    PROVE_POWER,
    PROVE_WATCHDOG,
    PROVE_CUT,
    PROVE_OPERATOR,
    FIND_CUT,
    LIFT_CUT,
)
LEASE_STATE: Final = Decision(
    "safety.lease-state", lease_state, LeaseView, LeaseResult, "What a fresh read says about a write without an answer"
)
DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (
    *(step.decision for step in (*HOST_STEPS, *FENCER_STEPS, TRUST_AGAIN, SWITCH_ON, SWITCHED_ON, ATTEST)),
    LEASE_STATE,
)

"""All steps of the safety protocol that hosts and fencers take, in the order of the page that explains them.

The model checker walks this table and leaves out one precondition after the other; ``outlive decide`` repeats any of
them from what was recorded (docs/concepts/safety.md).
"""

from __future__ import annotations

from typing import Any, Final

from outlive.node.fencing.condemning import ATTEMPT, CONDEMN, TAKE_OVER
from outlive.node.fencing.proving import FIND_CUT, LIFT_CUT, PROVE_CUT, PROVE_OPERATOR, PROVE_POWER, PROVE_WATCHDOG
from outlive.node.fencing.returning import SWITCH_ON, SWITCHED_ON
from outlive.node.fencing.trusting import TRUST_AGAIN
from outlive.node.fencing.vouching import VOUCH
from outlive.node.membership.holding import CREATE, HOLD, REHOLD, RELEASE
from outlive.node.membership.joining import ROWS, SELF_CLEAN
from outlive.node.membership.moving import ADOPT, ENTER, RESUME, SEND
from outlive.node.membership.renewing import LEAVE, RENEW, StandingResult, StandingView, standing
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
STANDING: Final = Decision(
    "safety.standing", standing, StandingView, StandingResult, "What a fresh read says about a write without an answer"
)
DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (
    *(step.decision for step in (*HOST_STEPS, *FENCER_STEPS, TRUST_AGAIN, SWITCH_ON, SWITCHED_ON, VOUCH)),
    STANDING,
)

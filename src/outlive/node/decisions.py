"""The decisions of the node daemon by name, for ``outlive decide`` and for replay (docs/design/node-decisions.md).

``SAFETY_STEPS`` are all steps of the safety protocol that hosts and fencers take, in the order of the page that
explains them; the model checker leaves out one of their preconditions after the other (docs/concepts/safety.md).
"""

from __future__ import annotations

from typing import Any, Final

from outlive.node.fencing.attestation import ATTEST
from outlive.node.fencing.peer_confirmation import FENCE_AGREE
from outlive.node.fencing.policy import VALIDATE_FENCING, VALIDATE_PROFILE
from outlive.node.fencing.power import FENCE_POWER
from outlive.node.fencing.proofs import ISOLATE, LIFT_CUT, PROVE_CUT, PROVE_OPERATOR, PROVE_POWER, PROVE_WATCHDOG
from outlive.node.fencing.states import ATTEMPT, CONDEMN, SWITCH_ON, SWITCHED_ON, TAKE_OVER, TRUST_AGAIN
from outlive.node.fencing.suspicion import FENCE_EVALUATE, FENCE_LOOKS
from outlive.node.functions.account import SRIOV_ACCOUNT
from outlive.node.functions.books import SRIOV_SYNC
from outlive.node.handover import HANDOVER_STEP
from outlive.node.health import LEAVE_HOST, SCORE_HOST
from outlive.node.links.host_addresses import ADDRESS_PLAN
from outlive.node.links.plan import LINKS_CONFIRM, LINKS_PLAN
from outlive.node.links.wanted import NETWORK_MTU
from outlive.node.membership.holders import ADOPT, CREATE, ENTER, HOLD, REHOLD, RELEASE, RESUME, SEND
from outlive.node.membership.steps import LEAVE, RENEW, ROWS, SELF_CLEAN, LeaseResult, LeaseView, lease_state
from outlive.node.relocation import FLUSH_RUN
from outlive.node.requests import NODE_REQUEST
from outlive.node.status import ACCOUNT_NODE, KEEPALIVE_CYCLE
from outlive.node.stop import LIFECYCLE_SHUTDOWN
from outlive.node.storage_loss import STORAGE_LOST
from outlive.node.vm.console import CONSOLE_TAIL
from outlive.node.vm.locks import START_LOCKS
from outlive.node.vm.requests import VM_REQUEST
from outlive.node.vm.selection import SELECT_NODE
from outlive.node.vm.start_order import START_ORDER
from outlive.node.vm.states import VM_EVENT
from outlive.runtime import Decision, ProtocolStep

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
    ISOLATE,
    LIFT_CUT,
)
LEASE_STATE: Final = Decision(
    "safety.lease-state", lease_state, LeaseView, LeaseResult, "What a fresh read says about a write without an answer"
)
SAFETY_STEPS: Final[tuple[Decision[Any, Any], ...]] = (
    *(step.decision for step in (*HOST_STEPS, *FENCER_STEPS, TRUST_AGAIN, SWITCH_ON, SWITCHED_ON, ATTEST)),
    LEASE_STATE,
)

DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (
    FENCE_EVALUATE,
    FENCE_AGREE,
    FENCE_LOOKS,
    FENCE_POWER,
    VALIDATE_PROFILE,
    VALIDATE_FENCING,
    VM_EVENT,
    VM_REQUEST,
    START_LOCKS,
    START_ORDER,
    SELECT_NODE,
    FLUSH_RUN,
    ACCOUNT_NODE,
    NODE_REQUEST,
    KEEPALIVE_CYCLE,
    LIFECYCLE_SHUTDOWN,
    SCORE_HOST,
    LEAVE_HOST,
    STORAGE_LOST,
    CONSOLE_TAIL,
    SRIOV_SYNC,
    SRIOV_ACCOUNT,
    ADDRESS_PLAN,
    NETWORK_MTU,
    LINKS_PLAN,
    LINKS_CONFIRM,
    HANDOVER_STEP,
)
"""All of them."""

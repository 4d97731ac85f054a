"""The decisions of the node daemon by name, for ``outlive decide`` and for replay.

Each is the function that the daemon itself uses (docs/reference/node-decisions.md).
"""

from __future__ import annotations

from typing import Any, Final

from outlive.node.fencing.legacy_recovery import RecoverInput, RecoverResult, recover
from outlive.node.fencing.peer_confirmation import FENCE_AGREE
from outlive.node.fencing.policy import VALIDATE_PROFILE
from outlive.node.fencing.power import FENCE_POWER
from outlive.node.fencing.suspicion import FENCE_EVALUATE, FENCE_LOOKS
from outlive.node.keepalive import KeepaliveInput, KeepaliveResult, keepalive_cycle
from outlive.node.leaving import LeaveInput, LeaveResult, decide_leave
from outlive.node.lifecycle import ShutdownInput, ShutdownResult, shutdown
from outlive.node.relocation import FLUSH_RUN
from outlive.node.requests import NodeRequestInput, NodeRequestResult, node_request
from outlive.node.scoring import ScoreInput, ScoreResult, score_host
from outlive.node.vm.accounting import ACCOUNT_NODE
from outlive.node.vm.locks import START_LOCKS
from outlive.node.vm.requests import VM_REQUEST
from outlive.node.vm.selection import SELECT_NODE
from outlive.node.vm.start_order import START_ORDER
from outlive.node.vm.states import VM_EVENT
from outlive.runtime.decisions import Decision


def _misses_nothing(output: KeepaliveResult) -> bool:
    return not output.stale


def _does_well(output: ScoreResult) -> bool:
    return output.standing.level == "well"


def _is_not_left(output: LeaveResult) -> bool:
    return not output.go


FENCE_RECOVER: Final = Decision(
    "fence.recover", recover, RecoverInput, RecoverResult, "Where virtual machines without a slot restart"
)
NODE_REQUEST: Final = Decision(
    "node.request", node_request, NodeRequestInput, NodeRequestResult, "What a request to a host writes"
)
KEEPALIVE_CYCLE: Final = Decision(
    "keepalive.cycle", keepalive_cycle, KeepaliveInput, KeepaliveResult, "What a keepalive publishes", _misses_nothing
)
LIFECYCLE_SHUTDOWN: Final = Decision(
    "lifecycle.shutdown", shutdown, ShutdownInput, ShutdownResult, "In which order a daemon stops"
)
SCORE_HOST: Final = Decision(
    "host.score", score_host, ScoreInput, ScoreResult, "How well a host does, and whether it degrades", _does_well
)
LEAVE_HOST: Final = Decision(
    "host.leave",
    decide_leave,
    LeaveInput,
    LeaveResult,
    "Whether virtual machines leave a host that degrades",
    _is_not_left,
)

DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (
    FENCE_EVALUATE,
    FENCE_AGREE,
    FENCE_LOOKS,
    FENCE_POWER,
    FENCE_RECOVER,
    VALIDATE_PROFILE,
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
)
"""All of them."""

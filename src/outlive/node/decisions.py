"""The decisions of the node daemon by name, for ``outlive decide`` and for replay.

Each is the function that the daemon itself uses, except four that are models of machinery made elsewhere:
``fence.timeline``, ``primary.contend``, ``primary.handover`` and ``selffence.evaluate``; and three
whose users are still to come: ``config.validate_fencing``, ``lock.acquire`` and ``command.result``
(docs/reference/node-decisions.md).
"""

from __future__ import annotations

from typing import Any, Final

from outlive.node.commands import CommandInput, CommandResult, command_result
from outlive.node.fencing.configuration import FencingConfig, FencingConfigResult, validate_fencing
from outlive.node.fencing.deadlines import Looks, LooksInput, LooksResult, looks
from outlive.node.fencing.evaluate import EvaluateInput, EvaluateResult, evaluate
from outlive.node.fencing.legacy_recovery import RecoverInput, RecoverResult, recover
from outlive.node.fencing.peer_confirmation import FENCE_AGREE
from outlive.node.fencing.power_reading import PowerInput, PowerResult, power
from outlive.node.fencing.profile import ProfileInput, ProfileResult, validate_profile
from outlive.node.fencing.self_fencing import SelfFenceInput, SelfFenceResult, evaluate_self_fencing
from outlive.node.fencing.timeline import TimelineInput, TimelineResult, timeline
from outlive.node.keepalive import KeepaliveInput, KeepaliveResult, keepalive_cycle
from outlive.node.leaving import LeaveInput, LeaveResult, decide_leave
from outlive.node.lifecycle import ShutdownInput, ShutdownResult, shutdown
from outlive.node.locking import LockInput, LockResult, acquire_lock
from outlive.node.primary import ContendInput, ContendResult, HandoverInput, HandoverResult, contend, handover
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


def _suspects_nobody(output: EvaluateResult) -> bool:
    return not output.suspects and not output.adopt


def _looks_as_always(output: LooksResult) -> bool:
    return output.reason is not Looks.SHORTENED


def _misses_nothing(output: KeepaliveResult) -> bool:
    return not output.stale


def _does_well(output: ScoreResult) -> bool:
    return output.standing.level == "well"


def _is_not_left(output: LeaveResult) -> bool:
    return not output.go


def _only_figures(output: CommandResult) -> bool:
    """These ask for nothing, whatever they say: they are kept in full when they say something else than before."""
    return True


FENCE_EVALUATE: Final = Decision(
    "fence.evaluate", evaluate, EvaluateInput, EvaluateResult, "Which hosts to suspect", _suspects_nobody
)
FENCE_LOOKS: Final = Decision(
    "fence.looks", looks, LooksInput, LooksResult, "How often a silent host is looked at again", _looks_as_always
)
FENCE_POWER: Final = Decision("fence.power", power, PowerInput, PowerResult, "Whether a host's power was seen off")
FENCE_RECOVER: Final = Decision(
    "fence.recover", recover, RecoverInput, RecoverResult, "Where virtual machines without a slot restart"
)
VALIDATE_FENCING: Final = Decision(
    "config.validate_fencing",
    validate_fencing,
    FencingConfig,
    FencingConfigResult,
    "Whether imported fencing settings can work",
)
VALIDATE_PROFILE: Final = Decision(
    "profile.validate", validate_profile, ProfileInput, ProfileResult, "Whether a timing profile can work"
)
NODE_REQUEST: Final = Decision(
    "node.request", node_request, NodeRequestInput, NodeRequestResult, "What a request to a host writes"
)
LOCK_ACQUIRE: Final = Decision("lock.acquire", acquire_lock, LockInput, LockResult, "What tries for a lock come to")
COMMAND_RESULT: Final = Decision(
    "command.result", command_result, CommandInput, CommandResult, "What a command came to", _only_figures
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

MODELS: Final[tuple[Decision[Any, Any], ...]] = (
    Decision("fence.timeline", timeline, TimelineInput, TimelineResult, "When a silent host would be powered off"),
    Decision("primary.contend", contend, ContendInput, ContendResult, "Who becomes primary"),
    Decision("primary.handover", handover, HandoverInput, HandoverResult, "How the role of primary changes hands"),
    Decision(
        "selffence.evaluate",
        evaluate_self_fencing,
        SelfFenceInput,
        SelfFenceResult,
        "When a host that is not acknowledged stops itself",
    ),
)
"""Those that only model machinery."""

DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (
    FENCE_EVALUATE,
    FENCE_AGREE,
    FENCE_LOOKS,
    FENCE_POWER,
    FENCE_RECOVER,
    VALIDATE_FENCING,
    VALIDATE_PROFILE,
    VM_EVENT,
    VM_REQUEST,
    START_LOCKS,
    START_ORDER,
    SELECT_NODE,
    FLUSH_RUN,
    ACCOUNT_NODE,
    NODE_REQUEST,
    LOCK_ACQUIRE,
    COMMAND_RESULT,
    KEEPALIVE_CYCLE,
    LIFECYCLE_SHUTDOWN,
    SCORE_HOST,
    LEAVE_HOST,
    *MODELS,
)
"""All of them."""

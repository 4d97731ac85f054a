"""The decisions of slots, usage, capacity and consistency by name; ``decisions`` joins them to its own.

Each is the function that the controllers use.
"""

from __future__ import annotations

from typing import Any, Final

from outlive.commitments.bookkeeping import BookkeepingInput, BookkeepingResult, record
from outlive.commitments.calendar import RetryInput, RetryResult, earliest
from outlive.commitments.consistency import ConsistencyInput, ConsistencyResult, compare
from outlive.commitments.oversubscription import CheckOutcome, HostCheck, HostVerdict, check_host
from outlive.commitments.split import SplitInput, SplitResult, split
from outlive.commitments.usage import UsageInput, UsageResult, assign
from outlive.commitments.verification import VerificationInput, VerificationResult, verify_slot
from outlive.runtime.decisions import Decision


def _leaves_alone(verdict: HostVerdict) -> bool:
    return verdict.outcome is not CheckOutcome.EVICTED


def _keeps_all(result: VerificationResult) -> bool:
    return not result.dropped and not result.confirmed_first


def _takes_no_slot(result: BookkeepingResult) -> bool:
    return not result.slot


def _agrees(result: ConsistencyResult) -> bool:
    return not result.disagreements


DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (
    Decision(
        "commitments.verify_slot",
        verify_slot,
        VerificationInput,
        VerificationResult,
        "Which VMs are in a commitment slot",
        is_empty=_keeps_all,
    ),
    Decision(
        "commitments.record",
        record,
        BookkeepingInput,
        BookkeepingResult,
        "Which commitment slot a placed VM takes",
        is_empty=_takes_no_slot,
    ),
    Decision(
        "commitments.check_host",
        check_host,
        HostCheck,
        HostVerdict,
        "Whether a commitment slot leaves a host that holds too much",
        is_empty=_leaves_alone,
    ),
    Decision("commitments.assign", assign, UsageInput, UsageResult, "Which VM is charged to which commitment"),
    Decision("commitments.split", split, SplitInput, SplitResult, "How free hosts are divided between flavor groups"),
    Decision("commitments.retry", earliest, RetryInput, RetryResult, "When a commitment that is refused would fit"),
    Decision(
        "commitments.compare",
        compare,
        ConsistencyInput,
        ConsistencyResult,
        "Where Limes, commitments, slots, hosts and VMs disagree",
        is_empty=_agrees,
    ),
)

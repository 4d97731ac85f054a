"""The decisions of commitments by name, for ``outlive decide`` and for replay.

Each is the function that the product itself uses, on plain data (docs/design/commitment-rules.md#decisions).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from outlive.base import BadInput
from outlive.commitments.acceptance import Headroom, SlotsVerdict, check_headroom, evaluate
from outlive.commitments.batch import Batch, BatchPlan, DryRunPlan, dry_run_needs, needs_confirmation, steps_of
from outlive.commitments.bookkeeping import BookkeepingInput, BookkeepingResult, record
from outlive.commitments.calendar import RetryInput, RetryResult, find_earliest
from outlive.commitments.consistency import ConsistencyInput, ConsistencyResult, compare
from outlive.commitments.explanation import CommitmentExplanation, ExplanationInput, explain
from outlive.commitments.handover import Handover, hand_over
from outlive.commitments.oversubscription import CheckOutcome, HostCheck, HostVerdict, check_host
from outlive.commitments.settings import CommitmentSettings, GroupSettings
from outlive.commitments.slots import Candidate, SlotOptions, SlotPlan, plan_slots
from outlive.commitments.split import SplitInput, SplitResult, split
from outlive.commitments.state import READY, Commitment, is_active, is_over, retry_delay, summarise
from outlive.commitments.usage import UsageInput, UsageResult, assign
from outlive.commitments.verification import VerificationInput, VerificationResult, verify_slot
from outlive.resources import CommittedResource, FlavorGroupCapacity, FlavorGroupSpec, Reservation, find_condition
from outlive.runtime import Amount, Decision


class _Input(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Keys are camelCase."""


class StateInput(_Input, frozen=True, kw_only=True):
    """What is this commitment worth at ``now``, seconds since 1970?"""

    commitment: CommittedResource
    now: Amount
    retry_s: Amount = 60
    """Seconds until the first further try."""
    max_retry_s: Amount = 1800
    """Seconds between two tries at most; 0: any."""


class StateResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Whether it promises something, and what one says of it."""

    active: bool
    over: bool
    retry_s: float
    """Seconds until it is tried again, if it is."""
    summary: str


class SlotsInput(_Input, frozen=True, kw_only=True):
    """Which slots does this commitment need?"""

    commitment: Commitment
    existing: tuple[Reservation, ...] = ()
    group: FlavorGroupSpec
    options: SlotOptions = SlotOptions()
    candidates: tuple[Candidate, ...] = ()


class VerdictInput(_Input, frozen=True, kw_only=True):
    """Are the slots of this commitment there?"""

    commitment: Commitment
    slots: tuple[Reservation, ...] = ()
    expected: int


class HeadroomInput(_Input, frozen=True, kw_only=True):
    """Are there enough cores for this commitment?"""

    commitment: Commitment
    capacity: FlavorGroupCapacity | None = None
    others: tuple[CommittedResource, ...] = ()
    held: dict[str, int] = {}
    """Project → cores of its VMs and its free slots."""
    now: Amount


class ConfirmationResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Whether the caller waits for the answer."""

    confirmation: bool


class BatchInput(_Input, frozen=True, kw_only=True):
    """What does this batch do to these commitments and their slots?"""

    batch: Batch
    groups: tuple[FlavorGroupSpec, ...] = ()
    resources: dict[str, GroupSettings] = {}
    """As ``commitments.flavorGroupResources`` of the settings."""
    commitments: tuple[CommittedResource, ...] = ()
    slots: tuple[Reservation, ...] = ()
    now: Amount


class BatchResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Its steps, and whose the slots are afterwards; slots that are missing then have to be placed."""

    plan: BatchPlan
    handover: Handover = Handover()


class DryRunInput(_Input, frozen=True, kw_only=True):
    """What would have to be found for this batch?"""

    batch: Batch
    groups: tuple[FlavorGroupSpec, ...] = ()
    resources: dict[str, GroupSettings] = {}


def _decide_state(given: StateInput) -> StateResult:
    cr, now = given.commitment, given.now
    found = find_condition(cr.status.conditions, READY)
    return StateResult(
        active=is_active(cr.spec, now),
        over=is_over(cr.spec, now),
        retry_s=retry_delay(found, now, given.retry_s, given.max_retry_s),
        summary=summarise(cr, now),
    )


def _decide_slots(given: SlotsInput) -> SlotPlan:
    return plan_slots(given.commitment, given.existing, given.group, options=given.options, candidates=given.candidates)


def _decide_verdict(given: VerdictInput) -> SlotsVerdict:
    return evaluate(given.commitment, given.slots, given.expected)


def _decide_headroom(given: HeadroomInput) -> Headroom:
    return check_headroom(given.commitment, given.capacity, given.others, now=given.now, held=given.held)


def _decide_confirmation(given: Batch) -> ConfirmationResult:
    return ConfirmationResult(confirmation=needs_confirmation(given))


def _decide_batch(given: BatchInput) -> BatchResult:
    before: dict[str, CommittedResource] = {}
    for cr in given.commitments:
        uuid = cr.spec.commitment_uuid
        if before.setdefault(uuid, cr) is not cr:
            raise BadInput(f"commitment {uuid} is given twice", place="commitments", remedy="uuids are unique")
    settings = CommitmentSettings(flavor_group_resources=given.resources)
    plan = steps_of(given.batch, _index_by_name(given.groups), settings, before, given.now)
    if plan.refusal:
        return BatchResult(plan=plan)
    slots: dict[str, list[Reservation]] = {}
    for slot in given.slots:
        details = slot.spec.committed_resource_reservation
        if details is not None:
            slots.setdefault(details.commitment_uuid, []).append(slot)
    taken = frozenset(slot.name for slot in given.slots)
    return BatchResult(plan=plan, handover=hand_over(plan.steps, slots, given.now, taken=taken))


def _dry_run(given: DryRunInput) -> DryRunPlan:
    settings = CommitmentSettings(flavor_group_resources=given.resources)
    return dry_run_needs(given.batch, _index_by_name(given.groups), settings)


def _index_by_name(groups: Sequence[FlavorGroupSpec]) -> dict[str, FlavorGroupSpec]:
    return {group.group_name: group for group in groups}


# Decisions are sent to child processes, which takes functions with a name.


def _changes_nothing(plan: SlotPlan) -> bool:
    return not plan.changes


def _keeps_all(result: VerificationResult) -> bool:
    return not result.dropped and not result.confirmed_first


def _takes_no_slot(result: BookkeepingResult) -> bool:
    return not result.slot


def _keeps_slots(verdict: HostVerdict) -> bool:
    return verdict.outcome is not CheckOutcome.EVICTED


def _agrees(result: ConsistencyResult) -> bool:
    return not result.disagreements


DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (
    Decision("commitments.state", _decide_state, StateInput, StateResult, "What is this commitment worth now?"),
    Decision(
        "commitments.slots",
        _decide_slots,
        SlotsInput,
        SlotPlan,
        "Which slots does this commitment need: kept, deleted, made and changed?",
        is_empty=_changes_nothing,
    ),
    Decision(
        "commitments.verdict", _decide_verdict, VerdictInput, SlotsVerdict, "Are the slots of this commitment there?"
    ),
    Decision(
        "commitments.headroom", _decide_headroom, HeadroomInput, Headroom, "Are there enough cores for this commitment?"
    ),
    Decision(
        "commitments.confirmation",
        _decide_confirmation,
        Batch,
        ConfirmationResult,
        "Does the sender of this batch wait for the answer?",
    ),
    Decision(
        "commitments.batch",
        _decide_batch,
        BatchInput,
        BatchResult,
        "What does this batch do, and whose are the slots afterwards?",
    ),
    Decision("commitments.dry_run", _dry_run, DryRunInput, DryRunPlan, "What would have to be found for this batch?"),
    Decision(
        "commitments.explain",
        explain,
        ExplanationInput,
        CommitmentExplanation,
        "Why is there no capacity for this commitment, and what would help?",
    ),
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
        is_empty=_keeps_slots,
    ),
    Decision("commitments.assign", assign, UsageInput, UsageResult, "Which VM is charged to which commitment"),
    Decision("commitments.split", split, SplitInput, SplitResult, "How free hosts are divided between flavor groups"),
    Decision(
        "commitments.retry", find_earliest, RetryInput, RetryResult, "When a commitment that is refused would fit"
    ),
    Decision(
        "commitments.compare",
        compare,
        ConsistencyInput,
        ConsistencyResult,
        "Where Limes, commitments, slots, hosts and VMs disagree",
        is_empty=_agrees,
    ),
)

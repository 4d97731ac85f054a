"""The decisions of commitments by name, for ``outlive decide`` and for replay.

Each is the function that the product itself uses, on plain data (docs/reference/commitments.md#decisions).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from outlive.base.errors import BadInput
from outlive.commitments.acceptance import Headroom, SlotsVerdict, evaluate, headroom
from outlive.commitments.batch import Batch, BatchPlan, DryRunPlan, dry_run_needs, needs_confirmation, steps_of
from outlive.commitments.decisions_usage import DECISIONS as USAGE_DECISIONS
from outlive.commitments.explanation import Explanation, ExplanationInput, explain
from outlive.commitments.handover import Handover, hand_over
from outlive.commitments.settings import CommitmentSettings, GroupSettings
from outlive.commitments.slots import Candidate, SlotOptions, SlotPlan, plan_slots
from outlive.commitments.state import READY, Commitment, is_active, is_over, retry_delay, summary
from outlive.resources import CommittedResource, FlavorGroupCapacity, FlavorGroupSpec, Reservation, condition
from outlive.runtime.decisions import Decision
from outlive.runtime.units import Amount


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


def _state(given: StateInput) -> StateResult:
    cr, now = given.commitment, given.now
    found = condition(cr.status.conditions, READY)
    return StateResult(
        active=is_active(cr.spec, now),
        over=is_over(cr.spec, now),
        retry_s=retry_delay(found, now, given.retry_s, given.max_retry_s),
        summary=summary(cr, now),
    )


def _slots(given: SlotsInput) -> SlotPlan:
    return plan_slots(given.commitment, given.existing, given.group, options=given.options, candidates=given.candidates)


def _changes_nothing(plan: SlotPlan) -> bool:
    return not plan.changes


def _verdict(given: VerdictInput) -> SlotsVerdict:
    return evaluate(given.commitment, given.slots, given.expected)


def _headroom(given: HeadroomInput) -> Headroom:
    return headroom(given.commitment, given.capacity, given.others, now=given.now, held=given.held)


def _confirmation(given: Batch) -> ConfirmationResult:
    return ConfirmationResult(confirmation=needs_confirmation(given))


def _batch(given: BatchInput) -> BatchResult:
    before: dict[str, CommittedResource] = {}
    for cr in given.commitments:
        uuid = cr.spec.commitment_uuid
        if before.setdefault(uuid, cr) is not cr:
            raise BadInput(f"commitment {uuid} is given twice", place="commitments", remedy="uuids are unique")
    settings = CommitmentSettings(flavor_group_resources=given.resources)
    plan = steps_of(given.batch, _by_name(given.groups), settings, before, given.now)
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
    return dry_run_needs(given.batch, _by_name(given.groups), settings)


def _by_name(groups: Sequence[FlavorGroupSpec]) -> dict[str, FlavorGroupSpec]:
    return {group.group_name: group for group in groups}


DECISIONS: Final[tuple[Decision[Any, Any], ...]] = (
    Decision("commitments.state", _state, StateInput, StateResult, "What is this commitment worth now?"),
    Decision(
        "commitments.slots",
        _slots,
        SlotsInput,
        SlotPlan,
        "Which slots does this commitment need: kept, deleted, made and changed?",
        is_empty=_changes_nothing,
    ),
    Decision("commitments.verdict", _verdict, VerdictInput, SlotsVerdict, "Are the slots of this commitment there?"),
    Decision("commitments.headroom", _headroom, HeadroomInput, Headroom, "Are there enough cores for this commitment?"),
    Decision(
        "commitments.confirmation",
        _confirmation,
        Batch,
        ConfirmationResult,
        "Does the sender of this batch wait for the answer?",
    ),
    Decision(
        "commitments.batch",
        _batch,
        BatchInput,
        BatchResult,
        "What does this batch do, and whose are the slots afterwards?",
    ),
    Decision("commitments.dry_run", _dry_run, DryRunInput, DryRunPlan, "What would have to be found for this batch?"),
    Decision(
        "commitments.explain",
        explain,
        ExplanationInput,
        Explanation,
        "Why is there no capacity for this commitment, and what would help?",
    ),
    *USAGE_DECISIONS,
)

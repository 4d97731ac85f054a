"""What the syncer does with a list of Limes: what is taken over, what is over, and which slots are nobody's.

Pure: ``plan`` gets the whole list and everything that the store has, and gives steps. Limes is right about what it
lists, and says nothing by what it does not list: an answer may lack somebody, so no commitment is deleted before its
own end. The rules are in docs/reference/commitments.md#sync.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from outlive.base import BadInput, as_instant
from outlive.commitments.names import RESERVED_ZONES, parse_resource
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.state import STATES, ListedCommitment, from_listed, is_over, spec_of
from outlive.commitments.units import LiquidUnit, parse_unit, unit_of
from outlive.resources import (
    COMMITTED,
    CommitmentChange,
    CommitmentStep,
    CommittedResource,
    CommittedResourceSpec,
    CommittedType,
    FlavorGroupSpec,
    Reservation,
    SlotChange,
)

COMPUTE: Final = "compute"
"""The service of Limes whose commitments are ours."""
DOMAIN: Final = "nova"
"""The scheduling domain of commitments that the syncer may touch."""
WRITTEN_DOWN_S: Final = 300.0
"""How long Limes may take to write down what we accepted, its clock and ours apart included."""
SLOTS_OF_A_STEP: Final = 1_000
"""Slots that one step deletes at most; the rest goes with the next run."""


class SkipReason(enum.StrEnum):
    """Why a commitment of the list is not taken over."""

    NON_COMPUTE = "non_compute"
    INVALID_STATUS = "invalid_status"
    INVALID_RESOURCE_NAME = "invalid_resource_name"
    UNKNOWN_FLAVOR_GROUP = "unknown_flavor_group"
    UNIT_MISMATCH = "unit_mismatch"
    EMPTY_UUID = "empty_uuid"
    INVALID = "invalid"
    """It cannot be one: its uuid, its zone, its amount or a time."""
    LISTED_TWICE = "listed_twice"
    """Under one uuid, and not the same: it was moved while the list was read."""


class Skipped(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A commitment of the list that is not taken over. Its object and its slots stay as they are."""

    uuid: str
    reason: SkipReason
    said: str = ""


class Listing(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The list of Limes, judged."""

    specs: dict[str, CommittedResourceSpec] = {}
    """What is taken over, by uuid."""
    skipped: tuple[Skipped, ...] = ()
    listed: frozenset[str] = frozenset()
    """Every uuid that Limes lists, whatever becomes of it."""


class SyncPlan(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What one run does."""

    steps: tuple[CommitmentStep, ...] = ()
    """One for each commitment that is created, updated or deleted, then one for each whose slots are nobody's."""
    skipped: tuple[Skipped, ...] = ()
    active: int = 0
    """Commitments of the list that are taken over and not over."""
    unmatched: tuple[str, ...] = ()
    """Our commitments that have not ended and that Limes does not list."""


def judge(
    commitments: Iterable[ListedCommitment], groups: Mapping[str, FlavorGroupSpec], settings: CommitmentSettings
) -> Listing:
    """Which commitments of the list are taken over, and why others are not. ``groups``: by name."""
    by_uuid: dict[str, list[ListedCommitment]] = {}
    skipped: list[Skipped] = []
    for one in commitments:
        if one.uuid and one.service_type == COMPUTE:
            known = by_uuid.setdefault(one.uuid, [])
            if one not in known:
                known.append(one)
            continue
        reason = SkipReason.EMPTY_UUID if one.service_type == COMPUTE else SkipReason.NON_COMPUTE
        skipped.append(Skipped(uuid=one.uuid, reason=reason))
    specs: dict[str, CommittedResourceSpec] = {}
    for uuid, found in sorted(by_uuid.items()):
        if len(found) == 1:
            verdict = _check_listed(found[0], groups, settings)
        else:
            projects = ", ".join(sorted({one.project for one in found}))
            verdict = Skipped(uuid=uuid, reason=SkipReason.LISTED_TWICE, said=f"projects {projects}"[:200])
        if isinstance(verdict, Skipped):
            skipped.append(verdict)
        else:
            specs[uuid] = verdict
    listed = {*by_uuid, *(one.uuid for one in skipped if one.uuid)}
    return Listing(specs=specs, skipped=tuple(skipped), listed=frozenset(listed))


def plan(
    listing: Listing,
    commitments: Sequence[CommittedResource],
    slots: Iterable[Reservation],
    changes: Iterable[CommitmentChange],
    *,
    asked_at: float,
    now: float,
) -> SyncPlan:
    """What is written. ``asked_at``: when the list was begun, seconds since 1970.

    What a batch of ``changes`` names is left to it until it is applied, and also where it was decided shortly before
    ``asked_at`` or after: Limes writes down what we accepted after our answer, so its list may be the older one.
    """
    pending = _find_pending(changes, asked_at)
    ours = {
        one.spec.commitment_uuid: one.spec
        for one in commitments
        if one.spec.scheduling_domain == DOMAIN and one.spec.commitment_uuid not in pending
    }
    others = {one.spec.commitment_uuid for one in commitments} - ours.keys()
    held = _slots_by_commitment(slots)
    steps: list[CommitmentStep] = []
    after = dict(ours)
    for uuid, listed in listing.specs.items():
        if uuid in pending or uuid in others:
            continue
        if uuid in ours:
            after[uuid] = msgspec.structs.replace(listed, allow_rejection=ours[uuid].allow_rejection)
        elif not is_over(listed, now):
            after[uuid] = listed
    for uuid in sorted(after):
        before, spec = ours.get(uuid), after[uuid]
        if before is not None and _is_ended(uuid, spec, listing, now):
            del after[uuid]
            steps.append(CommitmentStep(uuid=uuid, before=before, slots=_delete_slots(held.pop(uuid, ()))))
        elif before != spec:
            steps.append(CommitmentStep(uuid=uuid, before=before, after=spec))
    missed = (uuid for uuid in after if uuid in ours and uuid not in listing.listed)
    unmatched = tuple(sorted(uuid for uuid in missed if not is_over(after[uuid], now)))
    kept = after.keys() | others | pending | _find_protected(listing, now)
    orphans = [uuid for uuid in sorted(held) if uuid not in kept]
    steps += [CommitmentStep(uuid=uuid, slots=_delete_slots(held[uuid])) for uuid in orphans]
    return SyncPlan(
        steps=tuple(steps),
        skipped=listing.skipped,
        active=sum(not is_over(spec, now) for spec in listing.specs.values()),
        unmatched=unmatched,
    )


def skip_counts(skipped: Iterable[Skipped]) -> Counter[SkipReason]:
    """How many for each reason."""
    return Counter(one.reason for one in skipped)


def _check_listed(
    one: ListedCommitment, groups: Mapping[str, FlavorGroupSpec], settings: CommitmentSettings
) -> CommittedResourceSpec | Skipped:
    """The spec of a commitment, or why it is not taken over; the first check that fails counts."""
    if one.status not in STATES:
        return Skipped(uuid=one.uuid, reason=SkipReason.INVALID_STATUS, said=one.status[:80])
    try:
        group, kind = parse_resource(one.resource_name)
    except BadInput as error:
        return Skipped(uuid=one.uuid, reason=SkipReason.INVALID_RESOURCE_NAME, said=error.message[:200])
    if group not in groups:
        return Skipped(uuid=one.uuid, reason=SkipReason.UNKNOWN_FLAVOR_GROUP, said=group[:200])
    try:
        unit = unit_of(groups[group], settings)
        if not _has_unit(one.unit, kind, LiquidUnit("B", unit.size_bytes)):
            said = f"{one.unit[:80]!r}, not {unit.text if kind == 'memory' else 'a number'}"
            return Skipped(uuid=one.uuid, reason=SkipReason.UNIT_MISMATCH, said=said)
        if one.zone in RESERVED_ZONES:
            raise BadInput(f"{one.zone!r} is no availability zone", remedy="name a zone of the cloud")
        return spec_of(from_listed(one, unit))
    except BadInput as error:
        return Skipped(uuid=one.uuid, reason=SkipReason.INVALID, said=str(error)[:200])


def _has_unit(text: str, kind: CommittedType, memory: LiquidUnit) -> bool:
    """Whether a unit of the list is the one in which we count; none at all is."""
    if not text:
        return True
    try:
        return kind == "memory" and parse_unit(text) == memory
    except BadInput:
        return False


def _find_pending(changes: Iterable[CommitmentChange], asked_at: float) -> set[str]:
    """Commitments of batches that may say something newer. A further document counts as the change that it belongs to;
    without that one it never was accepted."""
    known = list(changes)
    heads = {change.nonce: change for change in known if not change.part_of}
    found: set[str] = set()
    for change in known:
        whole = heads.get(change.part_of) if change.part_of else change
        if whole is None:
            continue
        decided = whole.decided_at
        if whole.phase == "decided" or decided is None or as_instant(decided) >= asked_at - WRITTEN_DOWN_S:
            found.update(step.uuid for step in change.steps)
    return found


def _is_ended(uuid: str, spec: CommittedResourceSpec, listing: Listing, now: float) -> bool:
    """Whether a commitment is deleted: its end has passed, and Limes does not list it as one that we cannot read."""
    unreadable = uuid in listing.listed and uuid not in listing.specs
    endless = msgspec.structs.replace(spec, state="confirmed")  # a state that does not end by itself
    return not unreadable and spec.end_time is not None and is_over(endless, now)


def _find_protected(listing: Listing, now: float) -> set[str]:
    """Commitments whose slots stay although we have no object for them: Limes lists them, and they are not over."""
    return {uuid for uuid in listing.listed if uuid not in listing.specs or not is_over(listing.specs[uuid], now)}


def _slots_by_commitment(slots: Iterable[Reservation]) -> dict[str, list[str]]:
    """Names of commitment slots by the uuid of their commitment; those that name none are nobody's business here."""
    found: dict[str, list[str]] = {}
    for slot in slots:
        details = slot.spec.committed_resource_reservation
        if slot.spec.type == COMMITTED and details is not None and details.commitment_uuid:
            found.setdefault(details.commitment_uuid, []).append(slot.name)
    return found


def _delete_slots(names: Iterable[str]) -> tuple[SlotChange, ...]:
    return tuple(SlotChange(name=name, deleted=True) for name in sorted(names)[:SLOTS_OF_A_STEP])

"""Whether there is what a commitment asks for: all its slots, or enough cores.

The rules are in docs/design/commitment-rules.md#slots and #cores.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from outlive.commitments.slots import slot_order
from outlive.commitments.state import (
    READY,
    WAITING_FOR_CAPACITY,
    WAITING_FOR_CORES,
    Commitment,
    is_active,
)
from outlive.resources import (
    CommittedResource,
    FlavorGroupCapacity,
    Reservation,
    find_condition,
)

CORES: Final = "cores"
"""The name of cores in amounts of capacity."""


class SlotsOutcome(enum.StrEnum):
    """What has become of a commitment's slots."""

    PENDING = "pending"
    FAILED = "failed"
    READY = "ready"


class SlotsVerdict(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How far a commitment's slots are."""

    outcome: SlotsOutcome
    ready: int
    expected: int
    failed: tuple[str, ...] = ()
    """Names of the slots for which there is no capacity."""
    message: str = ""
    """What the commitment says of it, where some failed."""
    first: str = ""
    """What the first of them says."""


def evaluate(commitment: Commitment, slots: Sequence[Reservation], expected: int) -> SlotsVerdict:
    """Whether all ``expected`` slots of the commitment's generation are there; one that failed counts more than some
    that are not judged yet. ``slots``: all slots of the commitment."""
    ready, failed = 0, []
    for slot in sorted(slots, key=slot_order):
        seen = slot.status.committed_resource_reservation
        found = find_condition(slot.status.conditions, READY)
        if seen is None or seen.observed_parent_generation != commitment.generation or found is None:
            continue
        if found.status == "True":
            ready += bool(slot.spec.target_host)  # one that was evicted looks for another host
        elif found.status == "False":
            failed.append((slot.name, found.message))
    if len(slots) < expected or (not failed and ready < len(slots)):
        return SlotsVerdict(outcome=SlotsOutcome.PENDING, ready=ready, expected=expected)
    if not failed:
        return SlotsVerdict(outcome=SlotsOutcome.READY, ready=ready, expected=expected)
    return SlotsVerdict(
        outcome=SlotsOutcome.FAILED,
        ready=ready,
        expected=expected,
        failed=tuple(name for name, _ in failed),
        message=insufficient_text(ready, expected),
        first=failed[0][1],
    )


def insufficient_text(ready: int, expected: int) -> str:
    """What a commitment says for which only some slots were placed."""
    return f"insufficient capacity: {ready}/{expected} reservation slots could be placed"


class HeadroomOutcome(enum.StrEnum):
    """Whether the cores of a commitment are there."""

    WAITING = "waiting"
    REFUSED = "refused"
    ACCEPTED = "accepted"


class Headroom(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How many cores are left for a commitment."""

    outcome: HeadroomOutcome
    available: int = 0
    message: str = ""
    """Why it is not accepted."""


def check_headroom(
    commitment: Commitment,
    capacity: FlavorGroupCapacity | None,
    others: Iterable[CommittedResource],
    *,
    now: float,
    held: Mapping[str, int] | None = None,
) -> Headroom:
    """Whether a commitment of cores fits; no slots are made for it.

    ``capacity``: of its group and zone; one that is missing or not ready is waited for. ``others``: commitments, of
    which those of cores in the same group and zone count that are accepted and active. ``held``: project → cores that
    its VMs and its free slots of the group in the zone have, which are not among the free ones: what a project holds
    serves its own commitments of cores, so nobody is refused what he uses already.
    """
    found = find_condition(capacity.status.conditions, READY) if capacity is not None else None
    if capacity is None or found is None or found.status != "True":
        return Headroom(outcome=HeadroomOutcome.WAITING, message=WAITING_FOR_CAPACITY)
    free = capacity.status.exclusively_free_capacity.get(CORES)
    if free is None:
        return Headroom(outcome=HeadroomOutcome.WAITING, message=WAITING_FOR_CORES)
    has = held or {}
    committed: dict[str, int] = {}  # project → cores that others were accepted for, in this group and zone
    for other in others:
        spec, accepted = other.spec, other.status.accepted_spec
        if (
            accepted is not None
            and spec.commitment_uuid != commitment.uuid
            and (spec.resource_type, spec.flavor_group_name, spec.availability_zone)
            == ("cores", commitment.group, commitment.zone)
            and is_active(spec, now)
        ):
            committed[spec.project_id] = committed.get(spec.project_id, 0) + accepted.total
    own = has.get(commitment.project, 0) - committed.pop(commitment.project, 0)
    available = free + own - sum(max(0, cores - has.get(project, 0)) for project, cores in committed.items())
    if available < commitment.cores:
        text = f"insufficient CPU cores: {available} available, {commitment.cores} requested"
        return Headroom(outcome=HeadroomOutcome.REFUSED, available=available, message=text)
    return Headroom(outcome=HeadroomOutcome.ACCEPTED, available=available)

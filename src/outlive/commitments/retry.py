"""When a batch that was refused for lack of room may be worth another try (docs/reference/commitments.md#calendar)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import datetime

from outlive.base.clock import as_instant
from outlive.commitments.calendar import CalendarInput, RetryInput, bookings, retry_at
from outlive.commitments.state import Commitment, from_spec, has_slots, is_over
from outlive.commitments.view import CommitmentView
from outlive.placement.reservations import unused
from outlive.resources import MEMORY, CommitmentStep, Reservation

Place = tuple[str, str]
"""Flavor group and zone."""


def retry_time(steps: Iterable[CommitmentStep], view: CommitmentView, now: float) -> datetime | None:
    """The earliest time at which there is room for all that the steps need, as far as ends of commitments say.

    What placement refused is not free now, whatever the sum of free memory says: it may be scattered. So at least one
    commitment has to end first. ``None`` where that makes no difference.
    """
    wanted: dict[Place, list[Commitment]] = {}
    for step in steps:
        if step.after is not None:
            one = from_spec(step.after)
            if has_slots(one, now):
                wanted.setdefault((one.group, one.zone), []).append(one)
    uuids = frozenset(step.uuid for step in steps)
    found: list[datetime] = []
    for place, commitments in wanted.items():
        held = _held(view, uuids, place)
        needed = sum(one.memory_bytes for one in commitments) - sum(held.values())
        if needed <= 0:
            continue
        at = retry_at(_question(view, place, needed, commitments, uuids, now))
        if at is None:
            return None
        found.append(at)
    return max(found, default=None)


def _question(
    view: CommitmentView,
    place: Place,
    needed: int,
    commitments: Sequence[Commitment],
    uuids: frozenset[str],
    now: float,
) -> RetryInput:
    capacity = view.capacity(*place)
    free = capacity.status.free_capacity.get(MEMORY, 0) if capacity is not None else 0
    ends = [one.end for one in commitments]
    known = [as_instant(end) for end in ends if end is not None]
    return RetryInput(
        calendar=calendar_of(view, place, min(free, needed - 1), now, without=uuids),
        memory_bytes=needed,
        until=max(known) if len(known) == len(ends) else None,
    )


def calendar_of(
    view: CommitmentView, place: Place, free_bytes: int, now: float, without: Container[str] = ()
) -> CalendarInput:
    """What commitments book of a flavor group in a zone of which so much is free now; some of them left out."""
    others = [
        from_spec(spec)
        for one in view.informers.commitments.items()
        if (spec := one.status.accepted_spec or one.spec).resource_type == "memory"
        and (spec.flavor_group_name, spec.availability_zone) == place
        and spec.commitment_uuid not in without
        and not is_over(one.spec, now)
    ]
    held = _held(view, (one.uuid for one in others), place)
    unused_bytes = _held(view, (one.uuid for one in others), place, lambda slot: unused(slot).memory_bytes)
    used = {uuid: max(0, size - unused_bytes[uuid]) for uuid, size in held.items()}
    return CalendarInput(free_bytes=free_bytes, bookings=bookings(others, now, held, used), now=now)


def _held(
    view: CommitmentView,
    uuids: Iterable[str],
    place: Place,
    size_of: Callable[[Reservation], int] = lambda slot: slot.spec.resources.memory_bytes,
) -> Mapping[str, int]:
    """What slots of these commitments hold in a flavor group and zone, by their own size or another one."""
    held: dict[str, int] = {}
    for uuid in uuids:
        for slot in view.slots(uuid):
            details = slot.spec.committed_resource_reservation
            if details is not None and (details.resource_group, slot.spec.availability_zone) == place:
                held[uuid] = held.get(uuid, 0) + size_of(slot)
    return held

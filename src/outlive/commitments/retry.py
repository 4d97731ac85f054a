"""When a batch that was refused for lack of room may be worth another try (docs/reference/commitments.md#calendar)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from msgspec.structs import replace

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
        own = [slot for uuid in uuids for slot in _slots(view, uuid, place)]
        needed = sum(one.memory_bytes for one in commitments) - sum(slot.spec.resources.memory_bytes for slot in own)
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
    active = [one for one in view.informers.commitments.items() if not is_over(one.spec, now)]
    specs = [one.status.accepted_spec or one.spec for one in active]
    others = [
        from_spec(spec)
        for spec in specs
        if (spec.flavor_group_name, spec.availability_zone) == place
        and spec.resource_type == "memory"
        and spec.commitment_uuid not in uuids
    ]
    held: dict[str, int] = {}
    for number, one in enumerate(others):
        slots = _slots(view, one.uuid, place)
        held[one.uuid] = sum(unused(slot).memory_bytes for slot in slots)
        # where its VMs run there is no room when it ends either: they run on
        by_vms = sum(slot.spec.resources.memory_bytes for slot in slots) - held[one.uuid]
        others[number] = replace(one, memory_bytes=max(0, one.memory_bytes - max(0, by_vms)))
    ends = [one.end for one in commitments]
    known = [as_instant(end) for end in ends if end is not None]
    return RetryInput(
        calendar=CalendarInput(free_bytes=min(free, needed - 1), bookings=bookings(others, now, held), now=now),
        memory_bytes=needed,
        until=max(known) if len(known) == len(ends) else None,
    )


def _slots(view: CommitmentView, uuid: str, place: Place) -> list[Reservation]:
    """The slots that a commitment has in a flavor group and zone."""
    return [slot for slot in view.slots(uuid) if (_group(slot), slot.spec.availability_zone) == place]


def _group(slot: Reservation) -> str:
    details = slot.spec.committed_resource_reservation
    return details.resource_group if details is not None else ""

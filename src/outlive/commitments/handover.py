"""Slots that pass from one commitment of a batch to another, with the VMs in them.

A commitment that is moved, split, merged, converted or renewed is other numbers for the same capacity: its slots stay
where they are and get another owner, before anything is placed (docs/design/commitment-rules.md#handover).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from outlive.commitments.names import commitment_name, free_slot_names
from outlive.commitments.slots import NewSlot, memory_of, reservation_of, shrink_order, slot_allocations, slot_order
from outlive.commitments.state import Commitment, from_spec, has_slots
from outlive.placement import is_ready
from outlive.resources import ACTIVE_STATES, CPU, MEMORY, Amounts, CommitmentStep, CommittedSpec, Reservation

CREATOR: Final = "committed-resource-handover"

_Market = tuple[str, str]
"""Flavor group and zone: within one, slots pass from hand to hand."""


class Handover(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Whose the slots of a batch's commitments are afterwards."""

    slots: dict[str, tuple[Reservation, ...]] = {}
    """Commitment → its slots as they read then: those that it keeps, those that it gets, and parts that are cut off
    from others. What is missing to its amount, or too much, is for ``plan_slots``."""
    moved: tuple[str, ...] = ()
    """Names of slots that have another owner or another size."""
    cut: tuple[str, ...] = ()
    """Names of new slots on hosts of slots that became smaller; they need no room that is not held already."""
    released: tuple[str, ...] = ()
    """Names of slots that nobody takes: they are deleted."""


class _Taker:
    """A commitment that has slots after the batch, with those that it has so far."""

    def __init__(self, commitment: Commitment) -> None:
        self.commitment = commitment
        self.market: _Market = (commitment.group, commitment.zone)
        self.slots: list[Reservation] = []
        self.missing = commitment.memory_bytes

    def add(self, slot: Reservation) -> None:
        """It has this slot from now on."""
        self.slots.append(slot)
        self.missing -= slot.spec.resources.memory_bytes


class _BySize:
    """Slots by size, from which one takes: among equals the one of the lowest number."""

    def __init__(self, slots: Iterable[Reservation]) -> None:
        numbered = sorted(slots, key=slot_order, reverse=True)
        self._slots = sorted(numbered, key=memory_of)
        self._sizes = [memory_of(slot) for slot in self._slots]

    def take_up_to(self, size: int) -> Reservation | None:
        """The largest of at most this size."""
        place = bisect_right(self._sizes, size) - 1
        return self._take(place) if place >= 0 else None

    def take_above(self, size: int) -> Reservation | None:
        """The smallest that is larger."""
        place = bisect_right(self._sizes, size)
        return self._take(place) if place < len(self._sizes) else None

    def _take(self, place: int) -> Reservation:
        self._sizes.pop(place)
        return self._slots.pop(place)


class _RoomPart(msgspec.Struct, kw_only=True):
    """Room on a host that a slot gives up because it becomes smaller."""

    slot: Reservation
    memory_bytes: int
    cpu_milli: int


def hand_over(
    steps: Sequence[CommitmentStep],
    slots: Mapping[str, Sequence[Reservation]],
    now: float,
    *,
    taken: Container[str] = frozenset(),
) -> Handover:
    """Share the slots of a batch's commitments among those that need them afterwards.

    ``slots``: those that exist, by commitment. ``taken``: names of other slots. A commitment keeps its own slots as far
    as they are its own afterwards as well; what it gives up goes to others of the same flavor group and zone, first of
    the same project and with the VMs in it. A slot with VMs never passes to another project: its room is used by VMs
    that the other project does not have. As long as the commitments of a project need as much in all as they had, none
    of its slots is deleted and no VM loses its place.
    """
    alone = _without_partners(steps, slots)
    takers: list[_Taker] = []
    pool: list[Reservation] = []
    for step in steps:
        own = slots.get(step.uuid, ())
        after = from_spec(step.after) if step.after is not None else None
        given_up = own
        if after is not None and has_slots(after, now):
            takers.append(_Taker(after))
            given_up = () if step.uuid in alone else _find_given_up(after, own)
            names = {slot.name for slot in given_up}
            for slot in own:
                if slot.name not in names:
                    takers[-1].add(slot)
        pool.extend(given_up)
    takers.sort(key=lambda taker: (taker.commitment.state not in ACTIVE_STATES, -taker.missing, taker.commitment.uuid))
    parts = list(_share(takers, pool, within_project=True))
    got = {slot.name for taker in takers for slot in taker.slots}
    empty = [slot for slot in pool if slot.name not in got and not slot_allocations(slot)]
    parts.extend(_share(takers, empty, within_project=False))
    old = {slot.name: slot for step in steps for slot in slots.get(step.uuid, ())}
    got = {slot.name for taker in takers for slot in taker.slots}
    cut = [name for taker in takers for name in _take_parts(taker, parts, old, taken, now)]
    return Handover(
        slots={taker.commitment.uuid: tuple(sorted(taker.slots, key=slot_order)) for taker in takers},
        moved=tuple(sorted(s.name for taker in takers for s in taker.slots if s.name in old and s is not old[s.name])),
        cut=tuple(cut),
        released=tuple(sorted({slot.name for slot in pool} - got)),
    )


def hand_over_slot(slot: Reservation, commitment: Commitment, memory_bytes: int | None = None) -> Reservation:
    """The slot as one of this commitment, of this size if it is given; its VMs stay in it."""
    details = slot.spec.committed_resource_reservation or CommittedSpec()
    size = slot.spec.resources
    domain = details.domain_id if details.project_id == commitment.project else ""
    if memory_bytes is not None and memory_bytes != size.memory_bytes:
        cpu = -(-size.cpu_milli * memory_bytes // size.memory_bytes)
        size = Amounts({**size, CPU: cpu, MEMORY: memory_bytes})
    wanted = replace(
        details,
        commitment_uuid=commitment.uuid,
        project_id=commitment.project,
        domain_id=commitment.domain or domain,
    )
    return replace(slot, spec=replace(slot.spec, resources=size, committed_resource_reservation=wanted))


def _market_of(slot: Reservation) -> _Market:
    details = slot.spec.committed_resource_reservation or CommittedSpec()
    return details.resource_group, slot.spec.availability_zone


def _project_of(slot: Reservation) -> str:
    details = slot.spec.committed_resource_reservation
    return details.project_id if details is not None else ""


def _without_partners(steps: Sequence[CommitmentStep], slots: Mapping[str, Sequence[Reservation]]) -> frozenset[str]:
    """Commitments of whose group and zone the batch has no other, and whose project stays: ``plan_slots`` alone says
    what becomes of their slots."""
    markets: dict[str, set[_Market]] = {}
    moving: set[str] = set()
    for step in steps:
        own = slots.get(step.uuid, ())
        markets[step.uuid] = set(map(_market_of, own))
        if step.after is not None:
            markets[step.uuid].add((step.after.flavor_group_name, step.after.availability_zone))
            if any(_project_of(slot) != step.after.project_id for slot in own):
                moving.add(step.uuid)
    crowd = Counter(market for found in markets.values() for market in found)
    return frozenset(
        uuid for uuid, found in markets.items() if uuid not in moving and all(crowd[one] == 1 for one in found)
    )


def _find_given_up(after: Commitment, own: Sequence[Reservation]) -> list[Reservation]:
    """Slots that a commitment does not keep: of another project, group or zone, and what is too much."""
    kept = [s for s in own if (_project_of(s), _market_of(s)) == (after.project, (after.group, after.zone))]
    names = {slot.name for slot in kept}
    given_up = [slot for slot in own if slot.name not in names]
    excess = sum(map(memory_of, kept)) - after.memory_bytes
    for slot in shrink_order(sorted(kept, key=slot_order)):
        if excess <= 0:
            break
        given_up.append(slot)
        excess -= memory_of(slot)
    return given_up


def _share(takers: Sequence[_Taker], pool: Sequence[Reservation], *, within_project: bool) -> Iterator[_RoomPart]:
    """Commitments take what they need from the pool, slots with VMs first; what slots give up that become smaller.

    First each takes slots that fit whole. Then those that are left are larger than what anybody misses, and so there
    are fewer of them than of commitments that miss something, as long as the pool is not more than what is missing.
    """
    found: dict[tuple[_Market, str], tuple[list[Reservation], list[Reservation]]] = {}
    for slot in pool:
        if memory_of(slot) > 0:
            with_vms, empty = found.setdefault(
                (_market_of(slot), _project_of(slot) if within_project else ""), ([], [])
            )
            (with_vms if slot_allocations(slot) else empty).append(slot)
    shelves = {key: tuple(map(_BySize, lists)) for key, lists in found.items()}

    def shelf_for(taker: _Taker) -> tuple[_BySize, ...]:
        return shelves.get((taker.market, taker.commitment.project if within_project else ""), ())

    for taker in takers:
        for shelf in shelf_for(taker):
            while taker.missing > 0 and (fit := shelf.take_up_to(taker.missing)) is not None:
                taker.add(hand_over_slot(fit, taker.commitment))
    for taker in sorted(takers, key=lambda taker: -taker.missing):
        for shelf in shelf_for(taker):
            if taker.missing > 0 and (larger := shelf.take_above(taker.missing)) is not None:
                yield from _take_in_part(taker, larger)


def _take_in_part(taker: _Taker, slot: Reservation) -> Iterator[_RoomPart]:
    """The slot becomes as small as the commitment needs it."""
    new = hand_over_slot(slot, taker.commitment, taker.missing)
    taker.add(new)
    if is_ready(slot) and slot.spec.target_host == slot.status.host:
        memory, cpu = (_released_amount(slot, new, resource) for resource in (MEMORY, CPU))
        if memory > 0:
            yield _RoomPart(slot=slot, memory_bytes=memory, cpu_milli=cpu)


def _released_amount(old: Reservation, new: Reservation, resource: str) -> int:
    """What a slot that became smaller does not hold any more; its VMs use their part anyway."""
    used = sum(one.resources.get(resource, 0) for one in slot_allocations(old).values())
    return max(old.spec.resources.get(resource, 0), used) - max(new.spec.resources.get(resource, 0), used)


def _take_parts(
    taker: _Taker, parts: Sequence[_RoomPart], old: Mapping[str, Reservation], taken: Container[str], now: float
) -> Iterator[str]:
    """New slots of the commitment from room that others gave up, on the same hosts."""
    if taker.missing <= 0 or not parts:
        return
    names = free_slot_names(commitment_name(taker.commitment.uuid), [*old, *(s.name for s in taker.slots)], taken)
    for part in parts:
        memory = min(part.memory_bytes, taker.missing)
        if memory <= 0 or _market_of(part.slot) != taker.market:
            continue
        size, details = part.slot.spec.resources, part.slot.spec.committed_resource_reservation
        new = NewSlot(
            name=next(names),
            flavor=details.resource_name if details is not None else "",
            memory_bytes=memory,
            cpu_milli=min(size.cpu_milli * memory // size.memory_bytes, part.cpu_milli),
            host=part.slot.status.host,
        )
        part.memory_bytes -= new.memory_bytes
        part.cpu_milli -= new.cpu_milli
        taker.add(reservation_of(new, taker.commitment, now=now, creator=CREATOR))
        yield new.name

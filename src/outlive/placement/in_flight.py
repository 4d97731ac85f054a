"""Room for VMs that an answer sent somewhere and that no host reports yet (docs/reference/placement.md#in-flight).

The caller gets several hosts and needs seconds to minutes to start the VM on one of them. Until then the capacity
has to look taken wherever it may land: the ledger holds it from the moment of the answer, and the store gets it a
moment later, so that other processes and the next one hold it as well.

Not promised: that the room survives a crash between the answer and the write, or a store that stays away. Then it is
given up again, because nobody could remove it later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from outlive.base import AlreadyExists, Clock, NotFound, as_datetime
from outlive.placement.fleet import Fleet
from outlive.placement.request import INTERNAL_CALLS, Intent, PlacementRequest
from outlive.resources import (
    CREATOR_LABEL,
    IN_FLIGHT,
    RESERVATION_TYPE_LABEL,
    TYPE_LABEL_VALUES,
    Amounts,
    InFlightSpec,
    ObjectMeta,
    ObjectRef,
    Reservation,
    ReservationSpec,
    object_name,
)
from outlive.runtime import BackgroundWriter, Waiting
from outlive.store import Store, compare_and_swap

CREATOR: Final = "placement"
PREFIX: Final = "in-flight-"
"""Of the name of an in-flight reservation; its VM and host follow."""
QUEUE_LIMIT: Final = 10_000
"""VMs whose reservations wait to be written."""
HELD_LIMIT: Final = 50_000
"""In-flight reservations that placement holds at once; beyond it an answer holds nothing more."""


def room_for(
    request: PlacementRequest, hosts: Iterable[str], *, group: str, until: datetime
) -> tuple[Reservation, ...]:
    """One reservation on each of these hosts, for all instances of the request together."""
    resources = Amounts({name: amount * request.instances for name, amount in request.need.items()})
    details = InFlightSpec(
        vm_id=request.resource_id,
        user_id=request.user,
        project_id=request.project,
        intent=request.intent.value,
        resource_group=group,
        instances=request.instances,
    )
    labels = {CREATOR_LABEL: CREATOR, RESERVATION_TYPE_LABEL: TYPE_LABEL_VALUES[IN_FLIGHT]}
    return tuple(
        Reservation(
            metadata=ObjectMeta(name=object_name(f"{PREFIX}{request.resource_id}.{host}"), labels=labels),
            spec=ReservationSpec(
                type="InFlightReservation",
                availability_zone=request.zone,
                resources=resources,
                end_time=until,
                target_host=host,
                in_flight_reservation=details,
            ),
        )
        for host in hosts
    )


def slot_suffices(fleet: Fleet, request: PlacementRequest, host: str) -> bool:
    """Whether a slot of the VM on this host holds the room of its evacuation, which then counts once."""
    bucket, row = fleet.ledger.slots_of_vm.get(request.resource_id), fleet.row_of(host)
    if request.intent is not Intent.EVACUATE or bucket is None:
        return False
    own = [entry.reservation.spec.resources for entry in bucket.entries.values() if entry.host_row == row]
    return any(
        all(size.get(name, 0) >= amount * request.instances for name, amount in request.need.items()) for size in own
    )


class PendingRoom(msgspec.Struct, frozen=True):
    """What is to be written for one VM: its reservations, and names of those that an earlier answer made."""

    wanted: tuple[Reservation, ...]
    gone: tuple[str, ...]


class InFlightWriter(BackgroundWriter[str]):
    """Holds the room of answers in the fleet, and writes it. ``stored``: the reservation as the informer shows it."""

    what = "in-flight"

    def __init__(
        self, store: Store, fleet: Fleet, stored: Callable[[str], Reservation | None], *, clock: Clock
    ) -> None:
        super().__init__(clock, limit=QUEUE_LIMIT)
        self._store = store
        self._fleet = fleet
        self._stored = stored
        self._rooms: dict[str, PendingRoom] = {}
        """VM → what is not written yet."""

    def hold(self, request: PlacementRequest, hosts: Sequence[str]) -> None:
        """Hold room on these hosts, best first, from now on; what an earlier answer held for the VM is given up."""
        settings, fleet, vm, options = self._fleet.settings, self._fleet, request.resource_id, request.options
        quiet = options.read_only or options.skip_inflight or request.intent in INTERNAL_CALLS
        if not settings.in_flight_seconds or quiet or not vm or not request.need:
            return
        known = [host for host in hosts if fleet.find_row(host) is not None and not slot_suffices(fleet, request, host)]
        until = as_datetime(self._clock.now()) + timedelta(seconds=settings.in_flight_seconds)
        wanted = room_for(request, known, group=request.group_name(settings.flavor_group_keys), until=until)
        before = own_reservations(fleet, vm)
        names = {one.name for one in wanted}
        gone = tuple(name for name in before if name not in names)
        if not wanted and not gone:
            return
        if fleet.ledger.in_flight_count + len(wanted) - len(before) > HELD_LIMIT:
            self.dropped += 1
            return
        unwritten = self._rooms.get(vm)
        earlier = unwritten.gone if unwritten is not None else ()
        self._rooms[vm] = PendingRoom(
            wanted, tuple(name for name in dict.fromkeys((*earlier, *gone)) if name not in names)
        )
        for name in gone:
            fleet.remove_reservation(name)
        for one in wanted:
            fleet.upsert_reservation(one)
        if not self.put(vm, lambda _now: vm):
            self.drop_item(vm)

    def drop_item(self, item: str) -> None:
        """Nobody else knows of this room: give up what the store does not have."""
        room = self._rooms.pop(item, None)
        for one in room.wanted if room is not None else ():
            kept = self._stored(one.name)
            if kept is None:
                self._fleet.remove_reservation(one.name)
            else:
                self._fleet.upsert_reservation(kept)

    def prepare_write(self, waiting: Waiting[str]) -> Callable[[], Awaitable[object]]:
        """Bring the VM's reservations in the store to what is held; a later answer for it counts instead."""
        return lambda: self._write_room(waiting.item)

    async def _write_room(self, vm: str) -> None:
        room = self._rooms.get(vm)
        if room is None:
            return
        for one in room.wanted:
            try:
                await self._store.create(one)
            except AlreadyExists:
                await compare_and_swap(
                    self._store, Reservation, one.name, _with_spec(one), clock=self._clock, half="spec"
                )
        for name in room.gone:
            with contextlib.suppress(NotFound):
                await self._store.delete(ObjectRef(kind=Reservation.kind(), name=name))
        if self._rooms.get(vm) is room:
            del self._rooms[vm]


def own_reservations(fleet: Fleet, vm: str) -> list[str]:
    """Names of the VM's in-flight reservations that placement made."""
    bucket = fleet.ledger.in_flight_of_vm.get(vm)
    entries = bucket.entries.values() if bucket is not None else ()
    return [one.name for one in entries if one.reservation.metadata.labels.get(CREATOR_LABEL) == CREATOR]


def _with_spec(wanted: Reservation) -> Callable[[Reservation | None], Reservation]:
    """The kept reservation with the new spec; a new one if it is gone again."""

    def change(kept: Reservation | None) -> Reservation:
        return wanted if kept is None else msgspec.structs.replace(kept, spec=wanted.spec)

    return change

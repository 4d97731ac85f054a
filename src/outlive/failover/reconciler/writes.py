"""Every write that failover makes to a slot, one at a time, each safe to be the last before a crash.

A slot is created in two writes, because a creation never carries a status: first the object, then host and first
member. Between them it is *statusless*: it holds its space, counts for nobody, and is deleted after a grace period if
the second write never comes. Everything else is one compare-and-swap of the status.

A lost answer (``Unknown``) is resolved by a fresh read: names of new slots are drawn here, so the creator can look for
exactly his own, and a status is recognised by being what was written. Nothing is retried blindly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from outlive.base.clock import Clock, as_datetime
from outlive.base.errors import AlreadyExists, Conflict, NotFound, OutliveError, Unknown
from outlive.base.ids import Ids
from outlive.base.logging import get_logger
from outlive.failover.planner.actions import Open
from outlive.failover.slots import name_prefix
from outlive.resources import (
    CREATOR_LABEL,
    FAILOVER,
    REQUEST_ID_ANNOTATION,
    RESERVATION_TYPE_LABEL,
    TYPE_LABEL_VALUES,
    Amounts,
    Condition,
    FailoverSpec,
    FailoverStatus,
    ObjectMeta,
    ObjectRef,
    Reservation,
    ReservationSpec,
    ReservationStatus,
    with_condition,
)
from outlive.store import Store
from outlive.store.access import read, swap

NAME_TRIES = 5
"""Names that are drawn for a new slot before giving up."""
ACTIVE_REASON = "ReservationActive"
HELD = "slot is held"
INVALID_REASON = "InvalidResources"

_log = get_logger("failover.writes")


class Shown(Protocol):
    """Whoever shows this process its own writes at once (an informer)."""

    def note(self, obj: Reservation, *, replaced: str | None = None) -> None:
        """An acknowledged write."""
        ...

    def note_gone(self, ref: ObjectRef) -> None:
        """An acknowledged deletion."""
        ...


class SlotWriter:
    """Writes slots. Errors are the store's; ``Conflict`` means that the slot is not what the caller believes."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        ids: Ids,
        creator: str,
        shown: Shown | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._ids = ids
        self._creator = creator
        self._shown = shown

    async def fresh(self, name: str) -> Reservation:
        """The slot as it is now; ``NotFound``."""
        return await self._store.get(Reservation, name, fresh=True)

    async def set_members(self, slot: Reservation, members: Mapping[str, str]) -> Reservation:
        """Replace the membership; the change is as of now, and unacknowledged."""
        status = msgspec.structs.replace(slot.status, failover_reservation=self._changed(members))
        return await self._swap(slot, status)

    def _changed(self, members: Mapping[str, str]) -> FailoverStatus:
        return FailoverStatus(allocations=dict(sorted(members.items())), last_changed=as_datetime(self._clock.now()))

    async def acknowledge(self, slot: Reservation) -> Reservation:
        """The last change was validated, now."""
        failover = slot.status.failover_reservation or FailoverStatus()
        changed = msgspec.structs.replace(failover, acknowledged_at=as_datetime(self._clock.now()))
        return await self._swap(slot, msgspec.structs.replace(slot.status, failover_reservation=changed))

    async def set_ready(self, slot: Reservation, why_not: str = "", *, reason: str = INVALID_REASON) -> Reservation:
        """Set the ``Ready`` condition: held, or why not, by default because its resources are not legal."""
        return await self._swap(slot, self._with_ready(slot.status, not why_not, why_not or HELD, reason))

    def _with_ready(self, status: ReservationStatus, ready: bool, message: str, reason: str) -> ReservationStatus:
        wanted = Condition(
            type="Ready",
            status="True" if ready else "False",
            reason=ACTIVE_REASON if ready else reason,
            message=message,
            last_transition_time=as_datetime(self._clock.now()),
        )
        return msgspec.structs.replace(status, conditions=with_condition(status.conditions, wanted))

    async def open(self, new: Open, members: Mapping[str, str], request_id: str = "") -> Reservation:
        """Create a slot, then give it host and members. An error means that nothing is known to exist.

        ``request_id``: the global one of the run that creates it.
        """
        created = await self._create(new, request_id)
        self._show(created, replaced="")
        status = ReservationStatus(host=new.host, failover_reservation=self._changed(members))
        status = self._with_ready(status, True, HELD, INVALID_REASON)
        try:
            return await self._swap(created, status)
        except OutliveError as error:
            _log.warning("slot.status_not_written", slot=created.name, vm=new.vm, error=str(error))
            return msgspec.structs.replace(created, status=status)

    async def delete(self, slot: Reservation) -> None:
        """Delete exactly this state of the slot; already gone is fine. ``Conflict`` if it changed meanwhile."""
        try:
            await self._store.delete(slot.ref, uid=slot.metadata.uid, version=slot.metadata.resource_version)
        except NotFound:
            pass
        except Unknown:
            found = await read(self._store, Reservation, slot.name)
            if found is not None and found.metadata.uid == slot.metadata.uid and not found.metadata.deletion_timestamp:
                raise
        if self._shown is not None:
            self._shown.note_gone(slot.ref)

    async def _create(self, new: Open, request_id: str) -> Reservation:
        """The object without a status, under a name of its own."""
        for _ in range(NAME_TRIES):
            wanted = self._object(name_prefix(new.zone) + self._ids.suffix(), new, request_id)
            try:
                return await self._store.create(wanted)
            except AlreadyExists:
                continue
            except Unknown as error:
                return await self._own(wanted, error)
        raise Conflict(
            f"{NAME_TRIES} names for a slot in zone {new.zone!r} were all taken", remedy="the next cycle tries again"
        )

    def _object(self, name: str, new: Open, request_id: str) -> Reservation:
        annotations = {REQUEST_ID_ANNOTATION: request_id} if request_id else {}
        return Reservation(
            metadata=ObjectMeta(
                name=name,
                labels={CREATOR_LABEL: self._creator, RESERVATION_TYPE_LABEL: TYPE_LABEL_VALUES[FAILOVER]},
                annotations=annotations,
            ),
            spec=ReservationSpec(
                type="FailoverReservation",
                scheduling_domain="nova",
                availability_zone=new.zone,
                resources=Amounts(cpu=new.cpu_milli, memory=new.memory_bytes),
                target_host=new.host,
                failover_reservation=FailoverSpec(resource_group=new.group),
            ),
        )

    async def _own(self, wanted: Reservation, lost: Unknown) -> Reservation:
        """After a lost answer: the object, if the creation was applied; its spec and request id are the nonce."""
        try:
            found = await self.fresh(wanted.name)
        except NotFound:
            raise lost from None
        if found.spec != wanted.spec or found.metadata.annotations != wanted.metadata.annotations:
            raise lost
        return found

    async def _swap(self, slot: Reservation, status: ReservationStatus) -> Reservation:
        written = await swap(self._store, msgspec.structs.replace(slot, status=status))
        self._show(written, replaced=slot.metadata.resource_version)
        return written

    def _show(self, written: Reservation, *, replaced: str) -> None:
        if self._shown is not None:
            self._shown.note(written, replaced=replaced)

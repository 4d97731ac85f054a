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


class NewSlot(msgspec.Struct, frozen=True, kw_only=True):
    """A slot that is to be created, with its first member."""

    vm: str
    vm_host: str
    host: str
    zone: str
    group: str
    cpu_milli: int
    memory_bytes: int
    request_id: str = ""
    """Global request id of the run that creates it."""
    others: dict[str, str] = {}
    """Further members with their hosts, where a whole slot was decided at once."""


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A created slot; ``complete`` is false where its status could not be written."""

    slot: Reservation
    complete: bool


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
        changed = FailoverStatus(
            allocations=dict(sorted(members.items())), last_changed=as_datetime(self._clock.now()), acknowledged_at=None
        )
        return await self._swap(slot, msgspec.structs.replace(slot.status, failover_reservation=changed))

    async def acknowledge(self, slot: Reservation) -> Reservation:
        """The last change was validated, now."""
        failover = slot.status.failover_reservation or FailoverStatus()
        changed = msgspec.structs.replace(failover, acknowledged_at=as_datetime(self._clock.now()))
        return await self._swap(slot, msgspec.structs.replace(slot.status, failover_reservation=changed))

    async def set_ready(
        self, slot: Reservation, ready: bool, *, message: str, reason: str = INVALID_REASON
    ) -> Reservation:
        """Set the ``Ready`` condition: held, or why not, by default because its resources are not legal."""
        status = with_ready(slot.status, ready, message=message, now=self._clock.now(), reason=reason)
        return await self._swap(slot, status)

    async def open(self, new: NewSlot) -> Opened:
        """Create a slot, then give it host and first member. An error means that nothing is known to exist."""
        created = await self._create(new)
        self._show(created, replaced="")
        member = FailoverStatus(
            allocations=dict(sorted({**new.others, new.vm: new.vm_host}.items())),
            last_changed=as_datetime(self._clock.now()),
            acknowledged_at=None,
        )
        status = ReservationStatus(host=new.host, failover_reservation=member)
        status = with_ready(status, True, message="slot is held", now=self._clock.now())
        try:
            return Opened(slot=await self._swap(created, status), complete=True)
        except OutliveError as error:
            _log.warning("slot.status_not_written", slot=created.name, vm=new.vm, error=str(error))
            return Opened(slot=msgspec.structs.replace(created, status=status), complete=False)

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

    async def _create(self, new: NewSlot) -> Reservation:
        """The object without a status, under a name of its own."""
        for _ in range(NAME_TRIES):
            wanted = self._object(name_prefix(new.zone) + self._ids.suffix(), new)
            try:
                return await self._store.create(wanted)
            except AlreadyExists:
                continue
            except Unknown as error:
                return await self._own(wanted, error)
        raise Conflict(
            f"{NAME_TRIES} names for a slot in zone {new.zone!r} were all taken", remedy="the next cycle tries again"
        )

    def _object(self, name: str, new: NewSlot) -> Reservation:
        annotations = {REQUEST_ID_ANNOTATION: new.request_id} if new.request_id else {}
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


def with_ready(
    status: ReservationStatus, ready: bool, *, message: str, now: float, reason: str = INVALID_REASON
) -> ReservationStatus:
    """The status with its ``Ready`` condition set; the time of an unchanged condition stays."""
    wanted = Condition(
        type="Ready",
        status="True" if ready else "False",
        reason=ACTIVE_REASON if ready else reason,
        message=message,
        last_transition_time=as_datetime(now),
    )
    return msgspec.structs.replace(status, conditions=with_condition(status.conditions, wanted))

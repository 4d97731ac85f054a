"""Which VMs with room in flight have arrived: their room goes (docs/reference/placement.md#in-flight).

What becomes of a reservation is a pure function of it, of where the VM is seen, and of its size.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Literal

import msgspec

from outlive.base import Clock, Conflict, NotFound, as_datetime, as_instant, get_logger
from outlive.placement.fleet import Fleet
from outlive.placement.pipelines import DOMAIN
from outlive.placement.request import Intent
from outlive.placement.reservations import RESIZES
from outlive.resources import (
    IN_FLIGHT,
    Amounts,
    Condition,
    Hypervisor,
    Reservation,
    find_condition,
    with_condition,
)
from outlive.runtime import Informer, Requeue
from outlive.store import Store

AGAIN_S: Final = 10.0
"""How often a VM that has not arrived is looked for."""
NEW_VMS: Final = frozenset({Intent.UNKNOWN.value, Intent.CREATE.value, ""})
"""Intents whose VM runs nowhere before."""
Sizes = Callable[[str], Awaitable[Amounts | None]]
"""The size of a VM as its source has it now; ``None`` where it does not know the VM."""
_log = get_logger("placement")


class ArrivalVerdict(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What to do with the in-flight reservations of a VM."""

    arrived: bool = False
    """Delete all of them."""
    expired: bool = False
    """Delete this one."""
    condition: Condition | None = None
    again_s: float = 0.0
    """Look again after so long; 0: when something changes."""


def judge_arrival(
    reservation: Reservation, targets: frozenset[str], seen: frozenset[str], size: Amounts | None, now: float
) -> ArrivalVerdict:
    """What becomes of a reservation.

    ``targets``: the hosts of all in-flight reservations of its VM; ``seen``: the hosts that report the VM; ``size``: of
    one VM, where that matters. A new VM has arrived wherever it is seen. One that moves is seen at its old place
    first, so it has arrived at one of the targets; one that gets another size, once it has that.
    """
    spec, details = reservation.spec, reservation.spec.in_flight_reservation
    left_s = as_instant(spec.end_time) - now if spec.end_time is not None else AGAIN_S
    if left_s <= 0:
        return ArrivalVerdict(expired=True)
    if details is None or not details.vm_id:
        missing = _unready_condition("False", "MissingSpec", "it does not say for which VM it is")
        return ArrivalVerdict(condition=missing, again_s=left_s if spec.end_time is not None else 0.0)
    again_s = min(AGAIN_S, left_s)
    if not seen:
        missing = _unready_condition("Unknown", "InstanceNotFound", "no host reports the VM")
        return ArrivalVerdict(condition=missing, again_s=again_s)
    if details.intent not in NEW_VMS and not seen & targets:
        return ArrivalVerdict(again_s=again_s)  # it runs on where it was
    if details.intent in RESIZES:
        wanted = {name: amount for name, amount in spec.resources.items() if amount}
        if size is None or any(size.get(name, 0) * details.instances != amount for name, amount in wanted.items()):
            small = _unready_condition("Unknown", "VMSizeMismatch", "the VM does not have its new size yet")
            return ArrivalVerdict(condition=small, again_s=again_s)
    return ArrivalVerdict(arrived=True)


def _unready_condition(status: Literal["False", "Unknown"], reason: str, message: str) -> Condition:
    return Condition(type="Ready", status=status, reason=reason, message=message)


def _is_ours(reservation: Reservation) -> bool:
    """Whether it is in flight, and in our scheduling domain; those of another one are somebody else's to judge."""
    return reservation.spec.type == IN_FLIGHT and reservation.spec.scheduling_domain == DOMAIN


class InFlightController:
    """Deletes the in-flight reservations of VMs that have arrived, and those whose time is over."""

    name = "in-flight"

    def __init__(
        self, store: Store, reservations: Informer[Reservation], fleet: Fleet, sizes: Sizes, *, clock: Clock
    ) -> None:
        self._store = store
        self._reservations = reservations
        self._fleet = fleet
        self._sizes = sizes
        self._clock = clock

    @staticmethod
    def keys(old: Reservation | None, new: Reservation | None) -> tuple[str, ...]:
        """In-flight reservations by name."""
        one = new or old
        return (one.name,) if one is not None and _is_ours(one) else ()

    def keys_of_host(self, old: Hypervisor | None, new: Hypervisor | None) -> list[str]:
        """The reservations of VMs that a host reports, or does not report any more."""
        before, now = ({one.id for one in host.status.instances} if host else set() for host in (old, new))
        return [name for vm in sorted(before ^ now) for name in self._reservations_of_vm(vm)]

    def _reservations_of_vm(self, vm: str) -> list[str]:
        bucket = self._fleet.ledger.in_flight_of_vm.get(vm)
        entries = bucket.entries if bucket is not None else {}
        return sorted(name for name, one in entries.items() if _is_ours(one.reservation))

    async def reconcile(self, key: str) -> Requeue | None:
        """One reservation, and with it all of its VM."""
        reservation = self._reservations.get(key)
        if reservation is None or not _is_ours(reservation):
            return None
        verdict = await self._judge(reservation)
        if verdict.arrived or verdict.expired:
            details = reservation.spec.in_flight_reservation
            names = self._reservations_of_vm(details.vm_id) if verdict.arrived and details is not None else [key]
            for name in names:
                # Delete the version that was judged: a reservation that a later answer has renewed stays.
                kept = self._reservations.get(name)
                if kept is None:
                    continue
                try:
                    await self._store.delete(kept.ref, uid=kept.metadata.uid, version=kept.metadata.resource_version)
                except (Conflict, NotFound):
                    _log.debug("placement.room_changed", reservation=name)
                else:
                    self._reservations.note_deleted(kept.ref)
            _log.info("placement.room_given_up", reservation=key, arrived=verdict.arrived, reservations=len(names))
            return None
        found, conditions = verdict.condition, reservation.status.conditions
        before = find_condition(conditions, found.type) if found is not None else None
        if found is not None and (before is None or (before.status, before.reason) != (found.status, found.reason)):
            timed = msgspec.structs.replace(found, last_transition_time=as_datetime(self._clock.now()))
            status = msgspec.structs.replace(reservation.status, conditions=with_condition(conditions, timed))
            written = await self._store.replace_status(msgspec.structs.replace(reservation, status=status))
            self._reservations.note(written, replaced=reservation.metadata.resource_version)
        return Requeue(verdict.again_s) if verdict.again_s else None

    async def _judge(self, reservation: Reservation) -> ArrivalVerdict:
        details = reservation.spec.in_flight_reservation
        vm = details.vm_id if details is not None else ""
        others = (self._reservations.get(name) for name in self._reservations_of_vm(vm))
        targets = frozenset(one.spec.target_host for one in others if one is not None)
        seen = frozenset(str(self._fleet.columns.names[row]) for row in self._fleet.rows_of_vm(vm))
        resized = details is not None and details.intent in RESIZES and bool(seen & targets)
        size = await self._sizes(vm) if resized else None
        return judge_arrival(reservation, targets, seen, size, self._clock.now())

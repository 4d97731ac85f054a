"""One slot at a time: are its resources legal, and could each of its members be brought up in it right now?

Asked of placement as an evacuation to the slot's own host, with the member's own size
(docs/design/failover.md#validation). Three outcomes: *valid* acknowledges the last change; *transient*
(somebody could not be asked) changes nothing; *invalid* takes out the member at fault, or deletes the slot when its
host cannot be used at all or nobody is left. Each run reads the slot anew and its writes replace exactly what was read,
so that it may run beside cycles.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from outlive.base import (
    BadInput,
    Conflict,
    NotFound,
    OutliveError,
    Random,
    get_logger,
    global_request_id,
    new_global_request_id,
    request_context,
)
from outlive.failover.calls import Call, Caller
from outlive.failover.planner.actions import PlacementOffer
from outlive.failover.reconciler.context import Context
from outlive.failover.reconciler.writes import INVALID_REASON, SlotWriter
from outlive.failover.rules import validate_failover_reservation_resources
from outlive.failover.slots import NO_ROOM_REASON, OverbookedHosts, has_no_room
from outlive.placement import VmView, may_run_on
from outlive.resources import FAILOVER, Hypervisor, Reservation, bad_condition, find_condition, observed_condition
from outlive.resources.reasons import FailoverEvent
from outlive.runtime import Requeue
from outlive.store import Store

OVERBOOKED_S = 1.0
"""For so long a host must hold more than it has before a slot goes: what is seen of it may be of two moments."""
JITTER = 0.10
"""Validations of one slot are this share of their pause apart, more or less, so that they spread."""

_log = get_logger("failover.validation")


class Finding(enum.Enum):
    """What validation can find."""

    VALID = enum.auto()
    """Every member could be brought up."""
    TRANSIENT = enum.auto()
    """Somebody could not be asked."""
    MEMBER_INVALID = enum.auto()
    """One member could not be brought up in the slot."""
    SLOT_INVALID = enum.auto()
    """Nobody could be brought up in the slot."""
    NO_ROOM = enum.auto()
    """VMs have taken the room of the slot."""


class SlotVerdict(NamedTuple):
    """What was found, and why."""

    finding: Finding
    why: str = ""
    vm: str = ""
    """The member at fault."""


VALID = SlotVerdict(Finding.VALID)


@dataclass(frozen=True, slots=True)
class _ValidatedSlot:
    """What was found valid of a slot, and until when by the monotonic clock it is not asked about again."""

    state: str
    """The very state of the object that was looked at."""
    until: float
    calls: dict[str, Call]
    """Member → the question that placement answered."""


class SlotValidation:
    """The controller of single slots; its keys are names of reservations."""

    name = "failover-validation"

    def __init__(
        self,
        store: Store,
        context: Context,
        *,
        hosts: Callable[[str], Hypervisor | None],
        locate: Callable[[str], Awaitable[VmView | None]],
        writer: SlotWriter,
        random: Random,
        overbooked: OverbookedHosts,
        settle_s: float = 0.0,
        doubt: Callable[[], str] = lambda: "",
    ) -> None:
        """``locate``: where a VM is as cycles believe; ``None`` where a cycle would not see it. ``settle_s``: a slot
        whose members changed so recently is left to the process that is filling it, and looked at later. ``doubt`` says
        why the caches are not to be believed right now, or nothing."""
        self._store = store
        self._hosts = hosts
        self._locate = locate
        self._placement = context.placement
        self._writer = writer
        self._reporter = context.reporter
        self._budget = context.budget
        self._config = context.config
        self._caller = Caller(profile=context.settings.profile, domain_of=context.domain_of)
        self._clock = context.clock
        self._random = random
        self._ids = context.ids
        self._lock = context.lock
        self._settle_s = settle_s
        self._doubt = doubt
        self._overbooked = overbooked
        self._overbooked_since: dict[str, float] = {}
        """Slots for which there was no room when they were looked at, and since when."""
        self._validated: dict[str, _ValidatedSlot] = {}
        """What was found valid and is not due again."""
        self._urgent: set[str] = set()
        """Slots whose host changed: they do not wait until their members settle."""

    async def reconcile(self, key: str) -> Requeue | None:
        """Validate one slot; ask to look again after the revalidation pause."""
        with request_context(greq=new_global_request_id(self._ids, "failover"), req=""):
            try:
                slot = await self._store.get(Reservation, key)
            except NotFound:
                self._forget(key)
                return None
            if slot.spec.type != FAILOVER or slot.status.consumer is not None:
                return None
            known = self._validated.get(key)
            if known is not None and known.state == _state_of(slot) and known.until > self._clock.monotonic():
                return Requeue(known.until - self._clock.monotonic())
            if slot.status.failover_reservation is None:
                return self._requeue_later()
            urgent = key in self._urgent
            self._urgent.discard(key)
            if not urgent and not self._overbooked_reason(slot) and (wait := self._settles_in(slot)) > 0:
                return Requeue(wait)
            return await self._validate(slot)

    def _settles_in(self, slot: Reservation) -> float:
        """Seconds until the slot's members have not changed for a while. Validation would only get in the way:
        its acknowledgement makes the next member's write meet a ``Conflict``."""
        failover = slot.status.failover_reservation
        if failover is None or failover.last_changed is None:
            return 0.0
        age = self._clock.now() - failover.last_changed.timestamp()
        return self._settle_s - age if 0 <= age < self._settle_s else 0.0

    def make_due(self, slots: Iterable[str]) -> None:
        """Something that their validity rests on changed: the next look at these slots asks placement again."""
        for name in slots:
            self._validated.pop(name, None)
            self._urgent.add(name)

    def keys_of_host(self, old: Hypervisor | None, new: Hypervisor | None) -> list[str]:
        """The slots on a host that came, went, or changed in something that matters; else those of it that have room
        and say otherwise, or have none and promise it.
        """
        host = new or old
        if host is None or old is None:
            return []
        if new is not None and validity_facts(old) == validity_facts(new):
            return self._mark_misjudged(host.name)
        return self._mark_due(self._overbooked.slots_on(host.name))

    def keys_of_slot(self, old: Reservation | None, new: Reservation | None) -> list[str]:
        """The slot itself, and those that lost their room to it, or got it back."""
        slot = new or old
        if slot is None:
            return []
        return sorted({slot.name, *(self._mark_misjudged(slot.status.host) if slot.status.host else ())})

    def _mark_misjudged(self, host: str) -> list[str]:
        return self._mark_due(self._overbooked.find_changed_slots(host))

    def _mark_due(self, slots: Iterable[Reservation]) -> list[str]:
        names = sorted(slot.name for slot in slots)
        self.make_due(names)
        return names

    def _forget(self, name: str) -> None:
        self._validated.pop(name, None)
        self._overbooked_since.pop(name, None)
        self._urgent.discard(name)

    async def _validate(self, slot: Reservation) -> Requeue | None:
        try:
            validate_failover_reservation_resources(slot)
        except BadInput as error:
            return await self._set_illegal(slot, str(error))
        if not self._overbooked_reason(slot):
            self._overbooked_since.pop(slot.name, None)
        else:
            now = self._clock.monotonic()
            wait = self._overbooked_since.setdefault(slot.name, now) + OVERBOOKED_S - now
            if wait > 0:
                return Requeue(wait)
        slot = await self._clear_illegal(slot)
        calls: dict[str, Call] = {}
        verdict = await self.ask_verdict(slot, calls)
        try:
            match verdict.finding:
                case Finding.VALID:
                    return await self._record_valid(slot, calls)
                case Finding.TRANSIENT:
                    _log.warning("validation.transient", slot=slot.name, why=verdict.why)
                    self._reporter.report_validation("transient")
                    return self._requeue_later()
                case Finding.MEMBER_INVALID if len(slot.members) > 1:
                    return await self._remove_member(slot, verdict)
                case _:
                    return await self._delete(slot, verdict)
        except Conflict:
            # Somebody changed the slot meanwhile, so the verdict is about another slot: look again.
            return Requeue(0.0)

    async def ask_verdict(self, slot: Reservation, calls: dict[str, Call]) -> SlotVerdict:
        """Ask about every member, by id, up to the first that is not valid; about members that are alike only once.

        A member that was found valid is asked about again once the slot is due, its host changed, or the question is
        another. ``calls`` receives the question about each member.
        """
        host = slot.status.host
        if reason := self._overbooked_reason(slot):
            return SlotVerdict(Finding.NO_ROOM, reason)
        if not slot.members:
            return VALID
        if not host:
            return SlotVerdict(Finding.SLOT_INVALID, "the slot has members but is on no host")
        if why := self._doubt():
            return SlotVerdict(Finding.TRANSIENT, why)
        if reason := unusable_reason(host, self._hosts(host)):
            return SlotVerdict(Finding.SLOT_INVALID, reason)
        if is_unheard(self._hosts(host)):
            return SlotVerdict(Finding.TRANSIENT, f"{host} is not heard of: its slots stay until it is back or dead")
        known = self._validated.get(slot.name)
        trusted = known.calls if known is not None and known.until > self._clock.monotonic() else {}
        asked: dict[Hashable, PlacementOffer] = {}
        for vm_id in sorted(slot.members):
            with request_context(req=vm_id):
                try:
                    vm = await self._locate(vm_id)
                except OutliveError as error:
                    return SlotVerdict(Finding.TRANSIENT, f"VM {vm_id} cannot be looked up: {error}")
                if vm is None:
                    continue
                calls[vm_id] = self._caller.validate(vm, host)
                if trusted.get(vm_id) == calls[vm_id]:
                    continue
                await self._clock.sleep(0)  # placement of this process never waits: others get their turn here
                verdict = await self._member_verdict(vm, host, asked)
            if verdict is not VALID:
                return verdict
        return VALID

    def _overbooked_reason(self, slot: Reservation) -> str:
        """Why there is no room for the slot; empty where there is, or where nobody knows."""
        return "" if self._doubt() else self._overbooked.explain(slot.status.host, slot.name)

    async def _member_verdict(self, vm: VmView, host: str, asked: dict[Hashable, PlacementOffer]) -> SlotVerdict:
        vm_id = vm.id
        if not may_run_on(vm, host):
            return SlotVerdict(Finding.MEMBER_INVALID, f"VM {vm_id} may not run on {host}, by its hostLimit", vm_id)
        try:
            # The answer may have been given about another member already.
            call = self._caller.validate(vm, host, greq=global_request_id())
            key = self._placement.equivalence_key(call)
            if key is None:
                offer = await self._placement.offer(call)
            else:
                if key not in asked:
                    asked[key] = await self._placement.offer(call)
                offer = asked[key]
        except OutliveError as error:
            return SlotVerdict(Finding.TRANSIENT, f"placement cannot be asked about VM {vm_id}: {error}")
        if offer.error:
            return SlotVerdict(Finding.TRANSIENT, f"placement cannot be asked about VM {vm_id}: {offer.error}")
        if not offer.hosts:
            refused = ", ".join(sorted(offer.rejected)) or "placement"
            return SlotVerdict(Finding.MEMBER_INVALID, f"{host} is refused for VM {vm_id} by {refused}", vm_id)
        if host in offer.hosts:
            return VALID
        _log.error("validation.other_host", vm=vm_id, asked=host, answered=list(offer.hosts[:5]))
        why = f"asked about {host}, placement offers {offer.hosts[0]} for VM {vm_id}"
        return SlotVerdict(Finding.MEMBER_INVALID, why, vm_id)

    async def _set_illegal(self, slot: Reservation, why: str) -> Requeue:
        """The slot is not ready; its members and its space stay."""
        ready = find_condition(slot.status.conditions, "Ready")
        if ready is None or ready.status != "False" or ready.reason != INVALID_REASON or ready.message != why:
            await self._writer.set_ready(slot, why)
            self._reporter.slot_event(FailoverEvent.RESOURCES_ILLEGAL, slot.name, slot.metadata.uid, why=why)
        self._reporter.report_validation("illegal-resources")
        return self._requeue_later()

    async def _clear_illegal(self, slot: Reservation) -> Reservation:
        """Withdraw what the condition says of illegal resources, or of room that is there again."""
        ready = find_condition(slot.status.conditions, "Ready")
        if has_no_room(slot):
            return slot if self._overbooked_reason(slot) else await self._writer.set_ready(slot)
        if ready is None or ready.reason != INVALID_REASON:
            return slot
        written = await self._writer.set_ready(slot)
        self._reporter.slot_event(FailoverEvent.RESOURCES_LEGAL, slot.name, slot.metadata.uid)
        return written

    async def _record_valid(self, slot: Reservation, calls: dict[str, Call]) -> Requeue:
        host, members = slot.status.host, len(slot.members)
        self._reporter.slot_event(FailoverEvent.SLOT_VALID, slot.name, slot.metadata.uid, host=host, members=members)
        self._reporter.report_validation("valid")
        failover = slot.status.failover_reservation
        changed = failover.last_changed if failover is not None else None
        acknowledged = failover.acknowledged_at if failover is not None else None
        if changed is not None and (acknowledged is None or acknowledged < changed):
            slot = await self._writer.acknowledge(slot)
        known, now = self._validated.get(slot.name), self._clock.monotonic()
        until = known.until if known is not None and known.until > now else now + self._pause_s()
        self._validated[slot.name] = _ValidatedSlot(state=_state_of(slot), until=until, calls=calls)
        return Requeue(until - now)

    async def _remove_member(self, slot: Reservation, verdict: SlotVerdict) -> Requeue:
        left = {vm: host for vm, host in slot.members.items() if vm != verdict.vm}
        if not await self._remove_members(slot, 1, verdict.why, lambda: self._writer.set_members(slot, left)):
            return self._requeue_later()
        _log.warning("validation.member_removed", slot=slot.name, vm=verdict.vm, why=verdict.why)
        self._reporter.slot_event(
            FailoverEvent.MEMBER_REFUSED, slot.name, slot.metadata.uid, vm=verdict.vm, why=verdict.why
        )
        self._reporter.report_validation("member-invalid")
        return Requeue(0.0)

    async def _delete(self, slot: Reservation, verdict: SlotVerdict) -> Requeue | None:
        """The slot goes; while the brake holds, one without room says that it promises nothing."""
        why = verdict.why
        if await self._remove_members(slot, len(slot.members), why, lambda: self._writer.delete(slot)):
            self._forget(slot.name)
            _log.warning("validation.slot_deleted", slot=slot.name, host=slot.status.host, why=why)
            self._reporter.slot_event(FailoverEvent.SLOT_UNUSABLE, slot.name, slot.metadata.uid, why=why)
            self._reporter.report_validation("slot-invalid")
            return None
        if verdict.finding is not Finding.NO_ROOM:
            return self._requeue_later()
        if not has_no_room(slot):
            await self._writer.set_ready(slot, why, reason=NO_ROOM_REASON)
        return Requeue(self._config.reconcile_interval_s)

    async def _remove_members(
        self, slot: Reservation, members: int, why: str, write: Callable[[], Awaitable[object]]
    ) -> bool:
        """Remove so many members, if the budget allows it; a write that fails gives back what it took from it."""
        if not self._budget.take(members):
            _log.error("validation.braked", slot=slot.name, members=members, why=why)
            self._reporter.report_validation("held-back")
            self._reporter.report_held_back(f"validation of slot {slot.name}", members, self._budget.memberships)
            return False
        try:
            async with self._lock:
                await write()
        except OutliveError:
            self._budget.give_back(members)
            raise
        return True

    def _requeue_later(self) -> Requeue:
        return Requeue(self._pause_s())

    def _pause_s(self) -> float:
        return self._config.revalidation_interval_s * self._random.uniform(1 - JITTER, 1 + JITTER)


def unusable_reason(name: str, host: Hypervisor | None) -> str:
    """Why nobody can be brought up on this host, whatever VM it is; empty where it can be used."""
    if host is None:
        return f"host {name} is unknown"
    why = bad_condition(host)
    return f"host {name} has condition {why}" if why else ""


def is_unheard(host: Hypervisor | None) -> bool:
    """Whether the host is silent or condemned, and not lost: placement refuses it, and its slots are not moved yet."""
    return host is not None and not host.closed_reason() and observed_condition(host) is not None


def _state_of(slot: Reservation) -> str:
    return f"{slot.metadata.uid}/{slot.metadata.resource_version}"


def validity_facts(host: Hypervisor) -> tuple[object, ...]:
    """What the validity of a host's slots rests on; usage and running VMs change all the time and are not in it."""
    status = host.status
    return (
        host.spec,
        host.metadata.labels,
        status.capacity,
        status.effective_capacity,
        status.aggregates,
        status.traits,
        status.capabilities,
        status.domain_capabilities,
        tuple((one.type, one.status) for one in status.conditions),
        status.lost,
        status.domain_state,
    )

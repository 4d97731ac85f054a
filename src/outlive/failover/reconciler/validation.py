"""One slot at a time: are its resources legal, and could each of its members be brought up in it right now?

Asked of placement as an evacuation to the slot's own host, with the member's own size
(docs/reference/failover-operation.md#validation). Three outcomes: *valid* acknowledges the last change; *transient*
(somebody could not be asked) changes nothing; *invalid* takes out the member at fault, or deletes the slot when its
host cannot be used at all or nobody is left. Each run reads the slot anew and its writes replace exactly what was read,
so that it may run beside cycles.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from outlive.base.errors import BadInput, Conflict, NotFound, OutliveError
from outlive.base.logging import get_logger, global_request_id, new_global_request_id, request_context
from outlive.base.random import Random
from outlive.failover.calls import Call, Caller
from outlive.failover.planner.actions import Offer
from outlive.failover.reconciler.context import Context
from outlive.failover.reconciler.writes import INVALID_REASON, SlotWriter
from outlive.failover.rules import validate_failover_reservation_resources
from outlive.failover.slots import NO_ROOM_REASON, OverbookedHosts, has_no_room
from outlive.placement.rules import may_run_on
from outlive.placement.vms import VmView
from outlive.resources import FAILOVER, Hypervisor, Reservation, condition
from outlive.resources.hosts import bad_condition, observed_condition
from outlive.resources.reasons.failover_events import FailoverEvent
from outlive.runtime.controller import Requeue
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


class Verdict(NamedTuple):
    """What was found, and why."""

    finding: Finding
    why: str = ""
    vm: str = ""
    """The member at fault."""


VALID = Verdict(Finding.VALID)


@dataclass(frozen=True, slots=True)
class _Validated:
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
        whose members changed so recently is left to whoever is filling it, and looked at later. ``doubt`` says why the
        caches are not to be believed right now, or nothing."""
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
        self._validated: dict[str, _Validated] = {}
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
            if known is not None and known.state == _state(slot) and known.until > self._clock.monotonic():
                return Requeue(known.until - self._clock.monotonic())
            if slot.status.failover_reservation is None:
                return self._later()
            urgent = key in self._urgent
            self._urgent.discard(key)
            if not urgent and not self._why_overbooked(slot) and (wait := self._settles_in(slot)) > 0:
                return Requeue(wait)
            return await self._look(slot)

    def _settles_in(self, slot: Reservation) -> float:
        """Seconds until the slot's members have not changed for a while. Validation would only get in the way:
        its acknowledgement makes the next member's write meet a ``Conflict``."""
        failover = slot.status.failover_reservation
        if failover is None or failover.last_changed is None:
            return 0.0
        age = self._clock.now() - failover.last_changed.timestamp()
        return self._settle_s - age if 0 <= age < self._settle_s else 0.0

    def due_now(self, slots: Iterable[str]) -> None:
        """Something that their validity rests on changed: the next look at these slots asks placement again."""
        for name in slots:
            self._validated.pop(name, None)
            self._urgent.add(name)

    def of_host(self, old: Hypervisor | None, new: Hypervisor | None) -> list[str]:
        """The slots on a host that came, went, or changed in something that matters; else those of it that have room
        and say otherwise, or have none and promise it.
        """
        host = new or old
        if host is None or old is None:
            return []
        if new is not None and validity_facts(old) == validity_facts(new):
            return self._misjudged(host.name)
        return self._due(self._overbooked.slots_on(host.name))

    def of_slot(self, old: Reservation | None, new: Reservation | None) -> list[str]:
        """The slot itself, and those that lost their room to it, or got it back."""
        slot = new or old
        if slot is None:
            return []
        return sorted({slot.name, *(self._misjudged(slot.status.host) if slot.status.host else ())})

    def _misjudged(self, host: str) -> list[str]:
        return self._due(self._overbooked.changed_on(host))

    def _due(self, slots: Iterable[Reservation]) -> list[str]:
        names = sorted(slot.name for slot in slots)
        self.due_now(names)
        return names

    def _forget(self, name: str) -> None:
        self._validated.pop(name, None)
        self._overbooked_since.pop(name, None)
        self._urgent.discard(name)

    async def _look(self, slot: Reservation) -> Requeue | None:
        try:
            validate_failover_reservation_resources(slot)
        except BadInput as error:
            return await self._illegal(slot, str(error))
        if (wait := self._overbooked_for(slot)) is not None and wait > 0:
            return Requeue(wait)
        slot = await self._legal(slot)
        calls: dict[str, Call] = {}
        verdict = await self.verdict(slot, calls)
        try:
            match verdict.finding:
                case Finding.VALID:
                    return await self._passed(slot, calls)
                case Finding.TRANSIENT:
                    _log.warning("validation.transient", slot=slot.name, why=verdict.why)
                    self._reporter.validated("transient")
                    return self._later()
                case Finding.MEMBER_INVALID if len(slot.members) > 1:
                    return await self._remove_member(slot, verdict)
                case _:
                    return await self._delete(slot, verdict)
        except Conflict:
            # Somebody changed the slot meanwhile, so the verdict is about another slot: look again.
            return Requeue(0.0)

    async def verdict(self, slot: Reservation, calls: dict[str, Call]) -> Verdict:
        """Ask about every member, by id, up to the first that is not valid; about members that are alike only once.

        A member that was found valid is asked about again once the slot is due, its host changed, or the question is
        another. ``calls`` receives the question about each member.
        """
        host = slot.status.host
        if reason := self._why_overbooked(slot):
            return Verdict(Finding.NO_ROOM, reason)
        if not slot.members:
            return VALID
        if not host:
            return Verdict(Finding.SLOT_INVALID, "the slot has members but is on no host")
        if why := self._doubt():
            return Verdict(Finding.TRANSIENT, why)
        if reason := unusable(host, self._hosts(host)):
            return Verdict(Finding.SLOT_INVALID, reason)
        if is_unheard(self._hosts(host)):
            return Verdict(Finding.TRANSIENT, f"{host} is not heard of: its slots stay until it is back or dead")
        known = self._validated.get(slot.name)
        trusted = known.calls if known is not None and known.until > self._clock.monotonic() else {}
        asked: dict[Hashable, Offer] = {}
        for vm_id in sorted(slot.members):
            with request_context(req=vm_id):
                try:
                    vm = await self._locate(vm_id)
                except OutliveError as error:
                    return Verdict(Finding.TRANSIENT, f"VM {vm_id} cannot be looked up: {error}")
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

    def _why_overbooked(self, slot: Reservation) -> str:
        """Why there is no room for the slot; empty where there is, or where nobody knows."""
        return "" if self._doubt() else self._overbooked.why(slot.status.host, slot.name)

    def _overbooked_for(self, slot: Reservation) -> float | None:
        """Seconds until it is believed that there is no room for the slot; ``None`` where there is."""
        if not self._why_overbooked(slot):
            self._overbooked_since.pop(slot.name, None)
            return None
        now = self._clock.monotonic()
        return self._overbooked_since.setdefault(slot.name, now) + OVERBOOKED_S - now

    async def _member_verdict(self, vm: VmView, host: str, asked: dict[Hashable, Offer]) -> Verdict:
        vm_id = vm.id
        if not may_run_on(vm, host):
            return Verdict(Finding.MEMBER_INVALID, f"VM {vm_id} may not run on {host}, by its hostLimit", vm_id)
        try:
            offer = await self._offer(self._caller.validate(vm, host, greq=global_request_id()), asked)
        except OutliveError as error:
            return Verdict(Finding.TRANSIENT, f"placement cannot be asked about VM {vm_id}: {error}")
        if offer.error:
            return Verdict(Finding.TRANSIENT, f"placement cannot be asked about VM {vm_id}: {offer.error}")
        if not offer.hosts:
            refused = ", ".join(sorted(offer.rejected)) or "placement"
            return Verdict(Finding.MEMBER_INVALID, f"{host} is refused for VM {vm_id} by {refused}", vm_id)
        if host in offer.hosts:
            return VALID
        _log.error("validation.other_host", vm=vm_id, asked=host, answered=list(offer.hosts[:5]))
        why = f"asked about {host}, placement offers {offer.hosts[0]} for VM {vm_id}"
        return Verdict(Finding.MEMBER_INVALID, why, vm_id)

    async def _offer(self, call: Call, asked: dict[Hashable, Offer]) -> Offer:
        """Placement's answer, which may have been given about another member already."""
        key = self._placement.likeness(call)
        if key is None:
            return await self._placement.offer(call)
        if key not in asked:
            asked[key] = await self._placement.offer(call)
        return asked[key]

    async def _illegal(self, slot: Reservation, why: str) -> Requeue:
        """The slot is not ready; its members and its space stay."""
        ready = condition(slot.status.conditions, "Ready")
        if ready is None or ready.status != "False" or ready.reason != INVALID_REASON or ready.message != why:
            await self._writer.set_ready(slot, why)
            self._reporter.slot_event(FailoverEvent.RESOURCES_ILLEGAL, slot.name, slot.metadata.uid, why=why)
        self._reporter.validated("illegal-resources")
        return self._later()

    async def _legal(self, slot: Reservation) -> Reservation:
        """Withdraw what the condition says of illegal resources, or of room that is there again."""
        ready = condition(slot.status.conditions, "Ready")
        if has_no_room(slot):
            return slot if self._why_overbooked(slot) else await self._writer.set_ready(slot)
        if ready is None or ready.reason != INVALID_REASON:
            return slot
        written = await self._writer.set_ready(slot)
        self._reporter.slot_event(FailoverEvent.RESOURCES_LEGAL, slot.name, slot.metadata.uid)
        return written

    async def _passed(self, slot: Reservation, calls: dict[str, Call]) -> Requeue:
        host, members = slot.status.host, len(slot.members)
        self._reporter.slot_event(FailoverEvent.SLOT_VALID, slot.name, slot.metadata.uid, host=host, members=members)
        self._reporter.validated("valid")
        if _is_pending(slot):
            slot = await self._writer.acknowledge(slot)
        known, now = self._validated.get(slot.name), self._clock.monotonic()
        until = known.until if known is not None and known.until > now else now + self._pause_s()
        self._validated[slot.name] = _Validated(state=_state(slot), until=until, calls=calls)
        return Requeue(until - now)

    async def _remove_member(self, slot: Reservation, verdict: Verdict) -> Requeue:
        left = {vm: host for vm, host in slot.members.items() if vm != verdict.vm}
        if not await self._removed(slot, 1, verdict.why, lambda: self._writer.set_members(slot, left)):
            return self._later()
        _log.warning("validation.member_removed", slot=slot.name, vm=verdict.vm, why=verdict.why)
        self._reporter.slot_event(
            FailoverEvent.MEMBER_REFUSED, slot.name, slot.metadata.uid, vm=verdict.vm, why=verdict.why
        )
        self._reporter.validated("member-invalid")
        return Requeue(0.0)

    async def _delete(self, slot: Reservation, verdict: Verdict) -> Requeue | None:
        """The slot goes; while the brake holds, one without room says that it promises nothing."""
        why = verdict.why
        if await self._removed(slot, len(slot.members), why, lambda: self._writer.delete(slot)):
            self._forget(slot.name)
            _log.warning("validation.slot_deleted", slot=slot.name, host=slot.status.host, why=why)
            self._reporter.slot_event(FailoverEvent.SLOT_UNUSABLE, slot.name, slot.metadata.uid, why=why)
            self._reporter.validated("slot-invalid")
            return None
        if verdict.finding is not Finding.NO_ROOM:
            return self._later()
        if not has_no_room(slot):
            await self._writer.set_ready(slot, why, reason=NO_ROOM_REASON)
        return Requeue(self._config.reconcile_interval_s)

    async def _removed(self, slot: Reservation, members: int, why: str, write: Callable[[], Awaitable[object]]) -> bool:
        """Remove so many members, if the budget allows it; a write that fails gives back what it took from it."""
        if not self._budget.take(members):
            _log.error("validation.braked", slot=slot.name, members=members, why=why)
            self._reporter.validated("held-back")
            self._reporter.held_back(f"validation of slot {slot.name}", members, self._budget.memberships)
            return False
        try:
            async with self._lock:
                await write()
        except OutliveError:
            self._budget.give_back(members)
            raise
        return True

    def _later(self) -> Requeue:
        return Requeue(self._pause_s())

    def _pause_s(self) -> float:
        return self._config.revalidation_interval_s * self._random.uniform(1 - JITTER, 1 + JITTER)


def _is_pending(slot: Reservation) -> bool:
    """Whether the last change of membership waits for its acknowledgement."""
    failover = slot.status.failover_reservation
    if failover is None or failover.last_changed is None:
        return False
    return failover.acknowledged_at is None or failover.acknowledged_at < failover.last_changed


def unusable(name: str, host: Hypervisor | None) -> str:
    """Why nobody can be brought up on this host, whatever VM it is; empty where it can be used."""
    if host is None:
        return f"host {name} is unknown"
    why = bad_condition(host)
    return f"host {name} has condition {why}" if why else ""


def is_unheard(host: Hypervisor | None) -> bool:
    """Whether the host is silent or condemned, and not lost: placement refuses it, and its slots are not moved yet."""
    return host is not None and not host.closed() and observed_condition(host) is not None


def _state(slot: Reservation) -> str:
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

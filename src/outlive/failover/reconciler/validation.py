"""One slot at a time: are its resources legal, and could each of its members be brought up in it right now?

Asked of placement as an evacuation to the slot's own host, with the member's own size
(docs/reference/failover-operation.md#validation). Three outcomes: *valid* acknowledges the last change; *transient*
(somebody could not be asked) changes nothing; *invalid* takes out the member at fault, or deletes the slot when its
host cannot be used at all or nobody is left. Each run reads the slot anew and its writes replace exactly what was read,
so that it may run beside cycles.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol

from outlive.base.clock import Clock
from outlive.base.errors import BadInput, Conflict, NotFound, OutliveError
from outlive.base.ids import Ids
from outlive.base.logging import get_logger, global_request_id, new_global_request_id, request_context
from outlive.base.random import Random
from outlive.failover.calls import Call, Caller
from outlive.failover.config import FailoverConfig, Profile
from outlive.failover.model import VmView
from outlive.failover.planner.actions import Offer
from outlive.failover.ports import PlacementPort
from outlive.failover.reconciler.budget import RemovalBudget
from outlive.failover.reconciler.writes import INVALID_REASON, SlotWriter
from outlive.failover.report.reporter import Reporter
from outlive.failover.rules import may_run_on, validate_failover_reservation_resources
from outlive.failover.slots import NO_ROOM_REASON, OverbookedHosts, has_no_room
from outlive.resources import FAILOVER, Hypervisor, Reservation, condition
from outlive.resources.hosts import bad_condition
from outlive.resources.reasons.failover_events import FailoverEvent
from outlive.runtime.controller import Requeue
from outlive.store import Store

OVERBOOKED_S = 1.0
"""For so long a host must hold more than it has before a slot goes: what is seen of it may be of two moments."""
HELD = "slot is held"
JITTER = 0.10
"""Validations of one slot are this share of their pause apart, more or less, so that they spread."""

_log = get_logger("failover.validation")


@dataclass(frozen=True, slots=True)
class Valid:
    """Every member could be brought up."""


@dataclass(frozen=True, slots=True)
class Transient:
    """Somebody could not be asked."""

    why: str


@dataclass(frozen=True, slots=True)
class MemberInvalid:
    """One member could not be brought up in the slot."""

    vm: str
    why: str


@dataclass(frozen=True, slots=True)
class SlotInvalid:
    """Nobody could be brought up in the slot."""

    why: str


@dataclass(frozen=True, slots=True)
class NoRoom:
    """VMs have taken the room of the slot."""

    why: str


Verdict = Valid | Transient | MemberInvalid | SlotInvalid | NoRoom


class Locator(Protocol):
    """Where a VM is, by the same word that cycles trust."""

    async def locate(self, vm_id: str) -> VmView | None:
        """The VM, or ``None`` where a cycle would not see it. ``Unavailable`` where that cannot be told."""
        ...


class Hosts(Protocol):
    """Which hosts there are."""

    def get(self, name: str) -> Hypervisor | None:
        """The host, or ``None``."""
        ...


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
        *,
        hosts: Hosts,
        locator: Locator,
        placement: PlacementPort,
        writer: SlotWriter,
        reporter: Reporter,
        budget: RemovalBudget,
        config: FailoverConfig,
        profile: Profile,
        clock: Clock,
        random: Random,
        ids: Ids,
        lock: asyncio.Lock | None = None,
        settle_s: float = 0.0,
        doubt: Callable[[], str] = lambda: "",
        overbooked: OverbookedHosts | None = None,
    ) -> None:
        """``settle_s``: a slot whose members changed so recently is left to whoever is filling it, and looked at later.
        ``doubt`` says why the caches are not to be believed right now, or nothing. ``overbooked``: which slots
        have no room."""
        self._store = store
        self._hosts = hosts
        self._locator = locator
        self._placement = placement
        self._writer = writer
        self._reporter = reporter
        self._budget = budget
        self._config = config.apply_defaults()
        self._caller = Caller(profile=profile)
        self._clock = clock
        self._random = random
        self._ids = ids
        self._lock = lock or asyncio.Lock()
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
                self._validated.pop(key, None)
                self._overbooked_since.pop(key, None)
                self._urgent.discard(key)
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
            match verdict:
                case Valid():
                    return await self._passed(slot, calls)
                case Transient(why=why):
                    _log.warning("validation.transient", slot=slot.name, why=why)
                    self._reporter.validated("transient")
                    return self._later()
                case MemberInvalid(vm=vm, why=why):
                    return await self._member_refused(slot, vm, why)
                case SlotInvalid(why=why):
                    return await self._unusable(slot, why)
                case NoRoom(why=why):
                    return await self._without_room(slot, why)
        except Conflict:
            # Somebody changed the slot meanwhile, so the verdict is about another slot: look again.
            return Requeue(0.0)

    async def verdict(self, slot: Reservation, calls: dict[str, Call]) -> Verdict:
        """Ask about every member, by id, up to the first that is not valid; about members that are alike only once.

        A member that was found valid is asked about again once the slot is due, its host changed, or the question is
        another. ``calls`` receives the question about each member.
        """
        failover = slot.status.failover_reservation
        members = sorted(failover.allocations) if failover else []
        host = slot.status.host
        if reason := self._why_overbooked(slot):
            return NoRoom(reason)
        if not members:
            return Valid()
        if not host:
            return SlotInvalid("the slot has members but is on no host")
        if why := self._doubt():
            return Transient(why)
        if reason := unusable(host, self._hosts.get(host)):
            return SlotInvalid(reason)
        known = self._validated.get(slot.name)
        trusted = known.calls if known is not None and known.until > self._clock.monotonic() else {}
        asked: dict[Hashable, Offer] = {}
        for vm_id in members:
            with request_context(req=vm_id):
                try:
                    vm = await self._locator.locate(vm_id)
                except OutliveError as error:
                    return Transient(f"VM {vm_id} cannot be looked up: {error}")
                if vm is None:
                    continue
                calls[vm_id] = self._caller.validate(vm, host)
                if trusted.get(vm_id) == calls[vm_id]:
                    continue
                await self._clock.sleep(0)  # placement of this process never waits: others get their turn here
                verdict = await self._member_verdict(vm, host, asked)
            if not isinstance(verdict, Valid):
                return verdict
        return Valid()

    def _why_overbooked(self, slot: Reservation) -> str:
        """Why there is no room for the slot; empty where there is, or where nobody can tell."""
        return (
            self._overbooked.why(slot.status.host, slot.name)
            if self._overbooked is not None and not self._doubt()
            else ""
        )

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
            return MemberInvalid(vm_id, f"VM {vm_id} may not run on {host}, by its hostLimit")
        try:
            offer = await self._offer(self._caller.validate(vm, host, greq=global_request_id()), asked)
        except OutliveError as error:
            return Transient(f"placement cannot be asked about VM {vm_id}: {error}")
        if offer.error:
            return Transient(f"placement cannot be asked about VM {vm_id}: {offer.error}")
        if not offer.hosts:
            refused = ", ".join(sorted(offer.rejected)) or "placement"
            return MemberInvalid(vm_id, f"{host} is refused for VM {vm_id} by {refused}")
        if host in offer.hosts:
            return Valid()
        _log.error("validation.other_host", vm=vm_id, asked=host, answered=list(offer.hosts[:5]))
        return MemberInvalid(vm_id, f"asked about {host}, placement offers {offer.hosts[0]} for VM {vm_id}")

    async def _offer(self, call: Call, asked: dict[Hashable, Offer]) -> Offer:
        """Placement's answer, which may have been given about another member already."""
        key = self._placement.likeness(call)
        if key is None:
            return await self._placement.offer(call)
        if key not in asked:
            asked[key] = await self._placement.offer(call)
        return asked[key]

    async def _illegal(self, slot: Reservation, why: str) -> Requeue:
        """The slot keeps its members and its space, and is not ready."""
        ready = condition(slot.status.conditions, "Ready")
        if ready is None or ready.status != "False" or ready.reason != INVALID_REASON or ready.message != why:
            await self._writer.set_ready(slot, False, message=why)
            self._reporter.slot_event(FailoverEvent.RESOURCES_ILLEGAL, slot.name, slot.metadata.uid, why=why)
        self._reporter.validated("illegal-resources")
        return self._later()

    async def _legal(self, slot: Reservation) -> Reservation:
        """Take back what was said of illegal resources, or of room that is there again."""
        ready = condition(slot.status.conditions, "Ready")
        if has_no_room(slot):
            return slot if self._why_overbooked(slot) else await self._writer.set_ready(slot, True, message=HELD)
        if ready is None or ready.reason != INVALID_REASON:
            return slot
        written = await self._writer.set_ready(slot, True, message=HELD)
        self._reporter.slot_event(FailoverEvent.RESOURCES_LEGAL, slot.name, slot.metadata.uid)
        return written

    async def _passed(self, slot: Reservation, calls: dict[str, Call]) -> Requeue:
        failover = slot.status.failover_reservation
        members = len(failover.allocations) if failover else 0
        self._reporter.slot_event(
            FailoverEvent.SLOT_VALID, slot.name, slot.metadata.uid, host=slot.status.host, members=members
        )
        self._reporter.validated("valid")
        if is_pending(slot):
            slot = await self._writer.acknowledge(slot)
        known, now = self._validated.get(slot.name), self._clock.monotonic()
        until = known.until if known is not None and known.until > now else now + self._pause_s()
        self._validated[slot.name] = _Validated(state=_state(slot), until=until, calls=calls)
        return Requeue(until - now)

    async def _member_refused(self, slot: Reservation, vm: str, why: str) -> Requeue | None:
        failover = slot.status.failover_reservation
        left = {one: host for one, host in (failover.allocations if failover else {}).items() if one != vm}
        if not left:
            return await self._unusable(slot, why)
        if not self._may_remove(slot, 1, why):
            return self._later()
        async with self._spending(1):
            await self._writer.set_members(slot, left)
        _log.warning("validation.member_removed", slot=slot.name, vm=vm, why=why)
        self._reporter.slot_event(FailoverEvent.MEMBER_REFUSED, slot.name, slot.metadata.uid, vm=vm, why=why)
        self._reporter.validated("member-invalid")
        return Requeue(0.0)

    async def _unusable(self, slot: Reservation, why: str) -> Requeue | None:
        failover = slot.status.failover_reservation
        members = len(failover.allocations) if failover else 0
        if not self._may_remove(slot, members, why):
            return self._later()
        await self._removed(slot, members, why)
        return None

    async def _removed(self, slot: Reservation, members: int, why: str) -> None:
        async with self._spending(members):
            await self._writer.delete(slot)
        self._overbooked_since.pop(slot.name, None)
        self._validated.pop(slot.name, None)
        _log.warning("validation.slot_deleted", slot=slot.name, host=slot.status.host, why=why)
        self._reporter.slot_event(FailoverEvent.SLOT_UNUSABLE, slot.name, slot.metadata.uid, why=why)
        self._reporter.validated("slot-invalid")

    async def _without_room(self, slot: Reservation, why: str) -> Requeue | None:
        """The slot goes; while the brake holds, it says that it promises nothing."""
        failover = slot.status.failover_reservation
        members = len(failover.allocations) if failover else 0
        if self._may_remove(slot, members, why):
            await self._removed(slot, members, why)
            return None
        if not has_no_room(slot):
            await self._writer.set_ready(slot, False, message=why, reason=NO_ROOM_REASON)
        return Requeue(self._config.reconcile_interval_s)

    def _may_remove(self, slot: Reservation, members: int, why: str) -> bool:
        if self._budget.take(members):
            return True
        _log.error("validation.braked", slot=slot.name, members=members, why=why)
        self._reporter.validated("held-back")
        self._reporter.held_back(f"validation of slot {slot.name}", members, self._budget.memberships)
        return False

    @contextlib.asynccontextmanager
    async def _spending(self, members: int) -> AsyncIterator[None]:
        """The lock to remove so many members; what a failed write did not remove goes back to the budget."""
        try:
            async with self._lock:
                yield
        except OutliveError:
            self._budget.give_back(members)
            raise

    def _later(self) -> Requeue:
        return Requeue(self._pause_s())

    def _pause_s(self) -> float:
        return self._config.revalidation_interval_s * self._random.uniform(1 - JITTER, 1 + JITTER)


def is_pending(slot: Reservation) -> bool:
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


class ValidationKeys:
    """Which slots need a look because a host changed, or what is on it: the keys of watches."""

    def __init__(
        self,
        due_now: Callable[[Iterable[str]], None],
        slots_on: Callable[[str], Iterable[Reservation]],
        overbooked: OverbookedHosts | None = None,
    ) -> None:
        """``due_now`` is told of slots that may be valid no more; ``overbooked``: which slots have no room."""
        self._due_now = due_now
        self._slots_on = slots_on
        self._overbooked = overbooked

    def of_host(self, old: Hypervisor | None, new: Hypervisor | None) -> list[str]:
        """The slots on a host that came, went, or changed in something that matters; else those of it that have room
        and say otherwise, or have none and promise it.
        """
        host = new or old
        if host is None or old is None:
            return []
        if new is not None and validity_facts(old) == validity_facts(new):
            return self._without_room(host.name)
        return self._due(slot for slot in self._slots_on(host.name) if slot.spec.type == FAILOVER)

    def of_slot(self, old: Reservation | None, new: Reservation | None) -> list[str]:
        """The slot itself, and those that lost their room to it, or got it back."""
        slot = new or old
        if slot is None:
            return []
        return sorted({slot.name, *(self._without_room(slot.status.host) if slot.status.host else ())})

    def _without_room(self, host: str) -> list[str]:
        return self._due(self._overbooked.changed_on(host)) if self._overbooked is not None else []

    def _due(self, slots: Iterable[Reservation]) -> list[str]:
        names = sorted(slot.name for slot in slots)
        self._due_now(names)
        return names

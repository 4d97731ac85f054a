"""Whether a batch of changes can be had as a whole, and what it does then.

The ledger holds the capacity of what is decided until the caller commits or reverts it. No project may use it until
then (docs/reference/commitments.md#batches).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from outlive.base import Clock, Ids, as_instant
from outlive.commitments.acceptance import HeadroomOutcome, check_headroom, insufficient_text
from outlive.commitments.batch import (
    Batch,
    BatchPlan,
    dry_run_failed_text,
    dry_run_needs,
    dry_run_timeout_text,
    failed_text,
    steps_of,
    timeout_text,
)
from outlive.commitments.calendar import CalendarInput, RetryInput, list_bookings, retry_at
from outlive.commitments.handover import hand_over
from outlive.commitments.placer import SlotPlacer, build_placed, give_way, lock_slot
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.slots import NewSlot, SlotLimitExceeded
from outlive.commitments.state import SLOT_STATES, Commitment, from_spec, has_slots, is_over
from outlive.commitments.view import CommitmentView
from outlive.placement import blocked_hosts, placed_on, unused_amounts
from outlive.resources import (
    MEMORY,
    CommitmentStep,
    CommittedResource,
    CommittedResourceStatus,
    FlavorGroupSpec,
    ObjectMeta,
    Reservation,
    SlotChange,
)

BATCH: Final = "batch"
"""Who decides what a batch does, before it is committed. One batch is decided at a time."""
TURN_S: Final = 0.02
"""How long a batch is decided before others get their turn."""


class BatchRefusal(msgspec.Struct, frozen=True):
    """Why a batch is refused."""

    reason: str
    retry_at: datetime | None = None
    """When it may be worth another try; absent: nobody knows."""
    timed_out: bool = False
    """Whether it was not decided in time."""


class BatchTimeout(Exception):
    """The time for a batch is over."""


class Accepted(msgspec.Struct, frozen=True):
    """What an accepted batch does."""

    steps: tuple[CommitmentStep, ...] = ()


class BatchDecider:
    """Decides one batch at a time; the caller holds the lock of all placements."""

    def __init__(
        self,
        view: CommitmentView,
        placer: SlotPlacer,
        settings: CommitmentSettings,
        *,
        clock: Clock,
        ids: Ids,
        turn: asyncio.Lock | None = None,
    ) -> None:
        """``turn``: held by the caller, and let go for a moment again and again, so that recovery need not wait for
        a large batch. What is chosen before is in the ledger meanwhile."""
        self._turn = turn
        self._view = view
        self._placer = placer
        self._settings = settings
        self._clock = clock
        self._ids = ids

    async def decide(self, batch: Batch, deadline_s: float) -> Accepted | BatchRefusal:
        """What the batch does, held in the ledger by ``BATCH``, or its refusal, with nothing held.

        ``deadline_s``: when it has taken too long, on the monotonic clock.
        """
        now, view = self._clock.now(), self._view
        groups = view.groups_by_name()
        named = (one.uuid for project in batch.projects for asked in project.resources for one in asked.commitments)
        before = {uuid: cr for uuid in dict.fromkeys(named) if (cr := view.find_commitment(uuid)) is not None}
        plan = steps_of(batch, groups, self._settings, before, now)
        return BatchRefusal(plan.refusal) if plan.refusal else await self.decide_steps(plan, deadline_s)

    async def decide_steps(self, plan: BatchPlan, deadline_s: float) -> Accepted | BatchRefusal:
        """The same of steps that are known already."""
        now, view = self._clock.now(), self._view
        attempt = _Attempt(self, plan, view.groups_by_name(), now)
        try:
            accepted = await attempt.run(deadline_s)
        except BatchTimeout:
            attempt.undo()
            waiting = len(plan.steps) - attempt.done
            return BatchRefusal(timeout_text(self._settings.watch_timeout, waiting), timed_out=True)
        except BaseException:
            attempt.undo()
            raise
        attempt.hold_both()
        if attempt.refused and plan.confirmation:
            attempt.undo()
            at = None if attempt.hopeless else retry_time(plan.steps, view, now)
            return BatchRefusal(failed_text(attempt.refused), at)
        return accepted

    async def try_out(self, batch: Batch, deadline_s: float) -> BatchRefusal | None:
        """Whether there would be capacity for what the batch adds; nothing is left of the question."""
        groups = self._view.groups_by_name()
        plan = dry_run_needs(batch, groups, self._settings)
        if plan.refusal or not plan.needs:
            return BatchRefusal(plan.refusal) if plan.refusal else None
        draw, now = self._ids.new_suffix(8), self._clock.now()
        probes = tuple(
            Commitment(
                uuid=f"dryrun-{draw}-{number}",
                project=need.project,
                domain=need.domain,
                group=need.group,
                zone=batch.zone,
                type=need.type,
                memory_bytes=need.total if need.type == "memory" else 0,
                cores=need.total if need.type == "cores" else 0,
                state="pending",
            )
            for number, need in enumerate(plan.needs)
        )
        attempt = _Attempt(self, BatchPlan(confirmation=True), groups, now)
        try:
            for probe in probes:
                await attempt.accept(probe, (), deadline_s)
        except BatchTimeout:
            waiting = len(probes) - attempt.done
            return BatchRefusal(dry_run_timeout_text(self._settings.watch_timeout, waiting), timed_out=True)
        finally:
            attempt.undo()
        return BatchRefusal(dry_run_failed_text(attempt.refused)) if attempt.refused else None


class _Attempt:
    """One batch, while it is decided."""

    def __init__(self, decider: BatchDecider, plan: BatchPlan, groups: dict[str, FlavorGroupSpec], now: float) -> None:
        self._decider = decider
        self._view = decider._view
        self._placer = decider._placer
        self._settings = decider._settings
        self._clock = decider._clock
        self._plan = plan
        self._groups = groups
        self._now = now
        self._touched: dict[str, Reservation | None] = {}
        """Slots that are there and that the batch changes or gives up: as this, or not at all."""
        self._covered: set[str] = set()
        """VMs that new slots of the batch cover."""
        self._cores: dict[str, CommittedResource] = {}
        """Commitments of cores as the batch wants them, by uuid, as far as they are decided."""
        self._released: frozenset[str] = frozenset()
        """Slots that the batch gives up."""
        self._turn_s = decider._clock.monotonic()
        self.refused: list[tuple[str, str]] = []
        self.hopeless = False
        """Whether something is refused for another reason than room for slots: no time makes that better."""
        self.done = 0

    def undo(self) -> None:
        """The ledger counts nothing of the batch any more."""
        self._placer.fleet.settle_all(BATCH)

    def hold_both(self) -> None:
        """Until it is committed, new slots hold their room, and slots that are there what they held, locked for
        everybody: what the batch gives up or hands over is neither free nor anybody's before it counts."""
        for name, slot in self._touched.items():
            self._placer.fleet.decide(name, BATCH, partial(_lock_place, slot))

    async def run(self, deadline_s: float) -> Accepted:
        """Every step, as far as it can be had; what cannot is in ``refused``."""
        slots = {step.uuid: self._view.list_slots(step.uuid) for step in self._plan.steps}
        handover = hand_over(self._plan.steps, slots, self._now, taken=_SlotNames(self._view))
        # the ledger counts slots that have another owner or size, and not those that go
        changed = {*handover.moved, *handover.cut}
        for name in handover.released:
            self._drop(name)
        for passed in handover.slots.values():
            for slot in passed:
                if slot.name in handover.cut:
                    self._placer.hold(lock_slot(slot), BATCH)
                elif slot.name in changed:
                    self._hold(slot)
        self._released = frozenset(handover.released)
        steps: list[CommitmentStep] = []
        for step in self._plan.steps:
            deleted = [
                SlotChange(name=slot.name, deleted=True) for slot in slots[step.uuid] if slot.name in self._released
            ]
            if step.after is None:
                steps.append(replace(step, slots=tuple(deleted)))
                self.done += 1
                continue
            commitment = from_spec(step.after)
            own = handover.slots.get(step.uuid, ())
            accepted, changes = await self.accept(commitment, own, deadline_s, cut=handover.cut)
            steps.append(replace(step, accepted=accepted, slots=(*deleted, *changes)))
        return Accepted(tuple(steps))

    async def accept(
        self, commitment: Commitment, own: Sequence[Reservation], deadline_s: float, *, cut: Iterable[str] = ()
    ) -> tuple[bool, tuple[SlotChange, ...]]:
        """Whether there is capacity for it, and what becomes of its slots; a refusal goes to ``refused``."""
        await self._give_turn(deadline_s)
        self.done += 1
        if not has_slots(commitment, self._now):
            message = self._lacks_cores(commitment)
            if message:
                self.hopeless = True
                self.refused.append((commitment.uuid, message))
            return commitment.type == "cores" and commitment.state in SLOT_STATES and not message, ()
        group = self._groups[commitment.group]
        try:
            plan = self._view.slot_plan(
                commitment, own, group, self._settings, released=self._released, covered=self._covered
            )
        except SlotLimitExceeded as error:
            self.hopeless = True
            self.refused.append((commitment.uuid, error.message))
            return False, tuple(slot_kept(slot, cut) for slot in own)
        places = (*(one.host for one in plan.create), *(placed_on(slot) for slot in plan.keep))
        if not all(places) and (
            why := self._placer.explain_unresolved(commitment.project, commitment.domain, commitment.group)
        ):
            self.hopeless = True
            self.refused.append((commitment.uuid, why))
            return False, tuple(slot_kept(slot, cut) for slot in own)
        for deleted in plan.delete:
            self._drop(deleted.name)
        kept = [SlotChange(name=one.name, deleted=True) for one in plan.delete]
        made: list[SlotChange] = []
        why, ready = "", 0
        for slot in plan.keep:
            change = slot_kept(slot, cut)
            if not change.host:
                host, why_not = self._place_existing(slot, commitment, group)
                change, why = replace(change, host=host), why or why_not
            kept.append(change)
            ready += bool(change.host)
        for new in plan.create:
            host, why_not = self._place(new, commitment, group)
            if host:
                made.append(slot_made(new, host))
                self._covered.add(new.vm)
            why = why or why_not
            await self._give_turn(deadline_s)
        if ready + len(made) == plan.total:
            return True, (*kept, *made)
        text = insufficient_text(ready + len(made), plan.total)
        self.refused.append((commitment.uuid, f"{text} ({why})" if why else text))
        self._placer.settle_slots((one.name for one in made), BATCH)
        self._covered.difference_update(one.vm for one in made)
        return False, tuple(kept)

    def _place(self, new: NewSlot, commitment: Commitment, group: FlavorGroupSpec) -> tuple[str, str]:
        """The host of the new slot, which the ledger holds from now on, or none with the reason."""
        host, why = new.host, ""
        if not host:
            host, why = self._placer.choose(self._placer.request(new, commitment, group))
        if host:
            self._placer.hold(lock_slot(build_placed(replace(new, host=host), commitment, now=self._now)), BATCH)
        return host, why

    def _place_existing(self, slot: Reservation, commitment: Commitment, group: FlavorGroupSpec) -> tuple[str, str]:
        """The same for a slot that is there and has no host."""
        host, why = self._placer.choose(self._placer.request_for_slot(slot, group))
        if host:
            self._hold(replace(slot, spec=replace(slot.spec, target_host=host)))
        return host, why

    def _lacks_cores(self, commitment: Commitment) -> str:
        """Why a commitment of cores cannot be had; empty where it can, and for what asks for nothing."""
        if commitment.type != "cores" or commitment.state not in SLOT_STATES or not commitment.cores:
            return ""
        mine = {step.uuid for step in self._plan.steps}
        others = [one for one in self._view.informers.commitments.items() if one.spec.commitment_uuid not in mine]
        others += self._cores.values()
        verdict = check_headroom(
            commitment,
            self._view.find_capacity(commitment.group, commitment.zone),
            others,
            now=self._now,
            held=self._view.occupied_cores(commitment, others),
        )
        if verdict.outcome is not HeadroomOutcome.ACCEPTED:
            return verdict.message
        step = next(one for one in self._plan.steps if one.uuid == commitment.uuid) if self._plan.steps else None
        if step is not None and step.after is not None:
            self._cores[commitment.uuid] = CommittedResource(
                metadata=ObjectMeta(name=commitment.uuid),
                spec=step.after,
                status=CommittedResourceStatus(accepted_spec=step.after),
            )
        return ""

    def _hold(self, slot: Reservation) -> None:
        self._touched[slot.name] = slot
        self._placer.hold(slot, BATCH)

    def _drop(self, name: str) -> None:
        self._touched[name] = None
        self._placer.let_go(name, BATCH)

    async def _give_turn(self, deadline_s: float) -> None:
        """Let others work, and place, now and then; ``BatchTimeout``. What the batch changes holds what it held, and
        what it is to hold."""
        at = self._clock.monotonic()
        if at >= deadline_s:
            raise BatchTimeout
        if at - self._turn_s < TURN_S:
            return
        self.hold_both()
        try:
            await give_way(self._decider._turn, self._clock)
        finally:
            for name, slot in self._touched.items():
                if slot is None:
                    self._placer.let_go(name, BATCH)
                else:
                    self._placer.hold(slot, BATCH)
        self._turn_s = self._clock.monotonic()


def _lock_place(wanted: Reservation | None, shown: Reservation | None) -> Reservation | None:
    """The locked slot: on its host, or on the wanted host while it has none."""
    found = shown if shown is not None and blocked_hosts(shown) else wanted
    return lock_slot(found) if found is not None else None


class _SlotNames:
    """Names of slots that exist, to find a free one."""

    def __init__(self, view: CommitmentView) -> None:
        self._reservations = view.informers.reservations

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._reservations.get(name) is not None


def slot_made(new: NewSlot, host: str) -> SlotChange:
    """A new slot as a change says it; without a host one is looked for later."""
    return SlotChange(
        name=new.name,
        host=host,
        flavor=new.flavor,
        memory_bytes=new.memory_bytes,
        cpu_milli=new.cpu_milli,
        vm=new.vm,
    )


def slot_kept(slot: Reservation, cut: Iterable[str] = ()) -> SlotChange:
    """A slot that stays or passes over; one that is cut from another is new."""
    details = slot.spec.committed_resource_reservation
    return SlotChange(
        name=slot.name,
        host=placed_on(slot),
        flavor=details.resource_name if details is not None else "",
        memory_bytes=slot.spec.resources.memory_bytes,
        cpu_milli=slot.spec.resources.cpu_milli,
        kept=slot.name not in cut,
    )


# When a batch that was refused for lack of capacity may be tried again (docs/design/commitment-rules.md#calendar).

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
        own = [slot for uuid in uuids for slot in _slots_in(view, uuid, place)]
        needed = sum(one.memory_bytes for one in commitments) - sum(slot.spec.resources.memory_bytes for slot in own)
        if needed <= 0:
            continue
        at = retry_at(_build_question(view, place, needed, commitments, uuids, now))
        if at is None:
            return None
        found.append(at)
    return max(found, default=None)


def _build_question(
    view: CommitmentView,
    place: Place,
    needed: int,
    commitments: Sequence[Commitment],
    uuids: frozenset[str],
    now: float,
) -> RetryInput:
    capacity = view.find_capacity(*place)
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
        slots = _slots_in(view, one.uuid, place)
        held[one.uuid] = sum(unused_amounts(slot).memory_bytes for slot in slots)
        # where its VMs run there is no room when it ends either: they run on
        by_vms = sum(slot.spec.resources.memory_bytes for slot in slots) - held[one.uuid]
        others[number] = replace(one, memory_bytes=max(0, one.memory_bytes - max(0, by_vms)))
    ends = [one.end for one in commitments]
    known = [as_instant(end) for end in ends if end is not None]
    return RetryInput(
        calendar=CalendarInput(free_bytes=min(free, needed - 1), bookings=list_bookings(others, now, held), now=now),
        memory_bytes=needed,
        until=max(known) if len(known) == len(ends) else None,
    )


def _slots_in(view: CommitmentView, uuid: str, place: Place) -> list[Reservation]:
    """The slots that a commitment has in a flavor group and zone."""
    return [slot for slot in view.list_slots(uuid) if (_group_of(slot), slot.spec.availability_zone) == place]


def _group_of(slot: Reservation) -> str:
    details = slot.spec.committed_resource_reservation
    return details.resource_group if details is not None else ""

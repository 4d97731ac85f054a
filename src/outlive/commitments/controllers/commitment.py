"""Keeps the slots of one commitment what they should be, and says what became of it.

A batch that Limes waits for brings its commitments accepted. Here are all others: those for which capacity is looked
for in the background, those that Limes lists and nobody asked for, those that end, and those whose slots somebody took
away (docs/reference/commitments.md#states).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from msgspec.structs import replace
from prometheus_client.core import GaugeMetricFamily, Metric

from outlive.base import BadInput, Clock, as_datetime, as_instant, get_logger
from outlive.commitments.acceptance import HeadroomOutcome, SlotsOutcome, check_headroom, evaluate, insufficient_text
from outlive.commitments.application import ChangeApplier, build_change
from outlive.commitments.decision import slot_kept, slot_made
from outlive.commitments.domains import DomainNames
from outlive.commitments.names import commitment_name
from outlive.commitments.placer import SlotPlacer, give_way
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.slots import SlotLimitExceeded, SlotPlan
from outlive.commitments.state import (
    ACCEPTED_TEXT,
    OVER_TEXT,
    PLANNED_TEXT,
    READY,
    SLOT_STATES,
    WAITING_FOR_SLOTS,
    Commitment,
    ReadyReason,
    from_spec,
    has_slots,
    is_judged,
    is_over,
    normalise_time,
    reason_over,
    retry_delay,
    set_ready,
    summarise,
)
from outlive.commitments.view import CommitmentView
from outlive.resources import (
    CommittedResource,
    CommittedResourceSpec,
    FlavorGroup,
    FlavorGroupSpec,
    Reservation,
    SlotChange,
    find_condition,
)
from outlive.runtime import Metrics, Requeue

SOON_S: Final = 1.0
"""When a commitment of cores is tried again that waits for the first capacity figures."""
PLACED_AT_ONCE: Final = 16
"""Slots that are placed before others get their turn."""

_log = get_logger("commitments")


class CommitmentController:
    """See the module. ``deciding``: entered by each decision about commitment slots; ``turn``: by each placement."""

    name = "commitments"

    def __init__(
        self,
        view: CommitmentView,
        placer: SlotPlacer,
        applier: ChangeApplier,
        settings: CommitmentSettings,
        *,
        domains: DomainNames,
        deciding: Callable[[], AbstractAsyncContextManager[None]],
        turn: asyncio.Lock,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._view = view
        self._placer = placer
        self._applier = applier
        self._settings = settings
        self._domains = domains
        self._deciding = deciding
        self._turn = turn
        self._clock = clock
        self._in_doubt: dict[str, tuple[SlotChange, ...]] = {}
        """Commitment → what was sent for its slots, while nobody knows whether it is written."""
        self._too_many = metrics.add_counter(
            "committed_resource_slot_limit_rejections_total",
            "Commitments that would need more slots than one may have",
            ("flavor_group", "availability_zone"),
        )

        metrics.register_collector(self._count_unfulfilled)

    def _count_unfulfilled(self) -> Iterator[Metric]:
        """How many commitments wait that nobody may refuse; no series where none does."""
        waiting = Counter(
            (one.spec.flavor_group_name, one.spec.resource_type, one.spec.availability_zone)
            for one in self._view.informers.commitments.items()
            if not one.spec.allow_rejection
            and (found := find_condition(one.status.conditions, READY)) is not None
            and found.reason == ReadyReason.RESERVING
        )
        family = GaugeMetricFamily(
            "committed_resource_unfulfilled",
            "Commitments that wait for capacity and may not be refused",
            labels=("flavor_group", "resource_type", "availability_zone"),
        )
        for labels, count in sorted(waiting.items()):
            family.add_metric(labels, count)
        yield family

    @staticmethod
    def keys_of_slot(old: Reservation | None, new: Reservation | None) -> Iterable[str]:
        """The commitment of a slot that changed."""
        for slot in (old, new):
            details = slot.spec.committed_resource_reservation if slot is not None else None
            if details is not None and details.commitment_uuid:
                yield commitment_name(details.commitment_uuid)

    def keys_of_group(self, old: FlavorGroup | None, new: FlavorGroup | None) -> Iterable[str]:
        """Commitments of a flavor group that appeared, changed or went."""
        if old is not None and new is not None and old.spec == new.spec:
            return ()
        groups = {one.spec.group_name for one in (old, new) if one is not None}
        return [one.name for one in self._view.informers.commitments.items() if one.spec.flavor_group_name in groups]

    async def reconcile(self, key: str) -> Requeue | None:
        """One commitment, by the name of its object."""
        async with self._deciding():
            # show what the store has of slots of which a write failed or was broken off, and hold the others no more
            changes = self._in_doubt.get(key, ())
            await self._applier.show(change.name for change in changes)
            self._settle_changes(changes)
            self._in_doubt.pop(key, None)
            cr = self._view.informers.commitments.get(key)
            if cr is None:
                await self._remove(key, None)
                return None
            name = commitment_name(cr.spec.commitment_uuid)
            if key != name:
                text = f"the object of this commitment is named {name}; delete this one"
                await self._say(cr, ReadyReason.REJECTED, text)
                return None
            requeue = await self._reconcile_commitment(cr)
            requeues, now = [requeue] if requeue is not None else [], self._clock.now()
            for spec in (cr.spec, cr.status.accepted_spec):  # it looks again when one of them ends
                end = normalise_time(spec.end_time) if spec is not None else None
                if end is not None and as_instant(end) > now:
                    requeues.append(Requeue(as_instant(end) - now))
            return min(requeues, key=lambda one: one.after_s, default=None)

    async def _reconcile_commitment(self, cr: CommittedResource) -> Requeue | None:
        now, spec = self._clock.now(), cr.spec
        if is_over(spec, now) or spec.state not in SLOT_STATES:
            await self._remove(cr.name, spec)
            over = is_over(spec, now)
            reason = reason_over(spec) if over else ReadyReason.PLANNED
            await self._say(cr, reason, OVER_TEXT if over else PLANNED_TEXT)
            return None
        rejected = is_judged(find_condition(cr.status.conditions, READY), ReadyReason.REJECTED, cr.metadata.generation)
        try:
            commitment = from_spec(spec, cr.metadata.generation)
        except BadInput as error:
            await self._reject(cr, str(error))
            return None
        if rejected:
            await self._roll_back(cr)
            return None
        return await (
            self._reconcile_cores(cr, commitment)
            if spec.resource_type == "cores"
            else self._reconcile_memory(cr, commitment)
        )

    async def _reconcile_memory(self, cr: CommittedResource, commitment: Commitment) -> Requeue | None:
        group = self._view.groups_by_name().get(commitment.group)
        if group is None or not group.flavors:
            return await self._wait(cr, f"flavor knowledge not ready: flavor group {commitment.group} is not known")
        try:
            plan = self._plan(commitment, group)
        except SlotLimitExceeded as error:
            self._too_many.labels(commitment.group, commitment.zone).inc()
            return await self._fail(cr, error.message)
        why = self._placer.explain_unresolved(commitment.project, commitment.domain, commitment.group)
        if why and any(not one.host for one in plan.create):
            self._domains.want((commitment.domain,))
            return await self._wait(cr, why)
        refusable = _may_be_refused(cr)
        if plan.delete:
            await self._applier.check(cr.name, cr.spec)
        if plan.changes:
            changes, why = await self._place(commitment, group, plan, whole=refusable)
            if why and refusable:
                await self._reject(cr, why)
                return None
            await self._write(cr.name, changes, commitment)
        verdict = evaluate(commitment, self._view.list_slots(commitment.uuid), plan.total)
        match verdict.outcome:
            case SlotsOutcome.READY:
                await self._say(cr, ReadyReason.ACCEPTED, ACCEPTED_TEXT, accepted=True)
                return None
            case SlotsOutcome.FAILED:
                text = f"{verdict.message} ({verdict.first})" if verdict.first else verdict.message
                return await self._fail(cr, text)
            case SlotsOutcome.PENDING:
                await self._say(cr, ReadyReason.RESERVING, WAITING_FOR_SLOTS, restart=True)
                return None

    def _plan(self, commitment: Commitment, group: FlavorGroupSpec) -> SlotPlan:
        return self._view.slot_plan(commitment, self._view.list_slots(commitment.uuid), group, self._settings)

    async def _place(
        self, commitment: Commitment, group: FlavorGroupSpec, plan: SlotPlan, *, whole: bool
    ) -> tuple[list[SlotChange], str]:
        """What to write, held in the ledger; where not all slots have a host, why not. With ``whole`` nothing is held
        then."""
        patched = set(plan.patched)
        changes = [SlotChange(name=one.name, deleted=True) for one in plan.delete]
        changes += [slot_kept(slot) for slot in plan.keep if slot.name in patched]
        why, found = "", sum(bool(slot.spec.target_host) for slot in plan.keep)
        now = self._clock.now()
        try:
            async with self._turn:
                for number, new in enumerate(plan.create, 1):
                    host, why_not = new.host, ""
                    if not host:
                        host, why_not = self._placer.choose(self._placer.request(new, commitment, group))
                    if host:
                        wanted = build_change(slot_made(new, host), commitment, now)
                        self._placer.fleet.decide(new.name, self.name, wanted)
                        found += 1
                    why = why or why_not
                    changes.append(slot_made(new, host))
                    if number % PLACED_AT_ONCE == 0:
                        await give_way(self._turn, self._clock)
        except BaseException:
            self._settle_changes(changes)
            raise
        if why and whole:
            self._settle_changes(changes)
            return [], f"{insufficient_text(found, plan.total)} ({why})"
        return changes, why

    async def _reconcile_cores(self, cr: CommittedResource, commitment: Commitment) -> Requeue | None:
        view, now = self._view, self._clock.now()
        verdict = check_headroom(
            commitment,
            view.find_capacity(commitment.group, commitment.zone),
            view.informers.commitments.items(),
            now=now,
            held=view.occupied_cores(commitment, view.informers.commitments.items()),
        )
        match verdict.outcome:
            case HeadroomOutcome.ACCEPTED:
                await self._say(cr, ReadyReason.ACCEPTED, ACCEPTED_TEXT, accepted=True)
                return None
            case HeadroomOutcome.REFUSED:
                return await self._fail(cr, verdict.message)
            case HeadroomOutcome.WAITING:
                if cr.status.accepted_spec != cr.spec:
                    await self._say(cr, ReadyReason.RESERVING, verdict.message)
                return Requeue(SOON_S) if cr.spec.allow_rejection else Requeue(self._settings.requeue_interval_retry)

    async def _fail(self, cr: CommittedResource, message: str) -> Requeue | None:
        if not _may_be_refused(cr):
            return await self._wait(cr, message)
        await self._reject(cr, message)
        return None

    async def _wait(self, cr: CommittedResource, message: str) -> Requeue:
        """Say why it waits, and try again later."""
        settings = self._settings
        delay = retry_delay(
            find_condition(cr.status.conditions, READY),
            self._clock.now(),
            settings.requeue_interval_retry,
            settings.max_requeue_interval,
        )
        await self._say(cr, ReadyReason.RESERVING, message)
        return Requeue(delay)

    async def _reject(self, cr: CommittedResource, message: str) -> None:
        """Refuse it; what was accepted before stays."""
        await self._roll_back(cr)
        await self._say(cr, ReadyReason.REJECTED, message)
        _log.info("commitment.rejected", commitment=cr.spec.commitment_uuid, why=message)

    async def _roll_back(self, cr: CommittedResource) -> None:
        """The slots are those of what was accepted last; none, if nothing was."""
        accepted = cr.status.accepted_spec
        commitment = from_spec(accepted, cr.metadata.generation) if accepted is not None else None
        group = self._view.groups_by_name().get(commitment.group) if commitment is not None else None
        if commitment is None or not has_slots(commitment, self._clock.now()):
            await self._remove(cr.name, cr.spec)
            return
        if group is None:
            return  # it keeps what it has until its group is known again
        plan = self._plan(commitment, group)
        if not plan.changes:
            return
        if plan.delete:
            await self._applier.check(cr.name, cr.spec)
        changes, _ = await self._place(commitment, group, plan, whole=False)
        await self._write(cr.name, changes, commitment)

    async def _write(self, name: str, changes: Sequence[SlotChange], commitment: Commitment) -> None:
        """Write the slots, whose places are held until it is known what the store has of them."""
        self._in_doubt[name] = tuple(changes)
        await self._applier.write_slots(changes, commitment, "")
        self._settle_changes(self._in_doubt.pop(name))

    def _settle_changes(self, changes: Iterable[SlotChange]) -> None:
        self._placer.settle_slots((change.name for change in changes), self.name)

    async def _remove(self, name: str, spec: CommittedResourceSpec | None) -> None:
        """Delete all slots of a commitment that looks like this, or is gone, unless only our cache says so."""
        gone = [SlotChange(name=slot.name, deleted=True) for slot in self._view.slots_of(name)]
        if gone:
            await self._applier.check(name, spec)
            await self._applier.delete_slots(gone)

    async def _say(
        self, cr: CommittedResource, reason: ReadyReason, message: str, *, accepted: bool = False, restart: bool = False
    ) -> None:
        generation = cr.metadata.generation

        def change(found: CommittedResource | None) -> CommittedResource | None:
            if found is None or found.metadata.generation != generation:
                return None
            now = self._clock.now()
            before = find_condition(found.status.conditions, READY)
            if is_judged(before, reason, generation) and before is not None and before.message == message:
                return None
            conditions = set_ready(
                found.status.conditions,
                ready=accepted,
                reason=reason,
                message=message,
                generation=generation,
                now=now,
                restart=restart,
            )
            status = replace(found.status, conditions=conditions)
            if accepted:
                status = replace(status, accepted_spec=found.spec, accepted_at=as_datetime(now))
            found = replace(found, status=status)
            return replace(found, status=replace(status, status_summary=summarise(found, now)))

        await self._applier.write_status(cr.name, change)


def _may_be_refused(cr: CommittedResource) -> bool:
    """Whether a failure refuses it: its sender allows that, and it was not accepted as it is."""
    return cr.spec.allow_rejection and cr.status.accepted_spec != cr.spec

"""Writes what a committed change says: commitments first, then their slots, then that they are accepted.

Every write can be repeated, and every one may be the last before a crash: the change says what is still missing. Others
write the status of the same objects meanwhile, so each write starts from what the store holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Final

from msgspec.structs import replace

from outlive.base import Clock, Conflict, NotFound, OutliveError, Unavailable, as_datetime
from outlive.commitments.handover import hand_over_slot
from outlive.commitments.names import commitment_name
from outlive.commitments.placer import SlotPlacer, build_placed, status_of
from outlive.commitments.slots import NewSlot, synchronise_slot
from outlive.commitments.state import (
    ACCEPTED_TEXT,
    Commitment,
    ReadyReason,
    from_spec,
    set_ready,
    summarise,
)
from outlive.commitments.view import CommitmentView
from outlive.placement import Change
from outlive.resources import (
    REQUEST_ID_ANNOTATION,
    CommitmentStep,
    CommittedResource,
    CommittedResourceSpec,
    CommittedStatus,
    ObjectMeta,
    R,
    Reservation,
    SlotChange,
)
from outlive.runtime import Informer, OrderedTaskGroup
from outlive.store import Half, Store, compare_and_swap, read, require_answer

WRITERS: Final = 64
"""Commitments that are written at the same time."""
SLOT_WRITERS: Final = 16
"""Slots of one commitment that are written at the same time."""
Job = Callable[[], Awaitable[None]]
StatusChange = Callable[[CommittedResource | None], CommittedResource | None]


class ChangeApplier:
    """See the module."""

    def __init__(
        self,
        store: Store,
        view: CommitmentView,
        placer: SlotPlacer,
        *,
        clock: Clock,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._leads = leads
        self._store = store
        self._view = view
        self._placer = placer
        self._clock = clock

    def hold(self, steps: Iterable[CommitmentStep], by: Hashable, *, instead_of: Hashable = None) -> None:
        """The ledger counts the slots of these steps as they will be, until ``by`` settles that."""
        now = self._clock.now()
        for step in steps:
            commitment = from_spec(step.after) if step.after is not None else None
            for change in step.slots:
                if change.deleted or commitment is not None:
                    wanted = build_change(change, commitment, now)
                    self._placer.fleet.decide(change.name, by, wanted, instead_of=instead_of)

    def settle(self, by: Hashable) -> None:
        """Forget what ``by`` decided: the store has it, or the decision was reverted."""
        self._placer.fleet.settle_all(by)

    async def check(self, name: str, spec: CommittedResourceSpec | None) -> None:
        """``Conflict`` unless the store has this commitment as somebody has seen it; ``None``: it has none."""
        found = await read(self._store, CommittedResource, name)
        if (found.spec if found is not None else None) != spec:
            raise Conflict(f"{name} has changed meanwhile", remedy="the next look sees how")

    async def apply(self, steps: Iterable[CommitmentStep], *, request_id: str) -> None:
        """Write everything; an error of the store leaves the rest for another call."""
        await run_parallel(partial(self._step, step, request_id) for step in steps)

    async def _step(self, step: CommitmentStep, request_id: str) -> None:
        wanted, name = step.after, commitment_name(step.uuid)
        if wanted is None:
            await self._delete(CommittedResource, name, self._view.informers.commitments)
            await self.delete_slots(step.slots)
            return

        def change(found: CommittedResource | None) -> CommittedResource | None:
            if found is None:
                meta = ObjectMeta(name=name, annotations={REQUEST_ID_ANNOTATION: request_id} if request_id else {})
                return CommittedResource(metadata=meta, spec=wanted)
            if found.spec == wanted:
                return None
            annotations = {**found.metadata.annotations}
            if request_id:
                annotations[REQUEST_ID_ANNOTATION] = request_id
            return replace(found, metadata=replace(found.metadata, annotations=annotations), spec=wanted)

        written = await self._swap(CommittedResource, name, change, self._view.informers.commitments, "spec")
        assert written is not None
        await self.write_slots(step.slots, from_spec(wanted, written.metadata.generation), request_id)
        if step.accepted:
            await self._accept(written)

    async def write_slots(self, changes: Iterable[SlotChange], commitment: Commitment, request_id: str) -> None:
        """Delete slots of a commitment, then hand over and make others."""
        changes = list(changes)
        await self.delete_slots(change for change in changes if change.deleted)
        there = (change for change in changes if not change.deleted)
        await run_parallel(
            (partial(self._write_slot, change, commitment, request_id) for change in there), limit=SLOT_WRITERS
        )

    async def show(self, names: Iterable[str]) -> None:
        """Read these slots, and let the cache show what the store has of them."""
        cache = self._view.informers.reservations
        for name in names:
            found, shown = await read(self._store, Reservation, name), cache.get(name)
            if found is not None:
                cache.note(found)
            elif shown is not None:
                cache.note_deleted(shown.ref)

    async def delete_slots(self, slots: Iterable[SlotChange]) -> None:
        """Delete these slots."""
        cache = self._view.informers.reservations
        await run_parallel((partial(self._delete, Reservation, slot.name, cache) for slot in slots), limit=SLOT_WRITERS)

    async def write_status(self, name: str, change: StatusChange) -> None:
        """Change the status of a commitment's object."""
        await self._swap(CommittedResource, name, change, self._view.informers.commitments, "status")

    async def write_statuses(self, changes: Mapping[str, StatusChange]) -> None:
        """Change the status of many, by the names of their objects; an error of the store leaves the rest."""
        await run_parallel(partial(self.write_status, name, change) for name, change in changes.items())

    async def _write_slot(self, change: SlotChange, commitment: Commitment, request_id: str) -> None:
        def change_spec(found: Reservation | None) -> Reservation | None:
            wanted = _apply_change(found, change, commitment, self._clock.now(), request_id)
            return None if found is not None and found.spec == wanted.spec else wanted

        def change_status(found: Reservation | None) -> Reservation | None:
            if found is None or not found.spec.target_host:
                return None
            if not found.status.conditions:
                return replace(found, status=status_of(found, commitment.generation))
            seen = found.status.committed_resource_reservation or CommittedStatus()
            seen = replace(seen, observed_parent_generation=commitment.generation)
            return replace(found, status=replace(found.status, committed_resource_reservation=seen))

        cache = self._view.informers.reservations
        await self._swap(Reservation, change.name, change_spec, cache, "spec")
        await self._swap(Reservation, change.name, change_status, cache, "status")

    async def _accept(self, written: CommittedResource) -> None:
        generation = written.metadata.generation

        def change(found: CommittedResource | None) -> CommittedResource | None:
            if found is None or found.metadata.generation != generation:
                return None
            now = self._clock.now()
            conditions = set_ready(
                found.status.conditions,
                ready=True,
                reason=ReadyReason.ACCEPTED,
                message=ACCEPTED_TEXT,
                generation=generation,
                now=now,
            )
            if conditions == found.status.conditions:
                return None
            status = replace(
                found.status, accepted_spec=found.spec, accepted_at=as_datetime(now), conditions=conditions
            )
            found = replace(found, status=status)
            return replace(found, status=replace(status, status_summary=summarise(found, now)))

        name = written.metadata.name
        await self._swap(CommittedResource, name, change, self._view.informers.commitments, "status")

    async def _swap(
        self, kind: type[R], name: str, change: Callable[[R | None], R | None], cache: Informer[R], half: Half
    ) -> R | None:
        """``compare_and_swap``, first against what the cache shows; the cache shows what was written."""

        def check_and_change(found: R | None) -> R | None:
            self._check_leads()
            return change(found)

        return await swap_cached(self._store, kind, name, check_and_change, cache, half, clock=self._clock)

    def _check_leads(self) -> None:
        """Before each write: a process that stood still may have been followed by another one, which has gone on."""
        if not self._leads():
            raise Unavailable("this process does not lead any more", remedy="the one that leads does it")

    async def _delete(self, kind: type[R], name: str, cache: Informer[R]) -> None:
        self._check_leads()
        shown = cache.get(name)
        try:
            with require_answer(f"the deletion of {name}"):
                found = shown if shown is not None else await self._store.get(kind, name, fresh=True)
                await self._store.delete(found.ref, uid=found.metadata.uid)
        except NotFound:
            return
        cache.note_deleted(found.ref)


async def run_parallel(jobs: Iterable[Job], *, limit: int = WRITERS, to_the_end: bool = False) -> None:
    """Do everything, so many jobs at a time; the first error ends it, or is raised after the rest (``to_the_end``)."""
    free, errors = asyncio.Semaphore(limit), list[OutliveError]()

    async def run_job(job: Job) -> None:
        async with free:
            try:
                await job()
            except OutliveError as error:
                if not to_the_end:
                    raise
                errors.append(error)

    try:
        async with OrderedTaskGroup() as group:
            for job in jobs:
                group.create_task(run_job(job))
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    if errors:
        raise errors[0]


async def swap_cached(
    store: Store,
    kind: type[R],
    name: str,
    change: Callable[[R | None], R | None],
    cache: Informer[R],
    half: Half,
    *,
    clock: Clock,
) -> R | None:
    """``compare_and_swap`` that starts from what the cache shows, and shows there what was written."""
    return await compare_and_swap(store, kind, name, change, clock=clock, half=half, cache=cache.get, note=cache.note)


def build_change(change: SlotChange, commitment: Commitment | None, now: float) -> Change:
    """What a slot will be once the change is written, whatever the store shows of it; no commitment: it is gone."""
    if change.deleted or commitment is None:
        return lambda _shown: None
    asked = commitment

    def apply(shown: Reservation | None) -> Reservation:
        slot = _apply_change(shown, change, asked, now, "")
        if slot.spec.target_host and not slot.status.conditions:  # its status is written after its spec
            return replace(slot, status=status_of(slot, asked.generation))
        return slot

    return apply


def _apply_change(
    found: Reservation | None, change: SlotChange, commitment: Commitment, now: float, request_id: str
) -> Reservation:
    """The slot as the change wants it: handed to the commitment if it is there, else made."""
    if found is not None:
        slot = synchronise_slot(hand_over_slot(found, commitment, change.memory_bytes), commitment)
        if slot.spec.target_host or not change.host:
            return slot
        return replace(slot, spec=replace(slot.spec, target_host=change.host))
    new = NewSlot(
        name=change.name,
        flavor=change.flavor,
        memory_bytes=change.memory_bytes,
        cpu_milli=change.cpu_milli,
        host=change.host,
        vm=change.vm,
    )
    return build_placed(new, commitment, now=now, request_id=request_id)

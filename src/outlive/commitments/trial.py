"""A copy of a cluster in memory, on which commitments are decided as the server decides them. Nothing else is written.

It answers what would become of a batch, why a commitment has no capacity, and what is left to sell, from any set of
objects: those of a store, of a state file, or of a cluster that somebody imagines.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import Final

from msgspec.structs import replace

from outlive.base import Clock, Ids, Random
from outlive.commitments.application import ChangeApplier
from outlive.commitments.batch import Batch, BatchPlan
from outlive.commitments.capacity import CapacityTable, EngineProbe
from outlive.commitments.capacity_status import capacity_status, committed_slots
from outlive.commitments.decision import BATCH, Accepted, BatchDecider, BatchRefusal
from outlive.commitments.explanation import (
    ExplanationInput,
)
from outlive.commitments.names import capacity_name
from outlive.commitments.placer import SlotPlacer
from outlive.commitments.records import BY_PROJECT, project_of
from outlive.commitments.running_vms import RunningVms
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.shortage import Shortage
from outlive.commitments.state import Commitment, is_over
from outlive.commitments.survival import Unfilled, find_unfilled_after_loss
from outlive.commitments.view import CommitmentInformers, CommitmentView, commitment_indexes, slot_indexes
from outlive.commitments.vm_table import VmTable
from outlive.placement import Engine, Fleet, VmList, VmView
from outlive.resources import (
    CommitmentChange,
    CommitmentStep,
    CommittedResource,
    Condition,
    FlavorGroup,
    FlavorGroupCapacity,
    FlavorGroupCapacitySpec,
    Hypervisor,
    ObjectMeta,
    ProjectQuota,
    R,
    Reservation,
    Resource,
    SlotChange,
    VirtualMachine,
)
from outlive.runtime import Informer
from outlive.store import MemoryStore

READ: Final[tuple[type[Resource], ...]] = (CommittedResource, Reservation, Hypervisor, FlavorGroup)
"""The kinds that a trial reads of its objects."""


class _Listing:
    """A list of VMs as a source."""

    def __init__(self, vms: Iterable[VmView]) -> None:
        self._vms = {vm.id: vm for vm in vms}

    async def list_vms(self) -> VmList:
        """All of them."""
        return VmList(vms=tuple(self._vms.values()))

    async def get_vm(self, vm_id: str) -> VmView | None:
        """One of them."""
        return self._vms.get(vm_id)


def _follow(fleet: Fleet, old: Reservation | None, new: Reservation | None) -> None:
    """The fleet has the reservations that the copy of the store has."""
    if new is not None:
        fleet.upsert_reservation(new)
    elif old is not None:
        fleet.remove_reservation(old.name)


class Trial:
    """See the module; made by ``open_trial``."""

    def __init__(
        self,
        engine: Engine,
        view: CommitmentView,
        settings: CommitmentSettings,
        store: MemoryStore,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self.view = view
        self.settings = settings
        self._engine = engine
        self._store = store
        self._clock = clock
        self._placer = SlotPlacer(engine, settings)
        self._applier = ChangeApplier(store, view, self._placer, clock=clock)
        self._decider = BatchDecider(view, self._placer, settings, clock=clock, ids=ids)

    # -- decisions -------------------------------------------------------------------------------------

    async def change(self, batch: Batch) -> str:
        """Decide a batch and carry it out in the copy; why it is refused, or nothing."""
        return await self._carry_out(await self._decider.decide(batch, inf))

    async def keep(self, cr: CommittedResource) -> str:
        """Give a commitment the slots that it misses, in the copy, whether it is there or new; why that is not
        possible, or nothing."""
        if cr.spec.flavor_group_name not in self.view.groups_by_name():
            return f"flavor group not found: {cr.spec.flavor_group_name}"
        before = self.view.find_commitment(cr.spec.commitment_uuid)
        step = CommitmentStep(
            uuid=cr.spec.commitment_uuid, before=before.spec if before is not None else None, after=cr.spec
        )
        plan = BatchPlan(confirmation=True, steps=(step,))
        return await self._carry_out(await self._decider.decide_steps(plan, inf))

    async def end_until(self, instant: float) -> None:
        """Commitments that are over by then are gone, with their slots. What their VMs use they use on."""
        steps = [
            CommitmentStep(
                uuid=one.spec.commitment_uuid,
                before=one.spec,
                slots=tuple(SlotChange(name=slot.name, deleted=True) for slot in self.view.slots_of(one.name)),
            )
            for one in self.view.informers.commitments.items()
            if is_over(one.spec, instant)
        ]
        await self._applier.apply(steps, request_id="")

    async def _carry_out(self, decided: Accepted | BatchRefusal) -> str:
        if isinstance(decided, BatchRefusal):
            return decided.reason
        await self._applier.apply(decided.steps, request_id="")
        self._applier.settle(BATCH)
        return ""

    async def find_unfilled(self) -> list[Unfilled]:
        """The confirmed commitments that could not be filled after the loss of any one host, by host."""
        found: list[Unfilled] = []
        for host in self.view.informers.hypervisors.items():
            found.extend(find_unfilled_after_loss(host.name, self.view, self._placer, self._clock.now()))
            await asyncio.sleep(0)
        return found

    # -- capacity --------------------------------------------------------------------------------------

    def compute_capacities(self) -> list[FlavorGroupCapacity]:
        """What every flavor group has in every zone, as the capacity controller would write it."""
        settings, now = self.settings, self._clock.now()
        groups = self.view.groups_by_name()
        total, placeable = settings.capacity_total_pipeline, settings.capacity_placeable_pipeline
        table = CapacityTable(self._engine.fleet, EngineProbe(self._engine, total=total, placeable=placeable))
        found = table.refresh(tuple(groups.values()))
        running = RunningVms()
        for vm in self.view.vms.vms_by_id().values():
            running.put(vm, host_zone=self.view.zone_of(vm.host))
        committed = committed_slots(self.view.informers.commitments.items(), groups.values(), now)
        made: list[FlavorGroupCapacity] = []
        for (group, zone), one in sorted(found.items()):
            ready = Condition(type="Ready", status="False" if one.failed else "True", message=one.failed)
            capacity = FlavorGroupCapacity(
                metadata=ObjectMeta(name=capacity_name(group, zone)),
                spec=FlavorGroupCapacitySpec(flavor_group=group, availability_zone=zone),
            )
            status = capacity.status
            if not one.failed:
                status = capacity_status(
                    one, groups[group], committed_slots=committed.get((group, zone), 0), running=running
                )
            made.append(replace(capacity, status=replace(status, conditions=(ready,))))
        return made

    def collect_facts(self, commitment: Commitment) -> ExplanationInput:
        """What an explanation of the commitment rests on: of one that is there, or of one that somebody asks for."""
        gathering = Shortage(self.view, self._placer, self._engine, self.settings)
        return gathering.collect_facts(commitment, self._clock.now())


@asynccontextmanager
async def open_trial(
    objects: Iterable[Resource],
    *,
    engine: Engine,
    vms: Iterable[VmView],
    settings: CommitmentSettings,
    clock: Clock,
    ids: Ids,
) -> AsyncIterator[Trial]:
    """A trial while the block runs. ``engine``: over a fleet with these hosts and reservations, which the trial has
    for itself. Of the objects only those of ``READ`` count; capacity is computed anew."""
    store = MemoryStore(clock, ids)
    store.load(one for one in objects if isinstance(one, READ))
    random = Random(0)

    def make_informer(kind: type[R], indexes: Mapping[str, object] | None = None) -> Informer[R]:
        return Informer(store, kind, clock=clock, random=random, indexes=indexes)  # type: ignore[arg-type]

    informers = CommitmentInformers(
        commitments=make_informer(CommittedResource, commitment_indexes()),
        reservations=make_informer(Reservation, slot_indexes()),
        hypervisors=make_informer(Hypervisor),
        groups=make_informer(FlavorGroup),
        capacities=make_informer(FlavorGroupCapacity),
        quotas=make_informer(ProjectQuota, {BY_PROJECT: project_of}),
        changes=make_informer(CommitmentChange),
    )
    table = VmTable(make_informer(VirtualMachine), _Listing(vms), clock=clock)
    await table.refresh()
    made = Trial(engine, CommitmentView(informers, table, engine.fleet), settings, store, clock, ids)
    running = [asyncio.create_task(one.run(), name=one.name) for one in informers.list_all()]
    try:
        for one in informers.list_all():
            await one.wait_synced()
        informers.reservations.subscribe(partial(_follow, engine.fleet), replay=False)
        for capacity in made.compute_capacities():
            created = await store.create(capacity)
            informers.capacities.note(await store.replace_status(replace(created, status=capacity.status)))
        yield made
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
        await store.close()

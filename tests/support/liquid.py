"""A LIQUID service over a real store, for tests. The test decides batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from outlive.base import Random, SystemClock, SystemIds
from outlive.commitments import (
    BY_PROJECT,
    EVERY_GROUP,
    Answered,
    Batch,
    BatchRefusal,
    Catalogue,
    CommitmentService,
    CommitmentSettings,
    GroupSettings,
    InformedRecords,
    LiquidMetrics,
    RamSettings,
    ResourceSettings,
    project_of,
)
from outlive.placement import VmView
from outlive.resources import (
    Amounts,
    CommittedResource,
    Condition,
    FlavorCapacity,
    FlavorGroup,
    FlavorGroupCapacity,
    FlavorGroupCapacitySpec,
    FlavorGroupCapacityStatus,
    FlavorGroupSpec,
    GroupFlavor,
    ObjectMeta,
    ProjectQuota,
)
from outlive.runtime import EventRecorder, Informer, Metrics
from outlive.store import MemoryStore, Store

GIB = 2**30
EVERYTHING = GroupSettings(
    ram=RamSettings(handles_commitments=True, handles_dry_run=True, has_capacity=True, has_quota=True),
    cores=ResourceSettings(handles_dry_run=True, has_capacity=True),
    instances=ResourceSettings(has_capacity=True),
)
SETTINGS = CommitmentSettings(flavor_group_resources={EVERY_GROUP: EVERYTHING})


def flavor(name: str, vcpus: int, gib: int) -> GroupFlavor:
    return GroupFlavor(name=name, vcpus=vcpus, memory_mb=gib * 1024)


def fixed_group(name: str = "s4") -> FlavorGroupSpec:
    """16 GiB for each core; the smallest flavor has 240 GiB."""
    flavors = (flavor(f"{name}_c120_m1920", 120, 1920), flavor(f"{name}_c15_m240", 15, 240))
    return FlavorGroupSpec(
        group_name=name, flavors=flavors, largest_flavor=flavors[0], smallest_flavor=flavors[1], ram_core_ratio=16384
    )


def variable_group(name: str = "g2") -> FlavorGroupSpec:
    """2 to 4 GiB for each core, in units of 1 GiB. The smallest flavor lacks 16 MiB of 2 GiB."""
    small = GroupFlavor(name=f"{name}_c1_m2", vcpus=1, memory_mb=2032, extra_specs={"hw_video:ram_max_mb": "16"})
    flavors = (flavor(f"{name}_c4_m16", 4, 16), small)
    return FlavorGroupSpec(
        group_name=name,
        flavors=flavors,
        largest_flavor=flavors[0],
        smallest_flavor=small,
        ram_core_ratio_min=2032,
        ram_core_ratio_max=4096,
    )


def capacity(
    group: str, zone: str, *, ready: bool = True, running: dict[str, int] | None = None, **status: object
) -> FlavorGroupCapacity:
    """What a group has in a zone; ``running``: flavor → VMs."""
    counts = running or {}
    return FlavorGroupCapacity(
        metadata=ObjectMeta(name=f"{group}-{zone}"),
        spec=FlavorGroupCapacitySpec(flavor_group=group, availability_zone=zone),
        status=FlavorGroupCapacityStatus(
            flavors=tuple(FlavorCapacity(flavor_name=name, running_vms=count) for name, count in counts.items()),
            running_instances=sum(counts.values()),
            conditions=(Condition(type="Ready", status="True" if ready else "False"),),
            **status,  # type: ignore[arg-type]
        ),
    )


def amounts(*, cores: int, gib: int) -> Amounts:
    return Amounts({"cores": cores, "memory": gib * GIB})


@dataclass
class Decider:
    """Decides batches as the test says, and remembers them."""

    answers: list[BatchRefusal | Exception | None] = field(default_factory=list)
    """One for each batch; afterwards all are accepted."""
    gate: asyncio.Event | None = None
    """A batch is decided once this is set."""
    batches: list[tuple[Batch, str, str]] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    began: asyncio.Event = field(default_factory=asyncio.Event)
    gave_up: asyncio.Event = field(default_factory=asyncio.Event)
    at_once: int = 0
    most_at_once: int = 0

    async def recall(self, request_id: str, digest: str) -> Answered | None:
        return None

    async def change(
        self, batch: Batch, *, request_id: str, requested_by: str, digest: str = ""
    ) -> BatchRefusal | None:
        self.batches.append((batch, request_id, requested_by))
        self.digests.append(digest)
        self.began.set()
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.gate is not None:
                await self.gate.wait()
            answer = self.answers.pop(0) if self.answers else None
            if isinstance(answer, Exception):
                raise answer
            return answer
        except asyncio.CancelledError:
            self.gave_up.set()
            raise
        finally:
            self.at_once -= 1

    async def dry_run(self, batch: Batch, *, request_id: str) -> BatchRefusal | None:
        return await self.change(batch, request_id=request_id, requested_by="")


@dataclass
class LiquidWorld:
    """A service and what is behind it."""

    service: CommitmentService
    store: Store
    metrics: Metrics
    decider: Decider
    events: EventRecorder
    groups: Informer[FlavorGroup]
    quotas: Informer[ProjectQuota]
    vms: list[VmView]


@asynccontextmanager
async def liquid(
    *groups: FlavorGroupSpec,
    store: Store | None = None,
    settings: CommitmentSettings = SETTINGS,
    capacities: Sequence[FlavorGroupCapacity] = (),
    commitments: Sequence[CommittedResource] = (),
    quotas: Sequence[ProjectQuota] = (),
    vms: Sequence[VmView] = (),
    decider: Decider | None = None,
    known: bool = True,
) -> AsyncIterator[LiquidWorld]:
    """A service while the block runs. ``known``: whether its flavor groups have been listed."""
    clock = SystemClock()
    behind = store if store is not None else MemoryStore(clock, SystemIds())
    for obj in (*capacities, *commitments, *quotas):
        created = await behind.create(obj)
        if obj.has_status():
            await behind.replace_status(
                type(obj)(metadata=created.metadata, spec=obj.spec, status=obj.status)  # type: ignore[attr-defined, call-arg]
            )
    for group in groups:
        await behind.create(FlavorGroup(metadata=ObjectMeta(name=group.group_name), spec=group))
    random, all_vms = Random(1), list(vms)
    by_project = {BY_PROJECT: project_of}
    informers = (
        Informer(behind, FlavorGroup, clock=clock, random=random),
        Informer(behind, CommittedResource, clock=clock, random=random, indexes=by_project),
        Informer(behind, ProjectQuota, clock=clock, random=random, indexes=by_project),
        Informer(behind, FlavorGroupCapacity, clock=clock, random=random),
    )

    async def project_vms(project: str) -> Sequence[VmView]:
        return [vm for vm in all_vms if vm.project == project]

    metrics, made = Metrics(), decider or Decider()
    events = EventRecorder(behind, clock=clock, ids=SystemIds(), source="commitments")
    records = InformedRecords(
        commitments=informers[1],
        quotas=informers[2],
        capacities=informers[3],
        project_vms=project_vms,
        host_zone=lambda host: host.partition(".")[0],
    )
    service = CommitmentService(
        behind,
        catalogue=Catalogue(behind, informers[0], settings, clock=clock),
        records=records,
        changes=made,
        settings=settings,
        metrics=LiquidMetrics(metrics),
        events=events,
        clock=clock,
    )
    running = [asyncio.create_task(informer.run()) for informer in informers[0 if known else 1 :]]
    for informer in informers[0 if known else 1 :]:
        await informer.wait_synced()
    try:
        yield LiquidWorld(service, behind, metrics, made, events, informers[0], informers[2], all_vms)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

"""Commitments: what flavor groups have to sell, from nothing and kept current, and the usage of a large project."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec

from bench.figures import Figure, median_seconds
from outlive.base import Random, SystemClock, SystemIds, freeze_objects, limit_collections
from outlive.commitments import (
    BY_PROJECT,
    CapacityTable,
    Commitment,
    CommitmentInformers,
    CommitmentSettings,
    CommitmentView,
    EngineProbe,
    GroupSettings,
    GroupUnit,
    Offer,
    RunningVms,
    UsageInput,
    UsageResult,
    VmTable,
    assign,
    commitment_indexes,
    encode,
    project_of,
    slot_indexes,
    spec_of,
    usage_report,
    usage_vms,
)
from outlive.commitments.controllers import CAPACITY, EVERYTHING, CapacityController, QuotaController
from outlive.placement import Engine, Fleet, PipelineTable, VmList, VmView, groups_by_flavor
from outlive.resources import (
    ZONE_LABEL,
    Amounts,
    CommitmentChange,
    CommittedResource,
    CommittedResourceStatus,
    Condition,
    DomainCapabilities,
    FlavorGroup,
    FlavorGroupCapacity,
    FlavorGroupSpec,
    GroupFlavor,
    Hypervisor,
    HypervisorStatus,
    ObjectMeta,
    ProjectQuota,
    ProjectQuotaSpec,
    R,
    Reservation,
    VirtualMachine,
)
from outlive.runtime import Duration, Informer, Metrics
from outlive.store import MemoryStore

HOSTS, VMS, GROUPS, ZONES = 5_000, 100_000, 30, 3
SIZES = (4, 8, 16, 32, 64)
"""GiB of the flavors of each group, four to a core."""
REFRESHES = 15
PROJECT_VMS, COMMITMENTS = 5_000, 500
PROJECTS = 300
TICK_S = 0.002
GENERAL = "kvm-general-purpose-load-balancing"
GIB = 2**30


def measure() -> list[Figure]:
    return [
        *_capacity("traits", shared=False),
        *_capacity("every host takes every group", shared=True),
        *asyncio.run(_controllers()),
        *_usage(),
    ]


def _usage() -> list[Figure]:
    """One project: its VMs assigned to its commitments, and its report, subresources included."""
    wanted, random = groups(shared=True), Random(5)
    commitments = tuple(
        Commitment(
            uuid=f"commitment-{number:05d}",
            project="p",
            group=f"v{number % GROUPS:02d}",
            zone=f"zone-{number % ZONES}",
            type="cores" if number % 5 == 0 else "memory",
            memory_bytes=random.randrange(16, 512) * GIB,
            cores=random.randrange(4, 128),
            state="confirmed",
        )
        for number in range(COMMITMENTS)
    )
    vms = [
        VmView(
            id=f"vm-{n}",
            host="h",
            zone=f"zone-{random.randrange(ZONES)}",
            flavor=random.choice(wanted[random.randrange(GROUPS)].flavors).name,
            created_at=float(random.randrange(10**6)),
        )
        for n in range(PROJECT_VMS)
    ]
    zones = [f"zone-{number}" for number in range(ZONES)]
    units = {one.group_name: GroupUnit(group=one.group_name) for one in wanted}
    by_flavor = groups_by_flavor(wanted)

    def assigned() -> UsageResult:
        return assign(UsageInput(commitments=commitments, vms=tuple(usage_vms(vms, by_flavor, zones)), now=10.0**9))

    charges = {charge.uuid: charge for charge in assigned().charges}
    objects = [
        CommittedResource(
            metadata=ObjectMeta(name=one.uuid),
            spec=spec_of(one),
            status=CommittedResourceStatus(assigned_instances=charges[one.uuid].vms),
        )
        for one in commitments
    ]
    offers = [Offer(group=one, unit=units[one.group_name], settings=GroupSettings()) for one in wanted]

    def reported() -> object:
        return encode(usage_report(offers, vms=vms, commitments=objects, quotas=(), zones=zones, version=1))

    return [
        Figure("commitments: 5,000 VMs assigned to 500 commitments", median_seconds(assigned), "s"),
        Figure("commitments: usage report, 5,000 VMs and 500 commitments", median_seconds(reported), "s", bar=0.2),
    ]


class Turns:
    """The longest time for which something else could not run on the event loop."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def watch(self) -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(TICK_S)
            self.longest_s = max(self.longest_s, time.perf_counter() - begun - TICK_S)


class Servers:
    """A source of 100,000 VMs."""

    def __init__(self, vms: tuple[VmView, ...]) -> None:
        self.vms = vms

    async def list_vms(self) -> VmList:
        return VmList(vms=self.vms)

    async def get_vm(self, vm_id: str) -> VmView | None:
        return None


async def _controllers() -> list[Figure]:
    """The controllers of capacity and of quota on a store, from a change to the objects, and what the loop is kept
    from meanwhile. Every host takes every group."""
    limit_collections()
    clock, wanted = SystemClock(), groups(shared=True)
    store = MemoryStore(clock, SystemIds())
    store.load(
        [
            *hosts(),
            *(FlavorGroup(metadata=ObjectMeta(name=one.group_name), spec=one) for one in wanted),
            *(_quota(number, zone) for number in range(PROJECTS) for zone in range(ZONES)),
        ]
    )

    def informer(kind: type[R], indexes: Mapping[str, Callable[[R], Iterable[str]]] | None = None) -> Informer[R]:
        return Informer(store, kind, clock=clock, random=Random(1), indexes=indexes)

    informers = CommitmentInformers(
        commitments=informer(CommittedResource, commitment_indexes()),
        reservations=informer(Reservation, slot_indexes()),
        hypervisors=informer(Hypervisor),
        groups=informer(FlavorGroup),
        capacities=informer(FlavorGroupCapacity),
        quotas=informer(ProjectQuota, {BY_PROJECT: project_of}),
        changes=informer(CommitmentChange),
    )
    fleet = Fleet()
    informers.hypervisors.subscribe(lambda old, new: fleet.upsert_host(new) if new is not None else None)
    servers = Servers(
        tuple(
            VmView(
                id=f"vm-{n}",
                host=f"host-{n % HOSTS:05d}",
                zone=f"zone-{n % HOSTS % ZONES}",
                project=f"{n % PROJECTS:03d}",
                flavor=wanted[n % GROUPS].flavors[n % 5].name,
            )
            for n in range(VMS)
        )
    )
    settings = CommitmentSettings(capacity_min_reconcile_interval=Duration(0.001))
    table = VmTable(informer(VirtualMachine), servers, clock=clock)
    view, metrics = CommitmentView(informers, table, fleet), Metrics("bench_")
    capacity = CapacityController(
        store, view, Engine(fleet, PipelineTable.with_shipped()), settings, offload=asyncio.to_thread, clock=clock
    )
    quota = QuotaController(store, view, settings, clock=clock, metrics=metrics)
    table.follow(capacity.on_vm)
    table.follow(quota.keys_of_vm)
    running = [asyncio.create_task(one.run()) for one in informers.list_all()]
    for one in informers.list_all():
        await one.wait_synced()
    freeze_objects()
    turns = Turns()
    watching = asyncio.create_task(turns.watch())
    await asyncio.sleep(TICK_S)
    turns.longest_s = 0.0
    begun = time.perf_counter()
    await table.refresh()
    await capacity.reconcile(CAPACITY)
    nothing = time.perf_counter() - begun
    took: list[float] = []
    for turn in range(REFRESHES):
        name = f"host-{turn * 7:05d}"
        host = await store.get(Hypervisor, name)
        assert host.status.allocation is not None
        more = host.status.allocation + Amounts(cpu=1_000, memory=4 * GIB)
        await asyncio.sleep(0.01)
        begun = time.perf_counter()
        changed = msgspec.structs.replace(host.status, allocation=more)
        informers.hypervisors.note(
            await store.replace_status(msgspec.structs.replace(host, status=changed)),
            replaced=host.metadata.resource_version,
        )
        await capacity.reconcile(CAPACITY)
        took.append(time.perf_counter() - begun)
    begun = time.perf_counter()
    await quota.reconcile(EVERYTHING)
    counted = time.perf_counter() - begun
    for task in (watching, *running):
        task.cancel()
    await asyncio.gather(watching, *running, return_exceptions=True)
    where = "on a store"
    return [
        Figure(f"commitments: capacity controller from nothing, {where}", nothing, "s", bar=5.0),
        Figure(f"commitments: capacity controller after a change, {where}", statistics.median(took), "s", bar=0.2),
        Figure(f"commitments: usage of {VMS:,} VMs for {PROJECTS * ZONES:,} quotas, {where}", counted, "s"),
        Figure("commitments: longest turn of the event loop meanwhile", turns.longest_s, "s", bar=0.05),
    ]


def _quota(number: int, zone: int) -> ProjectQuota:
    project = f"{number:03d}"
    return ProjectQuota(
        metadata=ObjectMeta(name=f"quota-{project}-zone-{zone}"),
        spec=ProjectQuotaSpec(project_id=project, availability_zone=f"zone-{zone}", quota={"hw_version_v00_ram": 100}),
    )


def groups(*, shared: bool) -> tuple[FlavorGroupSpec, ...]:
    found: list[FlavorGroupSpec] = []
    for number in range(GROUPS):
        specs = {"capabilities:hypervisor_type": "QEMU", "quota:hw_version": f"v{number:02d}"}
        if not shared:
            specs[f"trait:CUSTOM_V{number:02d}"] = "required"
        flavors = tuple(
            GroupFlavor(
                name=f"v{number:02d}_{size}",
                vcpus=size // 4,
                memory_mb=size * 1024 - number % 3 * 16,
                extra_specs=specs,
            )
            for size in reversed(SIZES)
        )
        found.append(
            FlavorGroupSpec(
                group_name=f"v{number:02d}",
                flavors=flavors,
                largest_flavor=flavors[0],
                smallest_flavor=flavors[-1],
                ram_core_ratio=4096,
            )
        )
    return tuple(found)


def hosts() -> list[Hypervisor]:
    """Two groups on each host, where traits say so; 384 GiB, half of it in use."""
    random = Random(17)
    ready = (Condition(type="Ready", status="True"),)
    found: list[Hypervisor] = []
    for number in range(HOSTS):
        capacity = Amounts(cpu=96_000, memory=384 * GIB)
        used = sum(random.choice(SIZES) for _ in range(VMS // HOSTS))
        used = min(used, 380)
        traits = tuple(f"CUSTOM_V{(number + more) % GROUPS:02d}" for more in (0, 1))
        status = HypervisorStatus(
            capacity=capacity,
            effective_capacity=capacity,
            allocation=Amounts(cpu=used * 250, memory=used * GIB),
            traits=traits,
            conditions=ready,
            domain_capabilities=DomainCapabilities(hypervisor_type="kvm"),
        )
        meta = ObjectMeta(name=f"host-{number:05d}", labels={ZONE_LABEL: f"zone-{number % ZONES}"})
        found.append(Hypervisor(metadata=meta, status=status))
    return found


def _capacity(what: str, *, shared: bool) -> list[Figure]:
    fleet, wanted = Fleet(), groups(shared=shared)
    for host in hosts():
        fleet.upsert_host(host)
    vms = [
        VmView(id=f"vm-{n}", host="", zone=f"zone-{n % ZONES}", flavor=wanted[n % GROUPS].flavors[n % 5].name)
        for n in range(VMS)
    ]
    pipelines = PipelineTable.with_shipped()
    begun = time.perf_counter()
    running = RunningVms(vms)
    table = CapacityTable(fleet, EngineProbe(Engine(fleet, pipelines), total=GENERAL, placeable=GENERAL))
    found = table.refresh(wanted)
    nothing = time.perf_counter() - begun
    assert len(found) == GROUPS * ZONES
    assert not any(one.failed for one in found.values())
    took: list[float] = []
    for turn in range(REFRESHES):
        host = fleet.find_host(f"host-{turn * 7:05d}")
        assert host is not None
        assert host.status.allocation is not None
        more = host.status.allocation + Amounts(cpu=1_000, memory=4 * GIB)
        begun = time.perf_counter()
        fleet.upsert_host(msgspec.structs.replace(host, status=msgspec.structs.replace(host.status, allocation=more)))
        running.put(VmView(id=f"new-{turn}", host=host.name, zone="zone-0", flavor=wanted[0].flavors[0].name))
        table.refresh(wanted)
        took.append(time.perf_counter() - begun)
    return [
        Figure(f"commitments: capacity from nothing, {what}", nothing, "s", bar=5.0),
        Figure(f"commitments: capacity kept current, {what}", statistics.median(took), "s", bar=0.2),
    ]

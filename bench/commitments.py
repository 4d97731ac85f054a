"""Commitments: what flavor groups have to sell, from nothing and kept current, and the usage of a large project."""

from __future__ import annotations

import statistics
import time

import msgspec

from bench.figures import Figure, median_seconds
from outlive.base.random import Random
from outlive.commitments.capacity import CapacityTable, EngineProbe
from outlive.commitments.running import RunningVms
from outlive.commitments.state import Commitment
from outlive.commitments.units import GroupUnit
from outlive.commitments.usage import UsageInput, UsageResult, assign, usage_report, usage_vms
from outlive.placement.engine import Engine
from outlive.placement.flavor_groups import groups_by_flavor
from outlive.placement.fleet import Fleet
from outlive.placement.pipelines import PipelineTable
from outlive.placement.vms import VmView
from outlive.resources import (
    Amounts,
    Condition,
    DomainCapabilities,
    FlavorGroupSpec,
    GroupFlavor,
    Hypervisor,
    HypervisorStatus,
    ObjectMeta,
)
from outlive.resources.meta import ZONE_LABEL

HOSTS, VMS, GROUPS, ZONES = 5_000, 100_000, 30, 3
SIZES = (4, 8, 16, 32, 64)
"""GiB of the flavors of each group, four to a core."""
REFRESHES = 15
PROJECT_VMS, COMMITMENTS = 5_000, 500
GENERAL = "kvm-general-purpose-load-balancing"
GIB = 2**30


def measure() -> list[Figure]:
    return [*_capacity("traits", shared=False), *_capacity("every host takes every group", shared=True), *_usage()]


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

    charged = {vm: one.uuid for one in assigned().charges if one.memory_bytes for vm in one.vms}

    def reported() -> object:
        return usage_report(vms=vms, groups=wanted, units=units, zones=zones, charged=charged)

    return [
        Figure("commitments: 5,000 VMs assigned to 500 commitments", median_seconds(assigned), "s"),
        Figure("commitments: usage report, 5,000 VMs and 500 commitments", median_seconds(reported), "s", bar=0.2),
    ]


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
    pipelines = PipelineTable.shipped()
    begun = time.perf_counter()
    running = RunningVms(vms)
    table = CapacityTable(
        fleet, EngineProbe(Engine(fleet, pipelines), total=lambda group: GENERAL, placeable=lambda group: GENERAL)
    )
    found = table.refresh(wanted)
    nothing = time.perf_counter() - begun
    assert len(found) == GROUPS * ZONES
    assert not any(one.failed for one in found.values())
    took: list[float] = []
    for turn in range(REFRESHES):
        host = fleet.host(f"host-{turn * 7:05d}")
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

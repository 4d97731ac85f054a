"""What LIQUID is told: the catalogue, capacity and usage.

Pure functions over plain data; the rules are in docs/reference/commitments.md#liquid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from outlive.base import Unavailable
from outlive.commitments.acceptance import CORES
from outlive.commitments.liquid import (
    Attributes,
    CapacityReport,
    FlavorAttributes,
    ResourceCapacity,
    ResourceInfo,
    ResourceUsage,
    ServiceInfo,
    Subresource,
    UsageReport,
    VmAttributes,
    ZoneCapacity,
    ZoneUsage,
)
from outlive.commitments.names import RESOURCE_KINDS, ResourceKind, real_zone, resource_name
from outlive.commitments.settings import CommitmentSettings, GroupSettings, ResourceSettings
from outlive.commitments.units import MIB_PER_GIB, UNLIMITED, GroupUnit, unit_of
from outlive.commitments.usage import map_to_commitment
from outlive.placement import MIB, MILLI, VmView, groups_by_flavor, is_valid
from outlive.resources import (
    MEMORY,
    CommittedResource,
    FlavorGroupCapacity,
    FlavorGroupCapacityStatus,
    FlavorGroupSpec,
    ProjectQuota,
    find_condition,
)

VIDEO_MEMORY: Final = "hw_video:ram_max_mb"

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9._-]*\Z")


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A flavor group as it is offered: how its memory is counted, and what its resources take part in."""

    group: FlavorGroupSpec
    unit: GroupUnit
    settings: GroupSettings

    @property
    def name(self) -> str:
        """Of the group."""
        return self.group.group_name

    def resource_settings(self, kind: ResourceKind) -> ResourceSettings:
        """What one of its resources takes part in."""
        settings: ResourceSettings = getattr(self.settings, kind)
        return settings


def offers_of(groups: Iterable[FlavorGroupSpec], settings: CommitmentSettings) -> tuple[Offer, ...]:
    """The groups that are valid and whose names LIQUID takes, by name; ``BadInput`` where a configured unit contradicts
    one of them."""
    named = (group for group in groups if is_valid(group) and is_name(resource_name(group.group_name, "ram")))
    ordered = sorted(named, key=lambda group: group.group_name)
    return tuple(
        Offer(group=group, unit=unit_of(group, settings), settings=settings.group_settings(group.group_name))
        for group in ordered
    )


def is_name(resource: str) -> bool:
    """Whether LIQUID takes this as the name of a resource. One that it does not take would cost all others."""
    return _NAME.match(resource) is not None


# -- the catalogue ------------------------------------------------------------------------------------------


def service_info(offers: Iterable[Offer], version: int) -> ServiceInfo:
    """The catalogue: three resources of every group."""
    return ServiceInfo(
        version=version,
        resources={
            resource_name(offer.name, kind): _build_info(offer, kind) for offer in offers for kind in RESOURCE_KINDS
        },
    )


def _build_info(offer: Offer, kind: ResourceKind) -> ResourceInfo:
    settings, group, unit = offer.resource_settings(kind), offer.group, offer.unit
    size = f"{unit.mib // MIB_PER_GIB} GiB" if unit.mib % MIB_PER_GIB == 0 else unit.text
    ram = "GiB of RAM" if unit.mib == MIB_PER_GIB else f"multiples of {size}"
    counted = {"ram": ram, "cores": "CPU cores", "instances": "instances"}[kind]
    return ResourceInfo(
        display_name=f"{counted} (usable by: {', '.join(flavor.name for flavor in group.flavors)})",
        unit=unit.text if kind == "ram" else "piece",
        has_capacity=settings.has_capacity,
        has_quota=settings.has_quota,
        handles_commitments=settings.handles_commitments or UNSET,
        attributes=Attributes(
            ram_core_ratio=_round_to_gib(group.ram_core_ratio),
            ram_core_ratio_min=_round_to_gib(group.ram_core_ratio_min),
            ram_core_ratio_max=_round_to_gib(group.ram_core_ratio_max),
        ),
    )


def _round_to_gib(mib: int | None) -> int | None:
    """GiB of a ratio in MiB, half a GiB rounded up; ratios are not negative."""
    return None if mib is None else (mib + MIB_PER_GIB // 2) // MIB_PER_GIB


# -- capacity -----------------------------------------------------------------------------------------------


def capacity_report(
    offers: Iterable[Offer], capacities: Iterable[FlavorGroupCapacity], zones: Sequence[str], version: int
) -> CapacityReport:
    """What there is of every resource with capacity, in exactly these zones.

    ``Unavailable`` where the capacity of a group in one of the zones is not up to date: a wrong number would be sold.
    """
    known = {(one.spec.flavor_group, one.spec.availability_zone): one for one in capacities}
    resources: dict[str, ResourceCapacity] = {}
    for offer in offers:
        kinds = [kind for kind in RESOURCE_KINDS if offer.resource_settings(kind).has_capacity]
        found = {zone: _require_current(known.get((offer.name, zone)), offer.name, zone) for zone in zones if kinds}
        for kind in kinds:
            per_zone = {zone: _zone_capacity(offer, kind, status) for zone, status in found.items()}
            resources[resource_name(offer.name, kind)] = ResourceCapacity(per_az=per_zone)
    return CapacityReport(info_version=version, resources=resources)


def _require_current(capacity: FlavorGroupCapacity | None, group: str, zone: str) -> FlavorGroupCapacityStatus | None:
    """What is known of a group in a zone; ``None`` where there is nothing of it."""
    if capacity is None:
        return None
    ready = find_condition(capacity.status.conditions, "Ready")
    if ready is None or ready.status != "True":
        raise Unavailable(f"the capacity of flavor group {group} in {zone} is not up to date")
    return capacity.status


def _zone_capacity(offer: Offer, kind: ResourceKind, status: FlavorGroupCapacityStatus | None) -> ZoneCapacity:
    if status is None:
        return ZoneCapacity(capacity=0)
    slots, free_amounts = status.exclusively_free_slots, status.exclusively_free_capacity
    match kind:
        case "instances":
            used, free = status.running_instances, slots
        case "cores":
            used, free = status.running_resources.get(CORES, 0), free_amounts.get(CORES, 0)
        case "ram":  # each VM is rounded by itself, as in the usage report
            sizes = {flavor.name: flavor.memory_mb for flavor in offer.group.flavors}
            used = offer.unit.count_units_of_vms(
                (sizes.get(one.flavor_name, 0), one.running_vms) for one in status.flavors
            )
            free = offer.unit.count_free_units(
                slots, offer.group.smallest_flavor.memory_mb, free_amounts.get(MEMORY, 0)
            )
    return ZoneCapacity(capacity=used + free, usage=used)


# -- usage --------------------------------------------------------------------------------------------------


class _Usage:
    """What one group's VMs use in one zone."""

    __slots__ = ("cores", "ram", "vms")

    def __init__(self) -> None:
        self.ram = 0
        self.cores = 0
        self.vms: list[Subresource] = []


def usage_report(
    offers: Sequence[Offer],
    *,
    vms: Iterable[VmView],
    commitments: Iterable[CommittedResource],
    quotas: Iterable[ProjectQuota],
    zones: Sequence[str],
    version: int,
) -> UsageReport:
    """What a project uses of every resource, in exactly these zones, VM by VM.

    ``vms``, ``commitments`` and ``quotas`` are the project's. A VM of another zone counts as in zone ``unknown``, if
    that is asked for; else it is left out, as is a VM of no group. Its commitment is the one of
    memory that lists it.
    """
    units = {offer.name: offer.unit for offer in offers}
    group_of = groups_by_flavor(offer.group for offer in offers)
    charged = map_to_commitment(commitments)
    known = frozenset(zones)
    usage = {(offer.name, zone): _Usage() for offer in offers for zone in zones}
    for vm in sorted(vms, key=lambda one: one.id):
        group = group_of.get(vm.flavor)
        found = usage.get((group.group_name, real_zone(vm.zone, known))) if group is not None else None
        if group is None or found is None:
            continue
        vcpus, memory_mib = -(-vm.cpu_milli // MILLI), -(-vm.memory_bytes // MIB)
        found.ram += units[group.group_name].count_vm_units(memory_mib)
        found.cores += vcpus
        found.vms.append(_build_subresource(vm, vcpus, memory_mib, charged.get(vm.id)))
    limits = {quota.spec.availability_zone: quota.spec.quota for quota in quotas}
    return UsageReport(
        info_version=version,
        resources={
            resource_name(offer.name, kind): ResourceUsage(
                per_az={zone: _zone_usage(offer, kind, usage[offer.name, zone], limits.get(zone, {})) for zone in zones}
            )
            for offer in offers
            for kind in RESOURCE_KINDS
        },
    )


def _zone_usage(offer: Offer, kind: ResourceKind, usage: _Usage, limits: Mapping[str, int]) -> ZoneUsage:
    quota: int | UnsetType = UNSET
    if offer.resource_settings(kind).has_quota:
        kept = limits.get(resource_name(offer.name, kind), UNLIMITED)
        quota = offer.unit.from_gib(kept) if kind == "ram" else kept
    match kind:
        case "ram":
            return ZoneUsage(usage=usage.ram, quota=quota)
        case "cores":
            return ZoneUsage(usage=usage.cores, quota=quota)
        case "instances":
            return ZoneUsage(usage=len(usage.vms), quota=quota, subresources=usage.vms or UNSET)


def _build_subresource(vm: VmView, vcpus: int, memory_mib: int, commitment: str | None) -> Subresource:
    video = vm.extra_specs.get(VIDEO_MEMORY, "")
    return Subresource(
        id=vm.id,
        name=vm.name,
        attributes=VmAttributes(
            status=vm.status,
            flavor=FlavorAttributes(
                name=vm.flavor,
                vcpu=vcpus,
                ram_mib=memory_mib,
                disk_gib=vm.disk_gib,
                video_ram_mib=int(video) if video.isascii() and video.isdigit() and len(video) < 19 else UNSET,
            ),
            os_type=vm.os_type or "unknown",
            commitment_id=commitment,
        ),
    )

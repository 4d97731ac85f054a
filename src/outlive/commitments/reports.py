"""What LIQUID is told: the catalogue, capacity and usage.

Pure functions over plain data; the rules are in docs/reference/commitments.md#liquid.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import UNSET

from outlive.base.errors import Unavailable
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
from outlive.commitments.usage import charged_to
from outlive.placement.flavor_groups import groups_by_flavor, is_valid
from outlive.placement.settings import MIB
from outlive.placement.vms import MILLI, VmView
from outlive.resources import (
    MEMORY,
    CommittedResource,
    FlavorGroupCapacity,
    FlavorGroupCapacityStatus,
    FlavorGroupSpec,
    ProjectQuota,
    condition,
)

VIDEO_MEMORY: Final = "hw_video:ram_max_mb"
PIECE: Final = "piece"
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

    def resource(self, kind: ResourceKind) -> ResourceSettings:
        """What one of its resources takes part in."""
        settings: ResourceSettings = getattr(self.settings, kind)
        return settings


def offers_of(groups: Iterable[FlavorGroupSpec], settings: CommitmentSettings) -> tuple[Offer, ...]:
    """The groups that are valid and whose names LIQUID takes, by name; ``BadInput`` where a configured unit contradicts
    one of them."""
    named = (group for group in groups if is_valid(group) and is_name(resource_name(group.group_name, "ram")))
    ordered = sorted(named, key=lambda group: group.group_name)
    return tuple(
        Offer(group=group, unit=unit_of(group, settings), settings=settings.group(group.group_name))
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
        resources={resource_name(offer.name, kind): _info(offer, kind) for offer in offers for kind in RESOURCE_KINDS},
    )


def _info(offer: Offer, kind: ResourceKind) -> ResourceInfo:
    settings = offer.resource(kind)
    usable = f"(usable by: {', '.join(flavor.name for flavor in offer.group.flavors)})"
    return ResourceInfo(
        display_name=f"{_counted(offer.unit, kind)} {usable}",
        unit=offer.unit.text if kind == "ram" else PIECE,
        has_capacity=settings.has_capacity,
        has_quota=settings.has_quota,
        handles_commitments=settings.handles_commitments or UNSET,
        attributes=_attributes(offer.group),
    )


def _counted(unit: GroupUnit, kind: ResourceKind) -> str:
    match kind:
        case "ram":
            size = f"{unit.mib // MIB_PER_GIB} GiB" if unit.mib % MIB_PER_GIB == 0 else unit.text
            return "GiB of RAM" if unit.mib == MIB_PER_GIB else f"multiples of {size}"
        case "cores":
            return "CPU cores"
        case "instances":
            return "instances"


def _attributes(group: FlavorGroupSpec) -> Attributes:
    return Attributes(
        ram_core_ratio=_gib(group.ram_core_ratio),
        ram_core_ratio_min=_gib(group.ram_core_ratio_min),
        ram_core_ratio_max=_gib(group.ram_core_ratio_max),
    )


def _gib(mib: int | None) -> int | None:
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
        kinds = [kind for kind in RESOURCE_KINDS if offer.resource(kind).has_capacity]
        found = {zone: _current(known.get((offer.name, zone)), offer.name, zone) for zone in zones if kinds}
        for kind in kinds:
            per_zone = {zone: _capacity(offer, kind, status) for zone, status in found.items()}
            resources[resource_name(offer.name, kind)] = ResourceCapacity(per_az=per_zone)
    return CapacityReport(info_version=version, resources=resources)


def _current(capacity: FlavorGroupCapacity | None, group: str, zone: str) -> FlavorGroupCapacityStatus | None:
    """What is known of a group in a zone; ``None`` where there is nothing of it."""
    if capacity is None:
        return None
    ready = condition(capacity.status.conditions, "Ready")
    if ready is None or ready.status != "True":
        raise Unavailable(f"the capacity of flavor group {group} in {zone} is not up to date")
    return capacity.status


def _capacity(offer: Offer, kind: ResourceKind, status: FlavorGroupCapacityStatus | None) -> ZoneCapacity:
    if status is None:
        return ZoneCapacity(capacity=0)
    used, free = _used_and_free(offer, kind, status)
    return ZoneCapacity(capacity=used + free, usage=used)


def _used_and_free(offer: Offer, kind: ResourceKind, status: FlavorGroupCapacityStatus) -> tuple[int, int]:
    match kind:
        case "instances":
            return status.running_instances, status.exclusively_free_slots
        case "cores":
            return status.running_resources.get(CORES, 0), status.exclusively_free_capacity.get(CORES, 0)
        case "ram":
            smallest = offer.group.smallest_flavor.memory_mb
            free = status.exclusively_free_capacity.get(MEMORY, 0)
            return _running_units(offer, status), offer.unit.of_free(status.exclusively_free_slots, smallest, free)


def _running_units(offer: Offer, status: FlavorGroupCapacityStatus) -> int:
    """Units of memory that the running VMs use, each rounded by itself, as in the usage report."""
    sizes = {flavor.name: flavor.memory_mb for flavor in offer.group.flavors}
    return offer.unit.of_vms((sizes.get(one.flavor_name, 0), one.running_vms) for one in status.flavors)


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
    charged = charged_to(commitments)
    known = frozenset(zones)
    usage = {(offer.name, zone): _Usage() for offer in offers for zone in zones}
    for vm in sorted(vms, key=lambda one: one.id):
        group = group_of.get(vm.flavor)
        found = usage.get((group.group_name, real_zone(vm.zone, known))) if group is not None else None
        if group is None or found is None:
            continue
        vcpus, memory_mib = -(-vm.cpu_milli // MILLI), -(-vm.memory_bytes // MIB)
        found.ram += units[group.group_name].of_vm(memory_mib)
        found.cores += vcpus
        found.vms.append(_subresource(vm, vcpus, memory_mib, charged.get(vm.id)))
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
    quota = _quota(offer, kind, limits) if offer.resource(kind).has_quota else UNSET
    match kind:
        case "ram":
            return ZoneUsage(usage=usage.ram, quota=quota)
        case "cores":
            return ZoneUsage(usage=usage.cores, quota=quota)
        case "instances":
            return ZoneUsage(usage=len(usage.vms), quota=quota, subresources=usage.vms or UNSET)


def _quota(offer: Offer, kind: ResourceKind, limits: Mapping[str, int]) -> int:
    """The quota in the resource's unit, from how it is kept."""
    kept = limits.get(resource_name(offer.name, kind), UNLIMITED)
    return offer.unit.from_gib(kept) if kind == "ram" else kept


def _subresource(vm: VmView, vcpus: int, memory_mib: int, commitment: str | None) -> Subresource:
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

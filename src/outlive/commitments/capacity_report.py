"""What the table of capacity becomes: the status of a ``FlavorGroupCapacity``, and what Limes is told of it.

The rules are in docs/reference/commitments.md#capacity and #capacity-report.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from outlive.base.errors import Unavailable
from outlive.commitments.capacity import GroupCapacity, Place
from outlive.commitments.running import RunningVms
from outlive.commitments.state import READY, is_active
from outlive.commitments.units import GroupUnit
from outlive.placement.settings import MIB
from outlive.resources import (
    MEMORY,
    Amounts,
    CommittedResource,
    FlavorGroupCapacity,
    FlavorGroupCapacityStatus,
    FlavorGroupSpec,
    condition,
)


def capacity_status(
    found: GroupCapacity,
    group: FlavorGroupSpec,
    *,
    committed_slots: int,
    running: RunningVms | None,
    before: FlavorGroupCapacityStatus = FlavorGroupCapacityStatus(),
) -> FlavorGroupCapacityStatus:
    """The status of the object, without time and condition. Without ``running``, which is where VMs could not be
    listed, what was running ``before`` stays. ``found.failed`` must be empty.
    """
    earlier = {one.flavor_name: one.running_vms for one in before.flavors}
    counts = {
        one.flavor_name: earlier.get(one.flavor_name, 0)
        if running is None
        else running.count(found.zone, one.flavor_name)
        for one in found.flavors
    }
    sizes = {flavor.name: flavor for flavor in group.flavors}
    return msgspec.structs.replace(
        before,
        flavors=tuple(msgspec.structs.replace(one, running_vms=counts[one.flavor_name]) for one in found.flavors),
        committed_capacity=committed_slots,
        committed_capacity_bytes=committed_slots * group.smallest_flavor.memory_mb * MIB,
        smallest_flavor_name=group.smallest_flavor.name,
        total_capacity=found.total,
        free_capacity=found.free,
        exclusively_free_capacity=found.exclusive,
        exclusively_free_slots=found.exclusive_slots,
        running_instances=sum(counts.values()),
        running_resources=Amounts(
            memory=sum(sizes[name].memory_mb * MIB * count for name, count in counts.items()),
            cores=sum(sizes[name].vcpus * count for name, count in counts.items()),
        ),
    )


def committed_slots(
    commitments: Iterable[CommittedResource], groups: Iterable[FlavorGroupSpec], now: float
) -> dict[Place, int]:
    """Group and zone → VMs of the smallest flavor that active commitments of memory promise, each rounded down.

    What was accepted counts, else what is asked for. A commitment whose end has come, in seconds since 1970, does not.
    """
    smallest = {group.group_name: group.smallest_flavor.memory_mb * MIB for group in groups}
    found: dict[Place, int] = {}
    for one in commitments:
        spec = one.status.accepted_spec or one.spec
        size = smallest.get(spec.flavor_group_name, 0)
        if size > 0 and spec.resource_type == "memory" and is_active(one.spec, now):
            place = (spec.flavor_group_name, spec.availability_zone)
            found[place] = found.get(place, 0) + spec.total // size
    return found


class ReportedCapacity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What Limes is told of one resource in one zone."""

    capacity: int
    usage: int | None = None
    """Absent where nothing is known."""


class GroupReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What Limes is told of a group in one zone."""

    ram: ReportedCapacity = ReportedCapacity(capacity=0)
    cores: ReportedCapacity = ReportedCapacity(capacity=0)
    instances: ReportedCapacity = ReportedCapacity(capacity=0)


def reported_capacity(found: FlavorGroupCapacity | None, group: FlavorGroupSpec, unit: GroupUnit) -> GroupReport:
    """The report's numbers, memory in the group's unit: what runs, and what is free for this group alone.

    ``Unavailable`` where the object is not ready (docs/reference/commitments.md#capacity-report).
    """
    if found is None:
        return GroupReport()
    ready = condition(found.status.conditions, READY)
    if ready is None or ready.status != "True":
        raise Unavailable(
            f"capacity of flavor group {found.spec.flavor_group} in zone {found.spec.availability_zone} is not current"
            + (f": {ready.message}" if ready is not None and ready.message else ""),
            remedy="see the object's condition Ready, and try again later",
        )
    status, memory_of = found.status, {flavor.name: flavor.memory_mb for flavor in group.flavors}
    running = unit.of_vms((memory_of.get(one.flavor_name, 0), one.running_vms) for one in status.flavors)
    slots, exclusive = status.exclusively_free_slots, status.exclusively_free_capacity
    cores = status.running_resources.get("cores", 0)
    return GroupReport(
        ram=ReportedCapacity(
            capacity=running + unit.of_free(slots, group.smallest_flavor.memory_mb, exclusive.get(MEMORY, 0)),
            usage=running,
        ),
        cores=ReportedCapacity(capacity=cores + exclusive.get("cores", 0), usage=cores),
        instances=ReportedCapacity(capacity=status.running_instances + slots, usage=status.running_instances),
    )

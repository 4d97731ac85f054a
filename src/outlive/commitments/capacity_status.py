"""What the table of capacity becomes: the status of a ``FlavorGroupCapacity``.

The rules are in docs/reference/commitments.md#capacity.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from outlive.commitments.capacity import GroupCapacity, Place
from outlive.commitments.running_vms import RunningVms
from outlive.commitments.state import is_active
from outlive.placement import MIB
from outlive.resources import (
    Amounts,
    CommittedResource,
    FlavorGroupCapacityStatus,
    FlavorGroupSpec,
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

"""Flavor groups, commitments, slots and batches for tests of commitments: short to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from outlive.commitments import (
    Batch,
    Commitment,
    CommitmentRequest,
    CommitmentSettings,
    GroupSettings,
    NewSlot,
    ProjectRequest,
    RamSettings,
    ResourceRequest,
    ResourceSettings,
    commitment_name,
    reservation_of,
    slot_name,
    spec_of,
)
from outlive.placement.flavor_groups import flavor_groups
from outlive.resources import (
    Amounts,
    CommittedResource,
    CommittedResourceSpec,
    CommittedStatus,
    Condition,
    Flavor,
    FlavorGroupSpec,
    FlavorSpec,
    ObjectMeta,
    Reservation,
    ReservationStatus,
    SpecAllocation,
)

GIB = 2**30
MIB = 2**20
NOW = 1_800_000_000.0
HOUR = 3600.0
SELLING = CommitmentSettings(
    flavor_group_resources={
        "*": GroupSettings(
            ram=RamSettings(handles_commitments=True, handles_dry_run=True),
            cores=ResourceSettings(handles_commitments=True, handles_dry_run=True),
        )
    }
)


def at(seconds: float = 0.0) -> datetime:
    """A moment so many seconds after ``NOW``."""
    return datetime.fromtimestamp(NOW + seconds, UTC)


def group_of(name: str, *sizes: tuple[int, int]) -> FlavorGroupSpec:
    """A group of flavors of (vCPUs, MiB), as the extraction makes it."""
    flavors = [
        Flavor(
            spec=FlavorSpec(
                flavor_name=f"{name}_c{vcpus}_m{memory}",
                resources=Amounts(cpu=vcpus * 1000, memory=memory * MIB),
                extra_specs={"quota:hw_version": name, "capabilities:hypervisor_type": "QEMU"},
            )
        )
        for vcpus, memory in sizes
    ]
    (found,) = flavor_groups(flavors)
    return found


GROUP = group_of("g", (8, 32768), (4, 16384), (2, 8192))
"""Flavors of 32, 16 and 8 GiB, 4 GiB a core."""
MIXED = group_of("v", (4, 16384), (4, 4096))


def commitment(uuid: str = "commit-a", gib: int = 32, **fields: Any) -> Commitment:
    """A confirmed commitment of memory of group ``g`` in zone ``z1`` by project ``p``."""
    given: dict[str, Any] = {"project": "p", "domain": "d", "group": "g", "zone": "z1", "state": "confirmed"}
    return Commitment(**{"uuid": uuid, "memory_bytes": gib * GIB, "start": at(), **given, **fields})


def make_spec(uuid: str, amount: str = "8Gi", **fields: Any) -> CommittedResourceSpec:
    """The same commitment as the spec of its object, with an amount as that is written."""
    usual = {"flavor_group_name": "g", "resource_type": "memory", "availability_zone": "z1", "project_id": "p"}
    return CommittedResourceSpec(commitment_uuid=uuid, amount=amount, **{**usual, "state": "confirmed", **fields})


def resource(wanted: Commitment, *, accepted: Commitment | None = None, **fields: Any) -> CommittedResource:
    """The object of a commitment."""
    made = CommittedResource(metadata=ObjectMeta(name=commitment_name(wanted.uuid), generation=1), spec=spec_of(wanted))
    status = replace(made.status, accepted_spec=spec_of(accepted) if accepted is not None else None, **fields)
    return replace(made, status=status)


def ready(status: str = "True", reason: str = "", message: str = "", *, since: float = 0.0, generation: int = 1) -> Any:
    """Conditions with this ``Ready``."""
    made = {"type": "Ready", "status": status, "reason": reason, "message": message}
    return (Condition(**made, last_transition_time=at(since), observed_generation=generation),)  # type: ignore[arg-type]


def slot_of(
    owner: Commitment,
    index: int = 0,
    gib: int = 16,
    *,
    cpu: int | None = None,
    host: str = "h1",
    vms: Mapping[str, int] | None = None,
    judged: str | None = "True",
) -> Reservation:
    """A slot of a commitment that is on its host; ``vms``: VM → GiB that it has in it, as seen."""
    new = NewSlot(
        name=slot_name(commitment_name(owner.uuid), index),
        flavor=f"g_c{max(2, gib // 4)}_m{gib * 1024}",
        memory_bytes=gib * GIB,
        cpu_milli=(gib // 4 if cpu is None else cpu) * 1000,
        host=host,
    )
    made = reservation_of(new, owner, now=NOW)
    details = made.spec.committed_resource_reservation
    assert details is not None
    allocations = {
        vm: SpecAllocation(creation_timestamp=at(-HOUR), resources=Amounts(cpu=size // 4 * 1000, memory=size * GIB))
        for vm, size in (vms or {}).items()
    }
    spec = replace(made.spec, committed_resource_reservation=replace(details, allocations=allocations))
    status = ReservationStatus(
        host=host,
        conditions=ready(judged) if judged is not None else (),
        committed_resource_reservation=CommittedStatus(
            observed_parent_generation=owner.generation, allocations=dict.fromkeys(vms or {}, host)
        ),
    )
    return replace(made, spec=spec, status=status)


def vms_of(slots: Sequence[Reservation]) -> set[str]:
    """All VMs that these slots are meant for."""
    found: set[str] = set()
    for slot in slots:
        details = slot.spec.committed_resource_reservation
        assert details is not None
        found |= set(details.allocations)
    return found


def change(uuid: str, old: str | None, new: str | None, amount: int = 1, **fields: Any) -> CommitmentRequest:
    """A change of one commitment from one status to another."""
    return CommitmentRequest(
        uuid=uuid, old_status=old, new_status=new, amount=amount, expires_at=at(1000 * HOUR), **fields
    )


def wanted(
    name: str, *changes: CommitmentRequest, confirmed: tuple[int, int] = (0, 0), guaranteed: tuple[int, int] = (0, 0)
) -> ResourceRequest:
    """Changes of one resource, with the totals before and after."""
    return ResourceRequest(
        name=name,
        confirmed_before=confirmed[0],
        confirmed_after=confirmed[1],
        guaranteed_before=guaranteed[0],
        guaranteed_after=guaranteed[1],
        commitments=changes,
    )


def batch(projects: Mapping[str, Sequence[ResourceRequest]], zone: str = "z1") -> Batch:
    """A batch of zone ``z1``."""
    return Batch(
        zone=zone,
        projects=tuple(
            ProjectRequest(project=project, domain="d", resources=tuple(resources))
            for project, resources in projects.items()
        ),
    )

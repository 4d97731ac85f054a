"""What the deciding parts of commitments read: the caches, and what they say of one commitment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from outlive.commitments.names import capacity_name, commitment_name
from outlive.commitments.records import BY_PROJECT, project_of
from outlive.commitments.slots import Candidate, payg_candidates, slot_allocations
from outlive.commitments.state import Commitment
from outlive.commitments.vm_table import VmTable
from outlive.placement.flavor_groups import groups_by_flavor
from outlive.placement.reservations import unused
from outlive.placement.vms import MILLI
from outlive.resources import (
    COMMITTED,
    ZONE_LABEL,
    CommittedResource,
    FlavorGroup,
    FlavorGroupCapacity,
    FlavorGroupSpec,
    Hypervisor,
    ProjectQuota,
    Reservation,
)
from outlive.runtime.informer import Informer

COMMITMENT_INDEX: Final = "commitment"
"""Index of commitment slots by their commitment's uuid."""
ALLOCATION_INDEX: Final = "allocation"
"""Index of commitment slots by the VMs that they are meant for."""
NUMBERED_INDEX: Final = "numbered"
"""Index of commitment slots by their names without the number: a slot that passed to another commitment keeps its
name."""
UUID_INDEX: Final = "uuid"
"""Index of commitments by uuid."""


def slot_indexes() -> dict[str, Callable[[Reservation], Iterable[str]]]:
    """The indexes that the informer of reservations must have."""
    return {COMMITMENT_INDEX: _commitment, ALLOCATION_INDEX: slot_allocations, NUMBERED_INDEX: _numbered}


def commitment_indexes() -> dict[str, Callable[[CommittedResource], Iterable[str]]]:
    """The indexes that the informer of commitments must have."""
    return {UUID_INDEX: lambda one: (one.spec.commitment_uuid,), BY_PROJECT: project_of}


def _numbered(slot: Reservation) -> Iterable[str]:
    return () if slot.spec.type != COMMITTED else (slot.name.rpartition("-")[0],)


def _commitment(slot: Reservation) -> Iterable[str]:
    details = slot.spec.committed_resource_reservation
    return () if slot.spec.type != COMMITTED or details is None else (details.commitment_uuid,)


@dataclass(frozen=True, slots=True)
class CommitmentInformers:
    """The caches; the indexes are those of ``slot_indexes`` and ``commitment_indexes``."""

    commitments: Informer[CommittedResource]
    reservations: Informer[Reservation]
    hypervisors: Informer[Hypervisor]
    groups: Informer[FlavorGroup]
    capacities: Informer[FlavorGroupCapacity]
    quotas: Informer[ProjectQuota]

    def all(self) -> tuple[Informer[Any], ...]:
        """Every one."""
        return (self.commitments, self.reservations, self.hypervisors, self.groups, self.capacities, self.quotas)


class CommitmentView:
    """See the module."""

    def __init__(self, informers: CommitmentInformers, vms: VmTable) -> None:
        self.informers = informers
        self.vms = vms

    def groups(self) -> dict[str, FlavorGroupSpec]:
        """Flavor groups by name."""
        return {one.spec.group_name: one.spec for one in self.informers.groups.items()}

    def commitment(self, uuid: str) -> CommittedResource | None:
        """The commitment of that uuid."""
        found = self.informers.commitments.by_index(UUID_INDEX, uuid)
        return found[0] if found else None

    def slots(self, uuid: str) -> list[Reservation]:
        """All slots of a commitment."""
        return self.informers.reservations.by_index(COMMITMENT_INDEX, uuid)

    def named_like(self, commitment: Commitment) -> frozenset[str]:
        """Names of existing slots that a new one of the commitment could get."""
        found = self.informers.reservations.by_index(NUMBERED_INDEX, commitment_name(commitment.uuid))
        return frozenset(slot.name for slot in found)

    def capacity(self, group: str, zone: str) -> FlavorGroupCapacity | None:
        """What a flavor group has in a zone."""
        return self.informers.capacities.get(capacity_name(group, zone))

    def candidates(self, commitment: Commitment, group: FlavorGroupSpec) -> tuple[Candidate, ...]:
        """VMs of the project that new slots of the commitment can cover where they run."""
        vms = [vm for vm in self.vms.of_project(commitment.project) if not self._is_taken(vm.id, commitment)]
        hosts = {vm.host: self.informers.hypervisors.get(vm.host) for vm in vms}
        known = [host for host in hosts.values() if host is not None]
        return payg_candidates(commitment, group, vms, known, ()) if known else ()

    def _is_taken(self, vm: str, commitment: Commitment) -> bool:
        """Whether a slot of another commitment in the zone has the VM."""
        return any(
            slot.spec.availability_zone == commitment.zone
            and slot.spec.committed_resource_reservation is not None
            and slot.spec.committed_resource_reservation.commitment_uuid != commitment.uuid
            for slot in self.informers.reservations.by_index(ALLOCATION_INDEX, vm)
        )

    def held_cores(self, group: str, zone: str) -> Mapping[str, int]:
        """Project → cores of its VMs of the group in the zone, and of what its slots there hold beside them."""
        milli: dict[str, int] = {}
        groups = groups_by_flavor(one.spec for one in self.informers.groups.items())
        zones = {host.name: host.metadata.labels.get(ZONE_LABEL, "") for host in self.informers.hypervisors.items()}
        for vm in self.vms.all().values():
            own = groups.get(vm.flavor)
            if own is not None and own.group_name == group and zones.get(vm.host) == zone:
                milli[vm.project] = milli.get(vm.project, 0) + vm.cpu_milli
        for slot in self.informers.reservations.items():
            details = slot.spec.committed_resource_reservation
            if details is not None and details.resource_group == group and slot.spec.availability_zone == zone:
                milli[details.project_id] = milli.get(details.project_id, 0) + unused(slot).cpu_milli
        return {project: amount // MILLI for project, amount in milli.items()}

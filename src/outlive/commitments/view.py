"""What the deciding parts of commitments read: the caches, and what they say of one commitment."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from outlive.base import BadInput, get_logger
from outlive.commitments.names import capacity_name, commitment_name
from outlive.commitments.records import BY_PROJECT, project_of
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.slots import (
    Candidate,
    SlotLimitExceeded,
    SlotOptions,
    SlotPlan,
    payg_candidates,
    plan_slots,
    slot_allocations,
)
from outlive.commitments.state import Commitment
from outlive.commitments.units import GroupUnit, unit_of
from outlive.commitments.vm_table import VmTable
from outlive.placement import MILLI, Fleet, VmView, is_valid, unused_amounts
from outlive.resources import (
    COMMITTED,
    ZONE_LABEL,
    CommitmentChange,
    CommittedResource,
    FlavorGroup,
    FlavorGroupCapacity,
    FlavorGroupSpec,
    Hypervisor,
    ProjectQuota,
    Reservation,
)
from outlive.runtime import Informer

COMMITMENT_INDEX: Final = "commitment"
"""Index of commitment slots by the name of their commitment's object."""
ALLOCATION_INDEX: Final = "allocation"
"""Index of commitment slots by the VMs that they are meant for."""
NUMBERED_INDEX: Final = "numbered"
"""Index of commitment slots by their names without the number: a slot that passed to another commitment keeps its
name."""
OWNER_INDEX: Final = "owner"
"""Index of commitment slots by ``owner_key``."""

_log = get_logger("commitments")


def slot_indexes() -> dict[str, Callable[[Reservation], Iterable[str]]]:
    """The indexes that the informer of reservations must have."""
    return {
        COMMITMENT_INDEX: _commitment_keys,
        ALLOCATION_INDEX: slot_allocations,
        NUMBERED_INDEX: _prefix_keys,
        OWNER_INDEX: _owner_keys,
    }


def commitment_indexes() -> dict[str, Callable[[CommittedResource], Iterable[str]]]:
    """The indexes that the informer of commitments must have."""
    return {BY_PROJECT: project_of}


def owner_key(project: str, group: str) -> str:
    """The key of a project's slots of a flavor group."""
    return f"{project}\0{group}"


def _is_sold(group: FlavorGroupSpec) -> bool:
    return is_valid(group) and any(flavor.name == group.smallest_flavor.name for flavor in group.flavors)


def _owner_keys(slot: Reservation) -> Iterable[str]:
    details = slot.spec.committed_resource_reservation
    return (
        ()
        if slot.spec.type != COMMITTED or details is None
        else (owner_key(details.project_id, details.resource_group),)
    )


def _prefix_keys(slot: Reservation) -> Iterable[str]:
    return () if slot.spec.type != COMMITTED else (slot.name.rpartition("-")[0],)


def _commitment_keys(slot: Reservation) -> Iterable[str]:
    details = slot.spec.committed_resource_reservation
    return () if slot.spec.type != COMMITTED or details is None else (commitment_name(details.commitment_uuid),)


@dataclass(frozen=True, slots=True)
class CommitmentInformers:
    """The caches; the indexes are those of ``slot_indexes`` and ``commitment_indexes``."""

    commitments: Informer[CommittedResource]
    reservations: Informer[Reservation]
    hypervisors: Informer[Hypervisor]
    groups: Informer[FlavorGroup]
    capacities: Informer[FlavorGroupCapacity]
    quotas: Informer[ProjectQuota]
    changes: Informer[CommitmentChange]
    """Those that are not applied yet (``open_changes.OPEN``)."""

    def list_all(self) -> tuple[Informer[Any], ...]:
        """Every one."""
        return (
            self.commitments,
            self.reservations,
            self.hypervisors,
            self.groups,
            self.capacities,
            self.quotas,
            self.changes,
        )


class CommitmentView:
    """See the module."""

    def __init__(self, informers: CommitmentInformers, vms: VmTable, fleet: Fleet) -> None:
        self.informers = informers
        self.vms = vms
        self._fleet = fleet

    def groups_by_name(self) -> dict[str, FlavorGroupSpec]:
        """Flavor groups by name; one that is not valid, or lists not even its smallest flavor, is none."""
        return {one.spec.group_name: one.spec for one in self.informers.groups.items() if _is_sold(one.spec)}

    def find_group(self, name: str) -> FlavorGroupSpec | None:
        """A flavor group."""
        found = self.informers.groups.get(name)
        if found is not None and found.spec.group_name == name and _is_sold(found.spec):
            return found.spec
        return self.groups_by_name().get(name) if name else None

    def units_by_group(self, settings: CommitmentSettings) -> dict[str, GroupUnit]:
        """Flavor group → its unit; a group that the configured unit contradicts is left out, and logged."""
        found: dict[str, GroupUnit] = {}
        for name, group in self.groups_by_name().items():
            try:
                found[name] = unit_of(group, settings)
            except BadInput as error:
                _log.error("commitments.unit_contradicts", place=error.place, error=error.message)
        return found

    def find_commitment(self, uuid: str) -> CommittedResource | None:
        """The commitment of that uuid."""
        return self.informers.commitments.get(commitment_name(uuid))

    def list_slots(self, uuid: str) -> list[Reservation]:
        """All slots of a commitment that are in the store, as they count: with VMs that are not written into them."""
        return self.slots_of(commitment_name(uuid))

    def slots_of(self, name: str) -> list[Reservation]:
        """The same by the name of its object."""
        stored = self.informers.reservations.list_by_index(COMMITMENT_INDEX, name)
        return [self._fleet.counted_reservation(slot.name) or slot for slot in stored]

    def find_capacity(self, group: str, zone: str) -> FlavorGroupCapacity | None:
        """What a flavor group has in a zone."""
        return self.informers.capacities.get(capacity_name(group, zone))

    def zone_of(self, host: str) -> str:
        """The zone of a host; empty where that is not known."""
        found = self.informers.hypervisors.get(host)
        return found.metadata.labels.get(ZONE_LABEL, "") if found is not None else ""

    def zone_of_vm(self, vm: VmView) -> str:
        """The VM's own zone, or that of its host."""
        return vm.zone or self.zone_of(vm.host)

    def vms_of(self, project: str) -> list[VmView]:
        """The project's VMs, each with a zone. ``Unavailable`` while nobody knows which there are."""
        self.vms.check()
        found = self.vms.list_of_project(project)
        return [vm if vm.zone else msgspec.structs.replace(vm, zone=self.zone_of(vm.host)) for vm in found]

    def slot_plan(
        self,
        commitment: Commitment,
        own: Sequence[Reservation],
        group: FlavorGroupSpec,
        settings: CommitmentSettings,
        *,
        released: Container[str] = (),
        covered: Container[str] = (),
    ) -> SlotPlan:
        """``plan_slots`` over the commitment's ``own`` slots; new ones cover VMs of the project first.

        ``released``: slots that go. ``covered``: VMs that others cover by now. ``SlotLimitExceeded``.
        """
        like = self.informers.reservations.list_by_index(NUMBERED_INDEX, commitment_name(commitment.uuid))
        taken = frozenset(slot.name for slot in like)
        options = SlotOptions(max_slots=settings.max_slots_per_commitment, taken=taken)
        covers = settings.enable_payg_pre_allocation
        try:
            plan = plan_slots(commitment, own, group, options=options)
        except SlotLimitExceeded:
            if not covers:
                raise
        else:
            if not plan.create or not covers:
                return plan
        found = [one for one in self.find_candidates(commitment, group, released) if one.vm not in covered]
        return plan_slots(commitment, own, group, options=options, candidates=found)

    def find_candidates(
        self, commitment: Commitment, group: FlavorGroupSpec, released: Container[str] = ()
    ) -> tuple[Candidate, ...]:
        """VMs of the project that new slots of the commitment can cover where they run. ``released``: slots that go."""
        vms = [
            vm for vm in self.vms.list_of_project(commitment.project) if not self._is_taken(vm.id, commitment, released)
        ]
        hosts = {vm.host: self.informers.hypervisors.get(vm.host) for vm in vms}
        known = [host for host in hosts.values() if host is not None]
        return payg_candidates(commitment, group, vms, known, ()) if known else ()

    def _is_taken(self, vm: str, commitment: Commitment, released: Container[str]) -> bool:
        """Whether a slot of another commitment in the zone has the VM, and stays; as slots count, so also one that
        passes to another commitment, and one that the VM has joined and is not written into."""
        return any(
            slot.name not in released
            and slot.spec.availability_zone == commitment.zone
            and slot.spec.committed_resource_reservation is not None
            and slot.spec.committed_resource_reservation.commitment_uuid != commitment.uuid
            for slot in self._fleet.ledger.slots_expecting(vm)
        )

    def occupied_cores(self, commitment: Commitment, others: Iterable[CommittedResource]) -> Mapping[str, int]:
        """Project → cores of its VMs of the commitment's group in its zone, and of what its slots there hold beside
        them; of the commitment's project, and of those that have other commitments of cores."""
        group, zone = commitment.group, commitment.zone
        projects = {commitment.project, *(one.spec.project_id for one in others if one.spec.resource_type == "cores")}
        found = self.find_group(group)
        flavors = {flavor.name for flavor in found.flavors} if found is not None else set()
        held: dict[str, int] = {}
        for project in projects:
            vms = [
                vm for vm in self.vms.list_of_project(project) if vm.flavor in flavors and self.zone_of(vm.host) == zone
            ]
            counted = {vm.id for vm in vms}
            owned = self.informers.reservations.list_by_index(OWNER_INDEX, owner_key(project, group))
            slots = (slot for slot in owned if slot.spec.availability_zone == zone)
            milli = sum(vm.cpu_milli for vm in vms) + sum(
                unused_amounts(slot, running=counted).cpu_milli for slot in slots
            )
            held[project] = milli // MILLI
        return held

"""Which slots a commitment needs: kept, deleted, made and changed.

A slot is a reservation of a flavor's size on one host. The rules are in docs/design/commitment-rules.md#slots and
#pre-allocation. Hosts of new slots are chosen elsewhere, except where the place is known: a VM of the project runs
there, or a slot that becomes smaller was there.
"""

from __future__ import annotations

import enum
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from outlive.base import BadInput, LimitExceeded, as_datetime
from outlive.commitments.names import commitment_name, free_slot_names, slot_index
from outlive.commitments.state import Commitment
from outlive.placement import MIB, MILLI, VmView, is_ready
from outlive.resources import (
    COMMITTED,
    CPU,
    MEMORY,
    REQUEST_ID_ANNOTATION,
    RESERVATION_TYPE_LABEL,
    TYPE_LABEL_VALUES,
    ZONE_LABEL,
    Amounts,
    CommittedSpec,
    FlavorGroupSpec,
    GroupFlavor,
    Hypervisor,
    ObjectMeta,
    Reservation,
    ReservationSpec,
    SpecAllocation,
)

CREATOR: Final = "committed-resource-controller"

SLOTS_LIMIT: Final = 10_000
"""New slots of one commitment at most, unless a setting says fewer or more."""


class SlotLimitExceeded(LimitExceeded):
    """A commitment would need more new slots than one may have."""

    code = "slot-limit-exceeded"


class Candidate(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM of the project that runs and is in no commitment slot."""

    vm: str
    host: str
    flavor: str
    memory_bytes: int


class SlotOptions(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How slots are planned."""

    max_slots: int = SLOTS_LIMIT
    """New slots at most; those that cover VMs which run already do not count."""
    taken: frozenset[str] = frozenset()
    """Names of slots that exist and are not among those of the commitment."""


class NewSlot(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A slot to be made. Its host is chosen for its own size, which may be smaller than its flavor."""

    name: str
    flavor: str
    memory_bytes: int
    cpu_milli: int
    host: str = ""
    """Empty: it has to be chosen."""
    vm: str = ""
    """A VM that runs there already and is its first allocation."""

    @property
    def resources(self) -> Amounts:
        """Its size."""
        return Amounts({CPU: self.cpu_milli, MEMORY: self.memory_bytes})


class DeletionReason(enum.StrEnum):
    """Why a slot is deleted."""

    FOREIGN_PROJECT = "foreign-project"
    FOREIGN_GROUP = "foreign-group"
    FOREIGN_ZONE = "foreign-zone"
    UNKNOWN_FLAVOR = "unknown-flavor"
    """It has no host, and its flavor is no longer one of the group, so that none is found for it."""
    TOO_MUCH = "too-much"


class DeletedSlot(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A slot to be deleted."""

    name: str
    why: DeletionReason


class SlotPlan(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What makes a commitment's slots what they should be."""

    keep: tuple[Reservation, ...] = ()
    """Slots that stay, as they should read."""
    patched: tuple[str, ...] = ()
    """Names of those among them that read differently now."""
    delete: tuple[DeletedSlot, ...] = ()
    create: tuple[NewSlot, ...] = ()

    @property
    def total(self) -> int:
        """How many slots there will be."""
        return len(self.keep) + len(self.create)

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.patched or self.delete or self.create)


def plan_slots(
    commitment: Commitment,
    existing: Sequence[Reservation],
    group: FlavorGroupSpec,
    *,
    options: SlotOptions | None = None,
    candidates: Sequence[Candidate] = (),
) -> SlotPlan:
    """What to do so that the slots add up to the commitment; nothing where they do.

    ``existing``: all slots of the commitment. ``candidates``: VMs to cover where they run (``payg_candidates``); those
    that a slot which stays has already are left out. ``BadInput`` for a group without flavors, ``SlotLimitExceeded``.
    """
    if not group.flavors:
        raise BadInput(f"flavor group {group.group_name} has no flavors", remedy="import its flavors")
    options = options or SlotOptions()
    desired = commitment.memory_bytes
    deleted: list[DeletedSlot] = []
    kept: list[Reservation] = []
    for slot in sorted(existing, key=slot_order):
        if (why := _explain_useless(slot, commitment, group)) is not None:
            deleted.append(DeletedSlot(name=slot.name, why=why))
        else:
            kept.append(slot)
    excess = sum(map(memory_of, kept)) - desired
    shrunk: Reservation | None = None
    for slot in shrink_order(kept):
        if excess <= 0:
            break
        shrunk = slot
        excess -= memory_of(slot)
        deleted.append(DeletedSlot(name=slot.name, why=DeletionReason.TOO_MUCH))
    gone = {one.name for one in deleted}
    kept = [slot for slot in kept if slot.name not in gone]
    create = _new_slots(commitment, existing, kept, group, options, candidates, missing=-excess, shrunk=shrunk)
    read = [synchronise_slot(slot, commitment) for slot in kept]
    return SlotPlan(
        keep=tuple(read),
        patched=tuple(new.name for old, new in zip(kept, read, strict=True) if new is not old),
        delete=tuple(deleted),
        create=create,
    )


def payg_candidates(
    commitment: Commitment,
    group: FlavorGroupSpec,
    vms: Iterable[VmView],
    hosts: Iterable[Hypervisor],
    taken: Container[str],
) -> tuple[Candidate, ...]:
    """VMs of the project that run in the zone on a flavor of the group, and that no slot has.

    ``taken``: VMs in allocations of the commitment slots of the zone, of any project, without those of the commitment
    itself. A host counts if its label says the zone and it is not lost, and a VM if its host reports it as active.
    """
    active = {
        host.name: {one.id for one in host.status.instances if one.active}
        for host in hosts
        if host.metadata.labels.get(ZONE_LABEL) == commitment.zone and not host.status.lost
    }
    sizes = {flavor.name: flavor.memory_mb * MIB for flavor in group.flavors}
    return tuple(
        Candidate(vm=vm.id, host=vm.host, flavor=vm.flavor, memory_bytes=sizes[vm.flavor])
        for vm in vms
        if vm.project == commitment.project
        and vm.flavor in sizes
        and vm.id in active.get(vm.host, ())
        and vm.id not in taken
    )


def reservation_of(
    new: NewSlot, commitment: Commitment, *, now: float, creator: str = CREATOR, request_id: str = ""
) -> Reservation:
    """The object of a new slot. A VM that it covers is its first allocation, from ``now`` on."""
    allocations = {}
    if new.vm:
        allocations[new.vm] = SpecAllocation(creation_timestamp=as_datetime(now), resources=new.resources)
    return Reservation(
        metadata=ObjectMeta(
            name=new.name,
            labels={RESERVATION_TYPE_LABEL: TYPE_LABEL_VALUES[COMMITTED]},
            annotations={REQUEST_ID_ANNOTATION: request_id} if request_id else {},
        ),
        spec=ReservationSpec(
            type="CommittedResourceReservation",
            availability_zone=commitment.zone,
            resources=new.resources,
            start_time=commitment.start,
            end_time=commitment.end,
            target_host=new.host,
            committed_resource_reservation=CommittedSpec(
                resource_name=new.flavor,
                commitment_uuid=commitment.uuid,
                resource_group=commitment.group,
                project_id=commitment.project,
                domain_id=commitment.domain,
                creator=creator,
                parent_generation=commitment.generation,
                allocations=allocations,
            ),
        ),
    )


def slot_allocations(slot: Reservation) -> dict[str, SpecAllocation]:
    """VMs that a slot is meant for."""
    details = slot.spec.committed_resource_reservation
    return details.allocations if details is not None else {}


def confirmed_allocations(slot: Reservation) -> dict[str, str]:
    """VM that is in a slot → the host that reported it."""
    seen = slot.status.committed_resource_reservation
    return seen.allocations if seen is not None else {}


def memory_of(slot: Reservation) -> int:
    """Bytes of its size."""
    return slot.spec.resources.memory_bytes


def slot_order(slot: Reservation) -> tuple[int, str]:
    """Slots in the order of their numbers."""
    return slot_index(slot.name), slot.name


def _explain_useless(slot: Reservation, commitment: Commitment, group: FlavorGroupSpec) -> DeletionReason | None:
    details = slot.spec.committed_resource_reservation or CommittedSpec()
    if details.project_id != commitment.project:
        return DeletionReason.FOREIGN_PROJECT
    if details.resource_group != commitment.group:
        return DeletionReason.FOREIGN_GROUP
    if slot.spec.availability_zone != commitment.zone:
        return DeletionReason.FOREIGN_ZONE
    known = slot.spec.target_host or any(flavor.name == details.resource_name for flavor in group.flavors)
    return None if known else DeletionReason.UNKNOWN_FLAVOR


def shrink_order(slots: Sequence[Reservation]) -> Iterator[Reservation]:
    """Those without a host first, then those without VMs, then the others from the end."""
    yield from (slot for slot in slots if not slot.spec.target_host)
    placed = [slot for slot in slots if slot.spec.target_host]
    yield from (slot for slot in placed if not slot_allocations(slot))
    yield from (slot for slot in reversed(placed) if slot_allocations(slot))


def synchronise_slot(slot: Reservation, commitment: Commitment) -> Reservation:
    """The slot with what the commitment says now; what the commitment leaves open stays."""
    spec, details = slot.spec, slot.spec.committed_resource_reservation or CommittedSpec()
    wanted = replace(
        details,
        commitment_uuid=commitment.uuid,
        domain_id=commitment.domain or details.domain_id,
        parent_generation=commitment.generation or details.parent_generation,
    )
    start, end = commitment.start or spec.start_time, commitment.end or spec.end_time
    if (wanted, start, end) == (details, spec.start_time, spec.end_time):
        return slot
    return replace(slot, spec=replace(spec, start_time=start, end_time=end, committed_resource_reservation=wanted))


def _new_slots(
    commitment: Commitment,
    existing: Sequence[Reservation],
    kept: Sequence[Reservation],
    group: FlavorGroupSpec,
    options: SlotOptions,
    candidates: Sequence[Candidate],
    *,
    missing: int,
    shrunk: Reservation | None,
) -> tuple[NewSlot, ...]:
    """Slots for what is missing: first on VMs that run, then where a slot became smaller, then anywhere."""
    if missing <= 0:
        return ()
    flavors = {flavor.name: flavor for flavor in reversed(group.flavors)}
    covered = {vm for slot in kept for vm in slot_allocations(slot)}
    free = [one for one in candidates if one.vm not in covered and one.flavor in flavors]
    found: list[tuple[GroupFlavor, int, str, str]] = []
    for one, memory in _choose_vms(free, missing if commitment.zone else 0):
        found.append((flavors[one.flavor], memory, one.host, one.vm))
        missing -= memory
    cut = tuple(_cut(group, missing, limit=options.max_slots))
    host = _host_with_room(shrunk, cut)
    found.extend((flavor, memory, host, "") for flavor, memory in cut)
    names = free_slot_names(commitment_name(commitment.uuid), [slot.name for slot in existing], options.taken)
    return tuple(
        NewSlot(name=name, flavor=flavor.name, memory_bytes=memory, cpu_milli=flavor.vcpus * MILLI, host=host, vm=vm)
        for name, (flavor, memory, host, vm) in zip(names, found, strict=False)
    )


def _choose_vms(candidates: Sequence[Candidate], missing: int) -> Iterator[tuple[Candidate, int]]:
    """VMs that slots can cover, with the size of each slot: the largest that fits, and at last the smallest in part."""
    larger: list[Candidate] = []
    for one in sorted(candidates, key=lambda c: (-c.memory_bytes, c.vm)):
        if one.memory_bytes > missing:
            larger.append(one)
        elif one.memory_bytes > 0:
            yield one, one.memory_bytes
            missing -= one.memory_bytes
    part = missing // MIB * MIB
    if larger and part > 0:
        yield larger[-1], part


def _cut(group: FlavorGroupSpec, missing: int, *, limit: int) -> Iterator[tuple[GroupFlavor, int]]:
    """Sizes of slots that add up to ``missing`` bytes: each time the largest flavor that fits, then what is left, on
    the smallest flavor."""
    counts: list[tuple[GroupFlavor, int, int]] = []
    usable = [flavor for flavor in group.flavors if flavor.memory_mb > 0]
    for flavor in usable:
        count, missing = divmod(missing, flavor.memory_mb * MIB)
        counts.append((flavor, flavor.memory_mb * MIB, count))
    if missing:
        counts.append((group.flavors[-1], missing, 1))
    total = sum(count for _, _, count in counts)
    if total > limit:
        raise SlotLimitExceeded(f"commitment would create {total} new reservation slots, exceeds limit of {limit}")
    for flavor, memory, count in counts:
        for _ in range(count):
            yield flavor, memory


def _host_with_room(slot: Reservation | None, new: Sequence[tuple[GroupFlavor, int]]) -> str:
    """The host on which a slot that goes leaves room for these: what it held there is theirs, so nothing is looked for.
    Its VMs use their part already. Empty: it leaves too little."""
    if slot is None or not new or not is_ready(slot) or slot.spec.target_host != slot.status.host:
        return ""
    used = [one.resources for one in slot_allocations(slot).values()]
    memory = memory_of(slot) - sum(one.memory_bytes for one in used)
    cpu = slot.spec.resources.cpu_milli - sum(one.cpu_milli for one in used)
    fits = sum(size for _, size in new) <= memory and sum(flavor.vcpus for flavor, _ in new) * MILLI <= cpu
    return slot.status.host if fits else ""

"""Where Limes, commitments, slots, allocations, hosts and the list of VMs say different things.

One pure comparison of everything (docs/reference/commitments.md#consistency): each disagreement has a class, the part
whose business it is, and what repairs it. A repair is *safe* where it loses nothing that anybody could still need.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

import msgspec

from outlive.base import as_instant, format_bytes
from outlive.commitments.slots import confirmed_allocations, slot_allocations
from outlive.commitments.state import Commitment, is_active, is_over
from outlive.commitments.verification import choose_keeper
from outlive.placement import placed_on
from outlive.resources import COMMITTED, CommittedResource, CommittedResourceSpec, Reservation


class Owner(enum.StrEnum):
    """The part whose business a disagreement is: the controller that repairs it, or whose source is wrong."""

    SYNCER = "syncer"
    BATCHES = "batches"
    COMMITMENT = "commitment"
    SLOT = "slot"
    USAGE = "usage"
    VM_SOURCE = "vm-source"


class Repair(enum.StrEnum):
    """What is done about it."""

    SYNC = "sync"
    """Write the commitment as Limes lists it."""
    RECONCILE = "reconcile"
    """Let the commitment's controller work out its slots again."""
    DELETE_SLOT = "delete-slot"
    VERIFY_SLOT = "verify-slot"
    """Let the slot's controller place it, or verify its VMs."""
    DROP_ALLOCATION = "drop-allocation"
    COUNT_USAGE = "count-usage"
    """Assign the project's VMs anew."""


class DisagreementKind(enum.StrEnum):
    """The class of a disagreement; the word of the metric."""

    CHANGE_NOT_APPLIED = "change-not-applied"
    NOT_SYNCED = "not-synced"
    NOT_LISTED = "not-listed"
    DIFFERS = "differs"
    ZONE_DIFFERS = "zone-differs"
    OVER_WITH_SLOTS = "over-with-slots"
    ORPHAN_SLOT = "orphan-slot"
    SLOTS_SHORT = "slots-short"
    SLOTS_EXCESS = "slots-excess"
    SLOT_DIFFERS = "slot-differs"
    SLOT_ON_UNKNOWN_HOST = "slot-on-unknown-host"
    ALLOCATED_TWICE = "allocated-twice"
    UNKNOWN_VM = "unknown-vm"
    FOREIGN_VM = "foreign-vm"
    CONFIRMED_ELSEWHERE = "confirmed-elsewhere"
    CHARGED_UNKNOWN = "charged-unknown"
    CHARGED_TWICE = "charged-twice"
    OVERCHARGED = "overcharged"
    VM_NOT_LISTED = "vm-not-listed"
    VM_ON_OTHER_HOST = "vm-on-other-host"


OWNERS: Final[dict[DisagreementKind, Owner]] = {
    DisagreementKind.CHANGE_NOT_APPLIED: Owner.BATCHES,
    DisagreementKind.NOT_SYNCED: Owner.SYNCER,
    DisagreementKind.NOT_LISTED: Owner.SYNCER,
    DisagreementKind.DIFFERS: Owner.SYNCER,
    DisagreementKind.ZONE_DIFFERS: Owner.SYNCER,
    DisagreementKind.OVER_WITH_SLOTS: Owner.COMMITMENT,
    DisagreementKind.ORPHAN_SLOT: Owner.SLOT,
    DisagreementKind.SLOTS_SHORT: Owner.COMMITMENT,
    DisagreementKind.SLOTS_EXCESS: Owner.COMMITMENT,
    DisagreementKind.SLOT_DIFFERS: Owner.COMMITMENT,
    DisagreementKind.SLOT_ON_UNKNOWN_HOST: Owner.SLOT,
    DisagreementKind.ALLOCATED_TWICE: Owner.SLOT,
    DisagreementKind.UNKNOWN_VM: Owner.SLOT,
    DisagreementKind.FOREIGN_VM: Owner.SLOT,
    DisagreementKind.CONFIRMED_ELSEWHERE: Owner.SLOT,
    DisagreementKind.CHARGED_UNKNOWN: Owner.USAGE,
    DisagreementKind.CHARGED_TWICE: Owner.USAGE,
    DisagreementKind.OVERCHARGED: Owner.USAGE,
    DisagreementKind.VM_NOT_LISTED: Owner.VM_SOURCE,
    DisagreementKind.VM_ON_OTHER_HOST: Owner.VM_SOURCE,
}
REPAIRS: Final[dict[DisagreementKind, Repair]] = {
    DisagreementKind.NOT_SYNCED: Repair.SYNC,
    DisagreementKind.DIFFERS: Repair.SYNC,
    DisagreementKind.ZONE_DIFFERS: Repair.SYNC,
    DisagreementKind.OVER_WITH_SLOTS: Repair.RECONCILE,
    DisagreementKind.SLOTS_SHORT: Repair.RECONCILE,
    DisagreementKind.SLOTS_EXCESS: Repair.RECONCILE,
    DisagreementKind.SLOT_DIFFERS: Repair.RECONCILE,
    DisagreementKind.SLOT_ON_UNKNOWN_HOST: Repair.VERIFY_SLOT,
    DisagreementKind.CONFIRMED_ELSEWHERE: Repair.VERIFY_SLOT,
    DisagreementKind.CHARGED_UNKNOWN: Repair.COUNT_USAGE,
    DisagreementKind.CHARGED_TWICE: Repair.COUNT_USAGE,
    DisagreementKind.OVERCHARGED: Repair.COUNT_USAGE,
}
"""What repairs a class wherever it occurs; of orphaned slots and wrong allocations it depends on the case. People judge
what Limes no longer lists, and what is wrong with the list of VMs."""


class CommitmentDisagreement(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One of them."""

    kind: DisagreementKind
    owner: Owner
    subject: str
    """The commitment's uuid, the name of the slot or of the change, or the VM."""
    detail: str
    """Who says what."""
    repair: Repair | None = None
    """What would be done about it; absent: people judge."""
    vm: str = ""
    """Of an allocation."""

    @property
    def safe(self) -> bool:
        """Whether it may be repaired without asking anybody."""
        return self.repair is not None


class VmFacts(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
    """A VM as its source lists it."""

    host: str
    project: str = ""


class ConsistencyInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One look at everything. ``now`` is seconds since 1970."""

    listed: dict[str, Commitment] | None = None
    """Uuid → what Limes lists; absent: it was not asked, or did not answer whole."""
    protected: tuple[str, ...] = ()
    """Further uuids that Limes lists and that could not be read."""
    unapplied: dict[str, str] = {}
    """Change that is committed → why it is not applied yet."""
    commitments: tuple[CommittedResource, ...] = ()
    slots: tuple[Reservation, ...] = ()
    instances: dict[str, tuple[str, ...]] = {}
    """Known host → VMs that it reports, running or not."""
    vms: dict[str, VmFacts] | None = None
    """VM → as its source lists it; absent: the source did not answer."""
    moving: tuple[str, ...] = ()
    """VMs that are being moved now: where they are is not settled."""
    now: float
    grace_s: float
    """How long an allocation, a slot or a commitment may be new."""


class ConsistencyResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All disagreements, by class and subject, and how many of each class there are, 0 included."""

    disagreements: tuple[CommitmentDisagreement, ...]
    counts: dict[DisagreementKind, int]


def compare(given: ConsistencyInput) -> ConsistencyResult:
    """Find every disagreement."""
    parts = (_check_changes, _check_limes, _check_slots, _check_allocations, _check_usage, _check_vms)
    found = sorted((one for part in parts for one in part(given)), key=lambda one: (one.kind, one.subject, one.vm))
    counts = Counter(one.kind for one in found)
    return ConsistencyResult(disagreements=tuple(found), counts={kind: counts[kind] for kind in DisagreementKind})


def _build_disagreement(
    kind: DisagreementKind, subject: str, detail: str, *, repair: Repair | None = None, vm: str = ""
) -> CommitmentDisagreement:
    return CommitmentDisagreement(
        kind=kind,
        owner=OWNERS[kind],
        subject=subject,
        detail=detail,
        repair=repair or REPAIRS.get(kind),
        vm=vm,
    )


def _index_by_uuid(given: ConsistencyInput) -> dict[str, CommittedResource]:
    return {one.spec.commitment_uuid: one for one in given.commitments}


# Changes and what they say.


def _check_changes(given: ConsistencyInput) -> Iterator[CommitmentDisagreement]:
    for change, why in given.unapplied.items():
        detail = f"it counts and is not applied: {why}"
        yield _build_disagreement(DisagreementKind.CHANGE_NOT_APPLIED, change, detail)


# Limes and commitments.


def _check_limes(given: ConsistencyInput) -> Iterator[CommitmentDisagreement]:
    if given.listed is None:
        return
    ours = _index_by_uuid(given)
    for uuid, listed in given.listed.items():
        mine = ours.get(uuid)
        if mine is None:
            over = listed.end is not None and as_instant(listed.end) <= given.now
            if listed.state not in ("superseded", "expired") and not over:
                yield _build_disagreement(
                    DisagreementKind.NOT_SYNCED, uuid, f"Limes lists it as {listed.state}, and there is no commitment"
                )
        elif mine.spec.availability_zone != listed.zone:
            detail = f"Limes says zone {listed.zone}, the commitment {mine.spec.availability_zone}"
            yield _build_disagreement(DisagreementKind.ZONE_DIFFERS, uuid, detail)
        elif differences := _list_differences(mine.spec, listed):
            yield _build_disagreement(DisagreementKind.DIFFERS, uuid, "; ".join(differences))
    for uuid, mine in ours.items():
        unknown = uuid not in given.listed and uuid not in given.protected
        if unknown and not is_over(mine.spec, given.now) and not _is_new(mine.metadata.creation_timestamp, given):
            yield _build_disagreement(
                DisagreementKind.NOT_LISTED, uuid, f"it is {mine.spec.state}, and Limes does not list it"
            )


def _list_differences(spec: CommittedResourceSpec, listed: Commitment) -> list[str]:
    pairs: list[tuple[str, object, object]] = [
        ("state", listed.state, spec.state),
        ("project", listed.project, spec.project_id),
        ("flavor group", listed.group, spec.flavor_group_name),
        ("type", listed.type, spec.resource_type),
        ("end", listed.end, spec.end_time),
    ]
    if listed.type == spec.resource_type:
        pairs.append(("amount", listed.total, spec.total))
    return [f"{what}: Limes says {theirs}, the commitment {ours}" for what, theirs, ours in pairs if theirs != ours]


def _is_new(created: datetime | None, given: ConsistencyInput) -> bool:
    return created is not None and given.now - as_instant(created) < given.grace_s


# Commitments and slots.


def _check_slots(given: ConsistencyInput) -> Iterator[CommitmentDisagreement]:
    ours, of = _index_by_uuid(given), dict[str, list[Reservation]]()
    for slot in given.slots:
        details = slot.spec.committed_resource_reservation
        if slot.spec.type == COMMITTED and details is not None:
            of.setdefault(details.commitment_uuid, []).append(slot)
    for uuid, slots in of.items():
        mine = ours.get(uuid)
        if mine is not None and is_over(mine.spec, given.now):
            yield _build_disagreement(DisagreementKind.OVER_WITH_SLOTS, uuid, f"it is over and has {len(slots)} slots")
        elif mine is not None:
            yield from _check_fields(mine, slots)
        else:
            # slots of no commitment may be deleted if Limes does not list it either, and no VM is in them
            listed = given.listed is None or uuid in given.listed or uuid in given.protected
            for slot in slots:
                if _is_new(slot.metadata.creation_timestamp, given):
                    continue
                vms = bool(slot_allocations(slot))
                detail = f"there is no commitment {uuid or 'named'}" + ("; VMs are in it" if vms else "")
                repair = None if listed or vms else Repair.DELETE_SLOT
                yield _build_disagreement(DisagreementKind.ORPHAN_SLOT, slot.name, detail, repair=repair)
    for uuid, mine in ours.items():
        spec = mine.status.accepted_spec
        if spec is None or spec.resource_type != "memory" or not is_active(mine.spec, given.now) or spec != mine.spec:
            continue  # one that is being changed may have other slots
        has, wanted = sum(slot.spec.resources.memory_bytes for slot in of.get(uuid, ())), spec.total
        begun = spec.start_time is None or as_instant(spec.start_time) <= given.now
        if begun and has != wanted:
            kind = DisagreementKind.SLOTS_SHORT if has < wanted else DisagreementKind.SLOTS_EXCESS
            detail = f"it has slots of {format_bytes(has)}, and {format_bytes(wanted)} was accepted"
            yield _build_disagreement(kind, uuid, detail)
    for slot in given.slots:
        host = placed_on(slot)
        if slot.spec.type == COMMITTED and host and host not in given.instances:
            detail = f"it is on {host}, and there is no such host"
            yield _build_disagreement(DisagreementKind.SLOT_ON_UNKNOWN_HOST, slot.name, detail)


def _check_fields(mine: CommittedResource, slots: Iterable[Reservation]) -> Iterator[CommitmentDisagreement]:
    spec = mine.status.accepted_spec or mine.spec
    for slot in slots:
        details = slot.spec.committed_resource_reservation
        assert details is not None, "only slots with details are grouped by commitment"
        for what, has, wanted in (
            ("project", details.project_id, spec.project_id),
            ("flavor group", details.resource_group, spec.flavor_group_name),
            ("zone", slot.spec.availability_zone, spec.availability_zone),
        ):
            if has != wanted:
                detail = f"its {what} is {has or 'none'}, that of its commitment {wanted}"
                yield _build_disagreement(DisagreementKind.SLOT_DIFFERS, slot.name, detail)
                break


# Slots, hosts and VMs.


def _hosts_of(given: ConsistencyInput) -> dict[str, list[str]]:
    hosts: dict[str, list[str]] = {}
    for host, vms in given.instances.items():
        for vm in vms:
            hosts.setdefault(vm, []).append(host)
    return hosts


def _check_allocations(given: ConsistencyInput) -> Iterator[CommitmentDisagreement]:
    all_hosts, slots_of = _hosts_of(given), dict[str, list[Reservation]]()
    moving, drop = frozenset(given.moving), Repair.DROP_ALLOCATION
    promised = {uuid for uuid, one in _index_by_uuid(given).items() if not is_over(one.spec, given.now)}
    for slot in given.slots:
        details = slot.spec.committed_resource_reservation
        if slot.spec.type != COMMITTED or details is None:
            continue
        for vm, allocation in details.allocations.items():
            slots_of.setdefault(vm, []).append(slot)
            if _is_new(allocation.creation_timestamp, given) or vm in moving:
                continue
            hosts, project = all_hosts.get(vm, []), details.project_id
            known = given.vms.get(vm) if given.vms is not None else None
            if given.vms is not None and known is None and not hosts:
                detail = "no host reports the VM, and its source does not list it"
                yield _build_disagreement(DisagreementKind.UNKNOWN_VM, slot.name, detail, repair=drop, vm=vm)
            elif known is not None and known.project and known.project != project:
                detail = f"the VM is of project {known.project}, the slot of {project}"
                yield _build_disagreement(DisagreementKind.FOREIGN_VM, slot.name, detail, repair=drop, vm=vm)
            elif vm in confirmed_allocations(slot) and slot.status.host not in hosts:
                detail = f"it counts on {slot.status.host}; {' and '.join(sorted(hosts)) or 'no host'} reports it"
                yield _build_disagreement(DisagreementKind.CONFIRMED_ELSEWHERE, slot.name, detail, vm=vm)
    for vm, slots in slots_of.items():
        if len(slots) < 2 or vm in moving:
            continue
        keeps = choose_keeper(vm, slots, all_hosts.get(vm, []), promised.__contains__)
        for slot in (slot for slot in slots if slot is not keeps):
            detail = f"slot {keeps.name} has the VM as well"
            yield _build_disagreement(DisagreementKind.ALLOCATED_TWICE, slot.name, detail, repair=drop, vm=vm)


def _check_usage(given: ConsistencyInput) -> Iterator[CommitmentDisagreement]:
    charged: dict[tuple[str, str], str] = {}
    for one in sorted(given.commitments, key=lambda one: one.spec.commitment_uuid):
        spec, uuid = one.status.accepted_spec or one.spec, one.spec.commitment_uuid
        for vm in one.status.assigned_instances:
            first = charged.setdefault((spec.resource_type, vm), uuid)
            if first != uuid:
                yield _build_disagreement(
                    DisagreementKind.CHARGED_TWICE, uuid, f"VM {vm} is charged to {first} as well", vm=vm
                )
            if given.vms is not None and vm not in given.vms:
                detail = f"VM {vm} is charged to it, and its source does not list it"
                yield _build_disagreement(DisagreementKind.CHARGED_UNKNOWN, uuid, detail, vm=vm)
        used = one.status.used_resources
        if used is not None:
            amount = used.memory_bytes if spec.resource_type == "memory" else -(-used.cpu_milli // 1000)
            if amount > spec.total:
                yield _build_disagreement(
                    DisagreementKind.OVERCHARGED, uuid, f"{amount} is charged to it, and it is {spec.total}"
                )


def _check_vms(given: ConsistencyInput) -> Iterator[CommitmentDisagreement]:
    if given.vms is None:
        return
    moving = frozenset(given.moving)
    for vm, hosts in _hosts_of(given).items():
        if vm in moving:
            continue
        known, where = given.vms.get(vm), " and ".join(sorted(hosts))
        if known is None:
            yield _build_disagreement(
                DisagreementKind.VM_NOT_LISTED, vm, f"{where} reports it, and its source does not list it"
            )
        elif known.host and known.host not in hosts:
            yield _build_disagreement(
                DisagreementKind.VM_ON_OTHER_HOST, vm, f"its source says {known.host}, and {where} reports it"
            )

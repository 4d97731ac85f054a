"""Who has the slots that it needs, why not, and the fleet in a few numbers.

A slot counts for a VM when it lists the VM where it runs, is ready, at least as large, and where the VM may run. A VM
is covered when as many slots count as it needs and no rule is broken
(docs/reference/failover-rules.md#checking-and-coverage).
What is said here is said of exactly the state that was given; what placement might do besides is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from outlive.failover.analysis.bound import BoundInput, BoundResult, compute_bound
from outlive.failover.analysis.tolerance import compute_tolerances
from outlive.failover.conflicts import ConflictIndex
from outlive.failover.model import HostView, SlotView
from outlive.failover.planner.actions import Fail
from outlive.failover.rules import is_large_enough, slot_counts
from outlive.failover.slots import format_amounts
from outlive.failover.topology import Topology
from outlive.placement import VmView, may_run_on
from outlive.resources import Amounts, CoverageStatus
from outlive.resources.reasons import AllocationFault, CoverageReason, Reason, make_reason, render


def allocation_fault(vm: VmView, slot: SlotView) -> Reason | None:
    """Why a slot that lists the VM does not count for it; ``None`` where it counts. ``KeyError`` for no member.

    It is ``None`` exactly where ``rules.slot_counts`` says that the slot counts. Whether the slot's host has room, and
    whether the rules hold for the VM, are questions about more than the two of them.
    """
    recorded = slot.members[vm.id]
    if recorded != vm.host:
        return make_reason(AllocationFault.ELSEWHERE, recorded=recorded, at=vm.host)
    if slot.ready is False:
        return make_reason(AllocationFault.NOT_READY, why=slot.unready, host=slot.host, slot=slot.name)
    if not may_run_on(vm, slot.host):
        return make_reason(AllocationFault.NOT_ALLOWED, host=slot.host or "no host", limit=vm.host_limit)
    if not is_large_enough(vm, slot):
        holds, needs = format_amounts(slot.cpu_milli, slot.memory_bytes), format_amounts(vm.cpu_milli, vm.memory_bytes)
        return make_reason(AllocationFault.TOO_SMALL, holds=holds, needs=needs)
    return None


class CoverageInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A state, and what the last cycle said about those that it could not serve."""

    vms: tuple[VmView, ...]
    required: dict[str, int]
    """VM → slots that it needs; missing means none."""
    slots: tuple[SlotView, ...] = ()
    hosts: tuple[HostView, ...] = ()
    fails: tuple[Fail, ...] = ()
    topology: Topology = Topology()


class Uncovered(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM without the slots that it needs."""

    vm: str
    host: str
    required: int
    present: int
    reason: str
    message: str
    remedy: str


class Reserved(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What slots hold together."""

    cpu_milli: int
    memory_bytes: int


class Bound(BoundResult, frozen=True, kw_only=True, rename="camel"):
    """The least that any plan needs, and how far the slots are from it."""

    gap: int
    """Slots beyond the bound; below zero where coverage is incomplete."""


class Numbers(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A coverage in numbers."""

    vms: int
    required: int
    """VMs that need slots."""
    covered: int
    """VMs that need slots and have them."""
    slots: int
    reserved: Reserved
    bound: Bound


class CoverageResult(Numbers, frozen=True, kw_only=True, rename="camel"):
    """The fleet, and everybody who is not covered."""

    uncovered: tuple[Uncovered, ...]
    """By id."""
    tolerance: int
    """Units of failure that every VM which needs slots survives, whichever they are."""
    also_needs: dict[str, int]
    """Resource → VMs that need slots and this besides, which no slot holds."""
    unprotected: tuple[str, ...] | UnsetType = UNSET
    """VMs that somebody has taken out of protection, by id; absent where there are none."""


def compute_coverage(given: CoverageInput) -> CoverageResult:
    """Sum up the state."""
    needing = [vm for vm in given.vms if given.required.get(vm.id, 0) > 0]
    statuses = assess_state(given)
    uncovered = [
        Uncovered(
            vm=vm.id,
            host=status.host,
            required=status.required,
            present=len(status.slots),
            reason=status.reason,
            message=status.message,
            remedy=status.remedy,
        )
        for vm in needing
        if not (status := statuses[vm.id]).covered
    ]
    topology = given.topology
    least = compute_bound(BoundInput(vms=given.vms, required=given.required, hosts=given.hosts, topology=topology))
    levels = compute_tolerances(needing, given.slots, {vm.id: vm.host for vm in given.vms}, topology.units)
    return CoverageResult(
        vms=len(given.vms),
        required=len(needing),
        covered=len(needing) - len(uncovered),
        uncovered=tuple(sorted(uncovered, key=lambda one: one.vm)),
        slots=len(given.slots),
        reserved=Reserved(
            cpu_milli=sum(slot.cpu_milli for slot in given.slots),
            memory_bytes=sum(slot.memory_bytes for slot in given.slots),
        ),
        bound=Bound(gap=len(given.slots) - least.slots, **msgspec.structs.asdict(least)),
        tolerance=min(levels.values(), default=0),
        also_needs=dict(sorted(Counter(name for vm in needing for name in vm.also_needs).items())),
        unprotected=tuple(sorted(vm.id for vm in given.vms if vm.unprotected)) or UNSET,
    )


def assess_state(given: CoverageInput) -> dict[str, CoverageStatus]:
    """VM → what is true of it in this state."""
    locations = {vm.id: vm.host for vm in given.vms}
    index = ConflictIndex.build(given.slots, topology=given.topology, locations=locations)
    broken, fails = frozenset(index.list_faulty()), {fail.vm: fail for fail in given.fails}
    listing: dict[str, list[SlotView]] = {}
    for slot in sorted(given.slots, key=lambda one: one.name):
        for member in slot.members:
            listing.setdefault(member, []).append(slot)
    found = {}
    for vm in given.vms:
        slots = listing.get(vm.id, ())
        counting = [slot.name for slot in slots if slot_counts(vm, slot)]
        idle = [slot for slot in slots if not slot_counts(vm, slot)]
        required, fail = given.required.get(vm.id, 0), fails.get(vm.id)
        found[vm.id] = status_of(vm, required, counting, broken=vm.id in broken, fail=fail, idle=idle)
    return found


def status_of(
    vm: VmView,
    required: int,
    slots: Sequence[str],
    *,
    broken: bool,
    fail: Fail | None,
    idle: Sequence[SlotView] = (),
) -> CoverageStatus:
    """What is true of one VM; ``slots`` count for it, ``idle`` list it and do not; ``broken``: a rule does not hold."""
    covered = required <= 0 or (len(slots) >= required and not broken)
    status = CoverageStatus(
        required=required, slots=tuple(slots), covered=covered, host=vm.host, also_needs=Amounts(vm.also_needs)
    )
    if required <= 0 and vm.unprotected:
        none = CoverageReason.DELETED if vm.deleting else CoverageReason.UNPROTECTED
        said = render(make_reason(none, vm=vm.id, why=vm.unprotected_why or "nobody said why"))
        return msgspec.structs.replace(status, reason=none.value, message=said.text, remedy=said.remedy)
    if covered:
        return status
    code, message, remedy = _explain_missing(vm, required, len(slots), broken=broken, fail=fail, idle=idle)
    return msgspec.structs.replace(status, reason=code, message=message, remedy=remedy)


def reduce_to_slots(last: CoverageStatus, slots: Sequence[str]) -> CoverageStatus:
    """What is left of what was reported of a VM of which nobody knows now where it is: these slots list it yet."""
    return msgspec.structs.replace(
        last,
        slots=tuple(slots),
        covered=False,
        reason=CoverageReason.WAITING.value,
        message=f"{len(slots)} of {last.required} slots; where it is is not clear, and other slots have gone",
        remedy="wait until its hosts have said which of them has it",
    )


def _explain_missing(
    vm: VmView, required: int, present: int, *, broken: bool, fail: Fail | None, idle: Sequence[SlotView]
) -> tuple[str, str, str]:
    has = f"{present} of {required} slots"
    if broken:
        said = render(Reason(CoverageReason.MEMBERSHIPS_CLASH))
        return CoverageReason.MEMBERSHIPS_CLASH.value, f"{has}; {said.text}", said.remedy
    if fail is not None:
        return str(fail.reason), f"{has}; {fail.detail}", fail.remedy
    for slot in idle:
        fault = allocation_fault(vm, slot)
        if fault is not None:
            said = render(fault)
            return fault.code, f"{has}; slot {slot.name} {said.text}", said.remedy
    said = render(Reason(CoverageReason.WAITING))
    return CoverageReason.WAITING.value, f"{has}; {said.text}", said.remedy

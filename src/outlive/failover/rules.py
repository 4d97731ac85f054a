"""What a slot must be for a VM, and whether a VM may join a slot: each rule once, asked of plain views.

Whether a VM may join looks at memberships and locations only (docs/reference/failover-rules.md#eligibility), and is
what the conflict index says. What a VM asks of any host that is to bring it up, ``is_large_enough`` and ``may_run_on``,
is asked here by the planner, which promises a slot, and by recovery, which keeps the promise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from outlive.base import BadInput
from outlive.failover.conflicts import ConflictIndex
from outlive.failover.model import SlotView
from outlive.failover.topology import HOSTS_ALONE, Topology
from outlive.placement import VmView, may_run_on
from outlive.resources import Reservation

SLOT_RESOURCES = ("cpu", "memory")
"""What a slot may hold."""


class Sized(Protocol):
    """A VM or a slot, as far as room goes."""

    @property
    def cpu_milli(self) -> int:
        """Milli-cores."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Bytes."""
        ...


def is_large_enough(vm: Sized, slot: Sized) -> bool:
    """Whether the slot is at least as large as the VM itself; a VM that declares nothing fits anywhere."""
    return slot.cpu_milli >= vm.cpu_milli and slot.memory_bytes >= vm.memory_bytes


def serves(vm: VmView, slot: SlotView) -> bool:
    """Whether the VM could be restarted in the slot: it is ready, large enough, and where the VM may run."""
    return slot.ready is not False and is_large_enough(vm, slot) and may_run_on(vm, slot.host)


def slot_counts(vm: VmView, slot: SlotView) -> bool:
    """Whether the slot counts for the VM: it serves it, and lists it where it runs
    (docs/reference/failover-rules.md#checking-and-coverage).
    """
    return slot.members.get(vm.id) == vm.host and serves(vm, slot)


def is_vm_eligible_for_reservation(
    vm: VmView, reservation: SlotView, all_reservations: Sequence[SlotView], *, topology: Topology = HOSTS_ALONE
) -> bool:
    """Whether the VM may join the slot, all five rules holding for every member afterwards.

    Where the list has a slot of that name, the list's members count and only the candidate's host is taken from
    ``reservation``; otherwise the candidate is treated as if it were in the list. The VM's current host replaces
    whatever is recorded for it. Slots that the candidate has nothing to do with are not judged.
    """
    if vm.id in reservation.members:
        return False
    name = reservation.name
    listed = next((slot for slot in all_reservations if slot.name == name), None)
    slots = all_reservations if listed is not None else [*all_reservations, reservation]
    index = ConflictIndex.build(slots, (vm,), topology=topology)
    index.join(vm.id, name)
    if listed is None or listed.host == reservation.host:
        return all(index.holds_for(member) for member in index.members_of(name))
    moved = [msgspec.structs.replace(slot, host=reservation.host) if slot is listed else slot for slot in slots]
    elsewhere = ConflictIndex.build(moved, (vm,), topology=topology)
    elsewhere.join(vm.id, name)
    return elsewhere.holds_for(vm.id) and all(
        index.holds_for(member) for member in index.members_of(name) if member != vm.id
    )


def find_eligible_reservations(
    vm: VmView, reservations: Sequence[SlotView], *, topology: Topology = HOSTS_ALONE
) -> list[SlotView]:
    """The slots that the VM fits into, on hosts where it may run, and that it may join, in the order of the list.

    The verdict on each slot is that of ``is_vm_eligible_for_reservation``, whatever the order.
    """
    index = ConflictIndex.build(reservations, (vm,), topology=topology)
    admissible = index.admissible_slots(index.vm_number(vm.id))
    return [
        slot
        for slot in reservations
        if is_large_enough(vm, slot)
        and may_run_on(vm, slot.host)
        and vm.id not in slot.members
        and admissible & index.slot_bit(index.slot_number(slot.name))
    ]


def validate_failover_reservation_resources(reservation: Reservation) -> None:
    """Raise ``BadInput`` naming the resource when the slot holds anything but cpu and memory."""
    wrong = next((name for name in sorted(reservation.spec.resources) if name not in SLOT_RESOURCES), None)
    if wrong is not None:
        raise BadInput(
            f"resource {wrong!r} is not allowed in a failover reservation",
            place=f"Reservation/{reservation.metadata.name} spec.resources",
            remedy="hold only cpu and memory",
        )

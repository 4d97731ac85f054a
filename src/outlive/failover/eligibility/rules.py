"""May a VM join a slot, which slots may it join, and whose memberships are still right: the public questions.

Literal answers over plain views (docs/reference/failover.md#eligibility), made for being read, for outside callers and
for holding the fast structure to account. They look at memberships and locations only: not at sizes and limits of
hosts (except where said), zones, readiness or capacity. What a VM asks of any host that is to bring it up, ``fits`` and
``may_run_on``, is asked here by whoever promises a slot and by recovery, which keeps the promise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from outlive.base.errors import BadInput
from outlive.failover.eligibility.culprits import find_culprits
from outlive.failover.eligibility.graph import DependencyGraph
from outlive.failover.model import SlotView, VmView
from outlive.failover.topology import HOSTS_ALONE, Topology
from outlive.resources import Reservation

__all__ = [
    "DependencyGraph",
    "check_vms_still_eligible",
    "counts",
    "find_eligible_reservations",
    "fits",
    "illegal_resource",
    "is_vm_eligible_for_reservation",
    "may_run_on",
    "serves",
    "validate_failover_reservation_resources",
]

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


class Choosy(Protocol):
    """A VM, as far as it says where it may run."""

    @property
    def host_limit(self) -> tuple[str, ...]:
        """The only hosts that it may run on; empty: any."""
        ...


def fits(vm: Sized, slot: Sized) -> bool:
    """Whether the slot is at least as large as the VM itself; a VM that declares nothing fits anywhere."""
    return slot.cpu_milli >= vm.cpu_milli and slot.memory_bytes >= vm.memory_bytes


def may_run_on(vm: Choosy, host: str) -> bool:
    """Whether the VM may run on the host, by its own limit of hosts."""
    return not vm.host_limit or host in vm.host_limit


def serves(vm: VmView, slot: SlotView) -> bool:
    """Whether the VM could be restarted in the slot: it is ready, large enough, and where the VM may run."""
    return slot.ready is not False and fits(vm, slot) and may_run_on(vm, slot.host)


def counts(vm: VmView, slot: SlotView) -> bool:
    """Whether the slot counts for the VM: it serves it, and lists it where it runs
    (docs/reference/failover.md#checking-and-coverage).
    """
    return slot.members.get(vm.id) == vm.host and serves(vm, slot)


def is_vm_eligible_for_reservation(
    vm: VmView,
    reservation: SlotView,
    all_reservations: Sequence[SlotView],
    *,
    topology: Topology = HOSTS_ALONE,
) -> bool:
    """Whether the VM may join the slot, all five rules holding for every member afterwards.

    Where the list has a slot of that name, the list's members count and only the candidate's host is taken from
    ``reservation``; otherwise the candidate is treated as if it were in the list. The VM's current host replaces
    whatever is recorded for it. Slots that the candidate has nothing to do with are not judged.
    """
    if vm.id in reservation.members:
        return False
    listed = any(slot.name == reservation.name for slot in all_reservations)
    slots = all_reservations if listed else [*all_reservations, reservation]
    graph = DependencyGraph.build(slots, topology=topology)
    graph.add(vm.id, vm.host, reservation.name, reservation.host)
    return graph.holds_in(reservation.name)


def find_eligible_reservations(
    vm: VmView,
    reservations: Sequence[SlotView],
    *,
    topology: Topology = HOSTS_ALONE,
) -> list[SlotView]:
    """The slots that the VM fits into, on hosts where it may run, and that it may join, in the order of the list.

    The verdict on each slot is that of ``is_vm_eligible_for_reservation``, whatever the order.
    """
    graph = DependencyGraph.build(reservations, topology=topology)
    found = []
    for slot in reservations:
        if not fits(vm, slot) or not may_run_on(vm, slot.host) or vm.id in slot.members:
            continue
        graph.add(vm.id, vm.host, slot.name, slot.host)
        if graph.holds_in(slot.name):
            found.append(slot)
        graph.remove(vm.id, slot.name, slot.host)
    return found


def check_vms_still_eligible(
    vms: Mapping[str, VmView],
    reservations: Sequence[SlotView],
    *,
    topology: Topology = HOSTS_ALONE,
) -> dict[str, list[str]]:
    """Slot name → ids of the members to remove, by id; slots that keep everybody are left out.

    A member that ``vms`` does not have is kept and still counts as a co-user. The culprits go first
    (docs/reference/failover.md#culprits).
    """
    removed: dict[str, list[str]] = {}
    locations = {vm_id: vm.host for vm_id, vm in vms.items()}
    for culprit in find_culprits(reservations, locations, topology):
        removed.setdefault(culprit.slot, []).append(culprit.vm)
    return {slot: sorted(ids) for slot, ids in sorted(removed.items())}


def illegal_resource(names: Mapping[str, object] | None) -> str | None:
    """The first resource, by name, that a slot may not hold; ``None`` when all are legal. Values are not looked at."""
    return next((name for name in sorted(names or {}) if name not in SLOT_RESOURCES), None)


def validate_failover_reservation_resources(reservation: Reservation) -> None:
    """Raise ``BadInput`` naming the resource when the slot holds anything but cpu and memory."""
    wrong = illegal_resource(reservation.spec.resources)
    if wrong is not None:
        raise BadInput(
            f"resource {wrong!r} is not allowed in a failover reservation",
            place=f"Reservation/{reservation.metadata.name} spec.resources",
            remedy="hold only cpu and memory",
        )

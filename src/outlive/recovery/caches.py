"""The caches that recovery reads, and by what they are indexed: VMs by who may run them, slots by whom they let in.

VMs are found by what their own documents say (who holds them, where they are assigned, whether a recovery of them was
begun), never by a list of what ran on a host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from outlive.failover.keeping.observe import is_slot
from outlive.recovery.records import unfinished
from outlive.resources import Cluster, Hypervisor, Membership, Reservation, VirtualMachine
from outlive.runtime.informer import Informer

HOLDER_INDEX: Final = "holder"
"""Index of VMs by the hosts that may be running them, and by the Memberships under which they do: ``host/uid``."""
ASSIGNED_INDEX: Final = "assigned"
"""Index of VMs without a holder by the host that they are assigned to."""
RECOVERY_INDEX: Final = "recovery"
"""Index of VMs whose recovery was begun and has not ended, all under ``UNFINISHED_KEY``."""
UNFINISHED_KEY: Final = "unfinished"
MEMBER_INDEX: Final = "member"
"""Index of slots by the VMs that they are promised to."""
CONSUMER_INDEX: Final = "consumer"
"""Index of slots by the VM that is let in."""
CLUSTER: Final = "default"
"""Name of the one ``Cluster``."""


@dataclass(frozen=True, slots=True)
class RecoveryInformers:
    """The caches that recovery reads; the indexes are those of ``vm_indexes`` and ``slot_indexes``."""

    vms: Informer[VirtualMachine]
    reservations: Informer[Reservation]
    hypervisors: Informer[Hypervisor]
    memberships: Informer[Membership]
    clusters: Informer[Cluster]

    def stalled_s(self) -> float:
        """Seconds since any of them is in doubt; 0 while all follow."""
        every: tuple[Informer[Any], ...] = (
            self.vms,
            self.reservations,
            self.hypervisors,
            self.memberships,
            self.clusters,
        )
        return max(one.stalled_s() for one in every)


def vm_indexes() -> dict[str, Callable[[VirtualMachine], Iterable[str]]]:
    """The indexes that the informer of VMs must have."""
    return {HOLDER_INDEX: _holders, ASSIGNED_INDEX: _assigned, RECOVERY_INDEX: _unfinished}


def slot_indexes() -> dict[str, Callable[[Reservation], Iterable[str]]]:
    """The indexes that the informer of reservations must have."""
    return {MEMBER_INDEX: _members, CONSUMER_INDEX: _consumer}


def _holders(vm: VirtualMachine) -> Iterable[str]:
    return dict.fromkeys(f"{holder.hypervisor}/{holder.member_uid}" for holder in vm.status.holders)


def _assigned(vm: VirtualMachine) -> Iterable[str]:
    return () if vm.status.holders or vm.status.assigned is None else (vm.status.assigned.hypervisor,)


def _unfinished(vm: VirtualMachine) -> Iterable[str]:
    return (UNFINISHED_KEY,) if unfinished(vm) else ()


def _members(slot: Reservation) -> Iterable[str]:
    failover = slot.status.failover_reservation
    return tuple(failover.allocations) if failover is not None and is_slot(slot) else ()


def _consumer(slot: Reservation) -> Iterable[str]:
    return (slot.status.consumer.vm,) if slot.status.consumer is not None else ()

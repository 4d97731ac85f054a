"""The caches that recovery reads, and the indexes by which it finds VMs and slots in them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from outlive.base import Clock
from outlive.failover import is_slot
from outlive.node.vm import is_asked
from outlive.recovery.states import is_unfinished, rejection_of
from outlive.resources import (
    AffinityRule,
    Cluster,
    Hypervisor,
    Membership,
    Reservation,
    VirtualMachine,
    active_move,
    is_to_run,
)
from outlive.runtime import Informer

HOLDER_INDEX: Final = "holder"
"""Index of VMs by the hosts that may be running them, and by the Memberships under which they do: ``host/uid``."""
ASSIGNED_INDEX: Final = "assigned"
"""Index of VMs without a holder by the host that they are assigned to."""
DESTINATION_INDEX: Final = "destination"
"""Index of VMs that are to run by the hosts where they run or go."""
RECOVERY_INDEX: Final = "recovery"
"""Index of VMs whose recovery was begun and has not ended, or whose host does not start them, all under
``UNFINISHED_KEY``."""
UNFINISHED_KEY: Final = "unfinished"
ASKED_INDEX: Final = "asked"
"""Index of VMs with a request that was not answered, by the host that they are assigned to; empty: to none."""
DELETED_INDEX: Final = "deleted"
"""Index of VMs that were deleted and have not gone, all under ``DELETED_KEY``."""
DELETED_KEY: Final = "deleted"
GROUP_INDEX: Final = "group"
"""Index of VMs by the affinity groups that they are in: ``policy/group``."""
FAILBACK_INDEX: Final = "failback"
"""Index of VMs by when they go back to hosts that they prefer; those that never do are left out."""
MEMBER_INDEX: Final = "member"
"""Index of slots by the VMs that they are promised to."""
CONSUMER_INDEX: Final = "consumer"
"""Index of slots by the VM that is let in."""
DOUBT_S: Final = 2.0
"""Caches that have lost the store for longer are not acted on."""


@dataclass(frozen=True, slots=True)
class RecoveryInformers:
    """The caches that recovery reads; the indexes are those of ``vm_indexes`` and ``slot_indexes``."""

    vms: Informer[VirtualMachine]
    reservations: Informer[Reservation]
    hypervisors: Informer[Hypervisor]
    memberships: Informer[Membership]
    clusters: Informer[Cluster]

    def list_all(self) -> tuple[Informer[Any], ...]:
        """Every one."""
        return (self.vms, self.reservations, self.hypervisors, self.memberships, self.clusters)

    @property
    def doubtful(self) -> bool:
        """Whether any of them has lost the store for so long that nothing is to be said or done by it."""
        return max(one.stalled_s() for one in self.list_all()) > DOUBT_S


def vm_indexes() -> dict[str, Callable[[VirtualMachine], Iterable[str]]]:
    """The indexes that the informer of VMs must have."""
    return {
        HOLDER_INDEX: _holder_keys,
        ASSIGNED_INDEX: _assigned_keys,
        DESTINATION_INDEX: destinations_of,
        RECOVERY_INDEX: _unfinished_keys,
        ASKED_INDEX: _request_keys,
        DELETED_INDEX: _deletion_keys,
        GROUP_INDEX: _group_keys,
        FAILBACK_INDEX: lambda vm: () if vm.spec.failback in ("", "never") else (vm.spec.failback,),
    }


def slot_indexes() -> dict[str, Callable[[Reservation], Iterable[str]]]:
    """The indexes that the informer of reservations must have."""
    return {MEMBER_INDEX: _member_keys, CONSUMER_INDEX: _consumer_keys}


def _holder_keys(vm: VirtualMachine) -> Iterable[str]:
    return dict.fromkeys(f"{holder.hypervisor}/{holder.member_uid}" for holder in vm.status.holders)


def _assigned_keys(vm: VirtualMachine) -> Iterable[str]:
    return () if vm.status.holders or vm.status.assigned is None else (vm.status.assigned.hypervisor,)


def destinations_of(vm: VirtualMachine) -> tuple[str, ...]:
    """Where it is to run and, in a move, where it goes; none while nobody wants it to run."""
    where, move = vm.status.assigned, active_move(vm)
    if where is None or not is_to_run(vm):
        return ()
    return tuple(dict.fromkeys((where.hypervisor, move.target if move is not None else where.hypervisor)))


def _unfinished_keys(vm: VirtualMachine) -> Iterable[str]:
    begins = rejection_of(vm) is not None and is_to_run(vm)
    return (UNFINISHED_KEY,) if begins or is_unfinished(vm) else ()


def _request_keys(vm: VirtualMachine) -> Iterable[str]:
    return (vm.host,) if is_asked(vm) else ()


def _deletion_keys(vm: VirtualMachine) -> Iterable[str]:
    return (DELETED_KEY,) if vm.deleting and vm.guarded else ()


def _group_keys(vm: VirtualMachine) -> Iterable[str]:
    return tuple(_group_key(rule) for rule in vm.spec.affinity_rules)


def _group_key(rule: AffinityRule) -> str:
    return f"{rule.policy}/{rule.group}"


def members_of(vms: Informer[VirtualMachine], rule: AffinityRule) -> list[VirtualMachine]:
    """Everybody in the group."""
    return vms.list_by_index(GROUP_INDEX, _group_key(rule))


def _member_keys(slot: Reservation) -> Iterable[str]:
    failover = slot.status.failover_reservation
    return tuple(failover.allocations) if failover is not None and is_slot(slot) else ()


def _consumer_keys(slot: Reservation) -> Iterable[str]:
    return (slot.status.consumer.vm,) if slot.status.consumer is not None else ()


class Since:
    """Since when each thing is as it is, on this process's own clock; a restart only makes everybody wait once more."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[str, tuple[object, float]] = {}

    def see(self, name: str, state: object) -> float:
        """It is so now; for how many seconds it has been."""
        now = self._clock.monotonic()
        known = self._since.get(name)
        if known is None or known[0] != state:
            self._since[name] = known = (state, now)
        return now - known[1]

    def elapsed_s(self, name: str) -> float:
        """For how long it has been as it was last seen."""
        known = self._since.get(name)
        return 0.0 if known is None else self._clock.monotonic() - known[1]

    def forget(self, name: str) -> None:
        """It is gone."""
        self._since.pop(name, None)

    def forget_except(self, names: Collection[str]) -> None:
        """Only these are left."""
        self._since = {name: since for name, since in self._since.items() if name in names}

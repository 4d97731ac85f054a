"""Room for VMs that a host is to run and does not report yet.

A VM in a slot has its room: the slot holds it until the VM is there. Nothing holds the room of one that placement sent
somewhere, of one on its way in a migration, and of those that a host starts again after it has booted and reports
nothing. So the fleet gets a block for each, made from the VM's own document and kept in memory only: every process that
follows the VMs has the same blocks. A VM counts once: as its slot, as its block, or in what its host reports.

Not promised: that the VM comes. A host that is sent more than it has room for is overbooked; then slots give way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from outlive.node.vm.states import active_move, wanted
from outlive.placement.fleet import Fleet
from outlive.resources import (
    Consumer,
    Hypervisor,
    InFlightSpec,
    ObjectMeta,
    Reservation,
    ReservationSpec,
    ReservationStatus,
    VirtualMachine,
)
from outlive.runtime.informer import Informer

PREFIX: Final = "arriving."
"""Names of blocks; no stored reservation has such a one."""
DAEMON: Final = "daemon"
"""Source of the status of hosts that start their VMs by themselves."""


class Arrivals:
    """Keeps the blocks as VMs, hosts and slots say."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        vms: Informer[VirtualMachine],
        hypervisors: Informer[Hypervisor],
        slots: Informer[Reservation],
        consumer_index: str,
    ) -> None:
        """``consumer_index``: index of the slots by the VM that is let in."""
        self._fleet = fleet
        self._vms = vms
        self._hypervisors = hypervisors
        self._slots = slots
        self._consumer_index = consumer_index
        self._blocks: dict[str, dict[str, Reservation]] = {}
        """VM → its blocks, by name."""
        self._bound: dict[str, dict[str, None]] = {}
        """Host → VMs that it is to run."""
        hypervisors.subscribe(self._host_changed)
        slots.subscribe(self._slot_changed)
        vms.subscribe(self._vm_changed)

    def _vm_changed(self, old: VirtualMachine | None, new: VirtualMachine | None) -> None:
        for one in arrivals(old) if old is not None else ():
            bound = self._bound.get(one.status.host, {})
            bound.pop(old.name if old is not None else "", None)
            if not bound:
                self._bound.pop(one.status.host, None)
        for one in arrivals(new) if new is not None else ():
            self._bound.setdefault(one.status.host, {})[new.name if new is not None else ""] = None
        vm = new or old
        if vm is not None:
            self._put_right(vm.name)

    def _host_changed(self, old: Hypervisor | None, new: Hypervisor | None) -> None:
        host = new or old
        if host is None:
            return
        changed = _listed(old) ^ _listed(new)
        if old is None or new is None or old.status.source != new.status.source:
            changed |= {*self._bound.get(host.name, ())}
        for vm in sorted(changed):
            self._put_right(vm)

    def _slot_changed(self, old: Reservation | None, new: Reservation | None) -> None:
        consumers = (one.status.consumer for one in (old, new) if one is not None)
        for vm in sorted({one.vm for one in consumers if one is not None}):
            self._put_right(vm)

    def _put_right(self, name: str) -> None:
        vm, before = self._vms.get(name), self._blocks.get(name, {})
        slots = self._slots.by_index(self._consumer_index, name)
        now = {one.name: one for one in arriving(vm, self._hypervisors.get, slots)} if vm is not None else {}
        for gone in before.keys() - now.keys():
            self._fleet.remove_reservation(gone)
        for block in now.values():
            if before.get(block.name) != block:
                self._fleet.upsert_reservation(block)
        if now:
            self._blocks[name] = now
        else:
            self._blocks.pop(name, None)


def arriving(
    vm: VirtualMachine, host_of: Callable[[str], Hypervisor | None], consumed: Iterable[Reservation]
) -> tuple[Reservation, ...]:
    """The blocks of a VM whose room neither its host's report nor one of the slots has that let it in."""
    slots = tuple(consumed)
    return tuple(one for one in arrivals(vm) if _is_due(vm, one, host_of(one.status.host), slots))


def _is_due(vm: VirtualMachine, block: Reservation, host: Hypervisor | None, slots: Iterable[Reservation]) -> bool:
    """Whether neither the host's report nor a slot has the room of the VM, and the host is to run it."""
    name, recovery = block.status.host, vm.status.recovery
    sent = recovery is not None and recovery.host == name
    if not sent and (host is None or host.status.source != DAEMON):
        return False
    if host is not None and any(one.id == vm.name for one in host.status.instances):
        return False
    return all(one.status.host != name for one in slots)


def arrivals(vm: VirtualMachine) -> tuple[Reservation, ...]:
    """The blocks for a VM where it is to run and, in a move, where it goes; none while nobody wants it to run."""
    where, move = vm.status.assigned, active_move(vm)
    if where is None or not wanted(vm):
        return ()
    hosts = [where.hypervisor] if move is None or move.target == where.hypervisor else [where.hypervisor, move.target]
    return tuple(_block(vm, host, number, where.fence) for number, host in enumerate(hosts))


def _block(vm: VirtualMachine, host: str, number: int, fence: str) -> Reservation:
    return Reservation(
        metadata=ObjectMeta(name=f"{PREFIX}{vm.name}" if number == 0 else f"{PREFIX}{vm.name}.moving"),
        spec=ReservationSpec(
            type="InFlightReservation",
            resources=vm.spec.resources,
            target_host=host,
            in_flight_reservation=InFlightSpec(vm_id=vm.name, intent="evacuate"),
        ),
        status=ReservationStatus(host=host, consumer=Consumer(vm=vm.name, fence=fence)),
    )


def _listed(host: Hypervisor | None) -> set[str]:
    return {one.id for one in host.status.instances} if host is not None else set()

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

from outlive.placement import Fleet
from outlive.recovery.informers import CONSUMER_INDEX, DESTINATION_INDEX, RecoveryInformers, destinations_of
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

PREFIX: Final = "in-flight."
"""Names of blocks; no stored reservation has such a one."""
DAEMON: Final = "daemon"
"""Source of the status of hosts that start their VMs by themselves."""


class InFlightRoom:
    """Keeps the blocks in the fleet as VMs, hosts and slots say."""

    def __init__(self, fleet: Fleet, informers: RecoveryInformers) -> None:
        self._fleet = fleet
        self._informers = informers
        self._blocks: dict[str, dict[str, Reservation]] = {}
        """VM → its blocks, by name."""
        informers.hypervisors.subscribe(self._host_changed)
        informers.reservations.subscribe(self._slot_changed)
        informers.vms.subscribe(self._vm_changed)

    def _vm_changed(self, old: VirtualMachine | None, new: VirtualMachine | None) -> None:
        vm = new or old
        if vm is not None:
            self._put_right(vm.name)

    def _host_changed(self, old: Hypervisor | None, new: Hypervisor | None) -> None:
        changed, host = _listed_vms(old) ^ _listed_vms(new), new or old
        if host is not None and (old is None or new is None or old.status.source != new.status.source):
            changed |= {vm.name for vm in self._informers.vms.list_by_index(DESTINATION_INDEX, host.name)}
        for vm in sorted(changed):
            self._put_right(vm)

    def _slot_changed(self, old: Reservation | None, new: Reservation | None) -> None:
        consumers = (one.status.consumer for one in (old, new) if one is not None)
        for vm in sorted({one.vm for one in consumers if one is not None}):
            self._put_right(vm)

    def _put_right(self, name: str) -> None:
        informers = self._informers
        vm, before = informers.vms.get(name), self._blocks.pop(name, {})
        slots = informers.reservations.list_by_index(CONSUMER_INDEX, name)
        now = {one.name: one for one in build_in_flight(vm, informers.hypervisors.get, slots)} if vm is not None else {}
        for gone in before.keys() - now.keys():
            self._fleet.remove_reservation(gone)
        for block in now.values():
            if before.get(block.name) != block:
                self._fleet.upsert_reservation(block)
        if now:
            self._blocks[name] = now


def build_in_flight(
    vm: VirtualMachine, host_of: Callable[[str], Hypervisor | None], consumed: Iterable[Reservation]
) -> tuple[Reservation, ...]:
    """A block wherever the VM is to run and neither that host's report nor a slot that let it in has its room."""
    slots, recovery = {one.status.host for one in consumed}, vm.status.recovery
    blocks = []
    for name in destinations_of(vm):
        host = host_of(name)
        sent = recovery is not None and recovery.host == name
        starts = host is not None and host.status.source == DAEMON
        if name not in slots and (sent or starts) and vm.name not in _listed_vms(host):
            blocks.append(_build_block(vm, name))
    return tuple(blocks)


def _build_block(vm: VirtualMachine, host: str) -> Reservation:
    where = vm.status.assigned
    stays = where is not None and where.hypervisor == host
    return Reservation(
        metadata=ObjectMeta(name=f"{PREFIX}{vm.name}" if stays else f"{PREFIX}{vm.name}.moving"),
        spec=ReservationSpec(
            type="InFlightReservation",
            resources=vm.spec.resources,
            target_host=host,
            in_flight_reservation=InFlightSpec(vm_id=vm.name, intent="evacuate"),
        ),
        status=ReservationStatus(
            host=host, consumer=Consumer(vm=vm.name, fence=where.fence if where is not None else "")
        ),
    )


def _listed_vms(host: Hypervisor | None) -> set[str]:
    return {one.id for one in host.status.instances} if host is not None else set()

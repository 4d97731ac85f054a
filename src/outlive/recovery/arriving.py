"""Room for VMs that were sent to a host without a slot and that the host does not report yet.

A VM in a slot has its room: the slot holds it until the VM is there. One that placement found room for has nothing that
holds it, and whoever places meanwhile (failover, which protects the survivors anew) would give the room away. So the
fleet gets a block for each, made from the VM's own document and kept in memory only: every process that follows the
VMs has the same blocks.
"""

from __future__ import annotations

from typing import Final

from outlive.node.vm.states import wanted
from outlive.placement.fleet import Fleet
from outlive.resources import (
    Consumer,
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


class Arrivals:
    """Keeps the blocks as the VMs say."""

    def __init__(self, vms: Informer[VirtualMachine], fleet: Fleet) -> None:
        self._fleet = fleet
        vms.subscribe(self._changed)

    def _changed(self, old: VirtualMachine | None, new: VirtualMachine | None) -> None:
        before = arrival(old) if old is not None else None
        now = arrival(new) if new is not None else None
        if now is not None:
            if now != before:
                self._fleet.upsert_reservation(now)
        elif before is not None:
            self._fleet.remove_reservation(before.name)


def arrival(vm: VirtualMachine) -> Reservation | None:
    """The block for a VM; ``None`` where it needs none. It holds nothing once the host reports the VM.

    It outlives the recovery: a VM is seen running in its own document before its host's figures have it.
    """
    where = vm.status.assigned
    if where is None or where.slot is not None or not wanted(vm) or vm.status.recovery is None:
        return None
    host = where.hypervisor
    if vm.status.recovery.host != host:
        return None
    return Reservation(
        metadata=ObjectMeta(name=f"{PREFIX}{vm.name}"),
        spec=ReservationSpec(
            type="InFlightReservation",
            resources=vm.spec.resources,
            target_host=host,
            in_flight_reservation=InFlightSpec(vm_id=vm.name, intent="evacuate"),
        ),
        status=ReservationStatus(host=host, consumer=Consumer(vm=vm.name, fence=where.fence)),
    )

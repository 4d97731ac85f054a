"""What views show: hosts, slots and VMs as they were read, unfiltered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from outlive.failover.model import VmView
from outlive.failover.protection import Demands
from outlive.failover.topology import TopologyChoice
from outlive.failover.vms import view_of_resource
from outlive.resources import Hypervisor, Reservation, VirtualMachine


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """One look at everything."""

    hypervisors: tuple[Hypervisor, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    servers: tuple[VmView, ...] | None = None
    """All VMs of the VM source; ``None``: it could not be read.

    The host is empty where it places them nowhere, cpu and memory are 0 where their size is unknown.
    """
    demands: Demands = Demands({})
    """What VMs need by the settings in force."""
    choice: TopologyChoice = TopologyChoice()
    """What fails together and what is kept apart by the settings in force."""


def inventory_of(
    hypervisors: Sequence[Hypervisor],
    reservations: Sequence[Reservation],
    vms: Iterable[VirtualMachine],
    demands: Demands | None = None,
    choice: TopologyChoice = TopologyChoice(),
) -> Inventory:
    """From our own objects."""
    return Inventory(
        hypervisors=tuple(sorted(hypervisors, key=lambda host: host.name)),
        reservations=tuple(sorted(reservations, key=lambda slot: slot.name)),
        servers=tuple(view_of_resource(vm) for vm in sorted(vms, key=lambda vm: vm.name)),
        demands=demands or Demands({}),
        choice=choice,
    )

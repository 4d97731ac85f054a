"""What views show: hosts, slots and VMs as they were read, unfiltered."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from outlive.failover.model import VmView
from outlive.failover.vms import vm_of_resource
from outlive.resources import CPU, MEMORY, Hypervisor, Reservation, VirtualMachine


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """One look at everything."""

    hypervisors: tuple[Hypervisor, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    servers: tuple[VmView, ...] | None = None
    """All VMs of the VM source, with an empty host where it places them nowhere; ``None``: it could not be read."""


def inventory_of(
    hypervisors: Sequence[Hypervisor], reservations: Sequence[Reservation], vms: Iterable[VirtualMachine]
) -> Inventory:
    """From our own objects."""
    return Inventory(
        hypervisors=tuple(sorted(hypervisors, key=lambda host: host.name)),
        reservations=tuple(sorted(reservations, key=lambda slot: slot.name)),
        servers=tuple(_server(vm) for vm in sorted(vms, key=lambda vm: vm.name)),
    )


def _server(vm: VirtualMachine) -> VmView:
    """The VM also where it is assigned to no host."""
    found = vm_of_resource(vm)
    if found is not None:
        return found
    spec = vm.spec
    return VmView(
        id=vm.name,
        name=spec.display_name,
        host="",
        zone=spec.zone,
        project=spec.project,
        flavor=spec.flavor,
        cpu_milli=spec.resources.cpu_milli,
        memory_bytes=spec.resources.memory_bytes,
        also_needs={k: v for k, v in sorted(spec.resources.items()) if k not in (CPU, MEMORY) and v > 0},
        extra_specs=spec.extra_specs,
        status=vm.status.phase,
        source="resource",
    )

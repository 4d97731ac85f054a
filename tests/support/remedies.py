"""Carries a remedy out on resources, as an operator would: pure, for what-if and for tests.

What the actions say is done to copies of hosts, VMs and slots, and nothing else: slots are given by the cycle that
follows (docs/design/failover.md#remedies).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import msgspec

from outlive.failover.analysis.explain import (
    Action,
    AddHosts,
    FreeRoom,
    GiveSize,
    HostReady,
    MoveMembership,
    NewHost,
    Remedy,
    SlotReady,
    hypervisor_of,
)
from outlive.resources import (
    CPU,
    MEMORY,
    WORKING_CONDITIONS,
    Amounts,
    Condition,
    Hypervisor,
    Reservation,
    VirtualMachine,
)


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that remedies change."""

    hypervisors: tuple[Hypervisor, ...] = ()
    vms: tuple[VirtualMachine, ...] = ()
    reservations: tuple[Reservation, ...] = ()


def apply(remedy: Remedy, resources: Resources) -> Resources:
    """The resources after every action of the remedy."""
    for action in remedy.actions:
        resources = _applied(action, resources)
    return resources


def _applied(action: Action, resources: Resources) -> Resources:
    match action:
        case MoveMembership():
            return _with_slots(resources, lambda slot: _moved(slot, action))
        case SlotReady():
            return _with_slots(resources, lambda slot: _slot_ready(slot) if slot.name == action.slot else slot)
        case FreeRoom():
            return _with_hosts(resources, lambda host: _freed(host, action) if host.name == action.host else host)
        case HostReady():
            return _with_hosts(resources, lambda host: _host_ready(host) if host.name == action.host else host)
        case AddHosts():
            return msgspec.structs.replace(resources, hypervisors=(*resources.hypervisors, *_added(action)))
        case GiveSize():
            vms = tuple(_sized(vm, action) if vm.name == action.vm else vm for vm in resources.vms)
            return msgspec.structs.replace(resources, vms=vms)
        case _:
            assert_never(action)


def _with_hosts(resources: Resources, change: Callable[[Hypervisor], Hypervisor]) -> Resources:
    return msgspec.structs.replace(resources, hypervisors=tuple(map(change, resources.hypervisors)))


def _with_slots(resources: Resources, change: Callable[[Reservation], Reservation]) -> Resources:
    return msgspec.structs.replace(resources, reservations=tuple(map(change, resources.reservations)))


def _moved(slot: Reservation, action: MoveMembership) -> Reservation:
    failover = slot.status.failover_reservation
    if failover is None or slot.name not in (action.from_slot, action.to_slot):
        return slot
    members = {vm: host for vm, host in failover.allocations.items() if vm != action.vm}
    if slot.name == action.to_slot:
        members[action.vm] = action.vm_host
    changed = msgspec.structs.replace(failover, allocations=members)
    return msgspec.structs.replace(slot, status=msgspec.structs.replace(slot.status, failover_reservation=changed))


def _slot_ready(slot: Reservation) -> Reservation:
    others = tuple(one for one in slot.status.conditions if one.type != "Ready")
    conditions = (*others, Condition(type="Ready", status="True", reason="ReservationActive"))
    return msgspec.structs.replace(slot, status=msgspec.structs.replace(slot.status, conditions=conditions))


def _freed(host: Hypervisor, action: FreeRoom) -> Hypervisor:
    """VMs leave as far as there are any; the rest is more capacity."""
    status = host.status
    wanted = {CPU: action.cpu_milli, MEMORY: action.memory_bytes}
    used = dict(status.allocation or {})
    rest = {name: max(0, amount - used.get(name, 0)) for name, amount in wanted.items()}
    left = {name: max(0, amount - wanted.get(name, 0)) for name, amount in used.items()}
    grown = {
        key: Amounts({name: amount + rest.get(name, 0) for name, amount in amounts.items()})
        for key in ("capacity", "effective_capacity")
        if (amounts := getattr(status, key)) is not None
    }
    return msgspec.structs.replace(host, status=msgspec.structs.replace(status, allocation=Amounts(left), **grown))


def _host_ready(host: Hypervisor) -> Hypervisor:
    wanted = dict(WORKING_CONDITIONS)
    conditions = tuple(
        msgspec.structs.replace(one, status=wanted[one.type]) if one.type in wanted else one
        for one in host.status.conditions
    )
    off = host.spec.high_availability is False
    spec = msgspec.structs.replace(
        host.spec, maintenance="", high_availability=None if off else host.spec.high_availability
    )
    return msgspec.structs.replace(host, spec=spec, status=msgspec.structs.replace(host.status, conditions=conditions))


def _added(action: AddHosts) -> tuple[Hypervisor, ...]:
    host = NewHost(
        zone=action.zone,
        traits=action.traits,
        cpu_arch=action.cpu_arch,
        hypervisor_type=action.hypervisor_type,
        cpu_milli=action.cpu_milli,
        memory_bytes=action.memory_bytes,
    )
    return tuple(hypervisor_of(name, host) for name in action.names)


def _sized(vm: VirtualMachine, action: GiveSize) -> VirtualMachine:
    amounts = Amounts({**vm.spec.resources, CPU: action.cpu_milli, MEMORY: action.memory_bytes})
    return msgspec.structs.replace(vm, spec=msgspec.structs.replace(vm.spec, resources=amounts))

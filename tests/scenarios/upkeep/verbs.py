"""What happens in an inventory whose hosts run no daemon of ours: verbs of the stories beside this file."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from outlive.resources import (
    Amounts,
    Assigned,
    Condition,
    Hypervisor,
    Instance,
    Reservation,
    VirtualMachine,
)
from outlive.simulation import SimHost, World
from outlive.simulation.verbs import Name, register_verb

_replace = msgspec.structs.replace
Change = Callable[[tuple[Instance, ...]], tuple[Instance, ...]]


@register_verb("vm-moved", "{vms} is on {to} now")
async def _moved(world: World, vm: Name, to: Name) -> None:
    """A live migration that ends now."""
    found = await _leave(world, vm)
    await world.store.replace_status(_replace(found, status=_replace(found.status, assigned=Assigned(hypervisor=to))))
    await _instances(world, to, lambda there: (*there, Instance(id=vm)), found.spec.resources)


@register_verb("vm-active", "whether {vms} is active changes: {details}")
async def _active(world: World, vm: Name, on: bool) -> None:
    await _instances(
        world,
        _host_of(world, vm),
        lambda there: tuple(_replace(one, active=on) if one.id == vm else one for one in there),
    )


@register_verb("vm-listed", "the host of {vms} lists it")
async def _listed(world: World, vm: Name) -> None:
    found = await world.store.get(VirtualMachine, vm)
    await _instances(world, _host_of(world, vm), lambda there: (*there, Instance(id=vm)), found.spec.resources)


@register_verb("vm-gone", "{vms} is gone")
async def _gone(world: World, vm: Name) -> None:
    await world.store.delete((await _leave(world, vm)).ref)


@register_verb("vm-resized", "{vms} needs more or less: {details}")
async def _resized(world: World, vm: Name, cpu: str, memory: str) -> None:
    found = await world.store.get(VirtualMachine, vm)
    resources = Amounts.parse({"cpu": cpu, "memory": memory})
    await world.store.replace(_replace(found, spec=_replace(found.spec, resources=resources)))
    await _instances(world, _host_of(world, vm), lambda there: there, resources - found.spec.resources)


@register_verb("vms-wiped", "every VM vanishes from the inventory, and hosts still list them")
async def _wiped(world: World) -> None:
    for vm in world.store.list_all(VirtualMachine):
        await world.store.delete(vm.ref)


@register_verb("host-changed", "{who} changes: {details}")
async def _changed(world: World, host: SimHost, ready: bool = True, cpu: str = "", memory: str = "") -> None:
    found = await world.store.get(Hypervisor, host.name)
    condition = Condition(type="Ready", status="True" if ready else "False", reason="Maintenance")
    capacity = Amounts.parse({"cpu": cpu, "memory": memory}) if cpu else found.status.capacity
    await world.store.replace_status(
        _replace(found, status=_replace(found.status, conditions=(condition,), capacity=capacity))
    )


@register_verb("host-gone", "{who} vanishes from the inventory")
async def _host_gone(world: World, host: SimHost) -> None:
    await world.store.delete((await world.store.get(Hypervisor, host.name)).ref)


@register_verb("slot-moved", "somebody sets the host of the first slot of {vms} to {to}")
async def _slot_moved(world: World, vm: Name, to: Name) -> None:
    slot = _slot_of(world, vm)
    await world.store.replace_status(_replace(slot, status=_replace(slot.status, host=to)))


@register_verb("slot-stripped", "somebody deletes what the first slot of {vms} is for")
async def _slot_stripped(world: World, vm: Name) -> None:
    slot = _slot_of(world, vm)
    await world.store.replace_status(
        _replace(slot, status=_replace(slot.status, failover_reservation=None, conditions=()))
    )


def _slot_of(world: World, vm: str) -> Reservation:
    slots = [
        one
        for one in world.store.list_all(Reservation)
        if one.status.failover_reservation is not None and vm in one.status.failover_reservation.allocations
    ]
    return min(slots, key=lambda one: one.name)


async def _leave(world: World, name: str) -> VirtualMachine:
    """The VM, which its host lists no more."""
    vm = await world.store.get(VirtualMachine, name)
    await _instances(
        world,
        _host_of(world, name),
        lambda there: tuple(one for one in there if one.id != name),
        Amounts() - vm.spec.resources,
    )
    return vm


def _host_of(world: World, vm: str) -> str:
    found = world.store.find(VirtualMachine, vm)
    assert found is not None
    assert found.status.assigned is not None
    return found.status.assigned.hypervisor


async def _instances(world: World, name: str, change: Change, more: Amounts = Amounts()) -> None:
    host = await world.store.get(Hypervisor, name)
    instances = change(host.status.instances)
    allocation = (host.status.allocation or Amounts()) + more
    status = _replace(host.status, instances=instances, num_instances=len(instances), allocation=allocation)
    await world.store.replace_status(_replace(host, status=status))

"""What is written when a virtual machine is to go to another host, and what the hosts publish for choosing one.

A move begins with one write of the virtual machine: where it is assigned, where its home is, and the record of the
move, after the label by which the target is told of it. Figures are as old as the last reports of the hosts; the chosen
host may still refuse.
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.node.membership.death import member_view
from outlive.node.vm.selecting import NodeFigures, NodeMemory
from outlive.node.vm.states import START, assigned_to, state_of
from outlive.resources import (
    Assigned,
    Hypervisor,
    HypervisorUsage,
    Membership,
    Reservation,
    VirtualMachine,
)
from outlive.resources.taking import refuses
from outlive.resources.vms import Migration, VirtualMachineStatus
from outlive.store import Store, list_all

MEBIBYTE: Final = 1 << 20

_replace = msgspec.structs.replace


def away_from(vm: VirtualMachine) -> str:
    """Its home, while it is somewhere else; empty at home."""
    return "" if vm.status.home == assigned_to(vm) else vm.status.home


def relocated(vm: VirtualMachine, *, target: str, home: str, phase: str, move_id: str) -> VirtualMachineStatus:
    """The status of a virtual machine that is to go to ``target``; with a move if it is up, at once if it is down.

    ``home`` empty: the target is its home from now on.
    """
    new_home = home or target
    status = _replace(vm.status, assigned=Assigned(hypervisor=target), home=new_home, phase=phase, rejection=None)
    if state_of(vm) != START:
        return _replace(status, migration=None)
    move = Migration(
        id=move_id,
        source=assigned_to(vm),
        target=target,
        mode="cold" if vm.spec.migration_method == "shutdown" else "live",
        prior_home=vm.status.home,
        new_home=new_home,
    )
    return _replace(status, migration=move, reason="")


async def figures(store: Store) -> tuple[NodeFigures, ...]:
    """What all hosts have published. Memory in MiB; slots that nobody has landed in count as reserved."""
    usages = {each.name: each.usage async for each in list_all(store, HypervisorUsage)}
    members = {each.name: member_view(each).record async for each in list_all(store, Membership)}
    hosts = [each async for each in list_all(store, Hypervisor)]
    landed = {host.name: {each.id for each in host.status.instances} for host in hosts}
    reserved: dict[str, int] = {}
    async for slot in list_all(store, Reservation):
        place, consumer = slot.status.host or slot.spec.target_host, slot.status.consumer
        if consumer is None or consumer.vm not in landed.get(place, ()):
            reserved[place] = reserved.get(place, 0) + slot.spec.resources.memory_bytes
    found: list[NodeFigures] = []
    for host in hosts:
        capacity, allocation, usage = host.effective_capacity(), host.status.allocation, usages.get(host.name)
        total = capacity.memory_bytes / MEBIBYTE if capacity is not None else 0
        allocated = allocation.memory_bytes / MEBIBYTE if allocation is not None else 0
        provisioned = max(allocated, usage.provisioned.memory_bytes / MEBIBYTE if usage is not None else 0)
        member = members.get(host.name)
        held = member is not None and member.state == "Held"
        found.append(
            NodeFigures(
                name=host.name,
                daemon_state="run" if held and not refuses(host) else "stop",
                domain_state=host.status.domain_state or "ready",
                memory=NodeMemory(
                    total=total,
                    used=allocated,
                    free=max(0, total - allocated),
                    allocated=allocated,
                    provisioned=provisioned,
                    reserved=reserved.get(host.name, 0) / MEBIBYTE,
                ),
                vcpu_allocated=allocation.cpu_milli / 1000 if allocation is not None else 0,
                load=usage.load if usage is not None else 0,
                domains_count=host.status.num_instances,
                degrading=host.status.degrading is not None,
            )
        )
    return tuple(found)

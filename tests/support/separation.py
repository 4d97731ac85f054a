"""The literal statement of separation: why a VM may have no further slot on a host, worked out from plain views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outlive.failover import ServerGroup, SlotView, Topology
from outlive.placement import ANTI_AFFINITY, VmView


def barred(
    vm: VmView, host: str, slots: Sequence[SlotView], topology: Topology, groups: Iterable[ServerGroup] = ()
) -> str:
    """Why the VM may have no further slot on this host, as far as separation goes; empty where it may.

    ``groups``: at least those that bear on the VM.
    """
    mine = [slot.host for slot in slots if vm.id in slot.members]
    for domain, values in topology.apart.items():
        value = values.get(host)
        if value is not None:
            near = next((other for other in (vm.host, *mine) if values.get(other) == value), None)
            if near is not None:
                return f"{host} is in {domain} {value}, like {near}, {_what_is_there(near, vm)}"
    return _barred_by_groups(vm, host, slots, list(groups)) if topology.server_groups else ""


def _barred_by_groups(vm: VmView, host: str, slots: Sequence[SlotView], groups: Sequence[ServerGroup]) -> str:
    affinity = [group for group in groups if group.policy != ANTI_AFFINITY]
    mates = together(vm.id, affinity)
    for group in groups:
        if group.policy != ANTI_AFFINITY or mates.isdisjoint(group.members):
            continue
        others = group.members.keys() - ({vm.id} if vm.id in group.members else mates)
        if host in {group.members[one] for one in others} | slot_hosts(others, slots):
            return f"{host} runs one of anti-affinity group {group.name} of {vm.id} or its mates, or has a slot of one"
        theirs = set[str]().union(*(together(one, affinity) - {one} for one in group.members.keys() - mates))
        if host in slot_hosts(theirs, slots):
            return f"{host} has a slot of one that is to be with one of anti-affinity group {group.name}"
    bound = [group for group in affinity if not mates.isdisjoint(group.members)]
    if any(host not in limit for group in bound for limit in group.limits.values()):
        return f"{host} is not for all that are to be with {vm.id}"
    for counted in [*([group] for group in bound if vm.id in group.members), *([bound] if bound else [])]:
        need = max(group.need for group in counted)
        used = slot_hosts({one for group in counted for one in group.members}, [one for one in slots if is_ready(one)])
        if need and len(used) >= need and host not in used:
            return f"{host} is none of the {len(used)} hosts with slots of {[group.name for group in counted]}"
    return ""


def is_ready(slot: SlotView) -> bool:
    return slot.ready is not False


def slot_hosts(vms: Iterable[str], slots: Sequence[SlotView]) -> set[str]:
    """The hosts with slots of any of these VMs."""
    names = set(vms)
    return {slot.host for slot in slots if not slot.members.keys().isdisjoint(names)}


def together(vm: str, affinity: Sequence[ServerGroup]) -> set[str]:
    """The VM and all that affinity groups chain to it: added until nobody is added any more."""
    found = {vm}
    while more := {one for group in affinity if found & group.members.keys() for one in group.members} - found:
        found |= more
    return found


def _what_is_there(host: str, vm: VmView) -> str:
    return "where the VM runs" if host == vm.host else "where it has a slot"

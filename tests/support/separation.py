"""The literal statement of separation: why a VM may have no further slot on a host, worked out from plain views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from outlive.failover.model import SlotView
from outlive.failover.separation import ServerGroup
from outlive.failover.topology import Topology
from outlive.placement.rules import ANTI_AFFINITY
from outlive.placement.vms import VmView


def barred(
    vm: VmView, host: str, slots: Sequence[SlotView], topology: Topology, groups: Iterable[ServerGroup] = ()
) -> str:
    """Why the VM may have no further slot on this host, as far as separation goes; empty where it may.

    ``groups``: at least those that the VM is in.
    """
    mine = [slot.host for slot in slots if vm.id in slot.members]
    for domain, values in topology.apart.items():
        value = values.get(host)
        if value is not None:
            near = next((other for other in (vm.host, *mine) if values.get(other) == value), None)
            if near is not None:
                return f"{host} is in {domain} {value}, like {near}, {_what_is_there(near, vm)}"
    if topology.server_groups:
        for group in groups:
            if vm.id in group.members:
                why = _barred_by(group, vm, host, slots)
                if why:
                    return why
    return ""


def _barred_by(group: ServerGroup, vm: VmView, host: str, slots: Sequence[SlotView]) -> str:
    theirs = {slot.host: peer for slot in slots for peer in slot.members if peer in group.members and peer != vm.id}
    if group.policy == ANTI_AFFINITY:
        runs = next((peer for peer, at in group.members.items() if peer != vm.id and at == host), None)
        if runs is not None:
            return f"{host} runs {runs}, of the same anti-affinity group {group.name}"
        if host in theirs:
            return f"{host} has a slot of {theirs[host]}, of the same anti-affinity group {group.name}"
        return ""
    if any(host not in limit for limit in group.limits.values()):
        return f"{host} is not for all of affinity group {group.name}"
    used = {
        slot.host for slot in slots if slot.ready is not False and not slot.members.keys().isdisjoint(group.members)
    }
    if group.need and len(used) >= group.need and host not in used:
        return f"{host} is none of the {len(used)} hosts with slots of affinity group {group.name}"
    return ""


def _what_is_there(host: str, vm: VmView) -> str:
    return "where the VM runs" if host == vm.host else "where it has a slot"

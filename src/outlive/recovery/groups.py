"""Affinity groups as an operator sees them: who is in them and where, and the moves that bring all of one together.

A move of a group is one request a VM, one after the other, each of which its host answers by the rules at that moment.
All of them happen, or those that did are undone (``balance.move_together``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from outlive.base import Conflict, NotFound, Refused
from outlive.failover import Snapshot, VmMove
from outlive.failover.analysis.drain import free_table, possible_places
from outlive.node.vm import is_asked
from outlive.placement import (
    AFFINITY,
    HARD,
    Peers,
    VmConstraints,
    amounts_of,
    demands_of,
    facts_of,
    find_companions,
    judge_together,
    storage_refusal,
)
from outlive.recovery.states import is_unfinished, is_waiting
from outlive.resources import (
    CPU,
    MEMORY,
    Amounts,
    Hypervisor,
    VirtualMachine,
    active_move,
    explain_out_of_service,
    first_lost,
    is_to_run,
    lost_places,
)
from outlive.resources.reasons import Reason, render

LIST: Final = "outlive group list"


class GroupMember(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM of a group."""

    vm: str
    host: str
    """Where it is assigned; empty: nowhere."""


class GroupView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """VMs that name the same group with the same policy."""

    group: str
    policy: str
    hosts: tuple[str, ...]
    together: bool | None
    """Of affinity groups: whether all that have a host are on one; ``None`` of others."""
    members: tuple[GroupMember, ...]


def groups_in(vms: Iterable[VirtualMachine]) -> tuple[GroupView, ...]:
    """All groups that the VMs name, by name and policy."""
    found: dict[tuple[str, str], list[GroupMember]] = {}
    for vm in vms:
        for rule in vm.spec.affinity_rules:
            found.setdefault((rule.group, rule.policy), []).append(GroupMember(vm=vm.name, host=vm.host))
    views = []
    for (group, policy), members in sorted(found.items()):
        hosts = tuple(sorted({one.host for one in members if one.host}))
        together = len(hosts) <= 1 if policy in (AFFINITY, "soft-affinity") else None
        by_name = tuple(sorted(members, key=lambda one: one.vm))
        views.append(GroupView(group=group, policy=policy, hosts=hosts, together=together, members=by_name))
    return tuple(views)


def group_moves(gathered: Snapshot, vms: Mapping[str, VirtualMachine], group: str, host: str) -> tuple[VmMove, ...]:
    """The moves that bring all of an affinity group to the host, with all that further groups bind to its VMs.

    One that recovery holds is left out: recovery starts it beside the others. ``NotFound`` without such a group, or
    host; ``Conflict`` while something of it is under way; ``Refused`` where a rule, the host itself or the lack of room
    forbids it for any of them.
    """
    whole = _whole_group(vms, group)
    target = next((one for one in gathered.observation.hypervisors if one.name == host), None)
    if target is None:
        raise NotFound(f"there is no host {host}", remedy="outlive host list")
    if why := explain_out_of_service(target):
        raise Refused(f"{host} is not schedulable: it {why}", remedy="choose another host")
    if closed := _find_closing(whole, vms, target):
        message = render(closed)
        raise Refused(f"not all of group {group} may be on {host}: {message.text}", remedy=message.remedy)
    away = [vms[one.id] for one in whole if vms[one.id].host not in ("", host)]
    down = [vm for vm in away if is_waiting(vm)]
    going = [vm for vm in away if vm not in down]
    for vm in going:
        if is_asked(vm) or active_move(vm) is not None or is_unfinished(vm):
            raise Conflict(
                f"{vm.name} is being recovered or moved, or has an open request", remedy="repeat it after that"
            )
    views = [view for view in gathered.vms if view.id in {vm.name for vm in going}]
    places, free = possible_places(gathered, views), free_table(gathered.fleet).get(host, {})
    for view in views:
        if host not in places[view.id]:
            raise Refused(
                f"placement does not offer {host} for {view.id}",
                remedy=f"outlive placement rank --vm {view.id} --explain",
            )
    need: dict[str, int] = {}
    later = [{CPU: vm.spec.resources.cpu_milli, MEMORY: vm.spec.resources.memory_bytes} for vm in down]
    for amounts in [*map(amounts_of, views), *later]:
        for resource, amount in amounts.items():
            need[resource] = need.get(resource, 0) + amount
    short = {name: amount - free.get(name, 0) for name, amount in need.items() if amount > free.get(name, 0)}
    if short:
        lacks = ", ".join(f"{amount} of {name}" for name, amount in sorted(short.items()))
        raise Refused(
            f"{host} has no room for all of group {group} beside its VMs and slots: {lacks} is missing",
            remedy="make room there, or choose another host",
        )
    return tuple(VmMove(vm=vm.name, source=vm.host, host=host) for vm in going)


def _whole_group(vms: Mapping[str, VirtualMachine], group: str) -> tuple[VmConstraints, ...]:
    """The VMs of an affinity group, and those that are to be with them by way of others."""
    ruled = [demands_of(vm) for vm in vms.values() if vm.spec.affinity_rules]
    policies = {rule.policy: one for one in ruled for rule in one.rules if rule.group == group}
    if AFFINITY not in policies:
        if policies:
            raise Refused(f"group {group} is no affinity group: {', '.join(sorted(policies))}", remedy=LIST)
        raise NotFound(f"no VM is in a group {group!r}", remedy=LIST)
    return find_companions(policies[AFFINITY], ruled)


def _find_closing(group: Iterable[VmConstraints], vms: Mapping[str, VirtualMachine], host: Hypervisor) -> Reason | None:
    """What closes the host to one of these VMs, wherever they are now; ``None``: all of them may be there."""
    names, peers = {one.id for one in group}, Peers()
    for vm in vms.values():
        if vm.name not in names and (vm.status.holders or is_to_run(vm)):
            peers.put(vm.name, [rule for rule in vm.spec.affinity_rules if rule.policy in HARD], vm.involved_hosts())
    for name in sorted(names):
        place = first_lost(vms[name].spec.disks, lost_places(host))
        if place is not None:
            return storage_refusal(name, host.name, place)
    return judge_together(group, host.name, peers, facts_of(host))


def helpful_move(
    vm: VirtualMachine, vms: Mapping[str, VirtualMachine], hosts: Iterable[Hypervisor]
) -> tuple[str, str] | None:
    """Group and host: the move that brings all that are to be with the VM where all may be, of the fewest VMs.

    ``None`` where it is in no affinity group, or no host takes all of them. Room is what hosts have beside their VMs.
    """
    rules = [rule for rule in vm.spec.affinity_rules if rule.policy == AFFINITY]
    if not rules:
        return None
    whole = find_companions(demands_of(vm), [demands_of(one) for one in vms.values() if one.spec.affinity_rules])
    found = [
        (len(away), host.name)
        for host in hosts
        if not explain_out_of_service(host) and _find_closing(whole, vms, host) is None
        for away in [[vms[one.id] for one in whole if vms[one.id].host != host.name]]
        if _has_room(host, away)
    ]
    return (rules[0].group, min(found)[1]) if found else None


def _has_room(host: Hypervisor, vms: Iterable[VirtualMachine]) -> bool:
    capacity, used = host.effective_capacity(), host.status.allocation or Amounts()
    if capacity is None:
        return True
    needs = [vm.spec.resources for vm in vms]
    cpu = used.cpu_milli + sum(one.cpu_milli for one in needs)
    memory = used.memory_bytes + sum(one.memory_bytes for one in needs)
    return cpu <= capacity.cpu_milli and memory <= capacity.memory_bytes

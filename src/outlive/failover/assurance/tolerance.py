"""How many host failures each VM survives in its own slots, and how many the fleet does.

A VM survives a set of failed hosts, its own among them, when one of its slots is on a host outside the set and no other
member of that slot runs in it: then the slot is there and nobody competes for it. The tolerance is the largest number
such that the VM survives every set of that many hosts (docs/reference/failover.md#bounds-and-tolerance). Exact, also
where rules are broken; what placement does beyond the promised slots is not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from outlive.failover.eligibility.columns import Columns
from outlive.failover.eligibility.graph import DependencyGraph
from outlive.failover.eligibility.rules import fits
from outlive.failover.model import SlotView, VmView

SLOTS_LOOKED_AT = 12
"""A VM with more slots than this is judged by the first of them, by name: then its tolerance may be understated."""


class ToleranceInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The VMs, what they need, and the slots."""

    vms: tuple[VmView, ...]
    required: dict[str, int]
    slots: tuple[SlotView, ...]


class ToleranceResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Failures that are survived."""

    fleet: int
    """By the weakest VM that needs slots; 0 when nobody does."""
    zones: dict[str, int]
    """Zone → the same for its VMs."""
    vms: dict[str, int]
    """VM that needs slots → failures that it survives, weakest first, then by id."""


def tolerance(given: ToleranceInput) -> ToleranceResult:
    """The tolerance of every VM that needs slots, of each zone and of the fleet."""
    needing = [vm for vm in given.vms if given.required.get(vm.id, 0) > 0]
    levels = tolerances(needing, given.slots, {vm.id: vm.host for vm in given.vms})
    zones: dict[str, int] = {}
    for vm in needing:
        zones[vm.zone] = min(levels[vm.id], zones.get(vm.zone, levels[vm.id]))
    return ToleranceResult(
        fleet=min(levels.values(), default=0),
        zones=dict(sorted(zones.items())),
        vms=dict(sorted(levels.items(), key=lambda item: (item[1], item[0]))),
    )


def tolerances(vms: Iterable[VmView], slots: Sequence[SlotView], locations: Mapping[str, str]) -> dict[str, int]:
    """VM → failures that it survives in those of its slots that are ready and large enough."""
    views = {vm.id: vm for vm in vms}
    usable: dict[str, list[str]] = {vm: [] for vm in views}
    for slot in slots:
        if slot.ready is not False:
            for member in slot.members:
                vm = views.get(member)
                if vm is not None and fits(vm, slot):
                    usable[member].append(slot.name)
    columns = Columns(slots, locations)
    faulty = {columns.vm_ids[number] for number in columns.at_fault().tolist()}
    graph = DependencyGraph.build([slot for slot in slots if not faulty.isdisjoint(slot.members)], locations=locations)
    return {vm: _by_search(graph, vm, usable[vm]) if vm in faulty else len(usable[vm]) for vm in views}


def _by_search(graph: DependencyGraph, vm: str, usable: list[str]) -> int:
    """The fewest further hosts that, together with the VM's own, spoil all its slots."""
    own = graph.vm_host[vm]
    spoilers = []
    for slot in sorted(usable)[:SLOTS_LOOKED_AT]:
        hosts = {graph.vm_host[other] for other in graph.slot_vms[slot] if other != vm} | {graph.slot_host[slot]}
        if own not in hosts:
            spoilers.append(hosts)
    everything = (1 << len(spoilers)) - 1
    spoiled_by: dict[str, int] = {}
    for number, hosts in enumerate(spoilers):
        for host in hosts:
            spoiled_by[host] = spoiled_by.get(host, 0) | 1 << number
    reached, failures = {0}, 0
    while everything not in reached:
        reached = {spoiled | more for spoiled in reached for more in spoiled_by.values()}
        failures += 1
    return failures

"""One slot for every VM: each slot takes the largest VM that is left of every host.

With one slot a VM the only rule is that nobody in a slot runs where the slot or another member is. Taken by size, the
j-th slot then is as large as the largest j-th largest VM of any host, which is the least that is possible at all; it
exceeds that only where the slots' own hosts have VMs, and where offers or room say no. A slot is as large as its
largest member in each resource, so that VMs with much cpu share slots with those with much memory
(docs/design/failover.md#packing).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from outlive.failover.fleet import FleetIndex, FreeAmounts
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import PlanInput, offered_hosts
from outlive.placement import VmView, may_run_on
from outlive.resources import CPU, MEMORY

Size = tuple[int, int]
"""Milli-cores and bytes."""


def pack_in_layers(given: PlanInput, before: Sequence[SlotView], vms: Sequence[VmView]) -> list[SlotView]:
    """Slots with these VMs, who have none, in one each; none where somebody finds no place this way."""
    work = _Layers(given, before, vms)
    sized = {vm.id: (size.cpu_milli, size.memory_bytes) for vm in vms for size in [given.size_of(vm)]}
    # How many VMs of its host come after each: of equal VMs those go first whose hosts have most left.
    counts, later = Counter[str](), dict[str, int]()
    for vm in sorted(vms, key=lambda one: (sized[one.id][1], sized[one.id][0], one.id)):
        unit = given.topology.unit_of_host(vm.host)
        later[vm.id] = counts[unit]
        counts[unit] += 1
    for vm in sorted(vms, key=lambda one: (-sized[one.id][1], -sized[one.id][0], -later[one.id], one.id)):
        if not work.place(vm, sized[vm.id]):
            return []
    return [layer.to_slot(f"layer {number}") for number, layer in enumerate(work.layers)]


class _Layer:
    """A slot while it is filled."""

    def __init__(self, host: str, size: Size, units: set[str], before: SlotView | None = None) -> None:
        self.host, self.size, self.units, self.before = host, size, units, before
        self.members: dict[str, str] = {}
        """VM → its host, of those who join."""

    def to_slot(self, name: str) -> SlotView:
        """Who joins it, under its own name or, where it is new, under this one."""
        cpu_milli, memory_bytes = self.size
        name = self.before.name if self.before is not None else name
        return SlotView(name=name, host=self.host, cpu_milli=cpu_milli, memory_bytes=memory_bytes, members=self.members)


class _Layers:
    """All slots while they are filled, those that were there first."""

    def __init__(self, given: PlanInput, before: Sequence[SlotView], vms: Sequence[VmView]) -> None:
        self._given = given
        self._unit = given.topology.unit_of_host
        self._reuse = offered_hosts(given.reuse)
        self._fleet = FleetIndex(given.topology)
        self._fleet.set_free(FreeAmounts.from_table(given.free))
        self._left: dict[str, list[int]] = {}
        for vm in sorted(vms, key=lambda one: one.memory_bytes):
            self._left.setdefault(self._unit(vm.host), []).append(vm.memory_bytes)
        self._held = Counter[str]()
        views = {vm.id: vm for vm in given.vms}
        self.layers: list[_Layer] = []
        for slot in before:
            at = [views[vm].host if vm in views else recorded for vm, recorded in slot.members.items()]
            units = {self._unit(host) for host in (slot.host, *at)}
            self.layers.append(_Layer(slot.host, (slot.cpu_milli, slot.memory_bytes), units, slot))

    def place(self, vm: VmView, size: Size) -> bool:
        """Put the VM into the first slot that takes it, else into a new one."""
        unit, reuse = self._unit(vm.host), self._reuse.get(self._given.classes.get(vm.id, ""), ())
        for layer in self.layers:
            if unit not in layer.units and layer.host in reuse and self._can_hold(layer, vm, size):
                break
        else:
            host = self._best_host(vm, size)
            if host is None:
                return False
            self._fleet.take(host, {CPU: size[0], MEMORY: size[1]})
            self._held[self._unit(host)] += 1
            layer = _Layer(host, size, {self._unit(host)})
            self.layers.append(layer)
        layer.units.add(unit)
        layer.members[vm.id] = vm.host
        self._left[unit].pop()
        return True

    def _can_hold(self, layer: _Layer, vm: VmView, size: Size) -> bool:
        """Whether the slot is where the VM may be, and large enough, or can be made so."""
        if not may_run_on(vm, layer.host):
            return False
        if self._fleet.separation.share_domain(vm.host, layer.host):
            return False
        if layer.before is not None:
            ready = layer.before.ready is not False
            return ready and vm.cpu_milli <= layer.size[0] and vm.memory_bytes <= layer.size[1]
        if size[0] <= layer.size[0] and size[1] <= layer.size[1]:
            return True
        more = {CPU: max(0, size[0] - layer.size[0]), MEMORY: max(0, size[1] - layer.size[1])}
        if not self._fleet.has_room(layer.host, more):
            return False
        self._fleet.take(layer.host, more)
        layer.size = (layer.size[0] + more[CPU], layer.size[1] + more[MEMORY])
        return True

    def _best_host(self, vm: VmView, size: Size) -> str | None:
        """Of the hosts that may hold a new slot the one whose own VMs, which cannot share it, matter least.

        That is the one whose next VM is smallest; among equals that with the fewest VMs left and slots held.
        """
        offer = self._given.new.get(self._given.classes.get(vm.id, ""))
        if offer is None or offer.error or len(offer.scores) not in (0, len(offer.hosts)):
            return None
        best, least = None, (0, 0)
        own, apart = self._unit(vm.host), self._fleet.separation.share_domain
        for host in self._fleet.hosts_with_room(offer.hosts, {CPU: size[0], MEMORY: size[1]}):
            if not may_run_on(vm, host) or apart(vm.host, host):
                continue
            unit = self._unit(host)
            left = self._left.get(unit, ())
            matters = (left[-1] if left else 0, len(left) + self._held[unit])
            if unit != own and (best is None or matters < least):
                best, least = host, matters
        return best

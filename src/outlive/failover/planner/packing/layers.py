"""One slot for every VM: each slot takes the largest VM that is left of every host.

With one slot a VM the only rule is that nobody in a slot runs where the slot or another member is. Taken by size, the
j-th slot then is as large as the largest j-th largest VM of any host, which is the least that is possible at all; it
exceeds that only where the slots' own hosts have VMs, and where offers or room say no. A slot is as large as its
largest member in each resource, so that VMs with much cpu share slots with those with much memory
(docs/reference/failover-planning.md#packing).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from outlive.failover.fleet import Fleet, FreeAmounts
from outlive.failover.model import SlotView, VmView
from outlive.failover.planner.packing.outcome import NewSlot, Outcome, outcome
from outlive.failover.planner.packing.problem import Ground, slot_size_for
from outlive.failover.rules import may_run_on
from outlive.resources import CPU, MEMORY

Size = tuple[int, int]


def layers(before: Sequence[SlotView], vms: Sequence[VmView], ground: Ground) -> Outcome | None:
    """One slot for each of these VMs, which have none; ``None`` where somebody finds no place this way."""
    work = _Layers(before, vms, ground)
    sized = {vm.id: slot_size_for(vm.id, ground) for vm in vms}
    later = _smaller(vms, sized, ground)
    for vm in sorted(vms, key=lambda one: (-sized[one.id][1], -sized[one.id][0], -later[one.id], one.id)):
        if not work.place(vm, sized[vm.id]):
            return None
    return outcome(before, work.joined, work.new(), ground)


def _smaller(vms: Sequence[VmView], sized: Mapping[str, Size], ground: Ground) -> dict[str, int]:
    """VM → how many of its host come after it: of equal VMs those go first whose hosts have most left."""
    counts, later = Counter[str](), dict[str, int]()
    for vm in sorted(vms, key=lambda one: (sized[one.id][1], sized[one.id][0], one.id)):
        unit = ground.topology.unit(vm.host)
        later[vm.id] = counts[unit]
        counts[unit] += 1
    return later


class _Layer:
    """A slot while it is filled."""

    def __init__(self, host: str, size: Size, units: set[str], before: SlotView | None = None) -> None:
        self.host, self.size, self.units, self.before = host, size, units, before
        self.vms: list[str] = []


class _Layers:
    """All slots while they are filled, those that were there first."""

    def __init__(self, before: Sequence[SlotView], vms: Sequence[VmView], ground: Ground) -> None:
        self._ground = ground
        self._unit = ground.topology.unit
        self._offered: dict[str, frozenset[str]] = {}
        self._fleet = Fleet(ground.topology)
        self._fleet.set_free(FreeAmounts.of(ground.free))
        self._left: dict[str, list[int]] = {}
        for vm in sorted(vms, key=lambda one: one.memory_bytes):
            self._left.setdefault(self._unit(vm.host), []).append(vm.memory_bytes)
        self._held = Counter[str]()
        self._layers = [
            _Layer(slot.host, (slot.cpu_milli, slot.memory_bytes), self._units(slot), slot) for slot in before
        ]

    def place(self, vm: VmView, size: Size) -> bool:
        """Put the VM into the first slot that takes it, else into a new one."""
        unit, reuse = self._unit(vm.host), self._reuse(vm)
        for layer in self._layers:
            if unit not in layer.units and layer.host in reuse and self._fits(layer, vm, size):
                layer.units.add(unit)
                layer.vms.append(vm.id)
                self._left[unit].pop()
                return True
        host = self._best_host(vm, size)
        if host is None:
            return False
        self._fleet.take(host, {CPU: size[0], MEMORY: size[1]})
        self._held[self._unit(host)] += 1
        self._left[unit].pop()
        layer = _Layer(host, size, {self._unit(host), unit})
        layer.vms.append(vm.id)
        self._layers.append(layer)
        return True

    @property
    def joined(self) -> dict[str, list[str]]:
        """Slot that was there → those who join it."""
        return {layer.before.name: layer.vms for layer in self._layers if layer.before is not None}

    def new(self) -> list[NewSlot]:
        """The others."""
        return [
            NewSlot(host=layer.host, cpu_milli=layer.size[0], memory_bytes=layer.size[1], vms=layer.vms)
            for layer in self._layers
            if layer.before is None
        ]

    def _units(self, slot: SlotView) -> set[str]:
        views = self._ground.vms
        at = [views[vm].host if vm in views else recorded for vm, recorded in slot.members.items()]
        return {self._unit(host) for host in (slot.host, *at)}

    def _reuse(self, vm: VmView) -> frozenset[str]:
        key = self._ground.classes.get(vm.id, "")
        found = self._offered.get(key)
        if found is None:
            offer = self._ground.reuse.get(key)
            found = self._offered[key] = frozenset(() if offer is None or offer.error else offer.hosts)
        return found

    def _fits(self, layer: _Layer, vm: VmView, size: Size) -> bool:
        """Whether the slot is where the VM may be, and large enough, or can be made so."""
        if not may_run_on(vm, layer.host):
            return False
        if self._fleet.separation.in_one_domain(vm.host, layer.host):
            return False
        if layer.before is not None:
            ready = layer.before.ready is not False
            return ready and vm.cpu_milli <= layer.size[0] and vm.memory_bytes <= layer.size[1]
        if size[0] <= layer.size[0] and size[1] <= layer.size[1]:
            return True
        more = {CPU: max(0, size[0] - layer.size[0]), MEMORY: max(0, size[1] - layer.size[1])}
        if not self._fleet.fits(layer.host, more):
            return False
        self._fleet.take(layer.host, more)
        layer.size = (layer.size[0] + more[CPU], layer.size[1] + more[MEMORY])
        return True

    def _best_host(self, vm: VmView, size: Size) -> str | None:
        """Of the hosts that may hold a new slot the one whose own VMs, which cannot share it, matter least.

        That is the one whose next VM is smallest; among equals that with the fewest VMs left and slots held.
        """
        offer = self._ground.new.get(self._ground.classes.get(vm.id, ""))
        if offer is None or offer.error or len(offer.scores) not in (0, len(offer.hosts)):
            return None
        best, least = None, (0, 0)
        own, apart = self._unit(vm.host), self._fleet.separation.in_one_domain
        for host in self._fleet.roomy(offer.hosts, {CPU: size[0], MEMORY: size[1]}):
            if not may_run_on(vm, host) or apart(vm.host, host):
                continue
            unit = self._unit(host)
            left = self._left.get(unit, ())
            matters = (left[-1] if left else 0, len(left) + self._held[unit])
            if unit != own and (best is None or matters < least):
                best, least = host, matters
        return best

"""How many failures each VM survives in its own slots, and how many the fleet does.

A slot *counts* for a VM when it is ready, at least as large, and lists the VM where it runs. It is *spoiled* for the VM
by the failure of the unit that it is on, and of every unit that another of its members runs on, because that member may
claim it too. A VM survives a set of failed units, its own among them, when the set spoils not all of its slots. The
tolerance is the largest number such that the VM survives every set of that many units
(docs/design/failover.md#bounds-and-tolerance). It is the size of the smallest set of further units that
spoils all slots which the VM's own unit leaves it: exact in every state, also where rules are broken, or where a plan
made for hosts is judged by racks. What placement does beyond the promised slots is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from outlive.failover.conflicts import ConflictIndex
from outlive.failover.model import SlotView
from outlive.failover.rules import slot_counts
from outlive.failover.topology import Topology, iter_bits, unite
from outlive.placement import VmView

WEAKEST_SHOWN = 10
"""VMs that are listed with a set of failures which they do not survive, unless more are asked for."""


class ToleranceInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The VMs, what they need, and the slots."""

    vms: tuple[VmView, ...]
    required: dict[str, int]
    slots: tuple[SlotView, ...]
    units: dict[str, str] = {}
    """Host → its unit of failure; a host that is missing here is a unit of its own."""
    weakest: int = WEAKEST_SHOWN
    """How many of the weakest VMs are listed with what they do not survive."""


class Weak(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM, and failures that are too many for it."""

    vm: str
    host: str
    zone: str
    tolerance: int
    slots: int
    """Slots that count for it."""
    case: tuple[str, ...]
    """The fewest units that it does not survive, its own first."""


class ToleranceResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Failures that are survived."""

    fleet: int
    """By the weakest VM that needs slots; 0 when nobody does."""
    zones: dict[str, int]
    """Zone → the same for its VMs."""
    vms: dict[str, int]
    """VM that needs slots → failures that it survives, weakest first, then by id."""
    counts: dict[str, int]
    """Tolerance → VMs that have it."""
    weakest: tuple[Weak, ...]
    """The first of ``vms``."""
    understated: tuple[str, ...]
    """VMs for which the search ended early: they survive at least what is said. Normally nobody."""


def compute_tolerance(given: ToleranceInput) -> ToleranceResult:
    """The tolerance of every VM that needs slots, of each zone and of the fleet."""
    needing = [vm for vm in given.vms if given.required.get(vm.id, 0) > 0]
    matrix = SurvivalMatrix(needing, given.slots, {vm.id: vm.host for vm in given.vms}, given.units)
    levels, understated = matrix.compute_levels()
    sums = sum_tolerances("", zip((vm.zone for vm in needing), levels, strict=True))
    order = sorted(range(len(needing)), key=lambda at: (levels[at], needing[at].id))
    return ToleranceResult(
        fleet=sums.fleet or 0,
        zones=sums.zones,
        vms={needing[at].id: levels[at] for at in order},
        counts={str(level): count for level, count in sums.counts.items()},
        weakest=tuple(
            Weak(
                vm=needing[at].id,
                host=needing[at].host,
                zone=needing[at].zone,
                tolerance=levels[at],
                slots=len(matrix.claims[at]),
                case=matrix.fatal_units(at),
            )
            for at in order[: max(0, given.weakest)]
        ),
        understated=tuple(sorted(needing[at].id for at in understated)),
    )


def compute_tolerances(
    vms: Iterable[VmView],
    slots: Sequence[SlotView],
    locations: Mapping[str, str],
    units: Mapping[str, str] | None = None,
) -> dict[str, int]:
    """VM → failures that it survives. ``locations``: the hosts of all VMs, also of those that need no slots."""
    matrix = SurvivalMatrix(vms, slots, locations, units)
    return dict(zip((vm.id for vm in matrix.vms), matrix.compute_levels()[0], strict=True))


class SurvivalMatrix:
    """Who counts on which slot, and which units spoil it. VMs, slots and units have numbers, sets of units are bits."""

    def __init__(
        self,
        vms: Iterable[VmView],
        slots: Sequence[SlotView],
        locations: Mapping[str, str],
        units: Mapping[str, str] | None = None,
        hosts: Iterable[str] = (),
    ) -> None:
        """``vms`` are those that need slots, ``locations`` the hosts of all VMs (of others the last record counts).

        ``units``: host → unit of failure, a missing host is its own. ``hosts`` may fail although nothing is there.
        """
        self.vms = list(vms)
        self.slots = slots
        self._units = units or {}
        self._unit_number: dict[str, int] = {}
        self.own = [self._ensure_unit(vm.host) for vm in self.vms]
        self.slot_unit = [self._ensure_unit(slot.host) for slot in slots]
        recorded = {name: host for slot in slots for name, host in slot.members.items()}
        number = {vm.id: at for at, vm in enumerate(self.vms)}
        self._unit_of = {
            name: self.own[number[name]] if name in number else self._ensure_unit(locations.get(name, host))
            for name, host in recorded.items()
        }
        for host in hosts:
            self._ensure_unit(host)
        self.unit_names = list(self._unit_number)
        self.claims: list[list[int]] = [[] for _ in self.vms]
        """VM → the slots that count for it, by name."""
        for slot in sorted(range(len(slots)), key=lambda at: slots[at].name):
            for name in slots[slot].members:
                vm = number.get(name)
                if vm is not None and slot_counts(self.vms[vm], slots[slot]):
                    self.claims[vm].append(slot)
        self._bits = [1 << at for at in range(len(self.unit_names))]
        touched = [self._touched_units(slot) for slot in range(len(slots))]
        self.touched = [once for once, _ in touched]
        """Slot → its own unit and those of its members."""
        self._twice = [twice for _, twice in touched]
        """Slot → units that occur for it more than once."""

    def _touched_units(self, slot: int) -> tuple[int, int]:
        once, twice = self._bits[self.slot_unit[slot]], 0
        for name in self.slots[slot].members:
            bit = self._bits[self._unit_of[name]]
            twice |= once & bit
            once |= bit
        return once, twice

    def _ensure_unit(self, host: str) -> int:
        return self._unit_number.setdefault(self._units.get(host, host), len(self._unit_number))

    def unit_number(self, name: str) -> int | None:
        """The number of a unit; ``None`` where there is none of that name."""
        return self._unit_number.get(name)

    def unit_names_of(self, units: Iterable[int]) -> tuple[str, ...]:
        """The names of these units, sorted."""
        return tuple(sorted(self.unit_names[unit] for unit in units))

    def surviving_slots(self, vm: int) -> list[int]:
        """The VM's slots that the failure of its own unit leaves it: nothing else of these is there."""
        own = self._bits[self.own[vm]]
        return [slot for slot in self.claims[vm] if not self._twice[slot] & own]

    def spoiling_units(self, vm: int) -> list[int]:
        """For each of the slots in ``left`` the further units whose failure spoils it."""
        own = self._bits[self.own[vm]]
        return [self.touched[slot] ^ own for slot in self.surviving_slots(vm)]

    def members_down(self, slot: int, down: int) -> list[str]:
        """The members of a slot that run on these units, in the order of the slot."""
        return [name for name in self.slots[slot].members if self._bits[self._unit_of[name]] & down]

    def compute_levels(self) -> tuple[list[int], list[int]]:
        """The tolerance of every VM; and the VMs of which it is only known that they survive at least that."""
        levels, understated = [], []
        for vm in range(len(self.vms)):
            spoilers = self.spoiling_units(vm)
            level, seen = len(spoilers), 0
            for units in spoilers:
                if seen & units:
                    cover = _find_cover(frozenset(_group_by_spoiled_slots(spoilers)), len(spoilers))
                    level = cover.size
                    if not cover.exact:
                        understated.append(vm)
                    break
                seen |= units
            levels.append(level)
        return levels, understated

    def fatal_units(self, vm: int) -> tuple[str, ...]:
        """The fewest units that the VM does not survive, its own first, the others by name."""
        spoilers = self.spoiling_units(vm)
        first = {
            what: min(map(self.unit_names.__getitem__, iter_bits(who)))
            for what, who in _group_by_spoiled_slots(spoilers).items()
        }
        cover = _find_cover(frozenset(first), len(spoilers))
        found, left = [first[what] for what in cover.masks], 0 if cover.exact else (1 << len(spoilers)) - 1
        while left:  # the search ended early: enough units, those that spoil most first
            what = min(first, key=lambda one: (-(one & left).bit_count(), first[one]))
            found.append(first[what])
            left &= ~what
        return (self.unit_names[self.own[vm]], *sorted(found))


def _group_by_spoiled_slots(spoilers: Sequence[int]) -> dict[int, int]:
    """Set of slots, as bits by their places → the units that spoil exactly these."""
    found = {0: unite(spoilers)} if spoilers else {}
    for place, units in enumerate(spoilers):
        parts = [((what | 1 << place, who & units), (what, who & ~units)) for what, who in found.items()]
        found = {what: who for part in parts for what, who in part if who}
    return found


@lru_cache(maxsize=4096)
def _find_cover(masks: frozenset[int], slots: int) -> Cover:
    return find_fewest_masks((1 << slots) - 1, masks)


STEPS = 200_000
"""Masks tried for one VM before its answer becomes a lower bound. No VM with up to twelve slots needs as many."""


class Cover(NamedTuple):
    """The fewest masks that have all bits together."""

    size: int
    masks: tuple[int, ...]
    """Such masks; empty where the search ended early."""
    exact: bool
    """Whether ``size`` is the least; else the least is at least ``size``."""


def find_fewest_masks(full: int, masks: Iterable[int], steps: int = STEPS) -> Cover:
    """The fewest of these masks with all bits of ``full``; every bit has to be in some mask."""
    # A mask that another contains is never needed.
    largest: list[int] = []
    for mask in sorted(set(masks), key=lambda one: (-one.bit_count(), one)):
        if not any(mask & other == mask for other in largest):
            largest.append(mask)
    budget = [steps]
    for size in range(_count_disjoint(full, largest), full.bit_count() + 1):
        found = _search(full, largest, size, budget)
        if found is not None:
            return Cover(size, found, True)
        if budget[0] <= 0:
            return Cover(size, (), False)
    raise ValueError("some slot is spoiled by nothing")


def _count_disjoint(full: int, masks: list[int]) -> int:
    """Bits of which no two are in one mask: each needs a mask of its own."""
    left, count = full, 0
    while left:
        bit = left & -left
        count += 1
        left &= ~bit
        for mask in masks:
            if mask & bit:
                left &= ~mask
    return count


def _search(left: int, masks: list[int], size: int, budget: list[int]) -> tuple[int, ...] | None:
    """At most ``size`` masks with all bits of ``left``; some mask has to have the bit that fewest have."""
    if not left:
        return ()
    if size <= 0 or size * max(map(int.bit_count, masks)) < left.bit_count():
        return None
    bit = min((1 << at for at in iter_bits(left)), key=lambda one: sum(1 for mask in masks if mask & one))
    for mask in masks:
        if not mask & bit:
            continue
        budget[0] -= 1
        if budget[0] <= 0:
            return None
        rest = _search(left & ~mask, masks, size - 1, budget)
        if rest is not None:
            return (mask, *rest)
    return None


BROKEN_JUDGED = 100
"""VMs with broken rules that a cycle judges exactly; of further ones it says that they survive nothing."""


class ToleratedFailures(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the last cycle found."""

    unit: str
    """What fails: ``host``, or a failure domain."""
    fleet: int | None
    """By the weakest VM that needs slots; ``None`` when nobody does."""
    zones: dict[str, int]
    counts: dict[int, int]
    """Failures that are survived → VMs."""


def sum_tolerances(unit: str, levels: Iterable[tuple[str, int]]) -> ToleratedFailures:
    """The figures of a fleet from (zone, failures that it survives) of each VM that needs slots."""
    zones: dict[str, int] = {}
    counts = Counter[int]()
    for zone, level in levels:
        zones[zone] = min(level, zones.get(zone, level))
        counts[level] += 1
    return ToleratedFailures(
        unit=unit,
        fleet=min(counts, default=None),
        zones=dict(sorted(zones.items())),
        counts=dict(sorted(counts.items())),
    )


def judge_broken(
    broken: Collection[str],
    required: Mapping[str, int],
    views: Mapping[str, VmView],
    slots: Mapping[str, SlotView],
    index: ConflictIndex,
    topology: Topology,
) -> dict[str, int]:
    """VM for which a rule is broken → failures that it survives; ``index`` is over these VMs and slots."""
    chosen = [views[vm] for vm in sorted(broken) if vm in views and required.get(vm, 0) > 0][:BROKEN_JUDGED]
    near = [slots[name] for name in sorted({name for vm in chosen for name in index.slots_of(vm.id)})]
    where = {vm: index.location_of(vm) for slot in near for vm in slot.members}
    return compute_tolerances(chosen, near, where, topology.units)

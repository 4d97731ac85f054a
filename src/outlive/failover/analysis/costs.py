"""What protection costs, by level and by flavor: who is protected, and whose share of the slots is how large.

A slot is shared by its members, each in proportion to its own size: twice the memory, twice the share of the slot's
memory, and cpu likewise. Shares are whole units and add up to the slot. What a slot holds for members that nobody lists
falls to the others; a slot without any known member is nobody's. A report only: nothing is decided from it
(docs/reference/failover.md#costs).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from outlive.failover.analysis.coverage import CoverageResult, Reserved
from outlive.failover.analysis.tolerance import tolerances
from outlive.failover.model import SlotView, VmView
from outlive.failover.snapshot import Snapshot


class CostInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A state, and who has which level."""

    vms: tuple[VmView, ...]
    required: dict[str, int]
    """VM → slots that it needs; missing means none."""
    slots: tuple[SlotView, ...] = ()
    levels: dict[str, str] = {}
    """VM → its level; missing means none, the empty name."""
    priorities: dict[str, int] = {}
    """Level → its priority, for every level that there is; VMs' own priorities change no row."""
    covered: tuple[str, ...] = ()
    """VMs that need slots and have them."""
    tolerances: dict[str, int] = {}
    """VM → failures that it survives, where known."""


class Cost(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the VMs of one level or flavor have, and what that takes."""

    vms: int
    required: int
    """VMs that need slots."""
    covered: int
    """VMs that need slots and have them."""
    slots: int
    """Slots that any of them is a member of; others may use the same ones."""
    cpu_milli: int
    """Their shares of these slots."""
    memory_bytes: int
    per_protected_byte: float | None
    """Reserved memory for each byte of memory of the VMs that are members of slots; ``None`` where there is none."""
    tolerance: int | None = None
    """Failures that every one of them that needs slots survives, where that is known."""


class LevelCost(Cost, frozen=True, kw_only=True, rename="camel"):
    """One level; the empty name stands for VMs without one."""

    level: str
    priority: int


class FlavorCost(Cost, frozen=True, kw_only=True, rename="camel"):
    """One flavor."""

    flavor: str


class CostResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All of it."""

    levels: tuple[LevelCost, ...]
    """Highest priority first, then by name; of VMs without a level only where there are any."""
    flavors: tuple[FlavorCost, ...]
    """By name."""
    nobody: Reserved
    """What slots without any known member hold."""


class _Sum:
    """Figures of one row, being added up."""

    def __init__(self) -> None:
        self.vms = self.required = self.covered = 0
        self.slots = self.cpu_milli = self.memory_bytes = self.protected_bytes = 0
        self.tolerances: list[int] = []

    def figures(self) -> dict[str, Any]:
        """As the fields of ``Cost``."""
        return {
            "vms": self.vms,
            "required": self.required,
            "covered": self.covered,
            "slots": self.slots,
            "cpu_milli": self.cpu_milli,
            "memory_bytes": self.memory_bytes,
            "per_protected_byte": self.memory_bytes / self.protected_bytes if self.protected_bytes else None,
            "tolerance": min(self.tolerances, default=None),
        }


def costs(given: CostInput) -> CostResult:
    """Add up the state."""
    sums = CostSums(given)
    sums.add_vms(given.vms)
    sums.add_slots(given.slots)
    return sums.result()


class CostSums:
    """The sums, for whoever adds up a large fleet a part at a time: all VMs, and then all slots."""

    def __init__(self, given: CostInput) -> None:
        self._given = given
        self._covered = frozenset(given.covered)
        self._by_level = {name: _Sum() for name in given.priorities}
        self._by_flavor: dict[str, _Sum] = {}
        self._rows: dict[str, tuple[_Sum, _Sum]] = {}
        self._views: dict[str, VmView] = {}
        self._members: set[str] = set()
        self._nobody = [0, 0]

    def add_vms(self, vms: Iterable[VmView]) -> None:
        """Count these in the rows of their level and flavor."""
        given = self._given
        for vm in vms:
            self._views[vm.id] = vm
            level = self._by_level.setdefault(given.levels.get(vm.id, ""), _Sum())
            self._rows[vm.id] = (level, self._by_flavor.setdefault(vm.flavor, _Sum()))
            for row in self._rows[vm.id]:
                row.vms += 1
                if given.required.get(vm.id, 0) > 0:
                    row.required += 1
                    row.covered += vm.id in self._covered
                    row.tolerances += [given.tolerances[vm.id]] if vm.id in given.tolerances else []

    def add_slots(self, slots: Iterable[SlotView]) -> None:
        """Give each known member its part of these slots."""
        for slot in slots:
            known = [self._views[member] for member in slot.members if member in self._views]
            if not known:
                self._nobody[0] += slot.cpu_milli
                self._nobody[1] += slot.memory_bytes
            cpus = shares(slot.cpu_milli, [vm.cpu_milli for vm in known])
            memories = shares(slot.memory_bytes, [vm.memory_bytes for vm in known])
            for vm, cpu, memory in zip(known, cpus, memories, strict=True):
                for row in self._rows[vm.id]:
                    row.cpu_milli += cpu
                    row.memory_bytes += memory
                    row.protected_bytes += vm.memory_bytes if vm.id not in self._members else 0
                self._members.add(vm.id)
            for row in {row for one in known for row in self._rows[one.id]}:
                row.slots += 1

    def result(self) -> CostResult:
        """What they come to."""
        priorities, by_level, by_flavor = self._given.priorities, self._by_level, self._by_flavor
        names = sorted(by_level, key=lambda name: (-priorities.get(name, 0), name))
        return CostResult(
            levels=tuple(
                LevelCost(level=name, priority=priorities.get(name, 0), **by_level[name].figures()) for name in names
            ),
            flavors=tuple(FlavorCost(flavor=name, **by_flavor[name].figures()) for name in sorted(by_flavor)),
            nobody=Reserved(cpu_milli=self._nobody[0], memory_bytes=self._nobody[1]),
        )


def shares(amount: int, weights: Sequence[int]) -> list[int]:
    """The amount in whole parts by these weights, or in equal ones where all are 0; they add up to it."""
    if not any(weights):
        weights = [1] * len(weights)
    total, before, parts = sum(weights), 0, []
    for weight in weights:
        parts.append(amount * (before + weight) // total - amount * before // total)
        before += weight
    return parts


def costs_of(gathered: Snapshot, covered: CoverageResult) -> CostResult:
    """The cost of the slots that are there; ``covered`` is the coverage that they give."""
    observation, protection = gathered.observation, gathered.demands.protection
    needing = [vm for vm in observation.vms if gathered.required.get(vm.id, 0) > 0]
    uncovered = {one.vm for one in covered.uncovered}
    levels = {vm.id: protection.of(vm).name for vm in observation.vms}
    units = gathered.topology.units
    return costs(
        CostInput(
            vms=observation.vms,
            required=gathered.required,
            slots=observation.slots,
            levels={vm: level for vm, level in levels.items() if level},
            priorities={name: level.priority for name, level in protection.levels.items()},
            covered=tuple(vm.id for vm in needing if vm.id not in uncovered),
            tolerances=tolerances(needing, observation.slots, {vm.id: vm.host for vm in observation.vms}, units),
        )
    )

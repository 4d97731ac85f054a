"""What protection costs, by level and by flavor: who is protected, and whose share of the slots is how large.

A slot is shared by its members, each in proportion to its own size: twice the memory, twice the share of the slot's
memory, and cpu likewise. Shares are whole units and add up to the slot. What a slot holds for members that nobody lists
falls to the others; a slot without any known member is nobody's. A report only: nothing is decided from it
(docs/reference/failover-analysis.md#costs).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from outlive.failover.analysis.coverage import CoverageResult, Reserved
from outlive.failover.analysis.tolerance import compute_tolerances
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Fail
from outlive.failover.planner.plan import plan, sum_reserves, with_room_of
from outlive.failover.snapshot import Snapshot, plan_input
from outlive.placement import VmView


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
    """One level; the empty name is that of VMs without one."""

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

    def as_cost_fields(self) -> dict[str, Any]:
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


class CostTable:
    """What levels and flavors cost, being added up: first all VMs, then all slots."""

    def __init__(self, priorities: Mapping[str, int]) -> None:
        """``priorities``: level → priority."""
        self._priorities = priorities
        self._levels = {name: _Sum() for name in priorities}
        self._flavors: dict[str, _Sum] = {}
        self._rows: dict[str, tuple[_Sum, _Sum]] = {}
        self._views: dict[str, VmView] = {}
        self._cpu_of_nobody = self._memory_of_nobody = 0
        self._shared: set[str] = set()
        """VMs that have a part of a slot."""

    def add_vm(self, vm: VmView, level: str, need: int, *, covered: bool, tolerance: int | None = None) -> None:
        """Count a VM of this level that needs so many slots."""
        self._views[vm.id] = vm
        rows = self._levels.setdefault(level, _Sum()), self._flavors.setdefault(vm.flavor, _Sum())
        self._rows[vm.id] = rows
        for row in rows:
            row.vms += 1
            if need > 0:
                row.required += 1
                row.covered += covered
                row.tolerances += [] if tolerance is None else [tolerance]

    def add_slot(self, slot: SlotView) -> None:
        """Give each known member its part of the slot, cpu and memory."""
        known = [self._views[member] for member in slot.members if member in self._views]
        if not known:
            self._cpu_of_nobody += slot.cpu_milli
            self._memory_of_nobody += slot.memory_bytes
            return
        cpus = split_amount(slot.cpu_milli, [vm.cpu_milli for vm in known])
        memories = split_amount(slot.memory_bytes, [vm.memory_bytes for vm in known])
        for vm, cpu, memory in zip(known, cpus, memories, strict=True):
            for row in self._rows[vm.id]:
                row.cpu_milli += cpu
                row.memory_bytes += memory
                row.protected_bytes += vm.memory_bytes if vm.id not in self._shared else 0
            self._shared.add(vm.id)
        for row in {row for vm in known for row in self._rows[vm.id]}:
            row.slots += 1

    def get_result(self) -> CostResult:
        """All of it."""
        priorities, levels, flavors = self._priorities, self._levels, self._flavors
        names = sorted(levels, key=lambda name: (-priorities.get(name, 0), name))
        return CostResult(
            levels=tuple(
                LevelCost(level=name, priority=priorities.get(name, 0), **levels[name].as_cost_fields())
                for name in names
            ),
            flavors=tuple(FlavorCost(flavor=name, **flavors[name].as_cost_fields()) for name in sorted(flavors)),
            nobody=Reserved(cpu_milli=self._cpu_of_nobody, memory_bytes=self._memory_of_nobody),
        )


def split_amount(amount: int, weights: Sequence[int]) -> list[int]:
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
    observation, demands = gathered.observation, gathered.demands
    needing = [vm for vm in observation.vms if gathered.required.get(vm.id, 0) > 0]
    uncovered = {one.vm for one in covered.uncovered}
    where = {vm.id: vm.host for vm in observation.vms}
    levels = compute_tolerances(needing, observation.slots, where, gathered.topology.units)
    table = CostTable({name: level.priority for name, level in demands.levels.items()})
    for vm in observation.vms:
        need, served = gathered.required.get(vm.id, 0), vm.id not in uncovered
        table.add_vm(vm, demands.demand_of(vm).level, need, covered=served, tolerance=levels.get(vm.id))
    for slot in observation.slots:
        table.add_slot(slot)
    return table.get_result()


# What each level costs before one is chosen: plans from nothing with one slot for every VM, two, three.


LEVELS: Final = (1, 2, 3)
"""Slots of every VM that are priced."""
AT_ONCE_VMS: Final = 1_000
"""Fleets of so many VMs are priced without being asked to: larger ones take longer than the plan itself."""


class PlanCost(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What it costs to give every VM so many slots."""

    slots_each: int
    vms: int
    """VMs that need slots."""
    covered: int
    """Of these, the ones that get all of them on the hosts that there are."""
    slots: int
    cpu_milli: int
    memory_bytes: int


async def level_costs(snapshot: Snapshot) -> tuple[PlanCost, ...]:
    """The costs of ``LEVELS``; empty where nobody needs slots.

    The plans disregard the slots that there are, and use the room that these hold. VMs that need no slots by the
    settings need none here either.
    """
    observation = snapshot.observation
    bare = msgspec.structs.replace(snapshot, observation=msgspec.structs.replace(observation, slots=()))
    given = await plan_input(bare, anew=True)
    free = with_room_of(given.free, observation.slots)
    needing = [vm for vm in given.classes if snapshot.required.get(vm, 0) > 0]
    costs = []
    for each in LEVELS if needing else ():
        result = plan(msgspec.structs.replace(given, free=free, required=dict.fromkeys(needing, each)))
        short = {action.vm for action in result.actions if isinstance(action, Fail)}
        held = sum_reserves(result.slots)
        costs.append(
            PlanCost(
                slots_each=each,
                vms=len(needing),
                covered=len(needing) - len(short),
                slots=held.slots,
                cpu_milli=held.cpu_milli,
                memory_bytes=held.memory_bytes,
            )
        )
    return tuple(costs)

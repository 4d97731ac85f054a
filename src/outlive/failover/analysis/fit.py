"""How many more VMs of one size fit so that each of them has its slots, and nobody loses any: by counting alone.

Where each VM needs one slot the count is exact (docs/design/failover.md#how-many-more). A slot takes one VM
of each unit of failure but its own, so VMs on a unit need as many slots elsewhere as there are VMs; and that is all
they need. What remains is where new slots take least from new VMs, which is decided unit by unit. Where VMs need
several slots there are a lower and an upper bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

SCANNED: Final = 20_000
"""Numbers of new slots that are all tried; of more a search is made, whose answer fits and may be too small."""
AROUND: Final = 64
"""Numbers around the best one that such a search tries."""

Ints = NDArray[np.int64]


class FitUnit(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One unit of failure, with what its hosts have room for."""

    vms: int = 0
    """New VMs, if no new slot is made here."""
    slots: int = 0
    """New slots, each of which leaves room for ``FitInput.weight`` fewer of these VMs."""
    slots_beside: int = 0
    """Further new slots, where no new VM could be."""
    joinable: int = 0
    """Slots that are there already and that one new VM of this unit may join each."""


class FitInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """All units of a zone, those without any room as well."""

    units: tuple[FitUnit, ...]
    weight: int = 1
    """New VMs that have no room because of a new slot, at least 1."""
    needed: int = 1
    """Slots that each new VM needs."""


class FitResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many VMs fit, with how many new slots."""

    vms: int
    slots: int = 0


def count_fitting_vms(given: FitInput) -> FitResult:
    """The largest number of VMs that fit where each needs no slot or one.

    Where ``needed`` is more, ``fit_in_grids`` and ``limit_vms`` bound it.
    """
    columns = _Columns(given.units)
    if given.needed == 0:
        return FitResult(vms=columns.sum(columns.vms))
    highest = columns.highest_useful_slots()
    if highest <= SCANNED:
        tried: Sequence[int] = range(highest + 1)
    else:
        # The number of slots with the largest total, which rises at first and then falls.
        middle, high = 0, highest
        while middle < high:
            half = (middle + high) // 2
            if columns.total_vms(half + 1, given.weight) > columns.total_vms(half, given.weight):
                middle = half + 1
            else:
                high = half
        tried = range(max(0, middle - AROUND), min(highest, middle + AROUND) + 1)
    best = max(tried, key=lambda slots: (columns.total_vms(slots, given.weight), -slots))
    return FitResult(vms=columns.total_vms(best, given.weight), slots=best)


def fit_in_grids(given: FitInput) -> FitResult:
    """A number of VMs that fit for certain, each with ``needed`` slots: several VMs share each slot in a grid.

    A grid of side L with ``needed`` dimensions has L ** needed VMs, and a slot for each of its lines; everything in it
    is on a unit of its own, so that no rule is broken. With side 1 every VM has its slots for itself. ``n`` grids fit
    where units offer ``n`` times as many places, each unit at most ``n``; then the grids can be filled, because the
    edges of a bipartite graph can be coloured evenly. ``weight`` new VMs have as much room as one slot.
    """
    places = np.array([unit.slots + unit.slots_beside for unit in given.units], dtype=np.int64)
    homes = np.array([min(unit.vms // given.weight, unit.slots) for unit in given.units], dtype=np.int64)
    best = FitResult(vms=0)
    for side in range(1, len(given.units) + 1):
        vms, lines = side**given.needed, given.needed * side ** (given.needed - 1)
        if vms + lines > len(given.units):
            break
        grids, high = 0, int(homes.sum()) // vms
        while grids < high:
            middle = (grids + high + 1) // 2
            enough = int(np.minimum(homes, middle).sum()) >= middle * vms
            if enough and int(np.minimum(places, middle).sum()) >= middle * (vms + lines):
                grids = middle
            else:
                high = middle - 1
        if grids * vms > best.vms:
            best = FitResult(vms=grids * vms, slots=grids * lines)
    return best


def limit_vms(given: FitInput, *, slots_there: int) -> FitResult:
    """No more VMs than these fit. ``slots_there``: slots that are there already and could be joined by anybody.

    VMs of one unit share no slot; two slots have at most one VM in common; and all members of a VM's slots are on
    different units (docs/design/failover.md#bounds-and-tolerance).
    """
    columns, needed = _Columns(given.units), given.needed
    units = int(columns.count.sum())
    if needed >= units:
        return FitResult(vms=0)
    beside, room, joinable = columns.sum(columns.beside), columns.sum(columns.vms), columns.sum(columns.joinable)

    def limit_by_room(slots: int) -> int:
        return room - given.weight * max(0, slots - beside)

    def limit_by_slots(slots: int) -> int:
        by_unit = columns.sum(np.minimum(columns.vms, (slots + columns.joinable) // needed))
        elsewhere = ((units - 1) * slots + joinable) // needed
        return min(by_unit, elsewhere, (units - 1) * (slots + slots_there) // (needed * needed))

    low, high = 0, columns.sum(columns.slots) + beside
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if limit_by_slots(middle) >= limit_by_room(middle) else (middle + 1, high)
    best = max(
        (one for one in (low - 1, low) if one >= 0), key=lambda one: min(limit_by_room(one), limit_by_slots(one))
    )
    return FitResult(vms=max(0, min(limit_by_room(best), limit_by_slots(best))), slots=best)


class _Columns:
    """The units as columns, equal ones together."""

    def __init__(self, units: Sequence[FitUnit]) -> None:
        rows = np.array(
            [(unit.vms, unit.slots, unit.slots_beside, unit.joinable) for unit in units], dtype=np.int64
        ).reshape(-1, 4)
        table, counts = np.unique(rows, axis=0, return_counts=True) if len(rows) else (rows, np.zeros(0, np.int64))
        self.vms, self.slots, self.beside, self.joinable = (np.ascontiguousarray(column) for column in table.T)
        self.count: Ints = counts.astype(np.int64)

    def sum(self, column: Ints) -> int:
        return int((column * self.count).sum())

    def highest_useful_slots(self) -> int:
        """With more new slots than this no VM more fits: even beside all slots of its own unit each VM has one."""
        if not len(self.count):
            return 0
        enough = int(self.vms.max() + (self.slots + self.beside).max())
        return min(self.sum(self.slots + self.beside), enough)

    def total_vms(self, slots: int, weight: int) -> int:
        """The most VMs with so many new slots, where each VM needs one.

        A unit with ``n`` of the new slots finds ``slots - n`` of them elsewhere. Its first slots may cost no VM, or one
        because they are not elsewhere; the later ones cost the room of ``weight``. Costs only rise from slot to slot,
        so the cheapest ones of all units are the best.
        """
        reach = slots + self.joinable
        most = np.minimum(self.vms, reach)
        free = np.minimum(self.beside, np.maximum(reach - self.vms, 0))
        left = slots - self.sum(free)
        total = self.sum(most)
        if left <= 0:
            return total
        if weight == 1:
            return total - left
        gap = self.vms - (reach - self.beside)
        cheap = np.where(gap >= 0, np.minimum(self.slots, np.maximum(gap, 0) // (weight - 1)), 0)
        ones = min(left, self.sum(self.beside - free + cheap))
        total, left = total - ones, left - ones
        before = np.minimum(self.vms, reach - self.beside - cheap)
        step = np.minimum(before - (self.vms - weight * (cheap + 1)), weight)
        for cost, units in sorted(
            zip(step.tolist(), np.where(self.slots > cheap, self.count, 0).tolist(), strict=True)
        ):
            taken = min(left, units)
            total, left = total - taken * cost, left - taken
        return total - left * weight

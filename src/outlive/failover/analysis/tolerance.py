"""How many failures each VM survives in its own slots, and how many the fleet does.

A VM survives a set of failed units, its own among them, when one of its slots is outside the set and no other member of
that slot runs in it: then the slot is there and nobody competes for it. The tolerance is the largest number such that
the VM survives every set of that many units (docs/reference/failover-analysis.md#bounds-and-tolerance). It is the size
of the smallest set of further units that spoils all slots which the VM's own unit leaves it: exact in every state, also
where rules are broken, or where a plan made for hosts is judged by racks. What placement does beyond the promised slots
is not counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlive.failover.analysis.matrix import WORD_BITS, Ints, SurvivalMatrix
from outlive.failover.conflicts import ConflictIndex
from outlive.failover.model import SlotView, VmView
from outlive.failover.topology import Topology
from outlive.resources import CoverageStatus

WORDS_TOGETHER = 1 << 17
"""Words of bit rows that are looked at together: 1 MiB."""
SLOTS_AT_ONCE = 6
"""VMs with up to so many slots are judged many at once, by a signature of 64 bits; beyond that one by one."""
WEAKEST_SHOWN = 10
"""VMs that are told with a set of failures which they do not survive, unless more are asked for."""


class ToleranceInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The VMs, what they need, and the slots."""

    vms: tuple[VmView, ...]
    required: dict[str, int]
    slots: tuple[SlotView, ...]
    units: dict[str, str] = {}
    """Host → its unit of failure; a host that is missing here is a unit of its own."""
    weakest: int = WEAKEST_SHOWN
    """How many of the weakest VMs are told with what they do not survive."""


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


class Tolerances(msgspec.Struct, frozen=True, kw_only=True):
    """VM → failures that it survives; and those of whom it is only known that they survive at least that."""

    levels: dict[str, int]
    understated: tuple[str, ...]


def tolerance(given: ToleranceInput) -> ToleranceResult:
    """The tolerance of every VM that needs slots, of each zone and of the fleet."""
    needing = [vm for vm in given.vms if given.required.get(vm.id, 0) > 0]
    matrix = SurvivalMatrix(needing, given.slots, {vm.id: vm.host for vm in given.vms}, given.units)
    found = judged(matrix)
    levels = found.levels
    zones: dict[str, int] = {}
    counts: dict[int, int] = {}
    for vm in needing:
        level = levels[vm.id]
        zones[vm.zone] = min(level, zones.get(vm.zone, level))
        counts[level] = counts.get(level, 0) + 1
    order = sorted(range(len(needing)), key=lambda at: (levels[needing[at].id], needing[at].id))
    return ToleranceResult(
        fleet=min(levels.values(), default=0),
        zones=dict(sorted(zones.items())),
        vms={needing[at].id: levels[needing[at].id] for at in order},
        counts={str(level): counts[level] for level in sorted(counts)},
        weakest=tuple(_weak(matrix, at, levels[needing[at].id]) for at in order[: max(0, given.weakest)]),
        understated=found.understated,
    )


def tolerances(
    vms: Iterable[VmView],
    slots: Sequence[SlotView],
    locations: Mapping[str, str],
    units: Mapping[str, str] | None = None,
) -> dict[str, int]:
    """VM → failures that it survives. ``locations``: the hosts of all VMs, also of those that need no slots."""
    return judged(SurvivalMatrix(vms, slots, locations, units)).levels


def judged(matrix: SurvivalMatrix) -> Tolerances:
    """The tolerance of every VM."""
    levels: Ints = np.zeros(len(matrix.vms), dtype=np.int64)
    understated: list[str] = []
    rows = matrix.rows()
    for vms, claims in matrix.by_degree(max(1, WORDS_TOGETHER // max(1, rows.shape[1]))):
        if claims.shape[1] > SLOTS_AT_ONCE:
            understated += [matrix.vms[at].id for at in vms.tolist() if not _by_search(matrix, at, levels)]
        else:
            levels[vms] = _at_once(matrix, rows, vms, claims)
    ids = (vm.id for vm in matrix.vms)
    return Tolerances(levels=dict(zip(ids, levels.tolist(), strict=True)), understated=tuple(sorted(understated)))


def _at_once(matrix: SurvivalMatrix, rows: NDArray[np.uint64], vms: Ints, claims: Ints) -> Ints:
    """The tolerances of VMs with equally many slots, from the bit rows of these."""
    spoiled = rows[matrix.claim_slot[claims]]
    own = matrix.own[vms]
    here = np.arange(len(vms))
    spoiled[here, :, own // WORD_BITS] &= ~(np.uint64(1) << (own % WORD_BITS).astype(np.uint64))[:, None]
    usable = matrix.alone[claims]
    spoiled[~usable] = 0
    bits = np.left_shift(1, np.arange(claims.shape[1], dtype=np.int64))
    levels: Ints = usable.sum(axis=1)
    seen, meet = spoiled[:, 0].copy(), np.zeros_like(spoiled[:, 0])
    for column in range(1, claims.shape[1]):
        meet |= seen & spoiled[:, column]
        seen |= spoiled[:, column]
    entangled = np.nonzero(meet.any(axis=1))[0]
    if not len(entangled):
        return levels
    signatures = _signatures(spoiled[entangled])
    kinds = np.stack([(usable[entangled] * bits).sum(axis=1).astype(np.uint64), signatures], axis=1)
    unique, which = np.unique(kinds, axis=0, return_inverse=True)
    sizes = [_cover(full, [*_members(signature), *bits.tolist()]).size for full, signature in unique.tolist()]
    levels[entangled] = np.array(sizes, dtype=np.int64)[which.reshape(-1)]
    return levels


def _signatures(spoiled: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A number per VM whose bit m says that one unit spoils all slots of the mask m, of two slots at least."""
    found: NDArray[np.uint64] = np.zeros(len(spoiled), dtype=np.uint64)
    together: dict[int, NDArray[np.uint64]] = {0: np.full_like(spoiled[:, 0], ~np.uint64(0))}
    for mask in range(1, 1 << spoiled.shape[1]):
        top = mask.bit_length() - 1
        together[mask] = together[mask & ~(1 << top)] & spoiled[:, top]
        if mask & (mask - 1):
            found |= together[mask].any(axis=1).astype(np.uint64) << np.uint64(mask)
    return found


def _members(signature: int) -> list[int]:
    """The masks that a signature has."""
    return [mask for mask in range(signature.bit_length()) if signature >> mask & 1]


def _by_search(matrix: SurvivalMatrix, at: int, levels: Ints) -> bool:
    """The tolerance of one VM with many slots; whether it is exact."""
    spoiled = _spoiled_by(matrix, at)
    full = _usable(matrix, at, spoiled)
    cover = _cover(full, spoiled.values())
    levels[at] = cover.size
    return cover.exact


def killers(matrix: SurvivalMatrix, at: int) -> tuple[str, ...]:
    """The fewest units that VM number ``at`` does not survive, its own first, the others by name."""
    spoiled = _spoiled_by(matrix, at)
    own = matrix.unit_names[int(matrix.own[at])]
    full = _usable(matrix, at, spoiled)
    spoiled.pop(own, None)
    names = _one_each(spoiled, _cover(full, spoiled.values()), full)
    return (own, *sorted(names))


def _cover(full: int, masks: Iterable[int]) -> Cover:
    """The fewest masks for what is left of the slots."""
    return fewest(full, (mask & full for mask in masks)) if full else Cover(0, (), True)


def _one_each(spoiled: dict[str, int], cover: Cover, full: int) -> list[str]:
    """For every mask the first unit by name that has it; where the search ended early, enough units, one a slot."""
    if not cover.exact:
        found, left = [], full
        while left:
            name = max(sorted(spoiled), key=lambda one: (spoiled[one] & left).bit_count())
            found.append(name)
            left &= ~spoiled[name]
        return found
    return [min(name for name, mask in spoiled.items() if mask & full == wanted) for wanted in cover.masks]


def _spoiled_by(matrix: SurvivalMatrix, at: int) -> dict[str, int]:
    """Unit → mask of the VM's slots that it spoils."""
    spoiled: dict[str, int] = {}
    for place, claim in enumerate(matrix.claims_of(at)):
        for unit in matrix.spoilers(claim):
            name = matrix.unit_names[unit]
            spoiled[name] = spoiled.get(name, 0) | 1 << place
    return spoiled


def _usable(matrix: SurvivalMatrix, at: int, spoiled: Mapping[str, int]) -> int:
    """The mask of the slots that the VM's own unit leaves it."""
    own = matrix.unit_names[int(matrix.own[at])]
    return ~spoiled.get(own, 0) & ((1 << int(matrix.degree[at])) - 1)


def _weak(matrix: SurvivalMatrix, at: int, level: int) -> Weak:
    vm = matrix.vms[at]
    return Weak(
        vm=vm.id,
        host=vm.host,
        zone=vm.zone,
        tolerance=level,
        slots=int(matrix.degree[at]),
        case=killers(matrix, at),
    )


STEPS = 200_000
"""Masks tried for one VM before its answer becomes a lower bound. No VM with up to twelve slots needs as many."""


class Cover(NamedTuple):
    """The fewest masks that have all bits together."""

    size: int
    masks: tuple[int, ...]
    """Such masks; empty where the search ended early."""
    exact: bool
    """Whether ``size`` is the least; else the least is at least ``size``."""


def fewest(full: int, masks: Iterable[int], steps: int = STEPS) -> Cover:
    """The fewest of these masks with all bits of ``full``; every bit has to be in some mask."""
    largest = _largest(masks)
    budget = [steps]
    for size in range(_disjoint(full, largest), full.bit_count() + 1):
        found = _search(full, largest, size, budget)
        if found is not None:
            return Cover(size, found, True)
        if budget[0] <= 0:
            return Cover(size, (), False)
    raise ValueError("some slot is spoiled by nothing")


def _largest(masks: Iterable[int]) -> list[int]:
    """The masks that no other contains, most bits first, then as numbers: a smaller one is never needed."""
    kept: list[int] = []
    for mask in sorted(set(masks), key=lambda one: (-one.bit_count(), one)):
        if not any(mask & other == mask for other in kept):
            kept.append(mask)
    return kept


def _disjoint(full: int, masks: list[int]) -> int:
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
    bit = min(_bits(left), key=lambda one: sum(1 for mask in masks if mask & one))
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


def _bits(mask: int) -> list[int]:
    found = []
    while mask:
        found.append(mask & -mask)
        mask &= mask - 1
    return found


BROKEN_JUDGED = 100
"""VMs with broken rules that a cycle judges exactly; of further ones it says that they survive nothing."""


class Tolerated(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the last cycle found."""

    unit: str
    """What fails: ``host``, or a failure domain."""
    fleet: int | None
    """By the weakest VM that needs slots; ``None`` when nobody does."""
    zones: dict[str, int]
    counts: dict[int, int]
    """Failures that are survived → VMs."""


class ToleranceSums:
    """Adds up what is told of every VM."""

    def __init__(self, unit: str, broken: Collection[str], judged: Mapping[str, int]) -> None:
        """``broken``: VMs for which a rule is broken; ``judged``: how many failures these survive, if known."""
        self._unit = unit
        self._broken = broken
        self._judged = judged
        self._zones: dict[str, int] = {}
        self._counts = Counter[int]()

    def add(self, vms: Iterable[VmView], told: Mapping[str, CoverageStatus]) -> None:
        """Count those that need slots."""
        for vm in vms:
            status = told[vm.id]
            if status.required <= 0:
                continue
            level = self._judged.get(vm.id, 0) if vm.id in self._broken else len(status.slots)
            self._counts[level] += 1
            self._zones[vm.zone] = min(level, self._zones.get(vm.zone, level))

    def done(self) -> Tolerated:
        """Everything together."""
        return Tolerated(
            unit=self._unit,
            fleet=min(self._counts, default=None),
            zones=dict(sorted(self._zones.items())),
            counts=dict(sorted(self._counts.items())),
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
    where = {vm: index.location(vm) for slot in near for vm in slot.members}
    return tolerances(chosen, near, where, topology.units)

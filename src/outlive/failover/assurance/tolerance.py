"""How many failures each VM survives in its own slots, and how many the fleet does.

A VM survives a set of failed units, its own among them, when one of its slots is outside the set and no other member of
that slot runs in it: then the slot is there and nobody competes for it. The tolerance is the largest number such that
the VM survives every set of that many units (docs/reference/failover.md#bounds-and-tolerance). It is the size of the
smallest set of further units that spoils all slots which the VM's own unit leaves it: exact in every state, also where
rules are broken, or where a plan made for hosts is judged by racks. What placement does beyond the promised slots is
not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from outlive.failover.assurance.covers import Cover, fewest
from outlive.failover.assurance.standing import Ints, Standing
from outlive.failover.model import SlotView, VmView
from outlive.failover.portions import Portions, whole

CLAIMS_TOGETHER = 1 << 14
"""Pairs of a VM and a slot that are judged in one go; bounds memory and the time between two turns."""
SIGNATURE_SLOTS = 6
"""VMs with up to so many slots are judged by a signature of 64 bits; beyond that one by one."""
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
    standing = Standing(needing, given.slots, {vm.id: vm.host for vm in given.vms}, given.units)
    found = whole(judged(standing))
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
        weakest=tuple(_weak(standing, at, levels[needing[at].id]) for at in order[: max(0, given.weakest)]),
        understated=found.understated,
    )


def tolerances(
    vms: Iterable[VmView],
    slots: Sequence[SlotView],
    locations: Mapping[str, str],
    units: Mapping[str, str] | None = None,
) -> dict[str, int]:
    """VM → failures that it survives. ``locations``: the hosts of all VMs, also of those that need no slots."""
    return whole(judged(Standing(vms, slots, locations, units))).levels


def judged(standing: Standing) -> Portions[Tolerances]:
    """The tolerance of every VM, in portions."""
    levels: Ints = np.zeros(len(standing.vms), dtype=np.int64)
    understated: list[str] = []
    for begin, end in standing.chunks(CLAIMS_TOGETHER):
        understated += [standing.vms[at].id for at in _judge(standing, begin, end, levels)]
        yield
    ids = (vm.id for vm in standing.vms)
    return Tolerances(levels=dict(zip(ids, levels.tolist(), strict=True)), understated=tuple(sorted(understated)))


def killers(standing: Standing, at: int) -> tuple[str, ...]:
    """The fewest units that VM number ``at`` does not survive, its own first, the others by name."""
    spoiled = _spoiled_by(standing, at)
    own = standing.unit_names[int(standing.own[at])]
    full = ~spoiled.pop(own, 0) & ((1 << int(standing.degree[at])) - 1)
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


def _spoiled_by(standing: Standing, at: int) -> dict[str, int]:
    """Unit → mask of the VM's slots that it spoils."""
    first, last = standing.claims_of(at, at + 1)
    spoiled: dict[str, int] = {}
    claims, units = standing.spoilers(first, last)
    for claim, unit in zip(claims.tolist(), units.tolist(), strict=True):
        name = standing.unit_names[unit]
        spoiled[name] = spoiled.get(name, 0) | 1 << (claim - first)
    return spoiled


def _weak(standing: Standing, at: int, level: int) -> Weak:
    vm = standing.vms[at]
    return Weak(
        vm=vm.id,
        host=vm.host,
        zone=vm.zone,
        tolerance=level,
        slots=int(standing.degree[at]),
        case=killers(standing, at),
    )


def _judge(standing: Standing, begin: int, end: int, levels: Ints) -> list[int]:
    """Write the levels of the VMs ``begin`` to ``end``; the numbers of those whose search ended early."""
    first, last = standing.claims_of(begin, end)
    claim, unit = standing.spoilers(first, last)
    vm = standing.claim_vm[claim]
    usable = np.ones(last - first, dtype=bool)
    usable[claim[unit == standing.own[vm]] - first] = False
    left = np.bincount(standing.claim_vm[first:last] - begin, weights=usable, minlength=end - begin).astype(np.int64)
    levels[begin:end] = left
    here = usable[claim - first]
    claim, unit, vm = claim[here], unit[here], vm[here]
    order = np.argsort(vm * len(standing.unit_names) + unit, kind="stable")
    claim, unit, vm = claim[order], unit[order], vm[order]
    new = np.ones(len(vm), dtype=bool)
    new[1:] = (vm[1:] != vm[:-1]) | (unit[1:] != unit[:-1])
    entangled = np.unique(vm[~new])
    if not len(entangled):
        return []
    chosen = np.isin(vm, entangled)
    # A slot's bit is its place among the VM's usable slots.
    running = np.cumsum(usable) - 1
    before = np.concatenate([[0], np.cumsum(left)[:-1]])
    place = running[claim[chosen] - first] - before[vm[chosen] - begin]
    starts = np.nonzero(new[chosen])[0]
    return _search(vm[chosen], place, starts, left, begin, levels)


def _search(vm: Ints, place: Ints, starts: Ints, left: Ints, begin: int, levels: Ints) -> list[int]:
    """Find the levels of VMs some of whose slots are spoiled together.

    ``vm``, ``place``: which slot of which VM; ``starts``: where the next unit of failure begins.
    """
    few = left[vm - begin] <= SIGNATURE_SLOTS
    group_vm = vm[starts]
    masks = np.bitwise_or.reduceat(np.where(few, np.int64(1) << np.where(few, place, 0), 0), starts)
    small = few[starts]
    of_small = group_vm[small]
    if len(of_small):
        has = np.uint64(1) << masks[small].astype(np.uint64)
        heads = np.concatenate([[0], np.nonzero(np.diff(of_small))[0] + 1])
        signatures = np.bitwise_or.reduceat(has, heads)
        vms = of_small[heads]
        kinds = np.stack([left[vms - begin].astype(np.uint64), signatures], axis=1)
        unique, which = np.unique(kinds, axis=0, return_inverse=True)
        sizes = [_cover((1 << bits) - 1, _members(signature)).size for bits, signature in unique.tolist()]
        levels[vms] = np.array(sizes, dtype=np.int64)[which.reshape(-1)]
    heads_of_units = np.zeros(len(vm), dtype=np.int64)
    heads_of_units[starts] = 1
    return _one_by_one(vm[~few], place[~few], np.cumsum(heads_of_units)[~few], levels)


def _one_by_one(vm: Ints, place: Ints, group: Ints, levels: Ints) -> list[int]:
    """The same for VMs with many slots."""
    masks: dict[int, dict[int, int]] = {}
    for number, bit, unit in zip(vm.tolist(), place.tolist(), group.tolist(), strict=True):
        of_unit = masks.setdefault(number, {})
        of_unit[unit] = of_unit.get(unit, 0) | 1 << bit
    early = []
    for number, of_unit in masks.items():
        cover = _cover((1 << int(levels[number])) - 1, of_unit.values())
        levels[number] = cover.size
        if not cover.exact:
            early.append(number)
    return early


def _members(signature: int) -> list[int]:
    """The masks that a signature has."""
    return [mask for mask in range(1 << SIGNATURE_SLOTS) if signature >> mask & 1]

"""The fewest units of failure that spoil all slots of a VM: small exact set covers.

Slots are bits, a unit is the mask of the slots that it spoils, and the question is how few masks have all bits
together. A VM has as many bits as it has slots, which is a handful; the search is exact up to a named number of steps,
and beyond it what is returned is a lower bound that says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

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

"""The theorem: count(v, x) is at most 1 for every VM v and unit of failure x.

count(v, x) is 1 if v runs in x, plus the slots of v in x, plus the pairs of a slot of v and another member of it that
runs in x; slots of v are all that list it, ready or not. Where it holds, each failed unit but v's own spoils at most
one of v's slots, so that fewer than n of them cannot spoil n (docs/reference/failover.md#counters).

Judged for all VMs at once on bits: a row per slot with a bit for every unit that the slot touches, by being there or by
a member there. For v the condition says: no slot of v touches a unit twice, and apart from v's own unit no two slots
of v touch the same one. ``count`` is the formula to the letter, for those that are found and for tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from outlive.failover.verify.fleet import StateFleet

WORD: Final = 64
VMS_AT_ONCE: Final = 4096
Ints = NDArray[np.int64]


class Touching:
    """Which slot lists whom, and where everything is."""

    def __init__(self, fleet: StateFleet, unit_of: Mapping[str, str]) -> None:
        self.slots = list(fleet.slots.values())
        recorded: dict[str, str] = {}
        for slot in self.slots:
            recorded.update(slot.allocations)
        self.location = {vm: fleet.places.get(vm, host) for vm, host in recorded.items()}
        """Member → where it runs, else where the last slot by name has recorded it."""
        self.vm_number = {vm: number for number, vm in enumerate(self.location)}
        self.units: list[str] = []
        numbers: dict[str, int] = {}

        def unit(host: str) -> int:
            name = unit_of.get(host, host)
            number = numbers.get(name)
            if number is None:
                number = numbers[name] = len(self.units)
                self.units.append(name)
            return number

        by_host = {host: unit(host) for host in {*self.location.values(), *(slot.host for slot in self.slots)}}
        self.by_host = by_host
        self.vm_unit: Ints = np.array([by_host[host] for host in self.location.values()], dtype=np.int64)
        self.slot_unit: Ints = np.array([by_host[slot.host] for slot in self.slots], dtype=np.int64)
        sizes = np.array([len(slot.allocations) for slot in self.slots], dtype=np.int64)
        vm_number = self.vm_number
        self.member: Ints = np.array([vm_number[vm] for slot in self.slots for vm in slot.allocations], dtype=np.int64)
        self.member_slot: Ints = np.repeat(np.arange(len(self.slots), dtype=np.int64), sizes)

    def count(self, vm: str) -> dict[str, int]:
        """Unit → count of the VM, to the letter."""
        name = self.units
        counts = {name[self.vm_unit[self.vm_number[vm]]]: 1}
        for slot in (one for one in self.slots if vm in one.allocations):
            others = [self.location[other] for other in slot.allocations if other != vm]
            for host in (slot.host, *others):
                unit = name[self.by_host[host]]
                counts[unit] = counts.get(unit, 0) + 1
        return counts

    def why(self, vm: str, unit: str) -> str:
        """Everything of the VM that is in the unit, in words."""
        parts = []
        if self.units[self.vm_unit[self.vm_number[vm]]] == unit:
            parts.append("itself")
        for slot in (one for one in self.slots if vm in one.allocations):
            if self.units[self.by_host[slot.host]] == unit:
                parts.append(f"its slot {slot.name}")
            for other in sorted(slot.allocations):
                if other != vm and self.units[self.by_host[self.location[other]]] == unit:
                    parts.append(f"{other} of its slot {slot.name}")
        return ", ".join(parts)


def at_fault(touching: Touching, vms: Iterable[str]) -> list[str]:
    """Of these VMs those with a count above 1, in the order given."""
    asked = [vm for vm in vms if vm in touching.vm_number]
    if not asked or not len(touching.member):
        return []
    rows, twice = _rows(touching)
    bad = np.zeros(len(touching.vm_number), dtype=np.bool_)
    bad[touching.member[twice[touching.member_slot]]] = True
    bad[_meeting(touching, rows)] = True
    return [vm for vm in asked if bad[touching.vm_number[vm]]]


def _rows(touching: Touching) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """A row of bits per slot for the units that it touches, and which slots touch one twice."""
    words = -(-len(touching.units) // WORD)
    slot = np.concatenate([np.arange(len(touching.slots), dtype=np.int64), touching.member_slot])
    unit = np.concatenate([touching.slot_unit, touching.vm_unit[touching.member]])
    cells = np.sort(slot * (words * WORD) + unit)
    twice = np.zeros(len(touching.slots), dtype=np.bool_)
    twice[cells[1:][cells[1:] == cells[:-1]] // (words * WORD)] = True
    rows = np.zeros(len(touching.slots) * words, dtype=np.uint64)
    np.bitwise_or.at(rows, cells // WORD, np.uint64(1) << (cells % WORD).astype(np.uint64))
    return rows.reshape(len(touching.slots), words), twice


def _meeting(touching: Touching, rows: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which VMs have two slots that touch the same unit other than their own."""
    order = np.argsort(touching.member, kind="stable")
    slots = touching.member_slot[order]
    number = np.bincount(touching.member, minlength=len(touching.vm_number))
    starts = np.cumsum(number) - number
    bad = np.zeros(len(number), dtype=np.bool_)
    for many in sorted(set(number.tolist()) - {0, 1}):
        vms = np.nonzero(number == many)[0]
        for begin in range(0, len(vms), VMS_AT_ONCE):
            some = vms[begin : begin + VMS_AT_ONCE]
            of = slots[starts[some][:, None] + np.arange(many)]
            bad[some] = _any_meet(rows, of, touching.vm_unit[some])
    return bad


def _any_meet(rows: NDArray[np.uint64], slots: Ints, own: Ints) -> NDArray[np.bool_]:
    lines, word = np.arange(len(slots)), own // WORD
    others = ~(np.uint64(1) << (own % WORD).astype(np.uint64))
    union = rows[slots[:, 0]]
    meet = np.zeros_like(union)
    for column in range(1, slots.shape[1]):
        row = rows[slots[:, column]]
        meet |= union & row
        union |= row
    meet[lines, word] &= others
    return np.asarray(meet.any(axis=1))

"""The theorem: count(v, x) is at most 1 for every VM v and unit of failure x.

count(v, x) is 1 if v runs in x, plus the slots of v in x, plus the pairs of a slot of v and another member of it that
runs in x; slots of v are all that list it, ready or not. Where it holds, each failed unit but v's own spoils at most
one of v's slots, so that fewer than n of them cannot spoil n (docs/reference/failover.md#counters).

Judged for all VMs at once on bits: a row per slot with a bit for every unit that the slot touches, by being there or by
a member there. For v the condition says: no slot of v touches a unit twice, and apart from v's own unit no two slots
of v touch the same one. ``count`` is the formula to the letter, for those that are found and for tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from outlive.failover.verify.columns import Bools, Ints, Memberships
from outlive.failover.verify.fleet import FleetSlot

WORD: Final = 64
VMS_AT_ONCE: Final = 512
"""VMs whose rows are looked at together: few enough for a processor's cache."""


class Counters:
    """The memberships with units of failure in place of hosts."""

    def __init__(self, inside: Memberships, unit_of: Mapping[str, str]) -> None:
        self._inside = inside
        names = [unit_of.get(host, host) for host in inside.hosts]
        self.units = sorted(set(names))
        number = {unit: at for at, unit in enumerate(self.units)}
        unit = np.array([number[name] for name in names], dtype=np.int64)
        self._of_host = unit
        self._vm_unit: Ints = unit[inside.vm_host]
        self._slot_unit: Ints = unit[inside.slot_host]

    def count(self, vm: str) -> dict[str, int]:
        """Unit → count of the VM, to the letter."""
        counts: dict[str, int] = {}
        for unit, _ in self._everything(vm):
            counts[unit] = counts.get(unit, 0) + 1
        return counts

    def why(self, vm: str, unit: str) -> str:
        """Everything of the VM that is in the unit, in words."""
        return ", ".join(what for where, what in self._everything(vm) if where == unit)

    def _everything(self, vm: str) -> Iterator[tuple[str, str]]:
        """(unit, what): the VM itself, its slots, and the other members of each."""
        inside = self._inside
        number = inside.vm_number[vm]
        yield self.units[self._vm_unit[number]], "itself"
        for at in inside.member_slot[inside.member == number].tolist():
            slot: FleetSlot = inside.slots[at]
            yield self.units[self._slot_unit[at]], f"its slot {slot.name}"
            for other in sorted(slot.allocations):
                if other != vm:
                    yield self.units[self._vm_unit[inside.vm_number[other]]], f"{other} in its slot {slot.name}"

    def at_fault(self, vms: Iterable[str]) -> list[str]:
        """Of these VMs those with a count above 1, in the order given."""
        inside = self._inside
        if not len(inside.member):
            return []
        rows, twice = self._rows()
        bad = self._meeting(rows)
        bad[inside.member[twice[inside.member_slot]]] = True
        if not bad.any():
            return []
        number = inside.vm_number
        return [vm for vm in vms if vm in number and bad[number[vm]]]

    def _rows(self) -> tuple[NDArray[np.uint64], Bools]:
        """A row of bits per slot for the units that it touches, and which slots touch one twice."""
        inside, words = self._inside, -(-len(self.units) // WORD)
        slot = np.concatenate([np.arange(len(inside.slots), dtype=np.int64), inside.member_slot])
        unit = np.concatenate([self._slot_unit, self._vm_unit[inside.member]])
        cells = np.sort(slot * (words * WORD) + unit)
        again = cells[1:] == cells[:-1]
        twice = np.zeros(len(inside.slots), dtype=np.bool_)
        twice[cells[1:][again] // (words * WORD)] = True
        cells = np.concatenate([cells[:1], cells[1:][~again]])
        place = cells // WORD
        starts = np.concatenate([[0], np.nonzero(place[1:] != place[:-1])[0] + 1])
        rows = np.zeros(len(inside.slots) * words, dtype=np.uint64)
        rows[place[starts]] = np.bitwise_or.reduceat(np.uint64(1) << (cells % WORD).astype(np.uint64), starts)
        return rows.reshape(len(inside.slots), words), twice

    def _meeting(self, rows: NDArray[np.uint64]) -> Bools:
        """Which VMs have two slots that touch the same unit other than their own."""
        inside = self._inside
        slots = inside.member_slot[np.argsort(inside.member, kind="stable")]
        number = np.bincount(inside.member, minlength=len(inside.vms))
        starts = np.cumsum(number) - number
        bad = np.zeros(len(number), dtype=np.bool_)
        for many in sorted(set(number.tolist()) - {0, 1}):
            vms = np.nonzero(number == many)[0]
            for begin in range(0, len(vms), VMS_AT_ONCE):
                some = vms[begin : begin + VMS_AT_ONCE]
                of = slots[starts[some][:, None] + np.arange(many)]
                bad[some] = _any_meet(rows, of, self._vm_unit[some])
        return bad


def _any_meet(rows: NDArray[np.uint64], slots: Ints, own: Ints) -> Bools:
    union = rows[slots[:, 0]]
    meet = np.zeros_like(union)
    for column in range(1, slots.shape[1]):
        row = rows[slots[:, column]]
        meet |= union & row
        union |= row
    meet[np.arange(len(slots)), own // WORD] &= ~(np.uint64(1) << (own % WORD).astype(np.uint64))
    return np.asarray(meet.any(axis=1))

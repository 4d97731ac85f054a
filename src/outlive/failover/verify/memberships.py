"""The state's memberships as numpy columns: a hundred thousand VMs are judged in a fraction of a second.

Hosts, VMs and slots have numbers. Located VMs come first; members that run nowhere follow, and count where the last
slot by name has recorded them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from outlive.failover.verify.document import CertifiedState
from outlive.failover.verify.fleet import FleetSlot, StateFleet

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Memberships:
    """Who is in which slot, and which memberships count."""

    def __init__(self, fleet: StateFleet) -> None:
        self.slots = list(fleet.slots.values())
        names = list(chain.from_iterable(slot.allocations for slot in self.slots))
        hosts = list(chain.from_iterable(slot.allocations.values() for slot in self.slots))
        self.located = len(fleet.places)
        strangers = sorted(set(names) - fleet.places.keys())
        self.vms = [*fleet.places, *strangers]
        self.vm_number = {vm: number for number, vm in enumerate(self.vms)}
        self.slot_number = {slot.name: number for number, slot in enumerate(self.slots)}
        slot_hosts = [slot.host for slot in self.slots]
        self.hosts = sorted({*fleet.hosts, *fleet.places.values(), *hosts, *slot_hosts})
        host_number = {host: number for number, host in enumerate(self.hosts)}
        self.member = _numbers(self.vm_number, names)
        recorded = _numbers(host_number, hosts)
        self.slot_host = _numbers(host_number, slot_hosts)
        places = _numbers(host_number, fleet.places.values())
        self.vm_host: Ints = np.concatenate([places, np.zeros(len(strangers), dtype=np.int64)])
        for at in np.nonzero(self.member >= self.located)[0].tolist():
            self.vm_host[self.member[at]] = recorded[at]
        sizes = np.array([len(slot.allocations) for slot in self.slots], dtype=np.int64)
        self.member_slot: Ints = np.repeat(np.arange(len(self.slots), dtype=np.int64), sizes)
        self.counts = self._counts(fleet, recorded)
        """Per membership: whether the slot is ready, lists the VM where it runs, is at least as large, and is on a host
        where the VM may run."""

    def _counts(self, fleet: StateFleet, recorded: Ints) -> Bools:
        ready = np.array([slot.ready for slot in self.slots], dtype=np.bool_)
        counts: Bools = ready[self.member_slot] & (self.vm_host[self.member] == recorded)
        counts &= self.member < self.located
        needed, held = list(fleet.sizes.values()), [(slot.cpu_milli, slot.memory_bytes) for slot in self.slots]
        for at in (0, 1):
            need, size = _amounts([one[at] for one in needed]), _amounts([one[at] for one in held])
            inside = np.minimum(self.member, max(0, self.located - 1))
            if self.located:
                counts &= (need[inside] <= size[self.member_slot]).astype(np.bool_)
        limited = np.zeros(len(self.vms), dtype=np.bool_)
        limited[[self.vm_number[vm] for vm in fleet.limits]] = True
        for at in np.nonzero(counts & limited[self.member])[0].tolist():
            counts[at] = self.slots[self.member_slot[at]].host in fleet.limits[self.vms[self.member[at]]]
        return counts

    def counting(self) -> dict[str, list[str]]:
        """Located VM → the slots that count for it, by name."""
        found: dict[str, list[str]] = {vm: [] for vm in self.vms[: self.located]}
        member, slot = self.member[self.counts].tolist(), self.member_slot[self.counts].tolist()
        for vm, number in zip(member, slot, strict=True):
            found[self.vms[vm]].append(self.slots[number].name)
        return found

    def as_certified(self, certificate: CertifiedState) -> bool:
        """Whether every VM's slots are exactly those that count for it, all of them certified, and enough."""
        vms = _numbers_or_none(self.vm_number, [vm.id for vm in certificate.vms])
        slots = _numbers_or_none(self.slot_number, chain.from_iterable(vm.slots for vm in certificate.vms))
        certified = _numbers_or_none(self.slot_number, [slot.name for slot in certificate.slots])
        if vms is None or slots is None or certified is None or (len(vms) and int(vms.max()) >= self.located):
            return False
        listed = np.repeat(vms, np.array([len(vm.slots) for vm in certificate.vms], dtype=np.int64))
        stated = np.sort(listed * len(self.slots) + slots)
        real = np.sort(self.member[self.counts] * len(self.slots) + self.member_slot[self.counts])
        known = np.zeros(len(self.slots), dtype=np.bool_)
        known[certified] = True
        has = np.bincount(self.member[self.counts], minlength=len(self.vms))
        needs = np.array([min(vm.need, len(self.slots) + 1) for vm in certificate.vms], dtype=np.int64)
        return (
            np.array_equal(stated, real)
            and bool(known[self.member_slot[self.counts]].all())
            and bool((has[vms] >= needs).all())
        )


def _numbers(table: Mapping[str, int], names: Iterable[str]) -> Ints:
    return np.fromiter(map(table.__getitem__, names), dtype=np.int64)


def _numbers_or_none(table: Mapping[str, int], names: Iterable[str]) -> Ints | None:
    """The numbers; ``None`` where a name has none."""
    try:
        return _numbers(table, names)
    except KeyError:
        return None


def _amounts(amounts: Sequence[int]) -> NDArray[np.int64] | NDArray[np.object_]:
    """As an array; of Python's own numbers where one does not fit into 64 bits."""
    try:
        return np.array(amounts, dtype=np.int64)
    except OverflowError:
        return np.array(amounts, dtype=np.object_)


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

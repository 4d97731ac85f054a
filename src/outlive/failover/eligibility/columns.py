"""Memberships as numpy columns, and the rules for all VMs at once.

One pass over the views makes the columns; after that a fleet is judged in milliseconds. The test is the counter formula
of docs/reference/failover.md#counters on bit rows: a row per slot with a bit for each unit of failure, as a rule each
host, that the slot touches (its own and its members'). For a member the rows of its slots may share no unit but its
own. This module says who is at fault and in which unit; ``outlive.failover.eligibility.meetings`` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from outlive.failover.model import SlotView, VmView
from outlive.failover.portions import SLOTS, Portions, portioned, whole
from outlive.failover.topology import HOSTS_ALONE, Topology

WORD_BITS = 64
CHUNK_WORDS = 1 << 17
"""Words of bit rows that are looked at together: 1 MiB."""

Ints = NDArray[np.int64]


class Columns:
    """Slots and members by number. A VM without slots has no number.

    Hosts are there as units of failure: ``location`` and ``slot_host`` are numbers of units, ``host_names`` their
    names; without ``topology.units`` these are the hosts themselves.
    """

    def __init__(
        self, slots: Sequence[SlotView], locations: Mapping[str, str], topology: Topology = HOSTS_ALONE
    ) -> None:
        """``locations``: VM → host, wins over what slots have recorded; among records the last slot listed wins."""
        whole(self._fill(slots, locations.get, topology))

    @classmethod
    def built(
        cls, slots: Sequence[SlotView], views: Mapping[str, VmView], topology: Topology = HOSTS_ALONE
    ) -> Portions[Columns]:
        """The columns, in portions; VMs are where their views say."""

        def location(vm: str, recorded: str) -> str:
            view = views.get(vm)
            return recorded if view is None else view.host

        return (yield from cls.placed(slots, location, topology))

    @classmethod
    def placed(
        cls, slots: Sequence[SlotView], location: Callable[[str, str], str], topology: Topology = HOSTS_ALONE
    ) -> Portions[Columns]:
        """The columns, in portions; ``location``: VM and the host that its last slot recorded → host."""
        columns = cls.__new__(cls)
        yield from columns._fill(slots, location, topology)
        return columns

    def _fill(
        self, slots: Sequence[SlotView], location: Callable[[str, str], str], topology: Topology
    ) -> Portions[None]:
        vm_index: dict[str, int] = {}
        recorded: list[str] = []
        member_vm: list[int] = []
        sizes: list[int] = []
        for some in portioned(slots, SLOTS):
            for slot in some:
                sizes.append(len(slot.members))
                for vm, host in slot.members.items():
                    number = vm_index.setdefault(vm, len(recorded))
                    if number == len(recorded):
                        recorded.append(host)
                    else:
                        recorded[number] = host
                    member_vm.append(number)
            yield
        host_index: dict[str, int] = {}
        at: list[int] = []
        unit = topology.units.get
        for pairs in portioned(zip(vm_index, recorded, strict=True)):
            hosts: Iterable[str] = (location(vm, host) for vm, host in pairs)
            if topology.units:
                hosts = (unit(host, host) for host in hosts)
            at += [host_index.setdefault(host, len(host_index)) for host in hosts]
            yield
        on = [host_index.setdefault(unit(slot.host, slot.host), len(host_index)) for slot in slots]
        self.slots = slots
        self.vm_ids = list(vm_index)
        self.host_names = list(host_index)
        self.location: Ints = np.array(at, dtype=np.int64)
        self.slot_host: Ints = np.array(on, dtype=np.int64)
        self.member_vm: Ints = np.array(member_vm, dtype=np.int64)
        self.member_slot: Ints = np.repeat(np.arange(len(sizes), dtype=np.int64), np.array(sizes, dtype=np.int64))
        self._starts: Ints = np.concatenate([[0], np.cumsum(np.array(sizes, dtype=np.int64))])
        yield

    def at_fault(self) -> Ints:
        """Numbers of the VMs for which a rule does not hold, ascending."""
        return whole(self.faults())

    def faults(self) -> Portions[Ints]:
        """``at_fault`` in portions."""
        found = yield from self._meet()
        return np.unique(found[0])

    def members_by_host(self, slot: int) -> dict[int, list[str]]:
        """Host number → the slot's members that run there."""
        begin, end = int(self._starts[slot]), int(self._starts[slot + 1])
        found: dict[int, list[str]] = {}
        for vm in self.member_vm[begin:end].tolist():
            found.setdefault(int(self.location[vm]), []).append(self.vm_ids[vm])
        return found

    def meetings(self) -> tuple[Ints, Ints]:
        """(VM numbers, host numbers): every host that occurs more than once for a VM, each pair once."""
        return whole(self._meet())

    def _meet(self) -> Portions[tuple[Ints, Ints]]:
        if not len(self.vm_ids):
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        rows, crowded_slots, crowded_hosts = self._rows()
        yield
        pairs = [
            self.member_vm[self._starts[slot] : self._starts[slot + 1]] * len(self.host_names) + host
            for slot, host in zip(crowded_slots.tolist(), crowded_hosts.tolist(), strict=True)
        ]
        order = np.argsort(self.member_vm, kind="stable")
        slots_by_vm = self.member_slot[order]
        degrees = np.bincount(self.member_vm, minlength=len(self.vm_ids))
        starts = np.cumsum(degrees) - degrees
        for degree in sorted(set(degrees.tolist()) - {0, 1}):
            vms = np.nonzero(degrees == degree)[0]
            chunk = max(1, CHUNK_WORDS // rows.shape[1])
            for begin in range(0, len(vms), chunk):
                some = vms[begin : begin + chunk]
                slots = slots_by_vm[starts[some][:, None] + np.arange(degree)]
                at, host = self._rows_meet(rows, slots, self.location[some])
                pairs.append(some[at] * len(self.host_names) + host)
                yield
        found = np.unique(np.concatenate(pairs)) if pairs else np.zeros(0, dtype=np.int64)
        return found // len(self.host_names), found % len(self.host_names)

    def _rows(self) -> tuple[NDArray[np.uint64], Ints, Ints]:
        """A bit row per slot for the hosts that it touches; and the slots, with hosts, that touch a host twice."""
        words = -(-len(self.host_names) // WORD_BITS)
        touched = np.concatenate([self.slot_host, self.location[self.member_vm]])
        by = np.concatenate([np.arange(len(self.slots), dtype=np.int64), self.member_slot])
        cells = np.sort(by * (words * WORD_BITS) + touched)
        twice = np.unique(cells[1:][cells[1:] == cells[:-1]])
        rows = np.zeros(len(self.slots) * words, dtype=np.uint64)
        np.bitwise_or.at(rows, cells // WORD_BITS, np.uint64(1) << (cells % WORD_BITS).astype(np.uint64))
        return rows.reshape(len(self.slots), words), twice // (words * WORD_BITS), twice % (words * WORD_BITS)

    @staticmethod
    def _rows_meet(rows: NDArray[np.uint64], slots: Ints, location: Ints) -> tuple[Ints, Ints]:
        """(line, host): where the rows of a VM's slots (a line of ``slots``) share a host that is not its own."""
        here = np.arange(len(slots))
        own_word, own_bit = location // WORD_BITS, np.uint64(1) << (location % WORD_BITS).astype(np.uint64)
        union = rows[slots[:, 0]]
        union[here, own_word] &= ~own_bit
        meet = np.zeros_like(union)
        for column in range(1, slots.shape[1]):
            row = rows[slots[:, column]]
            row[here, own_word] &= ~own_bit
            meet |= union & row
            union |= row
        lines = np.nonzero(meet.any(axis=1))[0]
        bits = np.unpackbits(meet[lines].astype("<u8").view(np.uint8), axis=1, bitorder="little")
        at, host = np.nonzero(bits)
        return lines[at], host

"""Memberships as numpy columns, and the rules for all VMs at once.

One pass over the views makes the columns; after that a fleet is judged in milliseconds. The test is the counter formula
of docs/reference/failover.md#counters on bit rows: a row per slot with a bit for each host that the slot touches (its
own and its members'). For a member the rows of its slots may share no host but its own. This module only says *who* is
at fault; ``outlive.failover.graph`` says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from outlive.failover.model import SlotView

WORD_BITS = 64
CHUNK_WORDS = 1 << 19
"""Words of bit rows that are looked at together: 4 MiB."""

Ints = NDArray[np.int64]


class Columns:
    """Slots and members by number. A VM without slots has no number."""

    def __init__(self, slots: Sequence[SlotView], locations: Mapping[str, str]) -> None:
        """``locations``: VM → host, wins over what slots have recorded; among records the last slot listed wins."""
        vm_index: dict[str, int] = {}
        recorded: list[str] = []
        member_vm: list[int] = []
        sizes: list[int] = []
        for slot in slots:
            sizes.append(len(slot.members))
            for vm, host in slot.members.items():
                number = vm_index.setdefault(vm, len(recorded))
                if number == len(recorded):
                    recorded.append(host)
                else:
                    recorded[number] = host
                member_vm.append(number)
        host_index: dict[str, int] = {}
        at = [
            host_index.setdefault(locations.get(vm, recorded[number]), len(host_index))
            for vm, number in vm_index.items()
        ]
        on = [host_index.setdefault(slot.host, len(host_index)) for slot in slots]
        self.slots = slots
        self.vm_ids = list(vm_index)
        self.host_names = list(host_index)
        self.location: Ints = np.array(at, dtype=np.int64)
        self.slot_host: Ints = np.array(on, dtype=np.int64)
        self.member_vm: Ints = np.array(member_vm, dtype=np.int64)
        self.member_slot: Ints = np.repeat(np.arange(len(sizes), dtype=np.int64), np.array(sizes, dtype=np.int64))

    def at_fault(self) -> Ints:
        """Numbers of the VMs for which a rule does not hold, ascending."""
        if not len(self.vm_ids):
            return np.zeros(0, dtype=np.int64)
        rows, crowded = self._rows()
        fault = np.zeros(len(self.vm_ids), dtype=bool)
        fault[self.member_vm[crowded[self.member_slot]]] = True
        order = np.argsort(self.member_vm, kind="stable")
        slots_by_vm = self.member_slot[order]
        degrees = np.bincount(self.member_vm, minlength=len(self.vm_ids))
        starts = np.cumsum(degrees) - degrees
        for degree in np.unique(degrees):
            if degree < 2:
                continue
            vms = np.nonzero(degrees == degree)[0]
            chunk = max(1, CHUNK_WORDS // rows.shape[1])
            for begin in range(0, len(vms), chunk):
                some = vms[begin : begin + chunk]
                slots = slots_by_vm[starts[some][:, None] + np.arange(degree)]
                fault[some] |= self._rows_meet(rows, slots, self.location[some])
        return np.nonzero(fault)[0]

    def _rows(self) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """A bit row per slot for the hosts that it touches, and which slots touch a host twice."""
        words = -(-len(self.host_names) // WORD_BITS)
        touched = np.concatenate([self.slot_host, self.location[self.member_vm]])
        by = np.concatenate([np.arange(len(self.slots), dtype=np.int64), self.member_slot])
        cells = np.sort(by * (words * WORD_BITS) + touched)
        crowded = np.zeros(len(self.slots), dtype=bool)
        crowded[cells[1:][cells[1:] == cells[:-1]] // (words * WORD_BITS)] = True
        rows = np.zeros(len(self.slots) * words, dtype=np.uint64)
        np.bitwise_or.at(rows, cells // WORD_BITS, np.uint64(1) << (cells % WORD_BITS).astype(np.uint64))
        return rows.reshape(len(self.slots), words), crowded

    @staticmethod
    def _rows_meet(rows: NDArray[np.uint64], slots: Ints, location: Ints) -> NDArray[np.bool_]:
        """For each VM (a line of ``slots``): whether the rows of its slots share a host that is not its own."""
        here = np.arange(len(slots))
        own_word, own_bit = location // WORD_BITS, np.uint64(1) << (location % WORD_BITS).astype(np.uint64)
        union = rows[slots[:, 0]]
        union[here, own_word] &= ~own_bit
        meet = np.zeros(len(slots), dtype=bool)
        for column in range(1, slots.shape[1]):
            row = rows[slots[:, column]]
            row[here, own_word] &= ~own_bit
            meet |= (union & row).any(axis=1)
            union |= row
        return meet

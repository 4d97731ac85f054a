"""Who counts on which slot, and which failures spoil it: the state as tolerance and ``survive`` see it.

A slot *counts* for a VM when it is ready, at least as large, and lists the VM where it runs. It is *spoiled* for the VM
by the failure of the unit that it is on, and of every unit that another of its members runs on, because that member may
claim it too (docs/reference/failover-analysis.md#bounds-and-tolerance). Everything is numbered: VMs, slots, units, and
the *claims*, which are the pairs of a VM and a slot that counts for it. Claims are in the order of their VMs and, for
one VM, of the names of the slots.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from outlive.failover.model import SlotView, VmView
from outlive.failover.rules import counts

WORD_BITS = 64

Ints = NDArray[np.int64]
Truths = NDArray[np.bool_]


class SurvivalMatrix:
    """The VMs that need slots, their claims, and what spoils these."""

    def __init__(
        self,
        vms: Iterable[VmView],
        slots: Sequence[SlotView],
        locations: Mapping[str, str],
        units: Mapping[str, str] | None = None,
        hosts: Iterable[str] = (),
    ) -> None:
        """``vms`` are those that need slots, ``locations`` the hosts of all VMs (of others the last record counts).

        ``units``: host → unit of failure, a missing host is its own. ``hosts`` may fail although nothing is there.
        """
        self.vms = list(vms)
        self.slots = slots
        self._units = units or {}
        self._unit_number: dict[str, int] = {}
        self.own: Ints = np.array([self._unit(vm.host) for vm in self.vms], dtype=np.int64)
        members, strangers = self._members()
        self.slot_unit: Ints = np.array([self._unit(slot.host) for slot in slots], dtype=np.int64)
        others = [self._unit(locations.get(name, recorded)) for name, recorded in strangers.items()]
        for host in hosts:
            self._unit(host)
        self.unit_names = list(self._unit_number)
        self._touch(members, np.array(others, dtype=np.int64))

    def _members(self) -> tuple[Ints, dict[str, str]]:
        """Notes the claims; the VM's number for each member of each slot, and where VMs without number are recorded.

        Such a VM is told as a negative number: -1 is the first of them.
        """
        number = {vm.id: at for at, vm in enumerate(self.vms)}
        strangers: dict[str, str] = {}
        members: list[int] = []
        claim_vm: list[int] = []
        claim_slot: list[int] = []
        for at, slot in enumerate(self.slots):
            for name, recorded in slot.members.items():
                vm = number.get(name)
                if vm is None:
                    vm = number[name] = -1 - len(strangers)
                if vm < 0:
                    strangers[name] = recorded
                elif counts(self.vms[vm], slot):
                    claim_vm.append(vm)
                    claim_slot.append(at)
                members.append(vm)
        vms, slots = np.array(claim_vm, dtype=np.int64), np.array(claim_slot, dtype=np.int64)
        by_name = sorted(range(len(self.slots)), key=lambda at: self.slots[at].name)
        rank = np.zeros(len(by_name), dtype=np.int64)
        rank[by_name] = np.arange(len(by_name))
        order = np.lexsort((rank[slots], vms))
        self.claim_vm: Ints = vms[order]
        self.claim_slot: Ints = slots[order]
        self.degree: Ints = np.bincount(self.claim_vm, minlength=len(self.vms))
        self.first: Ints = np.cumsum(self.degree) - self.degree
        """The first claim of each VM."""
        return np.array(members, dtype=np.int64), strangers

    def _touch(self, member: Ints, strangers: Ints) -> None:
        """Which units each slot touches, and how often the unit of a claim's own VM."""
        sizes = np.array([len(slot.members) for slot in self.slots], dtype=np.int64)
        at: Ints = np.zeros(len(member), dtype=np.int64)
        at[member >= 0] = self.own[member[member >= 0]]
        at[member < 0] = strangers[-1 - member[member < 0]]
        by = np.arange(len(self.slots), dtype=np.int64)
        units = len(self.unit_names)
        keys = np.concatenate([np.repeat(by, sizes) * units + at, by * units + self.slot_unit])
        pairs, counts = np.unique(keys, return_counts=True)
        self._member_unit = at
        self._begins: Ints = np.cumsum(sizes) - sizes
        self._touching: Ints = pairs // max(1, units)
        self.touched: Ints = pairs % max(1, units)
        """Units by slot: those of slot s are from ``touched_from[s]`` to ``touched_from[s + 1]``, ascending."""
        self.touched_from: Ints = np.searchsorted(self._touching, np.arange(len(self.slots) + 1, dtype=np.int64))
        mine = np.searchsorted(pairs, self.claim_slot * units + self.own[self.claim_vm])
        self.alone: Truths = counts[mine] == 1 if len(pairs) else np.zeros(0, dtype=bool)
        """Whether nothing else of the claim's slot is on the unit of its VM; else that unit spoils the slot for it."""

    def _unit(self, host: str) -> int:
        return self._unit_number.setdefault(self._units.get(host, host), len(self._unit_number))

    def unit_number(self, name: str) -> int | None:
        """The number of a unit; ``None`` where there is none of that name."""
        return self._unit_number.get(name)

    def rows(self) -> NDArray[np.uint64]:
        """A row of bits per slot, one for each unit that it touches."""
        words = -(-len(self.unit_names) // WORD_BITS)
        rows = np.zeros(len(self.slots) * words, dtype=np.uint64)
        cells = self._touching * words + self.touched // WORD_BITS
        np.bitwise_or.at(rows, cells, np.uint64(1) << (self.touched % WORD_BITS).astype(np.uint64))
        return rows.reshape(len(self.slots), words)

    def spoilers(self, claim: int) -> list[int]:
        """The units whose failure spoils the claim, ascending; the VM's own only where it does."""
        slot = int(self.claim_slot[claim])
        units: list[int] = self.touched[self.touched_from[slot] : self.touched_from[slot + 1]].tolist()
        if self.alone[claim]:
            units.remove(int(self.own[self.claim_vm[claim]]))
        return units

    def claims_of(self, vm: int) -> range:
        """The claims of a VM."""
        first = int(self.first[vm])
        return range(first, first + int(self.degree[vm]))

    def members_down(self, slot: int, down: Container[int]) -> list[str]:
        """The members of a slot that run on these units, in the order of the slot."""
        begin = int(self._begins[slot])
        members = self.slots[slot].members
        units = self._member_unit[begin : begin + len(members)].tolist()
        return [name for name, unit in zip(members, units, strict=True) if unit in down]

    def by_degree(self, claims: int) -> Iterator[tuple[Ints, Ints]]:
        """(VMs, their claims, a line each), for VMs with equally many claims, about so many claims at a time."""
        for degree in sorted(set(self.degree.tolist()) - {0}):
            vms = np.nonzero(self.degree == degree)[0]
            step = max(1, claims // degree)
            for begin in range(0, len(vms), step):
                some = vms[begin : begin + step]
                yield some, self.first[some][:, None] + np.arange(degree)

"""Who counts on which slot, and which failures spoil it: the state as tolerance and ``survive`` see it.

A slot *counts* for a VM when it is ready, at least as large, and lists the VM where it runs. It is *spoiled* for the VM
by the failure of the unit that it is on, and of every unit that another of its members runs on, because that member may
claim it too (docs/reference/failover.md#bounds-and-tolerance). Everything is numbered: VMs, slots, units, and the
*claims*, which are the pairs of a VM and a slot that counts for it. Claims are in the order of their VMs and, for one
VM, of the names of the slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from outlive.failover.eligibility.rules import fits
from outlive.failover.model import SlotView, VmView

Ints = NDArray[np.int64]
Truths = NDArray[np.bool_]


class Standing:
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
        number = {vm.id: at for at, vm in enumerate(self.vms)}
        self.own: Ints = np.array([self._unit(vm.host) for vm in self.vms], dtype=np.int64)
        strangers: dict[str, int] = {}
        where: list[str] = []
        member: list[int] = []
        claims: list[tuple[int, str, int]] = []
        for at, slot in enumerate(slots):
            ready = slot.ready is not False
            for name, recorded in slot.members.items():
                vm = number.get(name)
                if vm is None:
                    known = strangers.setdefault(name, len(where))
                    if known == len(where):
                        where.append(recorded)
                    where[known] = locations.get(name, recorded)
                    member.append(-1 - known)
                    continue
                member.append(vm)
                view = self.vms[vm]
                if ready and view.host == recorded and fits(view, slot):
                    claims.append((vm, slot.name, at))
        claims.sort()
        self.slot_unit: Ints = np.array([self._unit(slot.host) for slot in slots], dtype=np.int64)
        self.claim_vm: Ints = np.array([claim[0] for claim in claims], dtype=np.int64)
        self.claim_slot: Ints = np.array([claim[2] for claim in claims], dtype=np.int64)
        self.degree: Ints = np.bincount(self.claim_vm, minlength=len(self.vms))
        self.first: Ints = np.cumsum(self.degree) - self.degree
        """The first claim of each VM."""
        sizes = np.array([len(slot.members) for slot in slots], dtype=np.int64)
        self._member: Ints = np.array(member, dtype=np.int64)
        self._begins: Ints = np.cumsum(sizes) - sizes
        self._sizes: Ints = sizes
        at_stranger = np.array([self._unit(host) for host in where], dtype=np.int64)
        self._member_unit: Ints = np.zeros(len(member), dtype=np.int64)
        known_here = self._member >= 0
        self._member_unit[known_here] = self.own[self._member[known_here]]
        self._member_unit[~known_here] = at_stranger[-1 - self._member[~known_here]]
        for host in hosts:
            self._unit(host)
        self.unit_names = list(self._unit_number)

    def _unit(self, host: str) -> int:
        return self._unit_number.setdefault(self._units.get(host, host), len(self._unit_number))

    def unit_number(self, name: str) -> int | None:
        """The number of a unit; ``None`` where nothing is on it."""
        return self._unit_number.get(name)

    def spoilers(self, begin: int, end: int) -> tuple[Ints, Ints]:
        """(claim, unit) for the claims ``begin`` to ``end``, each pair once, in that order."""
        slots = self.claim_slot[begin:end]
        sizes = self._sizes[slots]
        claim = np.repeat(np.arange(begin, end, dtype=np.int64), sizes)
        offset = np.arange(len(claim), dtype=np.int64) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        at = np.repeat(self._begins[slots], sizes) + offset
        other = self._member[at] != self.claim_vm[claim]
        claims = np.concatenate([claim[other], np.arange(begin, end, dtype=np.int64)])
        units = np.concatenate([self._member_unit[at[other]], self.slot_unit[slots]])
        pairs = np.unique(claims * len(self.unit_names) + units)
        return pairs // len(self.unit_names), pairs % len(self.unit_names)

    def chunks(self, claims: int) -> list[tuple[int, int]]:
        """The VMs in runs (from, to) with about so many claims each, one VM at least."""
        if not len(self.vms):
            return []
        ends = self.first + self.degree
        borders = [0]
        while borders[-1] < len(self.vms):
            start = int(self.first[borders[-1]])
            borders.append(max(borders[-1] + 1, int(np.searchsorted(ends, start + claims, side="right"))))
        return list(pairwise(borders))

    def claims_of(self, begin: int, end: int) -> tuple[int, int]:
        """The claims (from, to) of the VMs ``begin`` to ``end``."""
        last = end - 1
        return int(self.first[begin]), int(self.first[last] + self.degree[last])

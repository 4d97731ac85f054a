"""The state's memberships as numpy columns: a hundred thousand VMs are judged in a fraction of a second.

Hosts, VMs and slots have numbers. Located VMs come first; members that run nowhere follow, and count where the last
slot by name has recorded them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from outlive.failover.verify.document import CertifiedState
from outlive.failover.verify.fleet import StateFleet

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

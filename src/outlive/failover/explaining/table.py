"""All slots and their members as arrays, so that one question about thousands of slots is a few vector operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from outlive.failover.model import SlotView

Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]

AMOUNT_LIMIT: Final = 2**62
"""Larger amounts count as this."""


class SlotTable:
    """Slots by number, in the order in which they are given; members by number."""

    def __init__(self, slots: Mapping[str, SlotView]) -> None:
        self.names = tuple(slots)
        self.number = {name: at for at, name in enumerate(self.names)}
        hosts: dict[str, int] = {}
        self._host = np.array([hosts.setdefault(slot.host, len(hosts)) for slot in slots.values()], dtype=np.intp)
        self.hosts = tuple(hosts)
        """The hosts that slots are on."""
        self.ready = np.array([slot.ready is not False for slot in slots.values()], dtype=bool)
        sizes = [(slot.cpu_milli, slot.memory_bytes) for slot in slots.values()]
        self._sizes = np.array([[_clamped(one) for one in size] for size in sizes], dtype=np.int64).reshape(-1, 2)
        self._vm: dict[str, int] = {}
        vm = self._vm
        self._members = [
            np.array([vm.setdefault(one, len(vm)) for one in slot.members], dtype=np.intp) for slot in slots.values()
        ]
        lengths = [len(numbers) for numbers in self._members]
        self._pair_slot = np.repeat(np.arange(len(lengths)), lengths)
        self._pair_vm: Ints = np.concatenate([np.zeros(0, dtype=np.intp), *self._members])

    def smaller_than(self, cpu_milli: int, memory_bytes: int) -> Bools:
        """The slots that do not hold so much."""
        cpu, memory = self._sizes[:, 0] < _clamped(cpu_milli), self._sizes[:, 1] < _clamped(memory_bytes)
        return np.asarray(cpu | memory)

    def on_hosts(self, values: Iterable[int]) -> Ints:
        """For each slot the value of its host; ``values`` are those of ``hosts``."""
        by_host: Ints = np.fromiter(values, dtype=np.intp, count=len(self.hosts))
        return by_host[self._host]

    def these(self, names: Iterable[str]) -> Bools:
        """The named slots."""
        found = np.zeros(len(self.names), dtype=bool)
        found[[self.number[name] for name in names]] = True
        return found

    def with_members(self, members: Iterable[str], slots: Iterable[str] = (), *, but: str = "") -> Bools:
        """The slots that any of these, or any member of these slots, is a member of; ``but`` does not count."""
        marked = np.zeros(len(self._vm), dtype=bool)
        for slot in slots:
            marked[self._members[self.number[slot]]] = True
        marked[[self._vm[member] for member in members]] = True
        if but in self._vm:
            marked[self._vm[but]] = False
        found = np.zeros(len(self.names), dtype=bool)
        found[self._pair_slot[marked[self._pair_vm]]] = True
        return found


def _clamped(amount: int) -> int:
    return max(-AMOUNT_LIMIT, min(amount, AMOUNT_LIMIT))

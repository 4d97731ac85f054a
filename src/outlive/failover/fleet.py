"""The fleet as plans and trials change it: the rules (``ConflictIndex``) and what every host has free.

What is changed here within ``trial``, or after ``savepoint``, can be undone: memberships, slots, places of VMs and
capacity alike. Free amounts are columns by host number, so that "which of these hosts has room" is one comparison.
Without any host in the table of free amounts nothing is limited; a host that the table leaves out has no room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outlive.failover.conflicts import ConflictIndex
from outlive.failover.model import SlotView
from outlive.failover.topology import HOSTS_ALONE, Ints, Topology
from outlive.placement import ANTI_AFFINITY, VmView, amounts_of
from outlive.resources import CPU, MEMORY

NO_LIMIT = 2**62
"""Free amount of a host without a figure that limits it."""

Bools = NDArray[np.bool_]


def _clamp(amount: int) -> int:
    return max(-NO_LIMIT, min(amount, NO_LIMIT))


class FreeAmounts(NamedTuple):
    """What hosts have free. Without any host nothing is known, and nothing is limited."""

    names: tuple[str, ...]
    amounts: Ints
    """(hosts, resources)."""
    resources: tuple[str, ...] = (CPU, MEMORY)
    """Milli-cores and bytes first, then whatever else is counted."""

    @classmethod
    def from_table(cls, free: Mapping[str, tuple[int, int]]) -> FreeAmounts:
        """From a table of milli-cores and bytes."""
        pairs = ((_clamp(cpu), _clamp(memory)) for cpu, memory in free.values())
        amounts = np.fromiter(chain.from_iterable(pairs), dtype=np.int64, count=2 * len(free))
        return cls(tuple(free), amounts.reshape(-1, 2))

    @classmethod
    def from_resources(cls, free: Mapping[str, Mapping[str, int]]) -> FreeAmounts:
        """From a table of every resource; of one that a host does not name it has nothing."""
        others = {name for amounts in free.values() for name in amounts} - {CPU, MEMORY}
        resources = (CPU, MEMORY, *sorted(others))
        rows = [[_clamp(amounts.get(name, 0)) for name in resources] for amounts in free.values()]
        return cls(tuple(free), np.array(rows, dtype=np.int64).reshape(-1, len(resources)), resources)

    def get_free(self, name: str) -> tuple[int, int] | None:
        """One host's milli-cores and bytes, or ``None`` where it has no limit."""
        try:
            cpu, memory = self.amounts[self.names.index(name), :2].tolist()
        except ValueError:
            return None
        return cpu, memory

    def to_table(self) -> dict[str, tuple[int, int]]:
        """Host → milli-cores and bytes."""
        pairs = self.amounts[:, :2].tolist()
        return {name: (cpu, memory) for name, (cpu, memory) in zip(self.names, pairs, strict=True)}


UNLIMITED = FreeAmounts((), np.zeros((0, 2), dtype=np.int64))


class FleetIndex(ConflictIndex):
    """Hosts with their free capacity, slots, VMs and the rules."""

    def __init__(self, topology: Topology = HOSTS_ALONE) -> None:
        super().__init__(topology)
        self._given = UNLIMITED
        self._columns: Ints | None = None
        """By host: what is free. Made from what was given when it is needed first."""
        self._known: Bools = np.zeros(0, dtype=np.bool_)
        """By host: whether its amounts were given; those of others do not change."""
        self._named: tuple[tuple[str, ...], Ints] = ((), np.zeros(0, dtype=np.int64))
        """The names that were given last, and their numbers."""

    # Capacity

    def set_free(self, free: FreeAmounts) -> None:
        """From now on hosts have so much free, beside all slots and VMs that are there."""
        before = self._given, self._columns, self._known
        self._note(lambda: self._reset_free(*before))
        self._reset_free(free, None, self._known)

    def grant(self, host: str, cpu_milli: int, memory_bytes: int) -> None:
        """The host has so much free, whatever it had; nothing happens where nothing is limited."""
        if not self.limited:
            return
        number = self.host_number(host)
        free = self._free_matrix()
        known, row = bool(self._known[number]), free[number].copy()
        self._note(lambda: self._set_row(number, row, known=known))
        row = row.copy()
        row[:2] = cpu_milli, memory_bytes
        self._set_row(number, row, known=True)

    @property
    def limited(self) -> bool:
        """Whether there is any limit at all."""
        return bool(self._given.names)

    def knows_room(self, host: str) -> bool:
        """Whether it is known what the host has free, or nothing is limited."""
        number, _ = self.host_number(host), self._free_matrix()
        return not self.limited or bool(self._known[number])

    def has_room(self, host: str, needs: Mapping[str, int]) -> bool:
        """Whether the host has that much of everything."""
        return bool(self.hosts_with_room([host], needs))

    def hosts_with_room(self, hosts: Sequence[str], needs: Mapping[str, int]) -> list[str]:
        """Those of the hosts that have that much of everything."""
        if not self.limited:
            return list(hosts)
        numbers = self.host_numbers(hosts)
        amounts = self._free_matrix()[numbers]
        fine = self._known[numbers]
        for name, amount in needs.items():
            if amount > 0:
                resources = self._given.resources
                fine &= amounts[:, resources.index(name)] >= amount if name in resources else np.False_
        return [host for host, fits in zip(hosts, fine.tolist(), strict=True) if fits]

    def missing_amounts(self, host: str, needs: Mapping[str, int]) -> dict[str, int]:
        """Resource → how much of it is missing on the host; what is not counted anywhere is missing altogether."""
        if not self.limited:
            return {}
        free = self.free_on(host)
        wanted = {name: amount for name, amount in needs.items() if amount > 0}
        return {name: amount - free.get(name, 0) for name, amount in wanted.items() if amount > free.get(name, 0)}

    def free_of(self, hosts: Sequence[str], resource: str) -> list[int]:
        """What each of these hosts has free of a resource."""
        numbers = self.host_numbers(hosts)
        found: list[int] = self._free_matrix()[numbers, self._given.resources.index(resource)].tolist()
        return found

    def free_table(self, hosts: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Host → free milli-cores and bytes, of these hosts."""
        names = tuple(hosts)
        return dict(zip(names, zip(self.free_of(names, CPU), self.free_of(names, MEMORY), strict=True), strict=True))

    def free_on(self, host: str) -> dict[str, int]:
        """Resource → what the host has free."""
        number = self.host_number(host)
        return dict(zip(self._given.resources, self._free_matrix()[number].tolist(), strict=True))

    def have_slot_room(self, hosts: Ints, cpu_milli: int, memory_bytes: int) -> Bools:
        """For each of these hosts, by number, whether a slot of that size fits."""
        amounts = self._free_matrix()[hosts]
        found: Bools = (amounts[:, 0] >= cpu_milli) & (amounts[:, 1] >= memory_bytes)
        return found

    def find_roomiest(self, hosts: Ints, cpu_milli: int, memory_bytes: int) -> tuple[int, int, int] | None:
        """(host, free milli-cores, free bytes) of the host that comes closest to holding such a slot."""
        free = self._free_matrix()
        limited = hosts[free[hosts, 0] < NO_LIMIT]
        if not len(limited):
            return None
        amounts = free[limited, :2]
        wanted = np.maximum(np.array([cpu_milli, memory_bytes]), 1)
        shares = np.minimum(amounts / wanted, 1.0)
        best = int(np.lexsort((shares.sum(axis=1), shares.min(axis=1)))[-1])
        return int(limited[best]), int(amounts[best, 0]), int(amounts[best, 1])

    def take(self, host: str, needs: Mapping[str, int], times: int = 1) -> None:
        """Something is on the host now; with ``times`` = -1 it left."""
        number = self.host_number(host)
        free = self._free_matrix()
        row = free[number]
        if not self._known[number] or row[0] >= NO_LIMIT:
            return
        self._note(lambda: self.take(host, needs, -times))
        for place, name in enumerate(self._given.resources):
            row[place] -= times * needs.get(name, 0)

    def joinable_slots(self, vm: VmView, hosts: Iterable[str]) -> Iterator[str]:
        """Slots on these hosts that the VM may join and that would count for it, fullest first."""
        found = (
            self.admissible_slots(self.vm_number(vm.id))
            & self.fitting_slots((vm.cpu_milli, vm.memory_bytes))
            & self.open_slots
        )
        if found:
            found = self.separation.allowed_slots(vm.id, found & self.slots_on(set(self.host_numbers(list(hosts)))))
        while (number := self.find_fullest(found)) is not None:
            found &= ~self.slot_bit(number)
            yield self.slot_names[number]

    def allowed_by_groups(self, vm: str, hosts: Iterable[str], *, gone: Set[str] = frozenset()) -> list[str]:
        """Of these hosts, those where its groups let the VM run; nobody counts on hosts that are ``gone``."""
        found = list(hosts)
        for group in self.separation.shared_groups(vm):
            where = {peer: host for peer, host in group.members.items() if peer != vm}
            if group.policy == ANTI_AFFINITY:
                theirs = {
                    self.host_of_slot(slot) for peer in where if self.has_vm(peer) for slot in self.slots_of(peer)
                }
                theirs.update(where.values())
                found = [host for host in found if host not in theirs]
            elif together := set(where.values()) - gone:
                found = [host for host in found if host in together]
        return found

    # Changes that take and give room

    def open(self, slot: SlotView, *, rank: str | None = None) -> int:
        """``add_slot``, and what it holds is taken from its hosts."""
        number = self.add_slot(slot, rank=rank)
        for host in holding_hosts(slot):
            self.take(host, slot_amounts(slot))
        return number

    def close(self, slot: SlotView) -> None:
        """``remove_slot``, and what it held is free again."""
        self.remove_slot(slot.name)
        for host in holding_hosts(slot):
            self.take(host, slot_amounts(slot), -1)

    def move(self, vm: VmView, host: str) -> None:
        """The VM runs on another host from here on, in the same slots and in the same server group."""
        source, needs = self.location_of(vm.id), amounts_of(vm)
        self.take(host, needs)
        self.move_vm(vm.id, host)
        self.separation.move(vm.id, host)
        self._note(lambda: self.separation.move(vm.id, source))
        self.take(source, needs, -1)

    # The columns

    def _reset_free(self, free: FreeAmounts, columns: Ints | None, known: Bools) -> None:
        self._given, self._columns, self._known = free, columns, known

    def _set_row(self, host: int, row: Ints, *, known: bool) -> None:
        self._free_matrix()[host] = row
        self._known[host] = known

    def _free_matrix(self) -> Ints:
        """The columns, for all hosts that are known by now."""
        columns, hosts, given = self._columns, len(self.host_names), self._given
        unknown = 0 if given.names else NO_LIMIT
        if columns is None:
            if given.names is not self._named[0]:
                self._named = given.names, np.array(self.host_numbers(given.names), dtype=np.int64)
                hosts = len(self.host_names)
            columns = np.full((hosts, len(given.resources)), unknown, dtype=np.int64)
            self._known = np.zeros(hosts, dtype=np.bool_)
            columns[self._named[1]] = np.clip(given.amounts, -NO_LIMIT, NO_LIMIT)
            self._known[self._named[1]] = True
        elif hosts > len(columns):
            more = hosts - len(columns)
            columns = np.vstack([columns, np.full((more, columns.shape[1]), unknown, dtype=np.int64)])
            self._known = np.concatenate([self._known, np.zeros(more, dtype=np.bool_)])
        self._columns = columns
        return columns


def slot_amounts(slot: SlotView) -> dict[str, int]:
    """What a slot takes of its host."""
    return {CPU: slot.cpu_milli, MEMORY: slot.memory_bytes}


def holding_hosts(slot: SlotView) -> tuple[str, ...]:
    """The hosts on which a slot holds capacity: where it is, and where it is wanted."""
    return tuple(dict.fromkeys(host for host in (slot.host, slot.target_host) if host))

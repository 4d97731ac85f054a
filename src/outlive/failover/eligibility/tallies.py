"""Memberships of VMs in slots, counted, and the answers to "which slots may it join": by number, for planners.

For every slot it is counted how often each unit of failure, as a rule each host, occurs: as that of the slot's own
host and as those of its members (docs/reference/failover.md#counters). A VM's counters are sums of those of its slots,
so that a change touches only what it concerns: joining and leaving cost the VM's few slots, a move costs the members of
these. Sets of slots are whole numbers used as bit sets, and "all slots that this VM may join" is a handful of ORs.

The verdicts are those of the literal rules in every state, also where rules are broken: VMs for which a rule does not
hold are kept as a set, and a slot with such a member admits nobody. ``counters`` is the same by name.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any

from outlive.failover.eligibility.domains import Domains
from outlive.failover.eligibility.faults import Faults
from outlive.failover.eligibility.fullness import ByCount
from outlive.failover.eligibility.groups import Groups
from outlive.failover.eligibility.touching import bits
from outlive.failover.model import SlotView
from outlive.failover.portions import Portions, portioned
from outlive.failover.topology import HOSTS_ALONE, Topology

SIZES_REMEMBERED = 4096
"""VM sizes whose fitting slots are remembered; beyond it all are forgotten and found again."""
LOG_LENGTH = 100_000
"""Added slots that are remembered for those who follow along; beyond it they have to start anew."""


class Tallies(Faults):
    """Hosts, slots and VMs by number. Numbers of slots stay while the slot is there; those of VMs do not."""

    def __init__(self, topology: Topology = HOSTS_ALONE) -> None:
        super().__init__(topology.units)
        self.topology = topology
        self.domains = Domains(topology.apart)
        self.groups = Groups(self)
        self.slot_names: list[str] = []
        self.vm_names: list[str] = []
        self.generation = 0
        """Rises when ``slot_log`` begins anew."""
        self.slot_log: list[int] = []
        """Numbers of slots in the order in which they were added; a number returns when it is used again."""
        self._slot_number: dict[str, int] = {}
        self._slot_rank: list[str] = []
        self._slot_host: list[int] = []
        self._slot_size: list[tuple[int, int]] = []
        self._slot_counts: list[bool] = []
        self._members: list[dict[int, None]] = []
        self._free_numbers: list[int] = []
        self._ranked = True
        self._alive = 0
        self._open = 0
        self._by_members = ByCount()
        self._vm_number: dict[str, int] = {}
        self._vm_host: list[int] = []
        self._vm_size: list[tuple[int, int]] = []
        self._vm_limit: list[frozenset[int]] = []
        """By VM: the numbers of the only hosts that it may run on; empty: any."""
        self._vm_added: list[bool] = []
        self._required: list[int] = []
        self._counting: list[int] = []
        self._missing: set[int] = set()
        self._fitting: dict[tuple[int, int], int] = {}

    def vm(self, name: str) -> int:
        """The number of a VM."""
        return self._vm_number[name]

    def slot(self, name: str) -> int:
        """The number of a slot."""
        return self._slot_number[name]

    def slot_ready(self, slot: int) -> bool:
        """Whether the slot is ready, so that it counts for its members."""
        return self._slot_counts[slot]

    def members_in(self, slot: int, unit: int) -> list[int]:
        """The members of the slot that run in the unit."""
        if unit not in self._units_of[slot]:
            return []
        return [vm for vm in self._members[slot] if self._vm_unit[vm] == unit]

    def slot_host(self, slot: int) -> int:
        """The number of the host that a slot is on."""
        return self._slot_host[slot]

    def slot_members(self, slot: int) -> int:
        """How many members the slot has."""
        return len(self._members[slot])

    def slot_bit(self, slot: int) -> int:
        """The bit of a slot."""
        return self._bit[slot]

    def slots_on(self, hosts: AbstractSet[int]) -> int:
        """The slots that are on these hosts, as a bit set."""
        others = set(range(len(self.host_names))).difference(hosts)
        if len(hosts) <= len(others):
            return _union(self._placed_on[host] for host in hosts)
        return self._alive & ~_union(self._placed_on[host] for host in others)

    def placed_on(self, hosts: Iterable[int]) -> int:
        """The slots that are on one of a few hosts, as a bit set."""
        return _union(self._placed_on[host] for host in hosts)

    @property
    def open_slots(self) -> int:
        """The slots that are ready, as a bit set."""
        return self._open

    def blocked_units(self, vm: int) -> set[int]:
        """Numbers of the units that occur for the VM; while no unit has several hosts, the numbers of these hosts."""
        return {self._vm_unit[vm]}.union(*[self._units_of[slot] for slot in self._slots_of[vm]])

    def slot_numbers(self, vm: int) -> list[int]:
        """The slots that the VM is a member of; not to be changed."""
        return self._slots_of[vm]

    def slots_by_name(self, vm: str) -> list[int]:
        """The same for a VM by name, who need not be known; not to be changed."""
        number = self._vm_number.get(vm)
        return self._slots_of[number] if number is not None else []

    def admissible(self, vm: int) -> int:
        """The slots that the VM may join by the rules, as a bit set.

        Refused are slots that touch a unit which occurs for the VM; that share a member with a slot which touches the
        VM's own unit (for that member the VM's unit occurs already); and that have a member for which a rule is broken.
        """
        if vm in self._faulty:
            return 0
        own = self._vm_unit[vm]
        near = self._near
        refused = self._touching[own] | self._slots_at_fault()
        for slot in self._slots_at[own]:
            refused |= near[slot]
        for slot in self._slots_of[vm]:
            refused |= self._meeting_slots(slot)
        return self._alive & ~refused

    def fitting(self, size: tuple[int, int]) -> int:
        """The slots of at least so many milli-cores and bytes, as a bit set."""
        known = self._fitting.get(size)
        if known is None:
            if len(self._fitting) >= SIZES_REMEMBERED:
                self._fitting.clear()
            known = 0
            for slot in self._slot_number.values():
                if _fits(size, self._slot_size[slot]):
                    known |= self._bit[slot]
            self._fitting[size] = known
        return known

    def host_limit(self, vm: int) -> frozenset[int]:
        """The numbers of the only hosts that the VM may run on; empty: any."""
        return self._vm_limit[vm]

    def fullest(self, slots: int) -> int | None:
        """The slot with the most members in a bit set; among equals the first by rank."""
        found = self._by_members.highest(slots)
        if not found:
            return None
        if self._ranked:
            return (found & -found).bit_length() - 1
        return min(bits(found), key=self._slot_rank.__getitem__)

    def learn_vm(self, name: str, host: str) -> int:
        """The number of a VM that a slot has recorded at this host; one that was added keeps its own location."""
        number = self._vm_number.get(name)
        if number is None:
            number = self._vm_number[name] = len(self.vm_names)
            self.vm_names.append(name)
            place = self.host(host)
            self._vm_host.append(place)
            self._vm_unit.append(self._unit_of[place])
            self._vm_size.append((0, 0))
            self._vm_limit.append(frozenset())
            self._vm_added.append(False)
            self._slots_of.append([])
            self._required.append(0)
            self._counting.append(0)
        elif not self._vm_added[number]:
            self._move(number, self.host(host))
        return number

    def new_slot(self, slot: SlotView, rank: str) -> int:
        """A number for a slot, without its members."""
        size = (slot.cpu_milli, slot.memory_bytes)
        if self._free_numbers:
            number = heapq.heappop(self._free_numbers)
            self._ranked = False
            self.slot_names[number], self._slot_rank[number] = slot.name, rank
            self._slot_size[number] = size
        else:
            number = len(self.slot_names)
            self._ranked = self._ranked and (not number or self._slot_rank[-1] < rank)
            self.slot_names.append(slot.name)
            self._slot_rank.append(rank)
            self._slot_host.append(0)
            self._slot_size.append(size)
            self._slot_counts.append(True)
            self._members.append({})
            self._grow(number)
        self._slot_number[slot.name] = number
        bit = self._bit[number]
        host = self._slot_host[number] = self.host(slot.host)
        self._placed_on[host] |= bit
        self._slot_counts[number] = slot.ready is not False
        self._open = self._open | bit if slot.ready is not False else self._open & ~bit
        self._alive |= bit
        self._by_members.add(bit, 0)
        self.domains.put(bit, slot.host)
        self._count(number, self._unit_of[host])
        for wanted in self._fitting:
            if _fits(wanted, size):
                self._fitting[wanted] |= bit
        if len(self.slot_log) >= LOG_LENGTH:
            self.slot_log = list(self._slot_number.values())
            self.generation += 1
        else:
            self.slot_log.append(number)
        return number

    def fill(self, slot: int, members: list[int]) -> None:
        """Put members into an empty slot at once; ``filled`` has to follow when all slots are filled."""
        units = self._units_of[slot]
        for vm in members:
            self._slots_of[vm].append(slot)
            unit = self._vm_unit[vm]
            units[unit] = units.get(unit, 0) + 1
        bit = self._bit[slot]
        self._members[slot] = dict.fromkeys(members)
        self._by_members.move(bit, 0, len(members))
        self._crowded[slot] = sum(count > 1 for count in units.values())
        for unit in units:
            self._touching[unit] |= bit
            self._slots_at[unit][slot] = None

    def filled(self, faulty: Iterable[int]) -> Portions[None]:
        """Finish after ``fill``: what follows from memberships, and for exactly which VMs a rule does not hold."""
        self._forget_meetings()
        for portion in portioned(enumerate(self._slots_of)):
            for vm, slots in portion:
                for place, slot in enumerate(slots):
                    for other in slots[:place]:
                        self._link(slot, other)
                self._counting[vm] = sum(self._covers(vm, slot) for slot in slots)
                self._note_missing(vm)
            yield
        self._faulty = {vm: self._excess(vm) for vm in faulty}
        self._faulty_slots = None

    def join_slot(self, vm: int, slot: int, *, proven: bool = False) -> None:
        """``join`` by number; ``proven`` says that the slot is admissible for the VM."""
        members = self._members[slot]
        if vm in members:
            return
        proven = proven or bool(self.admissible(vm) & self._bit[slot])
        for other in self._slots_of[vm]:
            self._link(slot, other)
        self._by_members.move(self._bit[slot], len(members), len(members) + 1)
        self._count(slot, self._vm_unit[vm])
        if not proven:
            self._note_more(members, self._vm_unit[vm])
        members[vm] = None
        self._slots_of[vm].append(slot)
        if self.groups:
            self.groups.joined(self.vm_names[vm], slot)
        self._counting[vm] += self._covers(vm, slot)
        self._note_missing(vm)
        if not proven:
            self._judge(vm)

    # Keeping it up to date.

    def _forget(self, number: int) -> None:
        """Forget a VM without slots; the last VM takes its number."""
        last = len(self.vm_names) - 1
        self._missing.discard(number)
        self._faulty.pop(number, None)
        del self._vm_number[self.vm_names[number]]
        if number != last:
            self._renumber(last, number)
        for column in self._vm_columns():
            column[number] = column[last]
            column.pop()

    def _vm_columns(self) -> tuple[list[Any], ...]:
        return (
            self.vm_names,
            self._vm_host,
            self._vm_unit,
            self._vm_size,
            self._vm_limit,
            self._vm_added,
            self._slots_of,
            self._required,
            self._counting,
        )

    def _renumber(self, old: int, new: int) -> None:
        self._vm_number[self.vm_names[old]] = new
        for slot in self._slots_of[old]:
            del self._members[slot][old]
            self._members[slot][new] = None
        if old in self._missing:
            self._missing.discard(old)
            self._missing.add(new)
        if old in self._faulty:
            self._faulty[new] = self._faulty.pop(old)

    def _leave(self, vm: int, slot: int) -> None:
        members = self._members[slot]
        self._by_members.move(self._bit[slot], len(members), len(members) - 1)
        self._counting[vm] -= self._covers(vm, slot)
        self._note_missing(vm)
        del members[vm]
        self._slots_of[vm].remove(slot)
        if self.groups:
            self.groups.left(self.vm_names[vm], slot)
        self._uncount(slot, self._vm_unit[vm])
        for other in self._slots_of[vm]:
            self._unlink(slot, other)
        if self._faulty:
            self._note_less(members, self._vm_unit[vm])
            if vm in self._faulty:
                self._judge(vm)

    def _move(self, vm: int, host: int) -> None:
        self._vm_host[vm] = host
        self._regard(vm, self._unit_of[host])

    def _regard(self, vm: int, unit: int) -> None:
        """The VM runs in this unit."""
        before = self._vm_unit[vm]
        if before == unit:
            return
        for slot in self._slots_of[vm]:
            others = [one for one in self._members[slot] if one != vm]
            self._uncount(slot, before)
            if self._faulty:
                self._note_less(others, before)
            self._count(slot, unit)
            self._note_more(others, unit)
        self._vm_unit[vm] = unit
        if self._slots_of[vm]:
            self._judge(vm)

    def _covers(self, vm: int, slot: int) -> bool:
        limit = self._vm_limit[vm]
        allowed = not limit or self._slot_host[slot] in limit
        return allowed and self._slot_counts[slot] and _fits(self._vm_size[vm], self._slot_size[slot])

    def _note_missing(self, vm: int) -> None:
        if self._required[vm] > self._counting[vm]:
            self._missing.add(vm)
        else:
            self._missing.discard(vm)


def _union(sets: Iterable[int]) -> int:
    found = 0
    for one in sets:
        found |= one
    return found


def _fits(vm: tuple[int, int], slot: tuple[int, int]) -> bool:
    return slot[0] >= vm[0] and slot[1] >= vm[1]

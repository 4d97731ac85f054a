"""Which VMs are members of which slots, by number, kept up to date change by change.

For every slot it is counted how often each unit of failure occurs, as that of the slot's host and as those of its
members. A VM's counters are sums over its slots, so that joining and leaving cost the VM's few slots, and a move costs
those who share a slot with it and meet it in another. Sets of slots are whole numbers used as bit sets (``slotsets``).
VMs for which a rule does not hold are kept as a set. ``trial`` and ``rollback`` undo changes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Mapping
from contextlib import contextmanager
from typing import NamedTuple, Self

from outlive.base import BadInput
from outlive.failover.model import SlotView
from outlive.failover.separation import SeparationIndex, groups_of
from outlive.failover.topology import HOSTS_ALONE, ByCount, FaultIndex, Topology, iter_bits, unite
from outlive.placement import VmView

# Changes that can be undone: each change notes how it is undone while a savepoint is open.


class Journal:
    """What has to be undone, the latest change first."""

    def __init__(self) -> None:
        self._journal: list[Callable[[], object]] | None = None
        self._savepoints = 0

    @contextmanager
    def begin_trial(self) -> Iterator[None]:
        """Everything that is changed inside is undone at the end."""
        mark = self.set_savepoint()
        try:
            yield
        finally:
            self.roll_back(mark)

    def set_savepoint(self) -> int:
        """From now on changes can be undone, until ``roll_back`` or ``release`` is called with the answer."""
        if self._journal is None:
            self._journal = []
        self._savepoints += 1
        return len(self._journal)

    @property
    def mark(self) -> int:
        """Where ``undo`` may return to, while a savepoint is open."""
        return len(self._journal or ())

    def undo(self, mark: int) -> None:
        """Undo what changed since the mark."""
        undo = self._journal or []
        changes = undo[mark:]
        self._journal = None
        for change in reversed(changes):
            change()
        del undo[mark:]
        self._journal = undo

    def roll_back(self, mark: int) -> None:
        """Undo what changed since the savepoint, and end it."""
        self.undo(mark)
        self.release(mark)

    def release(self, mark: int) -> None:
        """End the savepoint; what changed stays, unless an earlier savepoint is rolled back."""
        self._savepoints -= 1
        if not self._savepoints:
            self._journal = None

    def add_undo(self, undo: Callable[[], object]) -> None:
        """Call this where what happens now is undone."""
        self._note(undo)

    def _note(self, undo: Callable[[], object]) -> None:
        if self._journal is not None:
            self._journal.append(undo)


SIZES_REMEMBERED = 4096
"""VM sizes whose fitting slots are remembered; beyond it all are forgotten and found again."""
LOG_LENGTH = 100_000
"""Added slots that are remembered for those who follow along; beyond it they have to start anew."""

Size = tuple[int, int]
"""Milli-cores and bytes."""


class _VmState(NamedTuple):
    """What is known of a VM apart from its memberships."""

    host: int
    size: Size
    limit: frozenset[int]
    added: bool
    required: int


class MembershipIndex(FaultIndex, Journal):
    """Hosts, units of failure, slots and VMs by number, and every change of them.

    Numbers stay as long as the thing is there. A VM that is only named by a slot is a member with the location that the
    slot recorded (the last one added wins); a VM that was added has the location that it was given. Views are not kept.
    Unknown names raise ``KeyError``.
    """

    def __init__(self, topology: Topology = HOSTS_ALONE) -> None:
        FaultIndex.__init__(self, topology)
        Journal.__init__(self)
        self.slot_names: list[str] = []
        self.vm_names: list[str] = []
        self.generation = 0
        """Rises when ``slot_log`` begins anew."""
        self.slot_log: list[int] = []
        """Numbers of slots in the order in which they were added; a number returns when it is used again."""
        self._slot_number: dict[str, int] = {}
        self._slot_rank: list[str] = []
        self._slot_host: list[int] = []
        self._slot_size: list[Size] = []
        self._slot_counts: list[bool] = []
        self._free_slots: list[int] = []
        self._ranked = True
        self.open_slots = 0
        """The slots that are ready, as a bit set."""
        self._by_members = ByCount()
        self._fitting: dict[Size, int] = {}
        self._vm_number: dict[str, int] = {}
        self._vm_state: list[_VmState] = []
        self._counting: list[int] = []
        """By VM: how many of its slots count for it."""
        self._free_vms: list[int] = []
        self._missing: set[int] = set()
        self.separation = SeparationIndex(self)

    @classmethod
    def build(
        cls,
        slots: Iterable[SlotView],
        vms: Collection[VmView] = (),
        required: Mapping[str, int] | None = None,
        topology: Topology = HOSTS_ALONE,
        *,
        locations: Mapping[str, str] | None = None,
    ) -> Self:
        """The state of these slots and VMs. ``BadInput`` where two slots have one name.

        ``required``: VM → slots that it needs; with it the server groups of ``vms`` bind. ``locations``: VM → host for
        members that are not among ``vms``; it wins over what slots have recorded.
        """
        index, needs = cls(topology), required or {}
        for vm in vms:
            index.add_vm(vm, needs.get(vm.id, 0))
        if required is not None:
            index.separation.take(groups_of(vms, required))
        index.load(slots, locations)
        index.judge()
        return index

    def load(self, slots: Iterable[SlotView], locations: Mapping[str, str] | None = None) -> None:
        """Add slots with their members without judging anybody: ``judge`` has to follow before anything is asked."""
        known = locations or {}
        for slot in slots:
            if slot.name in self._slot_number:
                raise BadInput(f"slot {slot.name!r} is there twice", remedy="give every slot a name of its own")
            number = self._new_slot(slot, slot.name)
            self._meeting[number] = None
            units, members = self._units_of[number], self._members[number]
            for name, recorded in slot.members.items():
                there = self._vm_number.get(name)
                if there is not None and self._vm_state[there].added:
                    vm = there
                else:
                    vm = self.learn_vm(name, known.get(name, recorded), judged=False)
                unit = self._vm_unit[vm]
                units[unit] = units.get(unit, 0) + 1
                for other in self._slots_of[vm]:
                    self._link(number, other)
                self._slots_of[vm].append(number)
                members[vm] = None
                self.separation.record_join(name, number)
            bit = self._bit[number]
            self._by_members.move(bit, 0, len(members))
            self._crowded[number] = sum(count > 1 for count in units.values())
            for unit in units:
                self._touching[unit] |= bit
                self._slots_at[unit][number] = None
        if self._meetings_known:
            self._meeting, self._meetings_known = [None] * len(self._meeting), False
        self._faulty_slots = None

    def judge(self, vms: Iterable[str] | None = None) -> None:
        """Find out for these VMs, or for all, which slots count and whether the rules hold."""
        numbers = self._vm_number.values() if vms is None else [self._vm_number[vm] for vm in vms]
        for vm in numbers:
            self._recount(vm)
            self._judge(vm)

    # Names and numbers

    def vm_number(self, name: str) -> int:
        """The number of a VM."""
        return self._vm_number[name]

    def slot_number(self, name: str) -> int:
        """The number of a slot."""
        return self._slot_number[name]

    def has_vm(self, vm: str) -> bool:
        """Whether the VM was added or is named by a slot."""
        return vm in self._vm_number

    def has_slot(self, slot: str) -> bool:
        """Whether there is such a slot."""
        return slot in self._slot_number

    @property
    def names(self) -> KeysView[str]:
        """The VMs that were added or are named by a slot, in no particular order."""
        return self._vm_number.keys()

    # Changes

    def add_vm(self, vm: VmView, required: int = 0) -> None:
        """Add the VM, or update its location, size, limit of hosts and need when it is there already."""
        limit = frozenset(self.host_numbers(vm.host_limit)) if vm.host_limit else frozenset[int]()
        state = _VmState(self.host_number(vm.host), (vm.cpu_milli, vm.memory_bytes), limit, True, required)
        self._set_state(self.learn_vm(vm.id, vm.host), state)

    def place_vm(self, vm: VmView) -> None:
        """Update the VM's location, size and limit of hosts; what it needs stays as it is."""
        number = self._vm_number.get(vm.id)
        self.add_vm(vm, self._vm_state[number].required if number is not None else 0)

    def learn_vm(self, name: str, host: str, *, judged: bool = True) -> int:
        """The number of a VM that a slot has recorded at this host; one that was added keeps its own location."""
        number = self._vm_number.get(name)
        if number is None:
            place = self.host_number(host)
            state = _VmState(place, (0, 0), frozenset(), False, 0)
            if self._free_vms:
                number = heapq.heappop(self._free_vms)
                self.vm_names[number], self._vm_state[number] = name, state
                self._vm_unit[number] = self._unit_of[place]
            else:
                number = len(self.vm_names)
                self.vm_names.append(name)
                self._vm_state.append(state)
                self._vm_unit.append(self._unit_of[place])
                self._slots_of.append([])
                self._counting.append(0)
            self._vm_number[name] = number
            self._note(lambda: self._forget(name))
        elif not self._vm_state[number].added and self.host_names[self._vm_state[number].host] != host:
            state = self._vm_state[number]._replace(host=self.host_number(host))
            if judged:
                self._set_state(number, state)
            else:
                # While slots are loaded counts follow, and no VM is judged.
                before, now = self._vm_unit[number], self._unit_of[state.host]
                self._vm_state[number] = state
                if before != now:
                    for slot in self._slots_of[number]:
                        self._uncount(slot, before)
                        self._count(slot, now)
                    self._vm_unit[number] = now
        return number

    def remove_vm(self, vm: str) -> None:
        """Take the VM out of all its slots and forget it."""
        number = self._vm_number[vm]
        for slot in tuple(self._slots_of[number]):
            self._leave(number, slot)
        self._forget(vm)

    def move_vm(self, vm: str, host: str) -> None:
        """The VM runs elsewhere now; it stays in its slots."""
        number = self._vm_number[vm]
        self._set_state(number, self._vm_state[number]._replace(host=self.host_number(host)))

    def add_slot(self, slot: SlotView, *, rank: str | None = None) -> int:
        """Add a slot with its members and return its number. ``rank`` stands in for the name where names break ties.

        Raises ``ValueError`` when there is a slot of that name.
        """
        if slot.name in self._slot_number:
            raise ValueError(f"slot {slot.name!r} is there already")
        number = self._new_slot(slot, slot.name if rank is None else rank)
        name = slot.name
        self._note(lambda: self.remove_slot(name))
        for vm, recorded in slot.members.items():
            self.join_slot(self.learn_vm(vm, recorded), number)
        return number

    def remove_slot(self, slot: str) -> None:
        """Take all members out and forget the slot."""
        number = self._slot_number[slot]
        members = [self.vm_names[vm] for vm in self._members[number]]
        for member in members:
            self._leave(self._vm_number[member], number)
        for member in members:
            self._forget_unused(member)
        del self._slot_number[slot]
        host, size, rank = self._slot_host[number], self._slot_size[number], self._slot_rank[number]
        gone = ~self._bit[number]
        self._uncount(number, self._unit_of[host])
        self._placed_on[host] &= gone
        self.alive &= gone
        self.open_slots &= gone
        self._by_members.remove(self._bit[number], 0)
        for wanted in self._fitting:
            self._fitting[wanted] &= gone
        heapq.heappush(self._free_slots, number)
        if self._journal is not None:
            view = SlotView(
                name=slot,
                host=self.host_names[host],
                cpu_milli=size[0],
                memory_bytes=size[1],
                ready=self._slot_counts[number],
            )
            self._note(lambda: self._new_slot(view, rank))

    def set_ready(self, slot: str, ready: bool) -> None:
        """A slot that is not ready covers nobody and is not reused; the rules count it as before."""
        number = self._slot_number[slot]
        if ready == self._slot_counts[number]:
            return
        self._note(lambda: self.set_ready(slot, not ready))
        self._slot_counts[number] = ready
        self.open_slots = self.open_slots | self._bit[number] if ready else self.open_slots & ~self._bit[number]
        for member in self._members[number]:
            self._recount(member)

    def join(self, vm: str, slot: str) -> None:
        """Make the VM a member, whatever the rules say; nothing happens when it is one."""
        self.join_slot(self._vm_number[vm], self._slot_number[slot])

    def join_slot(self, vm: int, slot: int, *, proven: bool = False) -> None:
        """``join`` by number; ``proven`` says that the slot is admissible for the VM."""
        members = self._members[slot]
        if vm in members:
            return
        if self._journal is not None:
            vm_name, slot_name = self.vm_names[vm], self.slot_names[slot]
            self._note(lambda: self._leave(self._vm_number[vm_name], self._slot_number[slot_name]))
        for other in self._slots_of[vm]:
            self._link(slot, other)
        self._by_members.move(self._bit[slot], len(members), len(members) + 1)
        self._count(slot, self._vm_unit[vm])
        if not proven:
            self._note_more(slot, self._vm_unit[vm], vm)
        members[vm] = None
        self._slots_of[vm].append(slot)
        self.separation.record_join(self.vm_names[vm], slot)
        self._counting[vm] += self._covers(vm, slot)
        self._note_missing(vm)
        if not proven:
            self._judge(vm)

    def leave(self, vm: str, slot: str) -> None:
        """Take the VM out of the slot; nothing happens when it is no member."""
        number, place = self._vm_number[vm], self._slot_number[slot]
        if number in self._members[place]:
            self._leave(number, place)
            self._forget_unused(vm)

    def relabel(self, host: str, unit: str | None, domains: Mapping[str, str]) -> bool:
        """The host belongs to this unit (``None``: to its own) and is in these failure domains; whether that is new.

        Slots on it and VMs that run there count for the new unit from now on. Not within a trial.
        """
        if unit is not None:
            self._units[host] = unit
            self.has_units = True
        else:
            self._units.pop(host, None)
        number = self._host_number.get(host)
        placed = 0 if number is None else self._placed_on[number]
        changed = self.separation.relabel(host, domains)
        if number is None or self.unit_names[self._unit_of[number]] == (unit or host):
            return changed
        before, now = self._unit_of[number], self._ensure_unit(unit or host)
        self._unit_of[number], self._unit_array = now, None
        for slot in iter_bits(placed):
            self._uncount(slot, before)
            self._count(slot, now)
        for vm in self._vm_number.values():
            if self._vm_state[vm].host == number:
                self._change_unit(vm, now)
        for vm in {vm for slot in iter_bits(placed) for vm in self._members[slot]}:
            self._judge(vm)
        return True

    # What is there

    def location_of(self, vm: str) -> str:
        """Where the VM runs."""
        return self.host_names[self._vm_state[self._vm_number[vm]].host]

    def slots_by_name(self, vm: str) -> list[int]:
        """The same for a VM by name, who need not be known; not to be changed."""
        number = self._vm_number.get(vm)
        return self._slots_of[number] if number is not None else []

    def slot_ready(self, slot: int) -> bool:
        """Whether the slot is ready, so that it counts for its members."""
        return self._slot_counts[slot]

    def slot_host(self, slot: int) -> int:
        """The number of the host that a slot is on."""
        return self._slot_host[slot]

    def fitting_slots(self, size: Size) -> int:
        """The slots of at least so many milli-cores and bytes, as a bit set."""
        known = self._fitting.get(size)
        if known is None:
            if len(self._fitting) >= SIZES_REMEMBERED:
                self._fitting.clear()
            found = (slot for slot in self._slot_number.values() if _is_fitting(size, self._slot_size[slot]))
            known = self._fitting[size] = unite(self._bit[slot] for slot in found)
        return known

    # VMs

    def _set_state(self, vm: int, state: _VmState) -> None:
        before = self._vm_state[vm]
        if before == state:
            return
        name = self.vm_names[vm]
        self._note(lambda: self._set_state(self._vm_number[name], before))
        self._vm_state[vm] = state
        self._change_unit(vm, self._unit_of[state.host])
        self._recount(vm)

    def _change_unit(self, vm: int, unit: int) -> None:
        before = self._vm_unit[vm]
        if before == unit:
            return
        for slot in self._slots_of[vm]:
            self._uncount(slot, before)
            if self._faulty:
                self._note_less([one for one in self._members[slot] if one != vm], before)
            self._count(slot, unit)
            self._note_more(slot, unit, vm)
        self._vm_unit[vm] = unit
        if self._slots_of[vm]:
            self._judge(vm)

    def _forget(self, vm: str) -> None:
        number = self._vm_number.pop(vm)
        state = self._vm_state[number]
        self._note(lambda: self._set_state(self.learn_vm(vm, self.host_names[state.host]), state))
        self._missing.discard(number)
        if self._faulty.pop(number, None):
            self._faulty_slots = None
        self._counting[number] = 0
        heapq.heappush(self._free_vms, number)

    def _forget_unused(self, vm: str) -> None:
        number = self._vm_number[vm]
        if not self._slots_of[number] and not self._vm_state[number].added:
            self._forget(vm)

    def _recount(self, vm: int) -> None:
        self._counting[vm] = sum(self._covers(vm, slot) for slot in self._slots_of[vm])
        self._note_missing(vm)

    def _covers(self, vm: int, slot: int) -> bool:
        state = self._vm_state[vm]
        allowed = not state.limit or self._slot_host[slot] in state.limit
        return allowed and self._slot_counts[slot] and _is_fitting(state.size, self._slot_size[slot])

    def _note_missing(self, vm: int) -> None:
        if self._vm_state[vm].required > self._counting[vm]:
            self._missing.add(vm)
        else:
            self._missing.discard(vm)

    def _leave(self, vm: int, slot: int) -> None:
        if self._journal is not None:
            vm_name, slot_name = self.vm_names[vm], self.slot_names[slot]
            self._note(lambda: self.join(vm_name, slot_name))
        members = self._members[slot]
        self._by_members.move(self._bit[slot], len(members), len(members) - 1)
        self._counting[vm] -= self._covers(vm, slot)
        self._note_missing(vm)
        del members[vm]
        self._slots_of[vm].remove(slot)
        self.separation.record_leave(self.vm_names[vm], slot)
        self._uncount(slot, self._vm_unit[vm])
        for other in self._slots_of[vm]:
            self._unlink(slot, other)
        if self._faulty:
            self._note_less(members, self._vm_unit[vm])
            if vm in self._faulty:
                self._judge(vm)

    # Units of slots

    def _new_slot(self, slot: SlotView, rank: str) -> int:
        """A number for a slot, without its members."""
        size = (slot.cpu_milli, slot.memory_bytes)
        if self._free_slots:
            number = heapq.heappop(self._free_slots)
            self._ranked = False
            self.slot_names[number], self._slot_rank[number], self._slot_size[number] = slot.name, rank, size
        else:
            number = len(self.slot_names)
            self._ranked = self._ranked and (not number or self._slot_rank[-1] < rank)
            self.slot_names.append(slot.name)
            self._slot_rank.append(rank)
            self._slot_size.append(size)
            self._slot_host.append(0)
            self._slot_counts.append(True)
            self._members.append({})
            self._units_of.append({})
            self._crowded.append(0)
            self._bit.append(1 << number)
            self._near.append(1 << number)
            self._meeting.append(1 << number)
        self._slot_number[slot.name] = number
        self._meetings_known = True
        bit, ready = self._bit[number], slot.ready is not False
        host = self._slot_host[number] = self.host_number(slot.host)
        self._placed_on[host] |= bit
        self._slot_counts[number] = ready
        self.open_slots = self.open_slots | bit if ready else self.open_slots & ~bit
        self.alive |= bit
        self._by_members.add(bit, 0)
        self._count(number, self._unit_of[host])
        for wanted in self._fitting:
            if _is_fitting(wanted, size):
                self._fitting[wanted] |= bit
        if len(self.slot_log) >= LOG_LENGTH:
            self.slot_log = list(self._slot_number.values())
            self.generation += 1
        else:
            self.slot_log.append(number)
        return number


def _is_fitting(vm: Size, slot: Size) -> bool:
    return slot[0] >= vm[0] and slot[1] >= vm[1]

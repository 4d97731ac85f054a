"""The fast form of the state that eligibility is judged in, kept up to date change by change.

What module ``tallies`` counts by number, asked and changed by name: after any sequence of changes the state
equals one that is built anew (docs/reference/failover.md#counters). Views given to it are not kept.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, KeysView, Mapping

from outlive.base.errors import BadInput
from outlive.failover.eligibility.columns import Columns
from outlive.failover.eligibility.tallies import Tallies
from outlive.failover.eligibility.touching import bits
from outlive.failover.model import SlotView, VmView
from outlive.failover.portions import SLOTS, Portions, portioned, whole
from outlive.failover.topology import HOSTS_ALONE, Topology


class Counters(Tallies):
    """Memberships of VMs in slots, counted.

    A VM that is only named by a slot is a member with the location that the slot recorded (the last one added wins); a
    VM that was added has the location that it was given. Unknown names raise ``KeyError``.
    """

    @classmethod
    def build(
        cls,
        slots: Iterable[SlotView],
        vms: Iterable[VmView] = (),
        required: Mapping[str, int] | None = None,
        topology: Topology = HOSTS_ALONE,
    ) -> Counters:
        """The state of these slots and VMs; ``required``: VM → slots that it needs.

        ``BadInput`` where two slots have one name.
        """
        return whole(cls.building(slots, vms, required, topology))

    @classmethod
    def building(
        cls,
        slots: Iterable[SlotView],
        vms: Iterable[VmView] = (),
        required: Mapping[str, int] | None = None,
        topology: Topology = HOSTS_ALONE,
    ) -> Portions[Counters]:
        """``build`` in portions."""
        counters, needs = cls(topology), required or {}
        for some in portioned(vms):
            for vm in some:
                counters.add_vm(vm, needs.get(vm.id, 0))
            yield
        listed = list(slots)
        for portion in portioned(listed, SLOTS):
            for slot in portion:
                for vm_id, recorded in slot.members.items():
                    counters.learn_vm(vm_id, recorded)
            yield
        for portion in portioned(listed, SLOTS):
            for slot in portion:
                if slot.name in counters._slot_number:
                    raise BadInput(f"slot {slot.name!r} is there twice", remedy="give every slot a name of its own")
                counters.fill(counters.new_slot(slot, slot.name), [counters._vm_number[vm] for vm in slot.members])
            yield
        columns = yield from Columns.placed(listed, lambda vm, recorded: counters.location(vm), topology)
        faults = yield from columns.faults()
        yield from counters.filled(counters._vm_number[columns.vm_ids[number]] for number in faults.tolist())
        return counters

    def blocked(self, vm: str) -> frozenset[str]:
        """Units that already occur for the VM: that of its own host, of its slots' and of its co-users'."""
        return frozenset(self.unit_names[unit] for unit in self.blocked_units(self._vm_number[vm]))

    def count(self, vm: str, host: str) -> int:
        """How often the host's unit occurs for the VM; all rules hold for it while no unit occurs twice."""
        number = self._host_number.get(host)
        unit = self._unit_number.get(self._units.get(host, host), -1) if number is None else self._unit_of[number]
        return self.tally(self._vm_number[vm], unit)

    def crowded(self, vm: str) -> list[str]:
        """Units that occur more than once for the VM, by name."""
        number = self._vm_number[vm]
        return sorted(self.unit_names[unit] for unit in self.blocked_units(number) if self.tally(number, unit) > 1)

    def holds_for(self, vm: str) -> bool:
        """Whether all five rules hold for the VM."""
        return self._vm_number[vm] not in self._faulty

    def eligible_slots(self, vm: str) -> list[str]:
        """Every slot that the VM may join by the rules, in name order. Size and readiness are not looked at."""
        return sorted(self.slot_names[slot] for slot in bits(self.admissible(self._vm_number[vm])))

    def fitting_slots(self, vm: str) -> list[str]:
        """Every slot that is as large as the VM, in name order."""
        return sorted(self.slot_names[slot] for slot in bits(self.fitting(self._vm_size[self._vm_number[vm]])))

    def missing(self) -> dict[str, int]:
        """VM → how many slots it misses, by id; those that miss none are left out."""
        return {
            self.vm_names[vm]: self._required[vm] - self._counting[vm]
            for vm in sorted(self._missing, key=self.vm_names.__getitem__)
        }

    def misses(self, vm: str) -> int:
        """How many slots the VM misses, 0 when none."""
        number = self._vm_number[vm]
        return max(0, self._required[number] - self._counting[number])

    def faulty(self) -> list[str]:
        """The VMs for which a rule does not hold, by id."""
        return sorted(self.vm_names[vm] for vm in self._faulty)

    def slots_of(self, vm: str) -> list[str]:
        """The slots that the VM is a member of, in name order."""
        return sorted(self.slot_names[slot] for slot in self._slots_of[self._vm_number[vm]])

    def members(self, slot: str) -> list[str]:
        """The members of the slot, by id."""
        return sorted(self.vm_names[vm] for vm in self._members[self._slot_number[slot]])

    def host_of_slot(self, slot: str) -> str:
        """Where the slot is."""
        return self.host_names[self._slot_host[self._slot_number[slot]]]

    def location(self, vm: str) -> str:
        """Where the VM runs."""
        return self.host_names[self._vm_host[self._vm_number[vm]]]

    @property
    def names(self) -> KeysView[str]:
        """The VMs that were added or are named by a slot, in no particular order."""
        return self._vm_number.keys()

    def has_vm(self, vm: str) -> bool:
        """Whether the VM was added or is named by a slot."""
        return vm in self._vm_number

    def has_slot(self, slot: str) -> bool:
        """Whether there is such a slot."""
        return slot in self._slot_number

    def add_vm(self, vm: VmView, required: int = 0) -> None:
        """Add the VM, or take over its location, size, limit of hosts and need when it is there already."""
        known = vm.id in self._vm_number
        number = self.learn_vm(vm.id, vm.host)
        self._vm_added[number] = True
        self._vm_size[number] = (vm.cpu_milli, vm.memory_bytes)
        self._vm_limit[number] = frozenset(self.hosts(vm.host_limit)) if vm.host_limit else frozenset()
        self._required[number] = required
        if not known:
            self._note_missing(number)
            return
        self._counting[number] = sum(self._covers(number, slot) for slot in self._slots_of[number])
        self._note_missing(number)
        self._move(number, self.host(vm.host))

    def place_vm(self, vm: VmView) -> None:
        """Take over the VM's location, size and limit of hosts; what it needs stays as it is."""
        number = self._vm_number.get(vm.id)
        self.add_vm(vm, self._required[number] if number is not None else 0)

    def remove_vm(self, vm: str) -> None:
        """Take the VM out of all its slots and forget it."""
        number = self._vm_number[vm]
        for slot in tuple(self._slots_of[number]):
            self._leave(number, slot)
        self._forget(number)

    def move_vm(self, vm: str, host: str) -> None:
        """The VM runs elsewhere now; it stays in its slots."""
        self._move(self._vm_number[vm], self.host(host))

    def relabel(self, host: str, unit: str | None, domains: Mapping[str, str]) -> bool:
        """The host belongs to this unit (``None``: to its own) and is in these failure domains; whether that is new.

        Slots on it and VMs that run there count for the new unit from now on.
        """
        if unit is not None:
            self._units[host] = unit
            self.has_units = True
        else:
            self._units.pop(host, None)
        number = self._host_number.get(host)
        placed = 0 if number is None else self._placed_on[number]
        changed = self.domains.relabel(host, domains, placed)
        if number is None or self.unit_names[self._unit_of[number]] == (unit or host):
            return changed
        before, now = self._unit_of[number], self._unit(unit or host)
        self._unit_of[number], self._unit_array = now, None
        for slot in bits(placed):
            self._uncount(slot, before)
            self._count(slot, now)
        concerned = {vm for slot in bits(placed) for vm in self._members[slot]}
        for vm, place in enumerate(self._vm_host):
            if place == number:
                self._regard(vm, now)
        for vm in concerned:
            self._judge(vm)
        return True

    def add_slot(self, slot: SlotView, *, rank: str | None = None) -> int:
        """Add a slot with its members and return its number. ``rank`` stands in for the name where names break ties.

        Raises ``ValueError`` when there is a slot of that name.
        """
        if slot.name in self._slot_number:
            raise ValueError(f"slot {slot.name!r} is there already")
        number = self.new_slot(slot, slot.name if rank is None else rank)
        for vm, recorded in slot.members.items():
            member = self.learn_vm(vm, recorded)
            self.join_slot(member, number)
        return number

    def remove_slot(self, slot: str) -> None:
        """Take all members out and forget the slot."""
        number = self._slot_number.pop(slot)
        members = tuple(self._members[number])
        for member in members:
            self._leave(member, number)
        # Forgetting a VM gives its number to another one, so from here on by name.
        unused = [self.vm_names[vm] for vm in members if not self._slots_of[vm] and not self._vm_added[vm]]
        for name in unused:
            self._forget(self._vm_number[name])
        host = self._slot_host[number]
        self._uncount(number, self._unit_of[host])
        gone = ~self._bit[number]
        self._placed_on[host] &= gone
        self.domains.remove(self._bit[number], self.host_names[host])
        self._alive &= gone
        self._open &= gone
        self._by_members.remove(self._bit[number], 0)
        for size in self._fitting:
            self._fitting[size] &= gone
        heapq.heappush(self._free_numbers, number)

    def set_ready(self, slot: str, ready: bool) -> None:
        """A slot that is not ready covers nobody and is not reused; the rules count it as before."""
        number = self._slot_number[slot]
        if ready == self._slot_counts[number]:
            return
        for member in self._members[number]:
            self._counting[member] -= self._covers(member, number)
        self._slot_counts[number] = ready
        self._open = self._open | self._bit[number] if ready else self._open & ~self._bit[number]
        for member in self._members[number]:
            self._counting[member] += self._covers(member, number)
            self._note_missing(member)

    def join(self, vm: str, slot: str) -> None:
        """Make the VM a member, whatever the rules say; nothing happens when it is one."""
        self.join_slot(self._vm_number[vm], self._slot_number[slot])

    def leave(self, vm: str, slot: str) -> None:
        """Take the VM out of the slot; nothing happens when it is no member."""
        number, place = self._vm_number[vm], self._slot_number[slot]
        if number in self._members[place]:
            self._leave(number, place)
            if not self._slots_of[number] and not self._vm_added[number]:
                self._forget(number)

"""The conflict index: every question about the rules, answered from memberships as they are.

The five rules are one: no unit of failure (as a rule a host) occurs twice for a VM, as that of its own host, of one of
its slots, or of a co-user, each pair of a slot and a co-user counted (docs/reference/failover-rules.md#counters). The
verdicts are those of the literal rules in every state, also where rules are broken: a slot with a member for which a
rule does not hold admits nobody. "All slots that this VM may join" is a few ORs of bit sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from outlive.failover.membership_index import MembershipIndex
from outlive.failover.topology import iter_bits

# Rules that do not hold, with everybody involved: what the conflict index answers about VMs at fault.


class Breach(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One rule that does not hold for one VM, and the parties."""

    rule: int
    """1 to 5, as numbered in docs/reference/failover-rules.md#the-five-rules."""
    vm: str
    host: str
    """The host on which two things meet; where units have names of their own, the unit."""
    hosts: tuple[str, ...] = ()
    """Where ``host`` is a unit of several hosts: those on which the things are that meet, by name."""
    slots: tuple[str, ...] = ()
    """The slots of the VM that are involved, in name order."""
    others: tuple[str, ...] = ()
    """The other VMs that are involved, by id."""

    def describe(self) -> str:
        """What is wrong, in one sentence."""
        slots, others = " and ".join(self.slots), " and ".join(self.others)
        at = f"in {self.host} (on {' and '.join(self.hosts)})" if self.hosts else f"on {self.host}"
        match self.rule:
            case 1:
                return f"slot {slots} of VM {self.vm} is {at}, where the VM runs"
            case 2:
                return f"slots {slots} of VM {self.vm} are both {at}"
            case 3:
                return f"VMs {self.vm} and {others} both run {at} and are members of slot {slots}"
            case 4:
                return f"VM {others} runs {at}, where its fellow member {self.vm} has slot {slots}"
        if len(self.others) == 1:
            return f"VMs {self.vm} and {others} share more than one slot: {slots}"
        return f"VMs {others} both run {at} and share slots {slots} with VM {self.vm}"


class Meeting(NamedTuple):
    """One VM and one unit of failure in which two or more of these are: the VM itself, its slots, its co-users.

    All five rules hold for a VM that has none, and each broken rule can be read off a meeting.
    """

    vm: str
    host: str
    """The unit's name, which is a host's where that is a unit by itself."""
    own: bool
    """The VM itself runs there."""
    slots: tuple[str, ...]
    """Its slots that are there."""
    shared: tuple[tuple[str, str], ...]
    """(slot of the VM, other member that runs there), in that order."""
    vm_hosts: Mapping[str, str] = {}
    """VM that runs there → its host."""
    slot_hosts: Mapping[str, str] = {}
    """Slot of the VM that is there → its host."""

    def iter_breaches(self) -> Iterator[Breach]:
        """The rules that are broken by this meeting."""
        via: dict[str, list[str]] = {}
        for slot, other in self.shared:
            via.setdefault(other, []).append(slot)
        if self.own and self.slots:
            yield self._to_breach(1, self.slots)
        if len(self.slots) > 1:
            yield self._to_breach(2, self.slots)
        for other, slots in sorted(via.items()):
            if self.own:
                yield self._to_breach(3, slots, other)
            elif self.slots:
                yield self._to_breach(4, self.slots, other)
            if len(slots) > 1:
                yield self._to_breach(5, slots, other)
        if len(via) > 1:
            yield self._to_breach(5, sorted({slot for slot, _ in self.shared}), *sorted(via))

    def _to_breach(self, rule: int, slots: Sequence[str], *others: str) -> Breach:
        involved = {self.vm_hosts[vm] for vm in (self.vm, *others) if vm in self.vm_hosts}
        involved.update(self.slot_hosts[slot] for slot in slots if slot in self.slot_hosts)
        hosts = () if involved <= {self.host} else tuple(sorted(involved))
        return Breach(rule=rule, vm=self.vm, host=self.host, hosts=hosts, slots=tuple(slots), others=others)


NEW_SLOT = "NEW"
"""What a slot is called that is not there; names of resources have no capital letters."""


class ConflictIndex(MembershipIndex):
    """What the rules say of slots and VMs. Unknown names raise ``KeyError``."""

    # Questions by name

    def may_join(self, vm: str, slot: str) -> bool:
        """Whether the rules let the VM join the slot. Size, readiness and separation are not looked at."""
        return bool(self.admissible_slots(self._vm_number[vm]) & self._bit[self._slot_number[slot]])

    def may_open(self, vm: str, host: str) -> bool:
        """Whether the rules let the VM have a new slot on the host."""
        return self.holds_for(vm) and not self.count_unit(vm, host)

    def blocked_unit_names(self, vm: str) -> frozenset[str]:
        """Units that already occur for the VM: that of its own host, of its slots' and of its co-users'."""
        return frozenset(self.unit_names[unit] for unit in self.blocked_units(self._vm_number[vm]))

    def count_unit(self, vm: str, host: str) -> int:
        """How often the host's unit occurs for the VM; all rules hold for it while no unit occurs twice."""
        number = self._host_number.get(host)
        unit = self._unit_number.get(self._units.get(host, host), -1) if number is None else self._unit_of[number]
        return self._count_unit(self._vm_number[vm], unit)

    def crowded_unit_names(self, vm: str) -> list[str]:
        """Units that occur more than once for the VM, by name."""
        return sorted(self.unit_names[unit] for unit in self._crowded_units(self._vm_number[vm]))

    def holds_for(self, vm: str) -> bool:
        """Whether all five rules hold for the VM."""
        return self._vm_number[vm] not in self._faulty

    def list_faulty(self) -> list[str]:
        """The VMs for which a rule does not hold, by id."""
        return sorted(self.vm_names[vm] for vm in self._faulty)

    def find_meetings(self) -> list[Meeting]:
        """Every unit that occurs more than once for a VM, with what brings it there, by VM and unit."""
        return [
            self._meet_in(vm, unit)
            for vm in sorted(self._faulty, key=self.vm_names.__getitem__)
            for unit in sorted(self._crowded_units(vm), key=self.unit_names.__getitem__)
        ]

    def find_breaches(self, vm: str | None = None) -> list[Breach]:
        """Every rule that does not hold for this VM; without ``vm`` for anybody.

        What two VMs see alike is in the answer for all VMs once, for the first by id.
        """
        if vm is not None:
            number = self._vm_number[vm]
            if number not in self._faulty:
                return []
            units = sorted(self._crowded_units(number), key=self.unit_names.__getitem__)
            return [breach for unit in units for breach in self._meet_in(number, unit).iter_breaches()]
        found: dict[tuple[int, frozenset[str], tuple[str, ...]], Breach] = {}
        for meeting in self.find_meetings():
            for breach in meeting.iter_breaches():
                found.setdefault((breach.rule, frozenset((breach.vm, *breach.others)), breach.slots), breach)
        return list(found.values())

    def find_objections(self, vm: str, slot: str) -> list[Breach]:
        """The rules that would be broken if the VM joined a slot that it is not in, the lowest first.

        For itself, then for members; one who only sees that the VM and others of the slot meet says nothing new.
        """
        number, place = self._vm_number[vm], self._slot_number[slot]
        brings, own, joined = self._units_of[place], self._vm_unit[number], [*self._slots_of[number], place]
        members, near = sorted(self._members[place], key=self.vm_names.__getitem__), self.members_in(place, own)
        involved = {self.vm_names[member] for member in members}
        units = {*self.blocked_units(number), *brings}
        crowded = [unit for unit in units if self._count_unit(number, unit) + brings.get(unit, 0) > 1]
        found = [
            one
            for unit in sorted(crowded, key=self.unit_names.__getitem__)
            for one in self._meet_in(
                number, unit, slots=joined, others={place: near} if unit == own else None
            ).iter_breaches()
            if slot in one.slots or not involved.isdisjoint(one.others)
        ]
        for member in members:
            # All that is new to a member is the VM's own unit.
            if self._count_unit(member, own) > len(near):
                found += self._meet_in(member, own, others={place: [*near, number]}).iter_breaches()
        return sorted(found, key=lambda breach: breach.rule)

    def objections_to_opening(self, vm: str, host: str) -> list[Breach]:
        """The same of a slot that is opened on the host for the VM, which is called ``NEW_SLOT``."""
        meeting = self._meet_in(self._vm_number[vm], self._unit_of[self.host_number(host)])
        slots, hosts = (NEW_SLOT, *meeting.slots), {**meeting.slot_hosts, NEW_SLOT: host}
        found = meeting._replace(slots=tuple(sorted(slots)), slot_hosts=hosts).iter_breaches()
        return sorted((one for one in found if NEW_SLOT in one.slots), key=lambda breach: breach.rule)

    def count_missing(self, vm: str) -> int:
        """How many slots the VM misses, 0 when none."""
        number = self._vm_number[vm]
        return max(0, self._vm_state[number].required - self._counting[number])

    def missing_slots(self) -> dict[str, int]:
        """VM → how many slots it misses, by id; those that miss none are left out."""
        return {
            self.vm_names[vm]: self._vm_state[vm].required - self._counting[vm]
            for vm in sorted(self._missing, key=self.vm_names.__getitem__)
        }

    def slots_of(self, vm: str) -> list[str]:
        """The slots that the VM is a member of, in name order."""
        return sorted(self.slot_names[slot] for slot in self._slots_of[self._vm_number[vm]])

    def members_of(self, slot: str) -> list[str]:
        """The members of the slot, by id."""
        return sorted(self.vm_names[vm] for vm in self._members[self._slot_number[slot]])

    def host_of_slot(self, slot: str) -> str:
        """Where the slot is."""
        return self.host_names[self._slot_host[self._slot_number[slot]]]

    # Questions by number

    def admissible_slots(self, vm: int) -> int:
        """The slots that the VM may join by the rules, as a bit set.

        Refused are slots that touch a unit which occurs for the VM; that share a member with a slot which touches the
        VM's own unit (for that member the VM's unit occurs already); and that have a member for which a rule is broken.
        """
        return 0 if vm in self._faulty else self.alive & ~self.refused_slots(vm)

    def refused_slots(self, vm: int) -> int:
        """The slots that the VM may not join by the rules; for a VM with a broken rule: that would break one more."""
        own, near = self._vm_unit[vm], self._near
        refused = self._touching[own] | self.slots_at_fault()
        for slot in self._slots_at[own]:
            refused |= near[slot]
        for slot in self._slots_of[vm]:
            refused |= self._meeting_slots(slot)
        return refused

    def find_fullest(self, slots: int) -> int | None:
        """The slot with the most members in a bit set; among equals the first by rank."""
        found = self._by_members.find_highest(slots)
        if not found:
            return None
        if self._ranked:
            return (found & -found).bit_length() - 1
        return min(iter_bits(found), key=self._slot_rank.__getitem__)

    def select_as_full(self, slot: int, slots: int) -> int:
        """Of a bit set of slots those with as many members as this one, which none of them exceeds."""
        found = self._by_members.find_highest(slots)
        return found if found & self.slot_bit(slot) else 0

    def host_limit(self, vm: int) -> frozenset[int]:
        """The numbers of the only hosts that the VM may run on; empty: any."""
        return self._vm_state[vm].limit

    def slot_numbers(self, vm: int) -> list[int]:
        """The slots that the VM is a member of; not to be changed."""
        return self._slots_of[vm]

    def slot_bit(self, slot: int) -> int:
        """The bit of a slot."""
        return self._bit[slot]

    def slot_members(self, slot: int) -> int:
        """How many members the slot has."""
        return len(self._members[slot])

    def members_in(self, slot: int, unit: int) -> list[int]:
        """The members of the slot that run in the unit."""
        if unit not in self._units_of[slot]:
            return []
        return [vm for vm in self._members[slot] if self._vm_unit[vm] == unit]

    def _meet_in(
        self, vm: int, unit: int, *, slots: Sequence[int] | None = None, others: Mapping[int, list[int]] | None = None
    ) -> Meeting:
        """As if the VM had these slots, and as if of some slots these members ran in the unit."""
        name, names, known = self.vm_names[vm], self.slot_names, others or {}
        slots = self._slots_of[vm] if slots is None else slots
        here = [slot for slot in slots if self._unit_of[self._slot_host[slot]] == unit]
        there = {slot: known.get(slot) or self.members_in(slot, unit) for slot in slots}
        shared = [(slot, other) for slot, running in there.items() for other in running if other != vm]
        vms = [other for _, other in shared]
        own = self._vm_unit[vm] == unit
        if own:
            vms.append(vm)
        return Meeting(
            vm=name,
            host=self.unit_names[unit],
            own=own,
            slots=tuple(sorted(names[slot] for slot in here)),
            shared=tuple(sorted((names[slot], self.vm_names[other]) for slot, other in shared)),
            vm_hosts={self.vm_names[one]: self.host_names[self._vm_state[one].host] for one in vms},
            slot_hosts={names[slot]: self.host_names[self._slot_host[slot]] for slot in here},
        )

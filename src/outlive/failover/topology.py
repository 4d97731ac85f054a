"""Units of failure: what fails together, which slots touch which units, and which slots share members.

The ground of the conflict index. A slot touches the unit of the host that it is on and the units of the hosts that its
members run on (docs/reference/failover-rules.md#units-of-failure). Hosts and units have numbers of their own; as long
as every host is a unit by itself they are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce
from operator import or_
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from outlive.failover.model import HostView

# What fails together and what has to stay apart: units of failure, failure domains, server groups.
#
# The rules count *units* (docs/reference/failover-rules.md#units-of-failure). A unit is a host unless the settings
# name a failure domain: then all hosts of one rack are one unit, and a cluster that satisfies the rules survives the
# failure of any k racks. Apart from that, slots may be asked to avoid the domain of their VM and of each other, and
# the policies of server groups bind slots as they bind VMs (docs/reference/failover-rules.md#separation). Plain data
# and pure functions.

HOST_UNIT = "host"
"""The unit of failure unless a domain is named."""


class Topology(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a decision has to know of failure domains and groups."""

    units: dict[str, str] = {}
    """Host → its unit of failure; a host that is missing here is a unit of its own, so empty means: hosts."""
    apart: dict[str, dict[str, str]] = {}
    """Domain name → host → its value, for domains in which no two of a VM's own host and its slots may be. A host
    without a value is in nobody's domain."""
    server_groups: bool = True
    """Whether the policies of server groups bind slots."""

    def unit_of_host(self, host: str) -> str:
        """The unit of failure of a host."""
        return self.units.get(host, host)


HOSTS_ALONE = Topology()
"""Every host is a unit, no domain is kept apart."""


class TopologyChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What the settings ask for: ``failureUnit``, ``keepApart`` and ``serverGroups``."""

    unit: str = HOST_UNIT
    apart: tuple[str, ...] = ()
    server_groups: bool = True

    @property
    def domains(self) -> bool:
        """Whether the failure domains of hosts matter."""
        return self.unit != HOST_UNIT or bool(self.apart)

    def topology_of(self, hosts: Iterable[HostView]) -> Topology:
        """The topology of these hosts: all hosts with the same value of the domain ``unit`` are one unit."""
        return self.topology_of_domains({host.name: host.domains for host in hosts} if self.domains else {})

    def topology_of_domains(self, hosts: Mapping[str, Mapping[str, str]]) -> Topology:
        """The same of hosts with these failure domains (host → domain → value)."""
        units = {host: name for host, domains in hosts.items() if (name := unit_of(domains, self.unit)) is not None}
        apart = {
            one: {host: domains[one] for host, domains in hosts.items() if one in domains}
            for one in sorted(set(self.apart))
        }
        return Topology(units=units, apart=apart, server_groups=self.server_groups)


def unit_of(domains: Mapping[str, str], domain: str) -> str | None:
    """The unit of a host with these failure domains, or ``None`` where it is a unit of its own.

    The unit's name, ``rack=r3``, cannot be a host's.
    """
    return f"{domain}={domains[domain]}" if domain != HOST_UNIT and domain in domains else None


# Sets of slots as whole numbers used as bit sets, and the fullest slot of a set.


def iter_bits(number: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    text = bin(number)[:1:-1]
    position = text.find("1")
    while position >= 0:
        yield position
        position = text.find("1", position + 1)


def unite(sets: Iterable[int]) -> int:
    """The slots that are in any of these sets."""
    return reduce(or_, sets, 0)


class ByCount:
    """Slots by their number of members, in a binary tree: a node is the union of the groups under it.

    Changing a count by one touches two nodes on average, and finding the fullest group takes one step a level.
    """

    def __init__(self) -> None:
        self._levels: list[list[int]] = [[0]]
        """Node ``i`` of level ``n`` holds the counts from ``i << n`` up to, not including, ``(i + 1) << n``."""

    def add(self, bit: int, count: int) -> None:
        """Put a slot that is in no group into the group of ``count``."""
        while count >= 1 << (len(self._levels) - 1):
            self._levels.append([self._levels[-1][0]])
        for level, nodes in enumerate(self._levels):
            node = count >> level
            if node >= len(nodes):
                nodes.extend([0] * (node + 1 - len(nodes)))
            nodes[node] |= bit

    def remove(self, bit: int, count: int) -> None:
        """Take a slot out of the group of ``count``."""
        for level, nodes in enumerate(self._levels):
            nodes[count >> level] &= ~bit

    def move(self, bit: int, before: int, after: int) -> None:
        """Put a slot from one group into another."""
        while after >= 1 << (len(self._levels) - 1):
            self._levels.append([self._levels[-1][0]])
        for nodes in self._levels:
            if before == after:
                return
            nodes[before] &= ~bit
            if after >= len(nodes):
                nodes.extend([0] * (after + 1 - len(nodes)))
            nodes[after] |= bit
            before >>= 1
            after >>= 1

    def find_highest(self, wanted: int) -> int:
        """The wanted slots of the fullest group that has any; 0 when no group has."""
        found = wanted & self._levels[-1][0]
        if not found:
            return 0
        node = 0
        for nodes in reversed(self._levels[:-1]):
            node = node * 2 + 1
            upper = found & nodes[node] if node < len(nodes) else 0
            if upper:
                found = upper
            else:
                node -= 1
        return found


Ints = NDArray[np.int64]


class UnitIndex:
    """Counts of (slot, unit), the same seen from units, and pairs of slots."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.host_names: list[str] = []
        self.unit_names: list[str] = []
        self.has_units = bool(topology.units)
        """Whether any host belongs to a unit with another name than its own."""
        self._units = dict(topology.units)
        self._host_number: dict[str, int] = {}
        self._unit_number: dict[str, int] = {}
        self._unit_of: list[int] = []
        """By host: its unit."""
        self._unit_array: Ints | None = None
        self._placed_on: list[int] = []
        """By host: the slots that are on it, as a bit set."""
        self._touching: list[int] = []
        """By unit: the slots that touch it, as a bit set."""
        self._slots_at: list[dict[int, None]] = []
        """The same as numbers."""
        self._units_of: list[dict[int, int]] = []
        """By slot: unit → how often the slot touches it."""
        self._crowded: list[int] = []
        """By slot: how many units it touches more than once."""
        self._near: list[int] = []
        """By slot: itself and the slots that it has a member in common with."""
        self._meeting: list[int | None] = []
        """By slot: the slots that touch a unit which it touches; ``None`` while not known."""
        self._meetings_known = False
        """Whether any of these may be known."""
        self._bit: list[int] = []
        self._shared: dict[tuple[int, int], int] = {}
        """Pairs of slots with more than one member in common, and how many; only where rules are broken."""
        self.alive = 0
        """All slots, as a bit set."""

    def host_number(self, name: str) -> int:
        """The number of a host; a new name gets a new one."""
        number = self._host_number.get(name)
        if number is None:
            number = self._host_number[name] = len(self.host_names)
            self.host_names.append(name)
            self._unit_of.append(self._ensure_unit(self._units.get(name, name)))
            self._placed_on.append(0)
        return number

    def host_numbers(self, names: Sequence[str]) -> list[int]:
        """The numbers of hosts."""
        found = list(map(self._host_number.get, names))
        if None in found:
            return [self.host_number(name) for name in names]
        return cast("list[int]", found)

    def unit_of(self, host: int) -> int:
        """The number of a host's unit of failure."""
        return self._unit_of[host]

    def units_at(self, hosts: Ints) -> Ints:
        """The numbers of these hosts' units."""
        if not self.has_units:
            return hosts
        if self._unit_array is None or len(self._unit_array) != len(self._unit_of):
            self._unit_array = np.array(self._unit_of, dtype=np.int64)
        units: Ints = self._unit_array[hosts]
        return units

    def placed_on(self, hosts: Iterable[int]) -> int:
        """The slots that are on one of a few hosts, as a bit set."""
        return unite(self._placed_on[host] for host in hosts)

    def slots_on(self, hosts: AbstractSet[int]) -> int:
        """The slots that are on these hosts, few or many, as a bit set."""
        others = set(range(len(self.host_names))).difference(hosts)
        if len(hosts) <= len(others):
            return self.placed_on(hosts)
        return self.alive & ~self.placed_on(others)

    def _ensure_unit(self, name: str) -> int:
        number = self._unit_number.get(name)
        if number is None:
            number = self._unit_number[name] = len(self.unit_names)
            self.unit_names.append(name)
            self._touching.append(0)
            self._slots_at.append({})
        return number

    def _count(self, slot: int, unit: int) -> None:
        units = self._units_of[slot]
        count = units.get(unit, 0)
        units[unit] = count + 1
        if count == 0:
            meeting, bit = self._meeting, self._bit[slot]
            known = meeting[slot]
            if known is not None:
                meeting[slot] = known | self._touching[unit]
            for other in self._slots_at[unit]:
                known = meeting[other]
                if known is not None:
                    meeting[other] = known | bit
            self._touching[unit] |= bit
            self._slots_at[unit][slot] = None
        elif count == 1:
            self._crowded[slot] += 1

    def _uncount(self, slot: int, unit: int) -> None:
        units = self._units_of[slot]
        count = units[unit]
        if count == 1:
            del units[unit]
            self._touching[unit] &= ~self._bit[slot]
            del self._slots_at[unit][slot]
            self._meeting[slot] = None
            for other in self._slots_at[unit]:
                self._meeting[other] = None
            return
        units[unit] = count - 1
        if count == 2:
            self._crowded[slot] -= 1

    def _meeting_slots(self, slot: int) -> int:
        """The slots that touch a unit which this one touches. Known until one of them lets go of a unit."""
        known = self._meeting[slot]
        if known is None:
            known = self._meeting[slot] = self._bit[slot] | unite(map(self._touching.__getitem__, self._units_of[slot]))
            self._meetings_known = True
        return known

    def _link(self, slot: int, other: int) -> None:
        """The two slots have one more member in common."""
        if self._near[slot] & self._bit[other]:
            pair = (slot, other) if slot < other else (other, slot)
            self._shared[pair] = self._shared.get(pair, 1) + 1
        else:
            self._near[slot] |= self._bit[other]
            self._near[other] |= self._bit[slot]

    def _unlink(self, slot: int, other: int) -> None:
        pair = (slot, other) if slot < other else (other, slot)
        shared = self._shared.pop(pair, 1)
        if shared > 2:
            self._shared[pair] = shared - 1
        elif shared == 1:
            self._near[slot] &= ~self._bit[other]
            self._near[other] &= ~self._bit[slot]


class FaultIndex(UnitIndex):
    """Members of slots, and how many units occur more than once for each of them."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(topology)
        self._vm_unit: list[int] = []
        """By VM: the unit that it runs in."""
        self._slots_of: list[list[int]] = []
        """By VM: the slots that it is a member of."""
        self._members: list[dict[int, None]] = []
        """By slot: the VMs that are members of it."""
        self._faulty: dict[int, int] = {}
        """VMs for which a unit occurs more than once, and how many do."""
        self._faulty_slots: int | None = 0
        """The slots of these, as a bit set; ``None`` while not known."""

    def blocked_units(self, vm: int) -> set[int]:
        """Numbers of the units that occur for the VM; while no unit has several hosts, the numbers of these hosts."""
        return {self._vm_unit[vm]}.union(*[self._units_of[slot] for slot in self._slots_of[vm]])

    def _count_unit(self, vm: int, unit: int) -> int:
        """How often the unit occurs for the VM: the sum over its slots, less what it brings itself to all but one."""
        total = 1 - len(self._slots_of[vm]) if self._vm_unit[vm] == unit else 0
        for slot in self._slots_of[vm]:
            total += self._units_of[slot].get(unit, 0)
        return total

    def _note_more(self, slot: int, unit: int, but: int) -> None:
        """The slot touches the unit once more, because of this VM: so it occurs once more for its other members."""
        members = self._members[slot]
        if self._units_of[slot][unit] > 1:
            concerned = members.keys() - {but}
        else:  # as a rule: then it occurred before only for those in another slot that touches it
            others = self._near[slot] & self._touching[unit] & ~self._bit[slot]
            concerned = {
                vm for other in iter_bits(others) for vm in members.keys() & self._members[other].keys() if vm != but
            }
        for vm in concerned:
            if self._count_unit(vm, unit) == 2:
                self._faulty[vm] = self._faulty.get(vm, 0) + 1
                self._faulty_slots = None

    def _note_less(self, vms: Iterable[int], unit: int) -> None:
        """The unit occurs once less for each of these VMs."""
        for vm in vms:
            if vm in self._faulty and self._count_unit(vm, unit) == 1:
                self._faulty[vm] -= 1
                self._faulty_slots = None
                if not self._faulty[vm]:
                    del self._faulty[vm]

    def _judge(self, vm: int) -> None:
        """Find out how many units occur more than once for the VM, in whatever way that came about."""
        excess = self._count_excess(vm)
        if excess or vm in self._faulty:
            self._faulty_slots = None
        if excess:
            self._faulty[vm] = excess
        else:
            self._faulty.pop(vm, None)

    def _count_excess(self, vm: int) -> int:
        """As a rule none: no slot touches a unit twice, and all that two slots of the VM have in common is its own."""
        slots, units_of = self._slots_of[vm], self._units_of
        for place, slot in enumerate(slots):
            if self._crowded[slot]:
                return len(self._crowded_units(vm))
            units = units_of[slot].keys()
            for other in slots[:place]:
                if len(units & units_of[other].keys()) > 1:
                    return len(self._crowded_units(vm))
        return 0

    def _crowded_units(self, vm: int) -> list[int]:
        return [unit for unit in self.blocked_units(vm) if self._count_unit(vm, unit) > 1]

    def slots_at_fault(self) -> int:
        """The slots that have a member for which a rule does not hold, as a bit set."""
        if self._faulty_slots is None:
            self._faulty_slots = unite(self._bit[slot] for vm in self._faulty for slot in self._slots_of[vm])
        return self._faulty_slots

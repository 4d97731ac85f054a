"""Who is where and shares what, indexed once, so that "which rule stands in the way" is answered for one VM at a time.

Locations are those that VMs have now, recorded ones where a VM is not listed. The verdicts are those of the rules
(docs/reference/failover.md#the-five-rules) on units of failure; tests hold them against a literal count. Other than the
counters of planners this index knows names and causes, and never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from outlive.failover.analysis.explain.findings import Clash, Finding, Why
from outlive.failover.breaches import Breach
from outlive.failover.conflicts import ConflictIndex
from outlive.failover.model import SlotView, VmView
from outlive.failover.separation import AFFINITY, ServerGroup, barred, groups_of
from outlive.failover.topology import Topology

OBSTACLES = (
    Finding(Why.MEMBERS_CLASH),
    Finding(Why.RULE, Clash.OWN_HOST),
    Finding(Why.RULE, Clash.SLOT_THERE),
    Finding(Why.RULE, Clash.SAME_HOST),
    Finding(Why.RULE, Clash.CO_USER_THERE),
    Finding(Why.RULE, Clash.SHARED_TWICE),
)
"""What may stand against joining a slot, by rule: at place 1 rule 1, and so on."""
_THIRD = 3
_GROUPS_ONLY = Topology()
"""Nothing is kept apart but what server groups ask for."""


class Ground:
    """Memberships by VM, by slot and by unit of failure."""

    def __init__(
        self,
        slots: Sequence[SlotView],
        vms: Iterable[VmView],
        hosts: Iterable[str],
        topology: Topology,
        required: Mapping[str, int],
    ) -> None:
        """``required``: VM → slots that it needs."""
        self.host_names = tuple(sorted(hosts))
        self._hosts_in: dict[str, list[str]] = {}
        for name in self.host_names if topology.units else ():
            self._hosts_in.setdefault(topology.unit(name), []).append(name)
        known = frozenset(self.host_names)
        self._is_host = known.__contains__
        self.slots = {slot.name: slot for slot in sorted(slots, key=lambda slot: slot.name)}
        self.topology = topology
        self.views = {vm.id: vm for vm in vms}
        self.slots_of: dict[str, list[str]] = {}
        self.location: dict[str, str] = {}
        self._on: dict[str, list[str]] = {}
        """Unit → slots that are on it."""
        self._running: dict[str, list[str]] = {}
        """Unit → members that run on it."""
        self.members = {name: frozenset(slot.members) for name, slot in self.slots.items()}
        self.table = SlotTable(self.slots)
        views, slots_of, location = self.views, self.slots_of, self.location
        for name, slot in self.slots.items():
            self._on.setdefault(topology.unit(slot.host), []).append(name)
            for vm, recorded in slot.members.items():
                slots_of.setdefault(vm, []).append(name)
                location[vm] = recorded
        for vm in slots_of:
            view = views.get(vm)
            if view is not None:
                location[vm] = view.host
            self._running.setdefault(topology.unit(location[vm]), []).append(vm)
        where = {vm: view.host for vm, view in views.items()}
        self.breaches: dict[str, Breach] = {}
        """VMs for which a rule is broken, and the first such rule."""
        for meeting in ConflictIndex.build(self.slots.values(), topology=topology, locations=where).meetings():
            self.breaches.setdefault(meeting.vm, next(meeting.breaches()))
        self.broken_slots = self.table.with_members(self.breaches)
        """Slots with a member for which a rule is broken."""
        self.groups = groups_of(views.values(), required) if topology.server_groups else ()
        self._group_of = {member: group for group in self.groups for member in group.members}

    def unit(self, host: str) -> str:
        """The unit of failure of a host."""
        return self.topology.unit(host)

    def hosts_in(self, unit: str) -> Sequence[str]:
        """The hosts of a unit, by name."""
        if self.topology.units:
            return self._hosts_in.get(unit, ())
        return (unit,) if self._is_host(unit) else ()

    def at(self, vm: VmView) -> Standpoint:
        """The rules as they bind this VM."""
        return Standpoint(self, vm, self._group_of.get(vm.id))

    def running(self, unit: str) -> Sequence[str]:
        """Members of any slot that run in the unit."""
        return self._running.get(unit, ())

    def touching(self, unit: str) -> Iterator[tuple[str, str]]:
        """(slot, member that runs in the unit, or the empty text where the slot itself is there)."""
        for slot in self._on.get(unit, ()):
            yield slot, ""
        for vm in self._running.get(unit, ()):
            for slot in self.slots_of[vm]:
                yield slot, vm


class Standpoint:
    """What the rules say against slots and hosts, for one VM.

    Members that keep the VM out of their slots are kept as sets, by what they would break; which of them it is and why
    is worked out for those that are told.
    """

    def __init__(self, ground: Ground, vm: VmView, group: ServerGroup | None) -> None:
        self._ground = ground
        self._units = ground.topology.units
        self.vm = vm
        self.mine = tuple(ground.slots_of.get(vm.id, ()))
        self._groups = (group,) if group is not None else ()
        members = group.members if group is not None else ()
        names = sorted({slot for member in members for slot in ground.slots_of.get(member, ())})
        of_group = [ground.slots[name] for name in names]
        if group is not None and group.policy == AFFINITY:
            of_group = [slot for slot in of_group if slot.ready is not False]
        self._of_group = of_group
        self._own_slots = [ground.slots[name] for name in self.mine]
        self.blocked = self._blocked()
        """Unit → the first rule that a new slot there would break: its own host, its slots, its co-users."""
        self._rule_at = {unit: cause.clash.rule for unit, cause in self.blocked.items() if cause.clash is not None}
        self._broken = frozenset(ground.breaches)
        own = ground.unit(vm.host)
        self._touching = [(slot, runs) for slot, runs in ground.touching(own) if runs != vm.id]
        self._running = {unit: set(ground.running(unit)) - {vm.id} for unit in self.blocked}
        at_slots = [unit for unit, cause in self.blocked.items() if cause.clash is Clash.SLOT_THERE]
        there = [self._running[unit] for unit in at_slots]
        placed = [slot for slot, runs in self._touching if not runs]
        self._third = self._running[own]
        """Members that run where the VM runs."""
        self._fourth = set[str]().union(*there, *(ground.members[slot] for slot in placed)) - {vm.id}
        """Members that run where the VM has a slot, or have one where it runs."""
        self._near = [slot for slot, _ in self._touching]
        self._there, self._placed = there, placed

    @cached_property
    def obstacles_of_all(self) -> Ints:
        """For each slot what stands against joining it, as a place in ``OBSTACLES``; -1: nothing.

        Nobody may join a slot with a member for which a rule is broken already; else the lowest rule is told.
        """
        ground, table, me = self._ground, self._ground.table, self.vm.id
        units, rule_at = self._units, self._rule_at
        found = table.on_hosts(rule_at.get(units.get(host, host), -1) for host in table.hosts)
        late = (found < 0) | (found > _THIRD)
        everybody = chain(*self._running.values(), ground.breaches)
        found = np.where((found < 0) & table.with_members(everybody, self._near, but=me), _THIRD + 2, found)
        found = np.where(late & table.with_members(chain(*self._there), self._placed, but=me), _THIRD + 1, found)
        found = np.where(late & table.with_members(self._third), _THIRD, found)
        return np.where(ground.broken_slots, 0, found)

    @cached_property
    def _any(self) -> set[str]:
        """Members that keep the VM out, for whatever reason."""
        ground = self._ground
        near = (ground.members[slot] for slot, _ in self._touching)
        return set[str]().union(*self._running.values(), *near, ground.breaches) - {self.vm.id}

    def against_host(self, host: str) -> Finding | None:
        """What stands against a new slot on the host."""
        return self.blocked.get(self._units.get(host, host))

    @property
    def separates(self) -> bool:
        """Whether anything is asked for beyond the rules."""
        return bool(self._ground.topology.apart) or bool(self._groups)

    def separation(self, host: str) -> Finding | None:
        """What failure domains or the VM's server group have against a slot on the host."""
        topology, text = self._ground.topology, ""
        if topology.apart:
            text = barred(self.vm, host, self._own_slots, topology)
        if self._groups and not text:
            text = barred(self.vm, host, self._of_group, _GROUPS_ONLY, self._groups)
        return Finding(Why.APART, text=text) if text else None

    def against_slot(self, slot: SlotView) -> Finding | None:
        """The same in full: of several members the first by id is named."""
        obstacle = int(self.obstacles_of_all[self._ground.table.number[slot.name]])
        if obstacle < 0:
            return None
        here = self.blocked.get(self._units.get(slot.host, slot.host))
        if here is not None and here.clash is not None and here.clash.rule == obstacle:
            return here
        sets = (self._broken, self._third, self._fourth, self._any)
        return self._against_member(min(sets[max(0, obstacle - _THIRD + 1)] & self._ground.members[slot.name]))

    def obstacles(self, slot: SlotView) -> list[Finding]:
        """Everything that stands against joining a slot, at most one thing a member."""
        here = self.blocked.get(self._units.get(slot.host, slot.host))
        found = [] if here is None else [here]
        return found + [self._against_member(member) for member in sorted(self._any & self._ground.members[slot.name])]

    def _blocked(self) -> dict[str, Finding]:
        ground, vm = self._ground, self.vm
        found = {ground.unit(vm.host): Finding(Why.RULE, Clash.OWN_HOST, host=vm.host)}
        for slot in self.mine:
            host = ground.slots[slot].host
            found.setdefault(ground.unit(host), Finding(Why.RULE, Clash.SLOT_THERE, host=host, slot=slot))
        for slot in self.mine:
            for other in sorted(ground.slots[slot].members):
                host = ground.location[other]
                if other != vm.id:
                    cause = Finding(Why.RULE, Clash.CO_USER_THERE, vm=other, host=host, slot=slot)
                    found.setdefault(ground.unit(host), cause)
        return found

    def _against_member(self, member: str) -> Finding:
        """That a rule is broken for the member, else the lowest that would be broken because of it."""
        ground = self._ground
        breach = ground.breaches.get(member)
        if breach is not None:
            return Finding(Why.MEMBERS_CLASH, vm=member, text=breach.sentence())
        host = ground.location[member]
        if member in self._third:
            return Finding(Why.RULE, Clash.SAME_HOST, vm=member, host=host)
        here = self.blocked.get(ground.unit(host))
        if here is not None and here.clash is Clash.SLOT_THERE:
            return Finding(Why.RULE, Clash.MEMBER_AT_SLOT, vm=member, host=here.host, slot=here.slot)
        near = [(slot, runs) for slot, runs in self._touching if member in ground.members[slot]]
        at = next((slot for slot, runs in near if not runs), None)
        if at is not None:
            return Finding(Why.RULE, Clash.AT_MEMBERS_SLOT, vm=member, host=ground.slots[at].host, slot=at)
        shared = next((slot for slot in self.mine if member in ground.members[slot]), None)
        if shared is not None:
            return Finding(Why.RULE, Clash.SHARED_TWICE, vm=member, host=host, slot=shared)
        if here is not None:
            return Finding(Why.RULE, Clash.CO_USERS_MEET, vm=member, second=here.vm, host=here.host, slot=here.slot)
        slot, runs = near[0]
        return Finding(Why.RULE, Clash.MEETS_CO_USER, vm=member, second=runs, host=ground.location[runs], slot=slot)


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

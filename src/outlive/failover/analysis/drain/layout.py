"""The fleet as steps leave it: who is where, what is free, and what may be done next; every step can be taken back.

Verdicts are those of the rules in every state (``conflicts``); separation is asked literally, because few
VMs are concerned. Nothing here decides what is worth doing: that is ``ordering``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from outlive.failover.analysis.drain.steps import Close, DrainInput, Leave, Move, Step
from outlive.failover.analysis.tolerance import ToleranceInput, tolerance
from outlive.failover.conflicts import ConflictIndex
from outlive.failover.model import SlotView, VmView, amounts_of
from outlive.failover.planner.actions import Join, Offer, Open
from outlive.failover.rules import serves
from outlive.failover.separation import ANTI_AFFINITY, ServerGroup, barred, groups_of
from outlive.failover.sizing import ResolvedSize, enough_for, resolve_size, resource_group

NEW_SLOT = "new-{}"
"""What new slots are called until they are created."""
NOWHERE = Offer()


class Layout:
    """ConflictIndex, capacity, and the steps that led here."""

    def __init__(self, given: DrainInput) -> None:
        self.topology = given.topology
        self.drained = frozenset(given.drained)
        self.vms: dict[str, VmView] = {vm.id: vm for vm in given.vms}
        self.required = given.required
        self.room = Room(given.free)
        self.steps: list[Step] = []
        self.slots: dict[str, SlotView] = {slot.name: slot for slot in given.slots}
        """As they were given or opened; who is in them now is known to ``counters``."""
        ordered = sorted(given.slots, key=lambda slot: slot.name)
        self.counters = ConflictIndex.build(ordered, given.vms, given.required, self.topology)
        self._given = given
        self._stale = {
            (member, slot.name): recorded
            for slot in given.slots
            for member, recorded in slot.members.items()
            if member not in self.vms or self.vms[member].host != recorded
        }
        """Memberships that name another place than the VM's: they count for nobody."""
        groups = groups_of(given.vms, given.required) if self.topology.server_groups else ()
        self._group_of: dict[str, ServerGroup] = {member: group for group in groups for member in group.members}
        self._left: list[tuple[str, str | None]] = []
        """For every ``Leave``: where the VM ran, and what a stale membership had recorded."""
        self._serial = 0
        self._usable_hosts: dict[tuple[str, str], frozenset[str]] = {}

    @staticmethod
    def units_of(given: DrainInput) -> dict[str, str]:
        """Host → unit of failure, as far as it is in force."""
        return given.topology.units

    # What is so.

    def host(self, vm: str) -> str:
        """Where the VM runs."""
        return self.counters.location(vm)

    def counts(self, vm: str, slot: str) -> bool:
        """Whether the slot counts for the VM that it lists."""
        return (vm, slot) not in self._stale and serves(self.vms[vm], self.slots[slot])

    def is_stale(self, vm: str, slot: str) -> bool:
        """Whether the slot believes the VM elsewhere, or nobody knows the VM."""
        return (vm, slot) in self._stale

    def level(self, vm: str) -> int:
        """Failures that the VM tolerates; 0 for one that nobody knows."""
        if vm not in self.vms:
            return 0
        mine = self.counters.slots_of(vm)
        if self.counters.holds_for(vm):
            return sum(self.counts(vm, slot) for slot in mine)
        view = msgspec.structs.replace(self.vms[vm], host=self.host(vm))
        named = tuple(self.view(slot) for slot in mine)
        given = ToleranceInput(vms=(view,), required={vm: 1}, slots=named, units=self.topology.units)
        return tolerance(given).vms[vm]

    def view(self, slot: str) -> SlotView:
        """The slot with its members as they are now."""
        members = {member: self._stale.get((member, slot), self.host(member)) for member in self.counters.members(slot)}
        return msgspec.structs.replace(self.slots[slot], members=members)

    def size(self, vm: str) -> ResolvedSize:
        """How large a new slot of the VM is."""
        view = self.vms[vm]
        return enough_for(view, self._given.sizes.get(vm) or resolve_size(view))

    def destinations(self, vm: str) -> list[str]:
        """Hosts that may run a VM of a drained host, best first; peers of its server group are respected."""
        group = self._group_of.get(vm)
        found = [host for host in self._given.destinations.get(vm, ()) if host not in self.drained]
        if group is None:
            return found
        peers = {self.host(peer) for peer in group.members if peer != vm}
        if group.policy == ANTI_AFFINITY:
            theirs = {self.slots[s].host for p in group.members if p != vm for s in self.counters.slots_of(p)}
            return [host for host in found if host not in peers and host not in theirs]
        together = peers - self.drained
        return [host for host in found if host in together] if together else found

    def clashing(self, vm: str, hosts: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        """Each of the hosts with those of the VM's slots that it could not be in if it ran there."""
        mine = {slot: self._units_taken(vm, slot) for slot in self.counters.slots_of(vm)}
        own = self.topology.unit(self.host(vm))
        for host in hosts:
            unit = self.topology.unit(host)
            yield (
                host,
                [
                    slot
                    for slot, taken in mine.items()
                    if (unit != own and unit in taken) or self._one_domain(self.slots[slot].host, host)
                ],
            )

    def clashes(self, vm: str, slot: str, host: str) -> bool:
        """Whether the VM could not be in this slot, one of its own or another, if it ran on that host."""
        unit = self.topology.unit(host)
        if self._one_domain(self.slots[slot].host, host):
            return True
        return unit != self.topology.unit(self.host(vm)) and unit in self._units_taken(vm, slot)

    def _units_taken(self, vm: str, slot: str) -> set[str]:
        """Units where a VM in this slot may not run, its own aside: the slot's, and all that occur for co-users."""
        others = [other for other in self.counters.members(slot) if other != vm]
        return {self.topology.unit(self.slots[slot].host)}.union(*map(self.counters.blocked, others))

    def near(self, host: str, other: str) -> bool:
        """Whether a VM on one of these hosts could have no slot on the other, whatever else is so."""
        return self.topology.unit(host) == self.topology.unit(other) or self._one_domain(host, other)

    def _one_domain(self, host: str, other: str) -> bool:
        """Whether a VM's host and its slot's may not be these two, because of a domain that is kept apart."""
        return any(
            values.get(host) is not None and values.get(host) == values.get(other)
            for values in self.topology.apart.values()
        )

    # What may be done.

    def joinable(self, vm: str) -> Iterator[str]:
        """Slots that the VM may join and that would count for it, fullest first; none on a drained host."""
        counters, view = self.counters, self.vms[vm]
        bits = counters.admissible(counters.vm(vm)) & counters.fitting((view.cpu_milli, view.memory_bytes))
        bits &= counters.open_slots
        hosts = self.hosts_of("reuse", vm)
        if bits:
            bits &= counters.slots_on({counters.host(host) for host in hosts})
        while bits:
            number = counters.fullest(bits)
            if number is None:
                return
            bits &= ~counters.slot_bit(number)
            name = counters.slot_names[number]
            if not self._barred(vm, self.slots[name].host):
                yield name

    def hosting(self, vm: str) -> list[str]:
        """Slots that are ready, large enough and where placement would have them, whoever is in them; not the VM's."""
        hosts = self.hosts_of("reuse", vm)
        mine = set(self.counters.slots_of(vm))
        return [
            name
            for name in self.counters.fitting_slots(vm)
            if name not in mine and self.slots[name].host in hosts and self.slots[name].ready is not False
        ]

    def openable(self, vm: str) -> Iterator[str]:
        """Hosts that can hold a new slot of the VM now, best first; among equals the one with the most free memory."""
        offer = self._given.new.get(self._given.classes.get(vm, ""), NOWHERE)
        needs = self._slot_needs(vm)
        usable = self.hosts_of("new", vm)
        for hosts in _ties(offer):
            possible = [host for host in hosts if host in usable and self.room.fits(host, needs)]
            for host in sorted(possible, key=lambda name: (-self.room.memory(name), name)):
                if self.counters.count(vm, host) == 0 and not self._barred(vm, host):
                    yield host

    def _slot_needs(self, vm: str) -> dict[str, int]:
        size = self.size(vm)
        return {"cpu": size.cpu_milli, "memory": size.memory_bytes}

    def hosts_of(self, kind: str, vm: str) -> frozenset[str]:
        """Hosts, none of them drained, that placement offers for slots of the VM, to ``reuse`` or for a ``new`` one,
        and where it may run."""
        key = self._given.classes.get(vm, "")
        known = self._usable_hosts.get((kind, key))
        if known is None:
            offers: Mapping[str, Offer] = self._given.reuse if kind == "reuse" else self._given.new
            offer = offers.get(key, NOWHERE)
            known = frozenset() if offer.error else frozenset(offer.hosts) - self.drained
            self._usable_hosts[kind, key] = known
        limit = self.vms[vm].host_limit
        return known.intersection(limit) if limit else known

    def _barred(self, vm: str, host: str) -> bool:
        group = self._group_of.get(vm)
        if group is None and not self.topology.apart:
            return False
        people = group.members if group is not None else (vm,)
        names = {slot for one in people for slot in self.counters.slots_of(one)}
        slots = [self.view(name) for name in sorted(names)]
        groups: tuple[ServerGroup, ...] = ()
        if group is not None:
            now = {member: self.host(member) for member in group.members}
            groups = (msgspec.structs.replace(group, members=now),)
        view = msgspec.structs.replace(self.vms[vm], host=self.host(vm))
        return bool(barred(view, host, slots, self.topology, groups))

    # Doing it, and taking it back.

    def join(self, vm: str, slot: str) -> None:
        """The VM is a member from here on."""
        self.counters.join(vm, slot)
        self.steps.append(Join(slot=slot, vm=vm, vm_host=self.host(vm), host=self.slots[slot].host))

    def leave(self, vm: str, slot: str) -> None:
        """The VM is no member any more."""
        self._left.append((self.host(vm), self._stale.pop((vm, slot), None)))
        self.counters.leave(vm, slot)
        self.steps.append(Leave(slot=slot, vm=vm, host=self.slots[slot].host))

    def open(self, vm: str, host: str, size: ResolvedSize | None = None) -> str:
        """A new slot on the host, with the VM in it; its key. As large as such a slot is, unless ``size`` is given."""
        size = size or self.size(vm)
        view = self.vms[vm]
        key = self._new_key()
        slot = SlotView(
            name=key,
            host=host,
            target_host=host,
            zone=view.zone,
            group=resource_group(view, size),
            cpu_milli=size.cpu_milli,
            memory_bytes=size.memory_bytes,
            ready=True,
        )
        self.slots[key] = slot
        self.counters.add_slot(slot)
        self.counters.join(vm, key)
        self.room.take(host, held_by(slot))
        self.steps.append(
            Open(
                slot_key=key,
                vm=vm,
                vm_host=self.host(vm),
                host=host,
                cpu_milli=slot.cpu_milli,
                memory_bytes=slot.memory_bytes,
                group=slot.group,
                zone=slot.zone,
            )
        )
        return key

    def close(self, slot: str) -> None:
        """Give an empty slot up."""
        view = self.slots[slot]
        self.counters.remove_slot(slot)
        for host in holders(view):
            self.room.give(host, held_by(view))
        self.steps.append(Close(slot=slot, host=view.host))

    def move(self, vm: str, host: str) -> None:
        """The VM runs on the host from here on; its memberships say so."""
        source, needs = self.host(vm), needs_of(self.vms[vm])
        self.room.take(host, needs)
        self.counters.move_vm(vm, host)
        self.room.give(source, needs)
        self.steps.append(Move(vm=vm, source=source, host=host))

    def take_back(self, mark: int) -> None:
        """Undo every step from this number on."""
        while len(self.steps) > mark:
            self._undo(self.steps.pop())

    def _undo(self, step: Step) -> None:
        match step:
            case Join():
                self.counters.leave(step.vm, step.slot)
            case Open():
                self.counters.remove_slot(step.slot_key)
                self.room.give(step.host, held_by(self.slots.pop(step.slot_key)))
                self._serial -= 1
            case Leave():
                ran, recorded = self._left.pop()
                self.counters.learn_vm(step.vm, ran)
                self.counters.join(step.vm, step.slot)
                if recorded is not None:
                    self._stale[step.vm, step.slot] = recorded
            case Close():
                view = self.slots[step.slot]
                self.counters.add_slot(msgspec.structs.replace(view, members={}))
                for host in holders(view):
                    self.room.take(host, held_by(view))
            case Move():
                needs = needs_of(self.vms[step.vm])
                self.room.take(step.source, needs)
                self.counters.move_vm(step.vm, step.source)
                self.room.give(step.host, needs)

    def _new_key(self) -> str:
        self._serial += 1
        while (key := NEW_SLOT.format(self._serial)) in self.slots:
            self._serial += 1
        return key

    # The end.

    def final_vms(self) -> tuple[VmView, ...]:
        """All VMs where they run now."""
        moved = {step.vm for step in self.steps if isinstance(step, Move)}
        return tuple(
            msgspec.structs.replace(vm, host=self.host(vm.id)) if vm.id in moved else vm for vm in self._given.vms
        )

    def final_slots(self) -> tuple[SlotView, ...]:
        """All slots that are there now, by name."""
        return tuple(self.view(name) for name in sorted(self.slots) if self.counters.has_slot(name))

    def slots_on(self, hosts: Iterable[str]) -> list[str]:
        """The slots on these hosts, by name."""
        wanted = set(hosts)
        return [name for name in sorted(self.slots) if self.slots[name].host in wanted and self.counters.has_slot(name)]


def _ties(offer: Offer) -> list[list[str]]:
    """Hosts of an offer in groups of equal score; without scores the order is strict."""
    if not offer.scores:
        return [[host] for host in offer.hosts]
    groups: list[list[str]] = []
    last: float | None = None
    for host, score in zip(offer.hosts, offer.scores, strict=True):
        if score != last:
            groups.append([])
        groups[-1].append(host)
        last = score
    return groups


Needs = Mapping[str, int]


class Room:
    """Free amounts of every host. An empty table limits nothing; a host that a table leaves out has no room."""

    def __init__(self, free: Mapping[str, Mapping[str, int]]) -> None:
        self._limited = bool(free)
        self._free = {host: dict(amounts) for host, amounts in free.items()}

    def fits(self, host: str, needs: Needs) -> bool:
        """Whether the host has that much of everything."""
        if not self._limited:
            return True
        free = self._free.get(host)
        return free is not None and all(free.get(name, 0) >= amount for name, amount in needs.items() if amount > 0)

    def lacks(self, host: str, needs: Needs) -> dict[str, int]:
        """Resource → how much of it is missing on the host."""
        free = self._free.get(host, {}) if self._limited else dict(needs)
        return {
            name: amount - free.get(name, 0)
            for name, amount in needs.items()
            if amount > 0 and amount > free.get(name, 0)
        }

    def take(self, host: str, needs: Needs) -> None:
        """Something is on the host now."""
        free = self._free.get(host)
        if free is not None:
            for name, amount in needs.items():
                free[name] = free.get(name, 0) - amount

    def give(self, host: str, needs: Needs) -> None:
        """Something left the host."""
        self.take(host, {name: -amount for name, amount in needs.items()})

    def memory(self, host: str) -> int:
        """Free bytes of memory."""
        return self._free.get(host, {}).get("memory", 0)

    def has(self, host: str) -> bool:
        """Whether anything is known of the host, or nothing is limited."""
        return not self._limited or host in self._free

    @property
    def limited(self) -> bool:
        """Whether there is any limit at all."""
        return self._limited

    def free(self, host: str) -> dict[str, int]:
        """Resource → free amount of a host; nothing where the host is unknown."""
        return dict(self._free.get(host, {}))


def needs_of(vm: VmView) -> dict[str, int]:
    """What a VM takes of its host."""
    return dict(amounts_of(vm))


def held_by(slot: SlotView) -> dict[str, int]:
    """What a slot takes of its host."""
    return {"cpu": slot.cpu_milli, "memory": slot.memory_bytes}


def holders(slot: SlotView) -> tuple[str, ...]:
    """The hosts on which a slot holds capacity: where it is, and where it is wanted."""
    return tuple(dict.fromkeys(host for host in (slot.host, slot.target_host) if host))

"""The fleet as steps leave it: who is where, and what may be done next; every step can be undone.

Rules, separation and room are asked of the ``FleetIndex``. Nothing here decides what is worth doing: that is ``order``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter

import msgspec

from outlive.failover.analysis.drain.inputs import Close, DrainInput, Move, Step
from outlive.failover.analysis.tolerance import compute_tolerances
from outlive.failover.fleet import FleetIndex, FreeAmounts
from outlive.failover.model import SlotView
from outlive.failover.planner.actions import Join, Leave, PlacementOffer, new_slot, open_action
from outlive.failover.rules import serves
from outlive.failover.slots import ResolvedSize, enlarge_for_vm, resolve_size
from outlive.placement import VmView, may_run_on
from outlive.resources import MEMORY

NEW_SLOT = "new-{}"
"""What new slots are called until they are created."""
NOWHERE = PlacementOffer()


class Layout:
    """A fleet, and the steps that led here."""

    def __init__(self, given: DrainInput) -> None:
        self.drained = frozenset(given.drained)
        self.vms: dict[str, VmView] = {vm.id: vm for vm in given.vms}
        self.steps: list[Step] = []
        self.slots: dict[str, SlotView] = {slot.name: slot for slot in given.slots}
        """As they were given or opened; who is in them now is known to ``fleet``."""
        ordered = sorted(given.slots, key=lambda slot: slot.name)
        self.fleet = FleetIndex.build(ordered, given.vms, given.required, given.topology)
        self.fleet.set_free(FreeAmounts.from_resources(given.free))
        self.fleet.set_savepoint()
        self._given = given
        self._stale = {
            (member, slot.name): recorded
            for slot in given.slots
            for member, recorded in slot.members.items()
            if member not in self.vms or self.vms[member].host != recorded
        }
        """Memberships that name another place than the VM's: they count for nobody."""
        self._usable_hosts: dict[tuple[str, str], frozenset[str]] = {}

    # What is so.

    def host_of(self, vm: str) -> str:
        """Where the VM runs."""
        return self.fleet.location_of(vm)

    def slot_counts(self, vm: str, slot: str) -> bool:
        """Whether the slot counts for the VM that it lists."""
        return (vm, slot) not in self._stale and serves(self.vms[vm], self.slots[slot])

    def is_stale(self, vm: str, slot: str) -> bool:
        """Whether the slot believes the VM elsewhere, or nobody knows the VM."""
        return (vm, slot) in self._stale

    def tolerance_of(self, vm: str) -> int:
        """Failures that the VM tolerates; 0 for one that nobody knows."""
        if vm not in self.vms:
            return 0
        mine = self.fleet.slots_of(vm)
        if self.fleet.holds_for(vm):
            return sum(self.slot_counts(vm, slot) for slot in mine)
        view = msgspec.structs.replace(self.vms[vm], host=self.host_of(vm))
        named = tuple(self.current_view(slot) for slot in mine)
        return compute_tolerances([view], named, {vm: view.host}, self._given.topology.units)[vm]

    def current_view(self, slot: str) -> SlotView:
        """The slot with its members as they are now."""
        members = {
            member: self._stale.get((member, slot), self.host_of(member)) for member in self.fleet.members_of(slot)
        }
        return msgspec.structs.replace(self.slots[slot], members=members)

    def new_slot_size(self, vm: str) -> ResolvedSize:
        """How large a new slot of the VM is."""
        view = self.vms[vm]
        return enlarge_for_vm(view, self._given.sizes.get(vm) or resolve_size(view))

    def find_destinations(self, vm: str) -> list[str]:
        """Hosts that may run a VM of a drained host, best first; peers of its server group are respected."""
        found = [host for host in self._given.destinations.get(vm, ()) if host not in self.drained]
        found = self.fleet.allowed_by_groups(vm, found, gone=self.drained)
        return [host for host in found if may_run_on(self.vms[vm], host)]

    def find_clashing_slots(self, vm: str, hosts: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
        """Each of the hosts with those of the VM's slots that it could not be in if it ran there."""
        mine = {slot: self._units_taken(vm, slot) for slot in self.fleet.slots_of(vm)}
        for host in hosts:
            yield host, [slot for slot, taken in mine.items() if self._clash(vm, slot, taken, host)]

    def has_clash(self, vm: str, slot: str, host: str) -> bool:
        """Whether the VM could not be in this slot, one of its own or another, if it ran on that host."""
        return self._clash(vm, slot, self._units_taken(vm, slot), host)

    def _clash(self, vm: str, slot: str, taken: set[str], host: str) -> bool:
        unit = self.fleet.topology.unit_of_host
        if self.fleet.separation.share_domain(self.slots[slot].host, host):
            return True
        return unit(host) != unit(self.host_of(vm)) and unit(host) in taken

    def _units_taken(self, vm: str, slot: str) -> set[str]:
        """Units where a VM in this slot may not run, its own aside: the slot's, and all that occur for co-users."""
        others = [other for other in self.fleet.members_of(slot) if other != vm]
        return {self.fleet.topology.unit_of_host(self.slots[slot].host)}.union(
            *map(self.fleet.blocked_unit_names, others)
        )

    def share_unit_or_domain(self, host: str, other: str) -> bool:
        """Whether a VM on one of these hosts could have no slot on the other, whatever else is so."""
        unit = self.fleet.topology.unit_of_host
        return unit(host) == unit(other) or self.fleet.separation.share_domain(host, other)

    # What may be done.

    def joinable_slots(self, vm: str) -> Iterator[str]:
        """Slots that the VM may join and that would count for it, fullest first; none on a drained host."""
        return self.fleet.joinable_slots(self.vms[vm], self.hosts_of("reuse", vm))

    def openable_hosts(self, vm: str) -> Iterator[str]:
        """Hosts that can hold a new slot of the VM now, best first; among equals the one with the most free memory."""
        fleet, size = self.fleet, self.new_slot_size(vm)
        offer = self._given.new.get(self._given.classes.get(vm, ""), NOWHERE)
        usable = self.hosts_of("new", vm)
        if offer.scores:
            scored = groupby(zip(offer.hosts, offer.scores, strict=True), key=itemgetter(1))
            groups = [[host for host, _ in equal] for _, equal in scored]
        else:
            groups = [[host] for host in offer.hosts]
        for hosts in groups:
            possible = fleet.hosts_with_room(
                [host for host in hosts if host in usable], {"cpu": size.cpu_milli, "memory": size.memory_bytes}
            )
            free = dict(zip(possible, fleet.free_of(possible, MEMORY), strict=True))
            for host in sorted(possible, key=lambda name: (-free[name], name)):
                if fleet.count_unit(vm, host) == 0 and fleet.separation.allows(vm, host):
                    yield host

    def hosts_of(self, kind: str, vm: str) -> frozenset[str]:
        """Hosts, none of them drained, that placement offers for slots of the VM, to ``reuse`` or for a ``new`` one,
        and where it may run."""
        key = self._given.classes.get(vm, "")
        known = self._usable_hosts.get((kind, key))
        if known is None:
            offers: Mapping[str, PlacementOffer] = self._given.reuse if kind == "reuse" else self._given.new
            offer = offers.get(key, NOWHERE)
            known = frozenset() if offer.error else frozenset(offer.hosts) - self.drained
            self._usable_hosts[kind, key] = known
        limit = self.vms[vm].host_limit
        return known.intersection(limit) if limit else known

    # Doing it, and undoing it.

    @property
    def mark(self) -> int:
        """Where ``undo`` may return to."""
        return self.fleet.mark

    def undo(self, mark: int) -> None:
        """Undo every step since the mark."""
        self.fleet.undo(mark)

    def join(self, vm: str, slot: str) -> None:
        """The VM is a member from here on."""
        self.fleet.join(vm, slot)
        self._step(Join(slot=slot, vm=vm, vm_host=self.host_of(vm), host=self.slots[slot].host))

    def leave(self, vm: str, slot: str) -> None:
        """The VM is no member any more; a slot without members is given up."""
        key, recorded = (vm, slot), self._stale.pop((vm, slot), None)
        if recorded is not None:
            self.fleet.add_undo(lambda: self._stale.update({key: recorded}))
        self.fleet.leave(vm, slot)
        self._step(Leave(slot=slot, vm=vm, host=self.slots[slot].host))
        if not self.fleet.members_of(slot):
            self.close(slot)

    def open(self, vm: str, host: str, size: ResolvedSize | None = None) -> None:
        """A new slot on the host, with the VM in it. As large as such a slot is, unless ``size`` is given."""
        serial = 1
        while (key := NEW_SLOT.format(serial)) in self.slots:
            serial += 1
        slot = new_slot(key, host, self.vms[vm], size or self.new_slot_size(vm))
        self.slots[key] = slot
        self.fleet.add_undo(lambda: self.slots.pop(key))
        self.fleet.open(slot)
        self.fleet.join(vm, key)
        self._step(open_action(slot, vm, self.host_of(vm)))

    def close(self, slot: str) -> None:
        """Give an empty slot up."""
        self.fleet.close(self.slots[slot])
        self._step(Close(slot=slot, host=self.slots[slot].host))

    def move(self, vm: str, host: str) -> None:
        """The VM runs on the host from here on; its memberships say so."""
        source = self.host_of(vm)
        self.fleet.move(self.vms[vm], host)
        self._step(Move(vm=vm, source=source, host=host))

    def _step(self, step: Step) -> None:
        self.steps.append(step)
        self.fleet.add_undo(self.steps.pop)

    # The end.

    def final_vms(self) -> tuple[VmView, ...]:
        """All VMs where they run now."""
        moved = {step.vm for step in self.steps if isinstance(step, Move)}
        return tuple(
            msgspec.structs.replace(vm, host=self.host_of(vm.id)) if vm.id in moved else vm for vm in self._given.vms
        )

    def final_slots(self) -> tuple[SlotView, ...]:
        """All slots that are there now, by name."""
        return tuple(self.current_view(name) for name in sorted(self.slots) if self.fleet.has_slot(name))

    def slots_on(self, hosts: Iterable[str]) -> list[str]:
        """The slots on these hosts, by name."""
        wanted = set(hosts)
        return [name for name in sorted(self.slots) if self.slots[name].host in wanted and self.fleet.has_slot(name)]

"""The fleet as the caches show it, current after every change: locations, slots, the conflict index, dirty VMs.

After ``follow`` it is what a rebuild from the informers would give, at every moment but while it is built anew; what
changes then is taken over at the end. Each change marks the VMs that it concerns as dirty, apart from own writes, which
call for nothing. Building goes in batches, so that others get their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from outlive.base import Clock, Unavailable, split_batches
from outlive.failover.calls import pins_projects
from outlive.failover.fleet import FleetIndex
from outlive.failover.locations import Locations, OnHypervisors
from outlive.failover.model import SlotView, failure_domains, host_view, names_on
from outlive.failover.planner.cleanup import find_departure
from outlive.failover.protection import Demands
from outlive.failover.rules import serves
from outlive.failover.slots import UNKNOWN_HOST, apply_closed_hosts, is_slot, slot_view
from outlive.failover.topology import Topology, TopologyChoice, unit_of
from outlive.placement import VmView, vm_of_resource
from outlive.resources import FlavorGroup, Hypervisor, ObjectRef, R, Reservation, Resource, VirtualMachine, lost_places
from outlive.resources.reasons import CoverageReason
from outlive.runtime import Informer

STALE_S = 60.0
"""A cache that has lost the store for longer than this is not acted on."""


@dataclass(frozen=True, slots=True)
class Informers:
    """The caches that failover reads; ``reservations`` must have the index ``HOST_INDEX``."""

    hypervisors: Informer[Hypervisor]
    reservations: Informer[Reservation]
    groups: Informer[FlavorGroup]
    vms: Informer[VirtualMachine]


def check_current(informer: Informer[R]) -> None:
    """``Unavailable`` while the informer has never been complete, or is too old to act on."""
    if why := doubt_reason(informer):
        raise Unavailable(why, remedy="check the connection to the store")


def doubt_reason(informer: Informer[R]) -> str:
    """Why what this cache shows is not to be acted on; empty where it is."""
    if not informer.synced:
        return f"{informer.name} have not been listed yet"
    silent = informer.stalled_s()
    return f"{informer.name} were last heard of {silent:.0f} s ago" if silent > STALE_S else ""


VMS_AT_ONCE = 500
VIEWS_AT_ONCE = 200
SLOTS_AT_ONCE = 20
HOSTS_AT_ONCE = 50

T = TypeVar("T")


class FleetCache:
    """See the module."""

    def __init__(
        self,
        informers: Informers,
        demands: Demands,
        *,
        clock: Clock,
        trust_hosts: bool = False,
        choice: TopologyChoice = TopologyChoice(),
        follow_vms: bool = True,
    ) -> None:
        """``follow_vms``: VMs are our own objects; else somebody else lists them (``put_listing``)."""
        self.informers = informers
        self.follow_vms = follow_vms
        self.active = False
        """Whether the cache is current."""
        self.changed: Callable[[], None] = lambda: None
        """Called after each change that is not our own write."""
        self._demands = demands
        self._clock = clock
        self._choice = choice
        self._trust_hosts = trust_hosts
        self._relevant = frozenset({choice.unit, *choice.apart}) if choice.domains else frozenset[str]()
        self._dirty: dict[str, None] = {}
        self._marking = True
        self._following = asyncio.Lock()
        self._subscriptions: list[Callable[[], None]] = []
        self._missed: dict[tuple[type[Resource], str], None] | None = None
        """What changed while the cache is built; ``None`` while it follows."""
        self._reset({})

    def _reset(self, known: dict[str, VmView]) -> None:
        self.known: dict[str, VmView] = known
        """What the source says of every VM."""
        self.locations = Locations(trust_hosts=self._trust_hosts)
        self.vms: dict[str, VmView] = {}
        """VMs whose location is known, where they are."""
        self.unplaced: dict[str, CoverageReason] = {}
        """VMs that are to run and whose location is not known."""
        self.strangers: set[str] = set()
        """VMs that a host reports and whose attributes, as known, do not fit that: they have to be looked up."""
        self.unknown_levels: dict[str, str] = {}
        """VM → the protection level that it names and that there is not."""
        self.slots: dict[str, SlotView] = {}
        """Slots as they apply: on hosts that take no VMs they are not ready."""
        self.revision = 0
        """Rises with every change that a plan of the fleet may depend on: of slots, hosts, and what is asked of VMs."""
        self._pinning: set[str] = set()
        self._losing: dict[str, tuple[str, ...]] = {}
        """Host → places of storage that it does not reach."""
        self.lost_places: tuple[str, ...] = ()
        """All of them."""
        """Hosts that take VMs of certain projects only."""
        self._domains: dict[str, dict[str, str]] = {}
        self.index = FleetIndex(self.build_topology())

    # Following

    async def wait_synced(self) -> None:
        """Return once all informers have been complete."""
        for informer in self._followed_informers():
            await informer.wait_synced()

    def _followed_informers(
        self,
    ) -> tuple[Informer[Hypervisor] | Informer[Reservation] | Informer[VirtualMachine], ...]:
        hosts, slots = self.informers.hypervisors, self.informers.reservations
        return (hosts, slots, self.informers.vms) if self.follow_vms else (hosts, slots)

    async def follow(self) -> None:
        """Take over what the informers hold and begin to follow them; ``Unavailable`` before they were complete."""
        async with self._following:
            if self.active:
                return
            for informer in self._followed_informers():
                if not informer.synced:
                    raise Unavailable(
                        f"{informer.name} have not been listed yet", remedy="wait until the store answers"
                    )
            informers = self.informers
            self._subscriptions = [
                informers.hypervisors.subscribe(lambda old, new: self._on_change(Hypervisor, old, new), replay=False),
                informers.reservations.subscribe(lambda old, new: self._on_change(Reservation, old, new), replay=False),
            ]
            if self.follow_vms:
                see = informers.vms.subscribe(lambda old, new: self._on_change(VirtualMachine, old, new), replay=False)
                self._subscriptions.append(see)
            await self.rebuild()
            self.active = True

    async def rebuild(self) -> None:
        """Build everything anew; what changes meanwhile is taken over at the end. If it is cut off, nobody follows."""
        missed = self._missed = {}
        try:
            built = FleetCache(
                self.informers,
                self._demands,
                clock=self._clock,
                trust_hosts=self._trust_hosts,
                choice=self._choice,
                follow_vms=self.follow_vms,
            )
            await built._build(None if self.follow_vms else self.known)
        except BaseException:
            self.active = False
            for end in self._subscriptions:
                end()
            raise
        finally:
            self._missed = None
        self.known, self.locations, self.vms = built.known, built.locations, built.vms
        self._losing, self.lost_places = built._losing, built.lost_places
        self._pinning, self.revision = built._pinning, self.revision + 1
        self.unplaced, self.strangers, self.unknown_levels = built.unplaced, built.strangers, built.unknown_levels
        self.slots, self._domains, self.index = built.slots, built._domains, built.index
        for kind, name in missed:
            self._take_over(kind, name)
        self.changed()

    async def _build(self, known: dict[str, VmView] | None) -> None:
        informers, pause = self.informers, self._clock.sleep
        views: dict[str, VmView] = {} if known is None else dict(known)
        vms, hosts, slots = informers.vms.items(), informers.hypervisors.items(), informers.reservations.items()
        for objects in split_batches(vms if known is None else (), VIEWS_AT_ONCE):
            views.update((view.id, view) for vm in objects if (view := vm_of_resource(vm)) is not None)
            await pause(0)
        self._reset(views)
        for some in split_batches(hosts, HOSTS_AT_ONCE):
            for host in some:
                self._put_domains(host.name, host)
                self._put_pins(host.name, host)
                self.locations.put_host(host_view(host), names_on(host))
            await pause(0)
        self.index = FleetIndex(self.build_topology())
        for ids in split_batches(views, VMS_AT_ONCE):
            for vm_id in ids:
                self._locate(vm_id)
            await pause(0)
        for seen in split_batches(self.locations, VMS_AT_ONCE):
            self.strangers.update(vm for vm in seen if vm not in self.vms)
            await pause(0)
        for reservations in split_batches((slot for slot in slots if is_slot(slot)), SLOTS_AT_ONCE):
            for slot in reservations:
                self.slots[slot.name] = self.apply_host_state(slot_view(slot))
            self.index.load(self.slots[slot.name] for slot in reservations)
            await pause(0)
        for members in split_batches(list(self.index.names), VMS_AT_ONCE):
            self.index.judge(members)
            await pause(0)

    def _on_change(self, kind: type[Resource], old: Resource | None, new: Resource | None) -> None:
        found = new or old
        if found is None:
            return
        name = found.metadata.name
        if self._missed is not None:
            self._missed[kind, name] = None
            return
        self._take_over(kind, name)
        if self._marking:
            self.changed()

    def _take_over(self, kind: type[Resource], name: str) -> None:
        informers = self.informers
        if kind is Hypervisor:
            self.put_host(name, informers.hypervisors.get(name))
        elif kind is Reservation:
            self.put_slot(name, informers.reservations.get(name))
        else:
            vm = informers.vms.get(name)
            self.put_vm(name, vm_of_resource(vm) if vm is not None else None)

    # The writer's side of the informer: own writes are taken over, but call for nothing

    def note(self, obj: Reservation, *, replaced: str | None = None) -> None:
        """An acknowledged write of ours."""
        with self.without_marking():
            self.informers.reservations.note(obj, replaced=replaced)

    def note_deleted(self, ref: ObjectRef) -> None:
        """An acknowledged deletion of ours."""
        with self.without_marking():
            self.informers.reservations.note_deleted(ref)

    @contextmanager
    def without_marking(self) -> Iterator[None]:
        """What changes inside makes nobody dirty."""
        before, self._marking = self._marking, False
        try:
            yield
        finally:
            self._marking = before

    # Changes

    def put_host(self, name: str, host: Hypervisor | None) -> None:
        """A host looks like this now, or is gone."""
        if self._put_domains(name, host):
            domains = self._domains.get(name, {})
            self.index.relabel(name, unit_of(domains, self._choice.unit), domains)
            self.mark(self.index.list_faulty())
        self._put_pins(name, host)
        losses = lost_places(host) if host is not None else ()
        if losses != self._losing.get(name, ()):
            self._losing[name] = losses
            self.lost_places = tuple(sorted({place for some in self._losing.values() for place in some}))
            self.revision += 1
        was_closed, was_there = self.locations.closed.get(name), name in self.locations.names
        listed = (
            self.locations.remove_host(name)
            if host is None
            else self.locations.put_host(host_view(host), names_on(host))
        )
        for vm in sorted(listed):
            self._locate(vm)
        if was_there != (host is not None):
            for vm in [vm for vm, view in self.known.items() if view.host == name and vm not in listed]:
                self._locate(vm)
        if was_closed != self.locations.closed.get(name) or was_there != (host is not None):
            self.revision += 1
            for slot in [slot for slot in self.slots.values() if slot.host == name]:
                self.put_slot(slot.name, self.informers.reservations.get(slot.name))

    def _put_domains(self, name: str, host: Hypervisor | None) -> bool:
        """The failure domains of a host, as far as settings ask for them; whether they are others than before."""
        if not self._relevant:
            return False
        found = failure_domains(host) if host is not None else {}
        now = {key: value for key, value in found.items() if key in self._relevant}
        if now == self._domains.get(name, {}):
            return False
        if now:
            self._domains[name] = now
        else:
            del self._domains[name]
        return True

    def _put_pins(self, name: str, host: Hypervisor | None) -> None:
        (self._pinning.add if host is not None and pins_projects((host,)) else self._pinning.discard)(name)

    @property
    def pins_projects(self) -> bool:
        """Whether any host takes VMs of certain projects only."""
        return bool(self._pinning)

    def put_vm(self, vm_id: str, view: VmView | None) -> None:
        """The VM source says this of a VM, or no longer knows it."""
        if view is None:
            self.known.pop(vm_id, None)
        else:
            self.known[vm_id] = view
        self._locate(vm_id)

    async def put_listing(self, views: Iterable[VmView], *, but: Collection[str] = ()) -> None:
        """The VM source has listed all its VMs; only differences count. Of ``but`` newer things are known.

        The caller that asked for the listing looks at all VMs itself, so no VM gets dirty by it.
        """
        listed: set[str] = set()
        for some in split_batches(views, VMS_AT_ONCE):
            with self.without_marking():
                for view in some:
                    listed.add(view.id)
                    known = self.known.get(view.id)
                    if known is not view and known != view and view.id not in but:
                        self.put_vm(view.id, view)
            await self._clock.sleep(0)
        with self.without_marking():
            for vm_id in sorted(self.known.keys() - listed):
                if vm_id not in but:
                    self.put_vm(vm_id, None)

    def put_slot(self, name: str, slot: Reservation | None) -> None:
        """A reservation looks like this now, or is gone; those that are no slots are overlooked."""
        if slot is None or not is_slot(slot):
            gone = self.slots.pop(name, None)
            if gone is not None:
                self.index.remove_slot(name)
                self._on_left(gone.members)
            return
        now = self.apply_host_state(slot_view(slot))
        before = self.slots.get(name)
        if before is None or before.members != now.members or before.ready != now.ready:
            self.revision += 1
        self.slots[name] = now
        if before is None:
            self.index.add_slot(now)
            self.mark(now.members)
        elif (before.host, before.cpu_milli, before.memory_bytes) != (now.host, now.cpu_milli, now.memory_bytes):
            self.index.remove_slot(name)
            self.index.add_slot(now)
            self.mark(now.members)
            self._on_left(before.members)
        else:
            if (before.ready is False) != (now.ready is False):
                self.index.set_ready(name, now.ready is not False)
                self.mark(now.members)
            left = [vm for vm in before.members if vm not in now.members]
            for vm in left:
                self.index.leave(vm, name)
            for vm, host in now.members.items():
                if before.members.get(vm) != host:
                    self.index.learn_vm(vm, host)
                    self.index.join(vm, name)
                    self.mark((vm,))
            self._on_left(left)

    def apply_host_state(self, slot: SlotView) -> SlotView:
        """The slot as it applies on its host."""
        if slot.host and slot.host not in self.locations.names:
            return apply_closed_hosts(slot, {slot.host: UNKNOWN_HOST})
        return apply_closed_hosts(slot, self.locations.closed)

    def _on_left(self, vms: Iterable[str]) -> None:
        """These left a slot: forget those that are nowhere."""
        for vm in vms:
            if vm not in self.vms and self.index.has_vm(vm) and not self.index.slots_of(vm):
                self.index.remove_vm(vm)
        self.mark(vms)

    def _locate(self, vm_id: str) -> None:
        """Work out where the VM is, and let the index know."""
        before, known = self.vms.get(vm_id), self.known.get(vm_id)
        now = self.locations.locate_vm(known)
        why = self.locations.unplaced_reason(known) if known is not None and now is None else None
        if why is None:
            self.unplaced.pop(vm_id, None)
        else:
            self.unplaced[vm_id] = why
        (self.strangers.add if now is None and vm_id in self.locations else self.strangers.discard)(vm_id)
        level = known.level if known is not None else ""
        if level and level not in self._demands.levels:
            self.unknown_levels[vm_id] = level
        else:
            self.unknown_levels.pop(vm_id, None)
        if now is not None:
            if now != before:
                self.revision += before is None or _demand_key(before) != _demand_key(now)
                self.vms[vm_id] = now
                required = self._demands.required_slots(now)
                self.index.add_vm(now, required)
                self.index.separation.put(now, required)
                self.mark((vm_id,))
            return
        if before is not None:
            self.revision += 1
            del self.vms[vm_id]
            self.index.separation.forget(vm_id)
            if self.index.slots_of(vm_id):
                self.index.add_vm(before, 0)
            else:
                self.index.remove_vm(vm_id)
        self.mark((vm_id,))

    # Dirty VMs

    def mark(self, vms: Iterable[str]) -> None:
        """These have to be looked at."""
        if self._marking:
            self._dirty.update(dict.fromkeys(vms))

    def take_dirty(self) -> list[str]:
        """The VMs that have to be looked at, in the order of the changes; nobody is dirty any more."""
        taken, self._dirty = list(self._dirty), {}
        return taken

    @property
    def dirty(self) -> bool:
        """Whether anybody has to be looked at."""
        return bool(self._dirty)

    # Questions

    def build_topology(self, hosts: Iterable[str] | None = None) -> Topology:
        """Units of failure and domains of these hosts, or of all."""
        named = self._domains.keys() if hosts is None else {*hosts} & self._domains.keys()
        return self._choice.topology_of_domains({name: self._domains[name] for name in sorted(named)})

    def required_slots(self, vm: VmView) -> int:
        """Slots that the VM needs."""
        return self._demands.required_slots(vm)

    def priority_of(self, vm: VmView) -> int:
        """Whose slots come first."""
        return self._demands.priority_of(vm)

    def level_of(self, vm: VmView) -> str:
        """The name of the VM's protection level; empty where it has none."""
        return self._demands.demand_of(vm).level

    def find_lacking(self, vms: Iterable[str]) -> list[tuple[str, int, bool]]:
        """Those of these VMs that miss slots, how many, and whether they have none."""
        found: list[tuple[str, int, bool]] = []
        for vm in vms:
            view = self.vms.get(vm)
            if view is not None and (misses := self.index.count_missing(vm)):
                found.append((vm, misses, misses >= self.required_slots(view)))
        return found

    def on_lost_hosts(self) -> list[str]:
        """The VMs that need slots and were lost with their host, by host and id: recovery has them."""
        return [
            vm
            for host in sorted(self.locations.lost)
            for vm in sorted(self.locations.vms_on(host))
            if (view := self.vms.get(vm)) is not None and view.host == host and self.required_slots(view) > 0
        ]

    def slots_of(self, vms: Iterable[str]) -> list[SlotView]:
        """The slots of these VMs, by name."""
        names = {name for vm in vms if self.index.has_vm(vm) for name in self.index.slots_of(vm)}
        return [self.slots[name] for name in sorted(names)]

    def split_by_counting(self, vm: VmView) -> tuple[list[str], list[SlotView]]:
        """Names of the slots that count for a located VM, and the slots that list it and do not, by name."""
        found: tuple[list[str], list[SlotView]] = ([], [])
        for slot in self.slots_of([vm.id]):
            if serves(vm, slot):
                found[0].append(slot.name)
            else:
                found[1].append(slot)
        return found

    def departs(self, vm_id: str) -> bool:
        """Whether the VM gives reason to leave a slot: as it is gone, has outgrown it, or is out of protection."""
        vm, active = self.vms.get(vm_id), vm_id in self.locations
        slots = self.index.slots_of(vm_id) if self.index.has_vm(vm_id) else ()
        return any(find_departure(vm_id, self.slots[name], vm, active=active) is not None for name in slots)

    def is_faulty(self, vm_id: str) -> bool:
        """Whether a rule does not hold for the VM."""
        return self.index.has_vm(vm_id) and not self.index.holds_for(vm_id)

    def is_misplaced(self, vm_id: str) -> bool:
        """Whether some membership of the VM has to be judged before it is given anything."""
        return self.departs(vm_id) or (self.is_faulty(vm_id) and vm_id in self.vms)

    async def find_disagreements(self) -> OnHypervisors:
        """What the VM source and the hosts disagree about, added up in batches."""
        names = [(list(self.known), ()), ((), list(self.locations))]
        parts: list[OnHypervisors] = []
        for listed, reported in names:
            for some in split_batches(listed or reported, VMS_AT_ONCE):
                about = {"listed": some, "reported": ()} if listed else {"listed": (), "reported": some}
                parts.append(self.locations.merge(self.known, self.vms, **about))
                await self._clock.sleep(0)
        return OnHypervisors(
            duplicates=tuple(one for part in parts for one in part.duplicates),
            not_in_source=tuple(one for part in parts for one in part.not_in_source),
            nowhere_active=sum(part.nowhere_active for part in parts),
            on_unknown_hypervisor=sum(part.on_unknown_hypervisor for part in parts),
            on_another_hypervisor=sum(part.on_another_hypervisor for part in parts),
            listed_nowhere=sum(part.listed_nowhere for part in parts),
        )


def _demand_key(vm: VmView) -> tuple[object, ...]:
    place = (vm.host, vm.zone, vm.project, vm.flavor, vm.cpu_milli, vm.memory_bytes, vm.also_needs, vm.host_limit)
    placement = (vm.server_group, vm.group_policy, vm.affinity, vm.preferred)
    return (*place, vm.extra_specs, vm.os_type, *placement, vm.level, vm.priority, vm.unprotected, vm.deleting)

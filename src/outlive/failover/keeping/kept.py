"""The state of failover, kept current change by change: who is where, who is in which slot, who misses slots.

Fed by whoever follows the store (callbacks with the state before and after), it holds what a rebuild from everything
would give, and says which VMs a change concerned. ``auditing`` compares it with what there is, so that a mistake in
following is found instead of believed (docs/reference/failover.md#upkeep).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, KeysView, Sequence
from contextlib import contextmanager, nullcontext

from outlive.failover.conflicts import ConflictIndex
from outlive.failover.keeping.observe import as_it_stands, is_slot, slot_view
from outlive.failover.keeping.racks import Racks
from outlive.failover.model import SlotView, VmView
from outlive.failover.planner.cleanup import departure
from outlive.failover.planner.selection import service_rank
from outlive.failover.portions import SLOTS, Portions, portioned
from outlive.failover.protection import Demands
from outlive.failover.rules import serves
from outlive.failover.sightings import Sightings
from outlive.failover.topology import Topology, TopologyChoice
from outlive.failover.whereabouts import HOSTS_OF_A_PORTION
from outlive.resources import Hypervisor, Reservation


class KeptState:
    """VMs, slots and counters, and the VMs that changes concerned since they were last asked for."""

    def __init__(
        self,
        demands: Demands,
        *,
        trust_hosts: bool,
        choice: TopologyChoice = TopologyChoice(),
    ) -> None:
        self.sightings = Sightings()
        self.slots: dict[str, SlotView] = {}
        """As they stand: on hosts that take no VMs they are not ready."""
        self.written: dict[str, SlotView] = {}
        """As they are written."""
        self.located: dict[str, VmView] = {}
        self._choice = choice
        self._racks = Racks(self._choice)
        self.counters = ConflictIndex(self._racks.topology())
        self.separating = self.counters.separation
        self.strangers: set[str] = set()
        """VMs that a host reports and whose attributes, as known, do not fit that: they have to be looked up."""
        self._demands = demands
        self._trust_hosts = trust_hosts
        self._attributes: dict[str, VmView] = {}
        self._touched: dict[str, None] = {}
        self._newer: set[str] = set()

    # Changes

    def see_host(self, name: str, host: Hypervisor | None) -> None:
        """A host looks like this now, or is gone."""
        if self._racks.see(name, host):
            self._racks.tell(name, self.counters)
            self._touch(self.counters.faulty())
        was_closed = self.sightings.closed.get(name)
        for vm in sorted(self.sightings.see(name, host)):
            self._locate(vm)
        if was_closed != self.sightings.closed.get(name):
            for slot in [slot for slot in self.slots.values() if slot.host == name]:
                self._put_slot(slot.name, self.written[slot.name])

    def see_vm(self, vm_id: str, view: VmView | None) -> None:
        """The VM source says this of a VM, or no longer knows it."""
        if view is None:
            self._attributes.pop(vm_id, None)
        else:
            self._attributes[vm_id] = view
        self._locate(vm_id)

    def see_all_vms(self, views: Iterable[VmView], *, but: Collection[str] = ()) -> Portions[None]:
        """The VM source has listed all its VMs; only differences count. Of ``but`` newer things are known.

        Whoever asked for the listing looks at everybody himself, so it calls for no reaction.
        """
        listed: set[str] = set()
        for portion in portioned(views):
            for view in portion:
                listed.add(view.id)
                known = self._attributes.get(view.id)
                if known is not view and known != view and view.id not in but:
                    with self._quietly():
                        self.see_vm(view.id, view)
            yield
        for vm_id in sorted(self._attributes.keys() - listed):
            if vm_id not in but:
                with self._quietly():
                    self.see_vm(vm_id, None)

    def see_slot(self, name: str, slot: Reservation | None, *, quietly: bool = False) -> None:
        """A reservation looks like this now, or is gone; those that are no slots are overlooked.

        ``quietly`` where the change calls for nothing, because it is the answer to another one.
        """
        with self._quietly() if quietly else nullcontext():
            self._see_slot(name, slot)

    @contextmanager
    def _quietly(self) -> Iterator[None]:
        """What changes inside touches nobody."""
        touched, newer = self._touched, self._newer
        self._touched, self._newer = {}, set()
        try:
            yield
        finally:
            self._touched, self._newer = touched, newer

    def _see_slot(self, name: str, slot: Reservation | None) -> None:
        if slot is not None and is_slot(slot):
            self._put_slot(name, slot_view(slot))
            return
        before = self.slots.pop(name, None)
        self.written.pop(name, None)
        if before is not None:
            self.counters.remove_slot(name)
            self._settle(before.members)

    def _put_slot(self, name: str, written: SlotView) -> None:
        before, now = self.slots.get(name), as_it_stands(written, self.sightings.closed)
        self.written[name], self.slots[name] = written, now
        if before is None:
            self._add_slot(now)
        elif (before.host, before.cpu_milli, before.memory_bytes) != (now.host, now.cpu_milli, now.memory_bytes):
            self.counters.remove_slot(name)
            self._add_slot(now)
            self._settle(before.members)
        else:
            self._change_slot(before, now)

    def _add_slot(self, slot: SlotView) -> None:
        self.counters.add_slot(slot)
        self._touch(slot.members)

    def _change_slot(self, before: SlotView, now: SlotView) -> None:
        if (before.ready is False) != (now.ready is False):
            self.counters.set_ready(now.name, now.ready is not False)
            self._touch(now.members)
        left = [vm for vm in before.members if vm not in now.members]
        for vm in left:
            self.counters.leave(vm, now.name)
        for vm, host in now.members.items():
            if before.members.get(vm) != host:
                self.counters.learn_vm(vm, host)
                self.counters.join(vm, now.name)
                self._touch((vm,))
        self._settle(left)

    def _settle(self, vms: Iterable[str]) -> None:
        """These left a slot: forget those that are nowhere, and look at the others."""
        for vm in vms:
            if vm not in self.located and self.counters.has_vm(vm) and not self.counters.slots_of(vm):
                self.counters.remove_vm(vm)
        self._touch(vms)

    def _locate(self, vm_id: str) -> None:
        """Work out where the VM is, and let the counters know."""
        before, now = self.located.get(vm_id), self.whereabouts(vm_id)
        self._note_stranger(vm_id, now)
        if now is not None:
            if now != before:
                self.located[vm_id] = now
                self.counters.add_vm(now, self.required(now))
                self.separating.put(now, self.required(now))
                self._touch((vm_id,))
            return
        if before is not None:
            del self.located[vm_id]
            self.separating.forget(vm_id)
            if self.counters.slots_of(vm_id):
                self.counters.add_vm(before, 0)
            else:
                self.counters.remove_vm(vm_id)
        self._touch((vm_id,))

    def _note_stranger(self, vm_id: str, located: VmView | None) -> None:
        if located is None and self.sightings.first(vm_id) is not None:
            self.strangers.add(vm_id)
        else:
            self.strangers.discard(vm_id)

    # Questions

    def topology(self, hosts: Iterable[str] | None = None) -> Topology:
        """Units of failure and domains of these hosts, or of all."""
        return self._racks.topology(hosts)

    def required(self, vm: VmView) -> int:
        """Slots that the VM needs."""
        return self._demands.required(vm)

    def rank(self, vm_id: str) -> tuple[int, int, int, str]:
        """Sorts located VMs that miss slots in the order of service between cycles: the most exposed first, then by
        priority, memory and id. After a failure a VM without any slot is worth more than a second slot for somebody
        else, whatever their priorities; a cycle goes by priority first, because it also looks at who is to be refused.
        """
        vm = self.located[vm_id]
        present = self.required(vm) - self.counters.misses(vm_id)
        ranked = service_rank(vm, priority=self._demands.priority(vm), present=present)
        priority, exposed, memory, last = ranked
        return (exposed, priority, memory, last)

    def exposed_first(self, vms: Sequence[str]) -> list[str]:
        """Those that miss slots in the order of service, then the others as they are."""
        lacking = {vm for vm in vms if vm in self.located and self.counters.misses(vm)}
        return [*sorted(lacking, key=self.rank), *(vm for vm in vms if vm not in lacking)]

    def lacking(self, vms: Iterable[str]) -> list[tuple[str, int, bool]]:
        """Those of these VMs that miss slots, how many, and whether they have none."""
        found: list[tuple[str, int, bool]] = []
        for vm in vms:
            view = self.located.get(vm)
            if view is not None and (misses := self.counters.misses(vm)):
                found.append((vm, misses, misses >= self.required(view)))
        return found

    def away(self) -> list[str]:
        """The VMs that need slots and were lost with their host, by host and id: recovery has them."""
        sightings = self.sightings
        return [
            vm
            for host in sorted(sightings.lost)
            for vm in sorted(sightings.on(host))
            if (view := self.located.get(vm)) is not None and view.host == host and self.required(view) > 0
        ]

    def known(self, vm_id: str) -> VmView | None:
        """What the source said of the VM."""
        return self._attributes.get(vm_id)

    @property
    def listed(self) -> KeysView[str]:
        """The VMs that the source knows, wherever they are."""
        return self._attributes.keys()

    def whereabouts(self, vm_id: str) -> VmView | None:
        """The VM where it is by its attributes and what hosts report, worked out anew."""
        return self.sightings.located(self._attributes.get(vm_id), trust_hosts=self._trust_hosts)

    def counting(self, vm_id: str) -> list[str]:
        """The slots that count for the VM, in name order."""
        vm = self.located.get(vm_id)
        if vm is None or not self.counters.has_vm(vm_id):
            return []
        return [name for name in self.counters.slots_of(vm_id) if serves(vm, self.slots[name])]

    def idle(self, vm_id: str) -> list[SlotView]:
        """The slots that list the VM and do not count for it, in name order."""
        vm = self.located.get(vm_id)
        return [] if vm is None else [slot for slot in self.slots_of([vm_id]) if not serves(vm, slot)]

    def misplaced(self, vm_id: str) -> bool:
        """Whether some membership of the VM has to be judged again."""
        return self.departs(vm_id) or (self.at_fault(vm_id) and vm_id in self.located)

    def departs(self, vm_id: str) -> bool:
        """Whether the VM gives reason to leave a slot: it is gone, has moved, or has outgrown it."""
        if not self.counters.has_vm(vm_id):
            return False
        vm, active = self.located.get(vm_id), self.sightings.first(vm_id) is not None
        return any(
            departure(vm_id, self.slots[name], vm, active=active) is not None for name in self.counters.slots_of(vm_id)
        )

    def at_fault(self, vm_id: str) -> bool:
        """Whether a rule does not hold for the VM."""
        return self.counters.has_vm(vm_id) and not self.counters.holds_for(vm_id)

    def slots_of(self, vms: Iterable[str]) -> list[SlotView]:
        """The slots of these VMs, by name."""
        names = {name for vm in vms if self.counters.has_vm(vm) for name in self.counters.slots_of(vm)}
        return [self.slots[name] for name in sorted(names)]

    def take_touched(self) -> list[str]:
        """The VMs that changes concerned since the last call, in the order of the changes."""
        touched, self._touched = list(self._touched), {}
        return touched

    @property
    def touched(self) -> bool:
        """Whether changes concerned any VM."""
        return bool(self._touched)

    @property
    def newer(self) -> Collection[str]:
        """The VMs that changes concerned since ``forget_newer``, own writes aside except where they were noted."""
        return self._newer

    def forget_newer(self) -> None:
        """Begin anew."""
        self._newer = set()

    def note_newer(self, vms: Iterable[str]) -> None:
        """These count as changed, too."""
        self._newer.update(vms)

    def put_back(self, vms: Iterable[str]) -> None:
        """Look at these again."""
        for vm in vms:
            self._touched.setdefault(vm, None)

    def _touch(self, vms: Iterable[str]) -> None:
        for vm in vms:
            self._touched.setdefault(vm, None)
            self._newer.add(vm)

    # Rebuilding

    def rebuild(
        self, hosts: Iterable[Hypervisor], slots: Iterable[Reservation], vms: Iterable[VmView] | None = None
    ) -> Portions[None]:
        """Forget everything that was followed and take this instead; ``vms`` of ``None`` keeps the attributes.

        Until it is done the state is the old one. Changes that come meanwhile have to be told afterwards.
        """
        attributes = self._attributes if vms is None else dict[str, VmView]()
        for listed in portioned(vms or ()):
            attributes.update((vm.id, vm) for vm in listed)
            yield
        sightings, racks = Sightings(), Racks(self._choice)
        for portion in portioned(hosts, HOSTS_OF_A_PORTION):
            for host in portion:
                sightings.see(host.name, host)
                racks.see(host.name, host)
            yield
        views: dict[str, SlotView] = {}
        written: dict[str, SlotView] = {}
        for some in portioned(slots, SLOTS):
            written.update((slot.name, slot_view(slot)) for slot in some if is_slot(slot))
            yield
        for named in portioned(written.items(), SLOTS):
            views.update((name, as_it_stands(slot, sightings.closed)) for name, slot in named)
            yield
        located: dict[str, VmView] = {}
        for known in portioned(attributes.values()):
            for vm in known:
                found = sightings.located(vm, trust_hosts=self._trust_hosts)
                if found is not None:
                    located[vm.id] = found
            yield
        strangers: set[str] = set()
        for reported in portioned(sightings):
            strangers.update(vm for vm in reported if vm not in located)
            yield
        needs = (yield from self._demands.among(located.values())).required
        ordered = [views[name] for name in sorted(views)]
        counters = ConflictIndex(racks.topology())
        for grouped in portioned(located.values()):
            for vm in grouped:
                counters.add_vm(vm, needs.get(vm.id, 0))
            yield
        for filled in portioned(ordered, SLOTS):
            counters.load(filled)
            yield
        for judged in portioned(list(counters.names)):
            counters.judge(judged)
            yield
        separating = counters.separation
        for grouped in portioned(located.values()):
            for vm in grouped:
                if vm.server_group:
                    separating.put(vm, needs.get(vm.id, 0))
            yield
        self._attributes, self.sightings = attributes, sightings
        self.slots, self.written = views, written
        self.located, self.strangers, self.counters = located, strangers, counters
        self._racks, self.separating = racks, separating

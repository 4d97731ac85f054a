"""Keeping the state current: from informers, change by change, and from this process's own writes.

After ``follow`` the state is what a rebuild from the informers would give, at every moment but while it is built anew;
what changes then is taken over at the end. Building goes in portions, so that others get their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from outlive.base.clock import Clock
from outlive.base.errors import Unavailable
from outlive.failover.keeping.kept import KeptState
from outlive.failover.model import VmView
from outlive.failover.portions import Portions, in_portions, portioned
from outlive.failover.vms import vm_of_resource
from outlive.resources import Hypervisor, ObjectRef, Reservation, Resource, VirtualMachine
from outlive.runtime.informer import Informer

VIEWS_OF_A_PORTION = 200
"""VMs of which views are made together."""


class Following:
    """The kept state and the informers that it follows; ``vms`` is ``None`` where nobody can follow VMs."""

    def __init__(
        self,
        state: KeptState,
        *,
        hypervisors: Informer[Hypervisor],
        reservations: Informer[Reservation],
        vms: Informer[VirtualMachine] | None,
        clock: Clock,
    ) -> None:
        self.state = state
        self.hypervisors = hypervisors
        self.reservations = reservations
        self.vms = vms
        self.active = False
        """Whether the state is current."""
        self.reacting = False
        """Set by whoever writes because of changes: what he writes counts as newer than what a cycle has seen."""
        self.noticed: Callable[[], None] = lambda: None
        """Called after each change that is not our own write."""
        self._clock = clock
        self._own_write = False
        self._begun = asyncio.Lock()
        self._ends: list[Callable[[], None]] = []
        self._missed: dict[tuple[type[Resource], str], None] | None = None
        """What changed while the state is built; ``None`` while it follows."""

    async def wait_synced(self) -> None:
        """Return once all informers have been complete."""
        for informer in (self.hypervisors, self.reservations, *((self.vms,) if self.vms is not None else ())):
            await informer.wait_synced()

    async def follow(self) -> None:
        """Take over what the informers hold and begin to follow them; ``Unavailable`` before they were complete."""
        async with self._begun:
            if self.active:
                return
            if not (self.hypervisors.synced and self.reservations.synced):
                raise Unavailable("hosts and slots have not been listed yet", remedy="wait until the store answers")
            self._ends = [
                self.hypervisors.subscribe(self._host_changed, replay=False),
                self.reservations.subscribe(self._slot_changed, replay=False),
            ]
            if self.vms is not None:
                self._ends.append(self.vms.subscribe(self._vm_changed, replay=False))
            await self.rebuild()
            self.active = True

    async def rebuild(self) -> None:
        """Build the state anew; what changes meanwhile is taken over at the end. If it is cut off, nobody follows."""
        missed = self._missed = {}
        try:
            vms = await in_portions(_views(self.vms.items()), self._clock) if self.vms is not None else None
            hosts, slots = self.hypervisors.items(), self.reservations.items()
            await in_portions(self.state.rebuild(hosts, slots, vms), self._clock)
        except BaseException:
            self._stop()
            raise
        finally:
            self._missed = None
        for kind, name in missed:
            self._take_over(kind, name)
        self.noticed()

    def _stop(self) -> None:
        self.active = False
        for end in self._ends:
            end()
        self._ends = []

    def _take_over(self, kind: type[Resource], name: str) -> None:
        if kind is Hypervisor:
            self.state.see_host(name, self.hypervisors.get(name))
        elif kind is Reservation:
            self.state.see_slot(name, self.reservations.get(name))
        elif self.vms is not None:
            vm = self.vms.get(name)
            self.state.see_vm(name, vm_of_resource(vm) if vm is not None else None)

    def _misses(self, kind: type[Resource], name: str) -> bool:
        """Whether the state is being built, so that the change is taken over later."""
        if self._missed is None:
            return False
        self._missed[kind, name] = None
        return True

    def _host_changed(self, old: Hypervisor | None, new: Hypervisor | None) -> None:
        host = new or old
        if host is not None and not self._misses(Hypervisor, host.name):
            self.state.see_host(host.name, new)
            self.noticed()

    def _vm_changed(self, old: VirtualMachine | None, new: VirtualMachine | None) -> None:
        vm = new or old
        if vm is not None and not self._misses(VirtualMachine, vm.name):
            self.state.see_vm(vm.name, vm_of_resource(new) if new is not None else None)
            self.noticed()

    def _slot_changed(self, old: Reservation | None, new: Reservation | None) -> None:
        slot = new or old
        if slot is None or self._misses(Reservation, slot.name):
            return
        before = self.state.slots.get(slot.name)
        self.state.see_slot(slot.name, new, quietly=self._own_write)
        if not self._own_write:
            self.noticed()
        elif self.reacting:
            for view in (before, self.state.slots.get(slot.name)):
                self.state.note_newer(view.members if view is not None else ())

    # The writer's side of the informer: own writes are taken over, but call for no reaction

    def note(self, obj: Reservation, *, replaced: str | None = None) -> None:
        """An acknowledged write of ours."""
        self._own_write = True
        try:
            self.reservations.note(obj, replaced=replaced)
        finally:
            self._own_write = False

    def note_gone(self, ref: ObjectRef) -> None:
        """An acknowledged deletion of ours."""
        self._own_write = True
        try:
            self.reservations.note_gone(ref)
        finally:
            self._own_write = False


def _views(vms: Sequence[VirtualMachine]) -> Portions[list[VmView]]:
    views: list[VmView] = []
    for portion in portioned(vms, VIEWS_OF_A_PORTION):
        views += [view for vm in portion if (view := vm_of_resource(vm)) is not None]
        yield
    return views

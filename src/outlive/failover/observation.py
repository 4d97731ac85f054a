"""One look at a whole cluster: hosts, VMs and slots as frozen views, read from a store.

Reading is all or nothing. What is *not* promised is one moment for all of it: hosts, VMs and slots are three reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from outlive.base.clock import Clock
from outlive.base.errors import NotFound
from outlive.failover.locations import OnHypervisors, merge
from outlive.failover.model import HostView, SlotView, VmView
from outlive.failover.ports import VMSource
from outlive.failover.slots import SLOT_SELECTOR, as_it_stands, slot_view, unschedulable_hosts
from outlive.failover.vms import VmList, host_view, list_resources, vm_of_resource
from outlive.resources import FlavorGroup, FlavorGroupSpec, Hypervisor, Reservation, VirtualMachine
from outlive.store import Store, list_all


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One look."""

    hypervisors: tuple[Hypervisor, ...] = ()
    hosts: tuple[HostView, ...] = ()
    vms: tuple[VmView, ...] = ()
    """Those whose location is known; of the others ``merged.unplaced`` says why it is not."""
    slots: tuple[SlotView, ...] = ()
    objects: dict[str, Reservation] = {}
    """Slot name → the object that its view was made from, which is what a write replaces."""
    listing: VmList = VmList()
    merged: OnHypervisors = OnHypervisors()

    @property
    def closed(self) -> dict[str, str]:
        """Host on which no slot can be used → why not; of unknown hosts those that slots are on."""
        return unschedulable_hosts(self.hosts, self.slots)


class StoreVMs:
    """Our own ``VirtualMachine`` objects as a VM source, read from the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def list_vms(self) -> VmList:
        """Every VM that is assigned to a host, by name."""
        return list_resources([vm async for vm in list_all(self._store, VirtualMachine)], now=self._clock.now())

    async def get_vm(self, vm_id: str) -> VmView | None:
        """One VM, if it is assigned to a host."""
        try:
            found = await self._store.get(VirtualMachine, vm_id)
        except NotFound:
            return None
        return vm_of_resource(found, now=self._clock.now())


async def observe(store: Store, source: VMSource, *, trust_hosts: bool) -> Observation:
    """Hosts and slots, then VMs."""
    hosts = tuple([host async for host in list_all(store, Hypervisor)])
    slots = [slot async for slot in list_all(store, Reservation, selector=SLOT_SELECTOR)]
    listing = await source.list_vms()
    views = tuple(map(host_view, hosts))
    merged = merge(listing.vms, views, trust_hosts=trust_hosts, names=names_on(hosts))
    written = tuple(map(slot_view, slots))
    closed = unschedulable_hosts(views, written)
    return Observation(
        hypervisors=hosts,
        hosts=views,
        vms=merged.vms,
        slots=tuple(as_it_stands(slot, closed) for slot in written),
        objects={slot.name: slot for slot in slots},
        listing=listing,
        merged=merged,
    )


async def flavor_groups(store: Store) -> Sequence[FlavorGroupSpec]:
    """All flavor groups."""
    return [group.spec async for group in list_all(store, FlavorGroup)]


def names_on(hosts: Iterable[Hypervisor]) -> dict[str, str]:
    """VM → what its host calls it."""
    return {one.id: one.name for host in hosts for one in host.status.instances if one.active and one.name}

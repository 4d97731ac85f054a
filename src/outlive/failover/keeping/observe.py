"""What a cycle sees: hosts, VMs and slots as frozen views, gathered from caches or from a store.

Gathering is all or nothing: whatever cannot be read ends the cycle with the name of the step
(docs/reference/failover.md#cycle). What is *not* promised is one moment for all of it: hosts, VMs and slots are three
reads. The rules tolerate that, because a membership is judged again in every cycle.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec

from outlive.base.clock import Clock
from outlive.base.errors import NotFound, OutliveError, Unavailable
from outlive.base.logging import get_logger
from outlive.failover.keeping.mirror import Mirror
from outlive.failover.model import HostView, SlotView, VmView
from outlive.failover.portions import Portions, in_portions, portioned, whole
from outlive.failover.ports import VMSource
from outlive.failover.vms import VmList, host_view, list_resources, vm_of_resource
from outlive.failover.whereabouts import HOSTS_OF_A_PORTION, OnHypervisors, located_at, merging
from outlive.resources import (
    FAILOVER,
    RESERVATION_TYPE_LABEL,
    TYPE_LABEL_VALUES,
    FlavorGroup,
    FlavorGroupSpec,
    Hypervisor,
    R,
    Reservation,
    VirtualMachine,
    condition,
)
from outlive.runtime.informer import Informer
from outlive.store import Selector, Store, list_all

SLOT_SELECTOR = Selector.labels({RESERVATION_TYPE_LABEL: TYPE_LABEL_VALUES[FAILOVER]})
"""The slots of cycles. An object of the type without the label is validated, never cleaned up or reused."""
_log = get_logger("failover.observe")

STALE_S = 60.0
"""A cache that has lost the store for longer than this is no longer believed."""


T = TypeVar("T")


class Hosts(msgspec.Struct, frozen=True):
    """All hosts, by name, and what they look like to decisions."""

    objects: tuple[Hypervisor, ...] = ()
    views: tuple[HostView, ...] = ()


class Slots(msgspec.Struct, frozen=True):
    """All reservations with the label of slots, by name, and their views."""

    objects: tuple[Reservation, ...] = ()
    views: tuple[SlotView, ...] = ()


class World(Protocol):
    """Where hosts, slots and flavor groups are read; each call raises ``Unavailable`` where that is impossible."""

    async def hosts(self) -> Hosts:
        """All hosts."""
        ...

    async def slots(self) -> Slots:
        """All slots."""
        ...

    async def groups(self) -> Sequence[FlavorGroupSpec]:
        """All flavor groups."""
        ...


class StoreWorld:
    """Reads the store each time."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def hosts(self) -> Hosts:
        """All hosts."""
        found = [host async for host in list_all(self._store, Hypervisor)]
        return Hosts(tuple(found), tuple(map(host_view, found)))

    async def slots(self) -> Slots:
        """All slots."""
        found = [slot async for slot in list_all(self._store, Reservation, selector=SLOT_SELECTOR)]
        return Slots(tuple(found), tuple(map(slot_view, found)))

    async def groups(self) -> Sequence[FlavorGroupSpec]:
        """All flavor groups."""
        return [group.spec async for group in list_all(self._store, FlavorGroup)]


class CachedWorld:
    """Reads informers, which also show at once what this process has written."""

    def __init__(
        self, hypervisors: Informer[Hypervisor], reservations: Informer[Reservation], groups: Informer[FlavorGroup]
    ) -> None:
        self._hypervisors = hypervisors
        self._reservations = reservations
        self._groups = groups
        self._host_views = Mirror(hypervisors, host_view)
        self._slot_views = Mirror(reservations, lambda one: slot_view(one) if is_slot(one) else None)

    async def hosts(self) -> Hosts:
        """All hosts."""
        check_believed(self._hypervisors)
        return Hosts(self._host_views.objects, self._host_views.views)

    async def slots(self) -> Slots:
        """All slots."""
        check_believed(self._reservations)
        return Slots(self._slot_views.objects, self._slot_views.views)

    async def groups(self) -> Sequence[FlavorGroupSpec]:
        """All flavor groups."""
        return [group.spec for group in believed(self._groups)]


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


class CachedVMs:
    """Our own ``VirtualMachine`` objects as a VM source, from an informer."""

    def __init__(self, vms: Informer[VirtualMachine]) -> None:
        self._vms = vms
        self._views = Mirror(vms, vm_of_resource)

    async def list_vms(self) -> VmList:
        """Every VM that is assigned to a host, by name; all of them as at the moment of the call."""
        check_believed(self._vms)
        views = self._views.views
        return VmList(vms=views, without_host=len(self._vms) - len(views))

    async def get_vm(self, vm_id: str) -> VmView | None:
        """One VM, if it is assigned to a host."""
        check_believed(self._vms)
        found = self._vms.get(vm_id)
        return None if found is None else vm_of_resource(found)


class Step(enum.StrEnum):
    """What a cycle was doing when it could not go on: the label of the counter of aborted cycles."""

    HYPERVISORS = "hypervisors"
    VMS = "vms"
    SLOTS = "slots"
    DECIDE = "decide"


class Aborted(Unavailable):
    """A cycle that could not go on, and during which step. If it could not read, nothing was written."""

    code = "cycle-aborted"

    def __init__(self, step: Step, error: OutliveError) -> None:
        super().__init__(f"cycle aborted at step {step.value}: {error}")
        self.step = step


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the world."""

    hypervisors: tuple[Hypervisor, ...] = ()
    hosts: tuple[HostView, ...] = ()
    vms: tuple[VmView, ...] = ()
    slots: tuple[SlotView, ...] = ()
    objects: dict[str, Reservation] = {}
    """Slot name → the object that its view was made from, which is what a write replaces."""
    listing: VmList = VmList()
    merged: OnHypervisors = OnHypervisors()

    @property
    def closed(self) -> dict[str, str]:
        """Host on which no slot can be used → why not; of unknown hosts those that slots are on."""
        return unschedulable_hosts(self.hosts, self.slots)

    @property
    def active(self) -> Collection[str]:
        """VMs that any host reports as active."""
        return self.merged.sightings.keys()


class Looking:
    """Looks at the world again and again, and does over only what changed since the last look."""

    def __init__(self, world: World, source: VMSource, *, trust_hosts: bool, clock: Clock | None = None) -> None:
        """With ``clock`` others get their turn in between."""
        self._world = world
        self._source = source
        self._trust_hosts = trust_hosts
        self._clock = clock
        self._last = Observation()
        self._located: dict[str, tuple[VmView, VmView]] = {}
        """VM → its source's view, and the same with the place that a host reports."""

    async def look(self) -> Observation:
        """Hosts and slots, then VMs; ``Aborted`` names the step that failed.

        Caches are read before anything else gets a turn, so that the three are of one moment.
        """
        hosts = await _step(Step.HYPERVISORS, self._world.hosts())
        slots = await _step(Step.SLOTS, self._world.slots())
        listing = await _step(Step.VMS, self._source.list_vms())
        merged = await self._merged(hosts, listing)
        closed = unschedulable_hosts(hosts.views, slots.views)
        self._last = Observation(
            hypervisors=hosts.objects,
            hosts=hosts.views,
            vms=merged.vms,
            slots=tuple(as_it_stands(slot, closed) for slot in slots.views) if closed else slots.views,
            objects={slot.metadata.name: slot for slot in slots.objects},
            listing=listing,
            merged=merged,
        )
        return self._last

    async def _merged(self, hosts: Hosts, listing: VmList) -> OnHypervisors:
        last = self._last
        if hosts.views == last.hosts and listing.vms == last.listing.vms:
            return last.merged
        names = await self._share(_names(hosts.objects))
        merged = await self._share(
            merging(listing.vms, hosts.views, trust_hosts=self._trust_hosts, names=names, located=self._at)
        )
        for vm in [vm for vm in self._located if vm not in merged.sightings]:
            del self._located[vm]
        return merged

    def _at(self, vm: VmView, host: str) -> VmView:
        """The VM on this host: the same object as long as nothing changes."""
        known = self._located.get(vm.id)
        if known is None or known[0] is not vm or known[1].host != host:
            known = self._located[vm.id] = (vm, located_at(vm, host))
        return known[1]

    async def _share(self, work: Portions[T]) -> T:
        return whole(work) if self._clock is None else await in_portions(work, self._clock)


def _names(hypervisors: Iterable[Hypervisor]) -> Portions[dict[str, str]]:
    """VM → what its host calls it."""
    names: dict[str, str] = {}
    for portion in portioned(hypervisors, HOSTS_OF_A_PORTION):
        names.update((i.id, i.name) for host in portion for i in host.status.instances if i.active and i.name)
        yield
    return names


async def observe(world: World, source: VMSource, *, trust_hosts: bool) -> Observation:
    """One look; ``Aborted`` names the step that failed."""
    return await Looking(world, source, trust_hosts=trust_hosts).look()


def slot_view(slot: Reservation) -> SlotView:
    """A slot as the rules see it; one that has a consumer promises nothing any more."""
    spec, status, meta = slot.spec, slot.status, slot.metadata
    consumer = status.consumer.vm if status.consumer is not None else ""
    failover = status.failover_reservation
    ready = condition(status.conditions, "Ready")
    return SlotView(
        name=meta.name,
        host=status.host,
        target_host=spec.target_host,
        zone=spec.availability_zone,
        group=spec.failover_reservation.resource_group if spec.failover_reservation else "",
        cpu_milli=spec.resources.cpu_milli,
        memory_bytes=spec.resources.memory_bytes,
        members=dict(failover.allocations) if failover and not consumer else {},
        ready=False if consumer else None if ready is None else ready.status == "True",
        initialised=failover is not None,
        consumer=consumer,
        created_at=meta.creation_timestamp.timestamp() if meta.creation_timestamp else 0.0,
        last_changed=failover.last_changed.timestamp() if failover and failover.last_changed else None,
        acknowledged_at=failover.acknowledged_at.timestamp() if failover and failover.acknowledged_at else None,
        uid=meta.uid,
        version=meta.resource_version,
    )


def unschedulable_hosts(hosts: Iterable[HostView], slots: Iterable[SlotView]) -> dict[str, str]:
    """Host on which no slot can be used → why not, to follow its name; unknown hosts of slots included."""
    found = {host.name: host.unschedulable for host in hosts}
    found.update({slot.host: "is no host that is known" for slot in slots if slot.host and slot.host not in found})
    return {name: why for name, why in found.items() if why}


def as_it_stands(slot: SlotView, closed: Mapping[str, str]) -> SlotView:
    """The slot in view of its host: where no slot can be used it is not ready, whatever its condition says."""
    why = closed.get(slot.host)
    return slot if why is None else msgspec.structs.replace(slot, ready=False, unready=f"{slot.host} {why}")


def is_slot(reservation: Reservation) -> bool:
    """Whether cycles see it."""
    return SLOT_SELECTOR.matches(reservation.metadata.labels)


def believed(informer: Informer[R]) -> list[R]:
    """What the informer shows; ``Unavailable`` while it cannot be believed."""
    check_believed(informer)
    return informer.items()


def check_believed(informer: Informer[R]) -> None:
    """``Unavailable`` while the informer has never been complete, or is too old to act on."""
    if not informer.synced:
        raise Unavailable(f"{informer.name} have not been listed yet", remedy="wait until the store answers")
    if informer.stalled_s() > STALE_S:
        raise Unavailable(
            f"{informer.name} were last heard of {informer.stalled_s():.0f} s ago",
            remedy="check the connection to the store",
        )


async def _step(step: Step, reading: Awaitable[T]) -> T:
    try:
        return await reading
    except OutliveError as error:
        raise Aborted(step, error) from error
    except Exception as error:
        odd = Unavailable(f"unexpected answer: {type(error).__name__}: {error}", remedy="see the log, and report it")
        _log.error("cycle.unexpected", step=step.value, error=repr(error), exc_info=True)
        raise Aborted(step, odd) from error

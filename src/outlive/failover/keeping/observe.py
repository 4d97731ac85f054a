"""What a cycle sees: hosts, VMs and slots as frozen views, gathered from caches or from a store.

Gathering is all or nothing: whatever cannot be read ends the cycle with the name of the step
(docs/reference/failover.md#cycle). What is *not* promised is one moment for all of it: hosts, VMs and slots are three
reads. The rules tolerate that, because a membership is judged again in every cycle.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from outlive.base.clock import Clock
from outlive.base.errors import NotFound, OutliveError, Unavailable
from outlive.failover.model import HostView, SlotView, VmView
from outlive.failover.portions import Portions, in_portions, portioned, whole
from outlive.failover.ports import VMSource
from outlive.failover.vms import (
    HOSTS_OF_A_PORTION,
    OnHypervisors,
    VmList,
    host_view,
    list_resources,
    merging,
    vm_of_resource,
)
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
STALE_S = 60.0
"""A cache that has lost the store for longer than this is no longer believed."""


VIEWS_OF_A_PORTION = 200
"""Views that are made together."""

T = TypeVar("T")
V = TypeVar("V")


class Views(Generic[R, V]):
    """Views of objects, each made once for as long as its object stays the same."""

    def __init__(self, make: Callable[[R], V]) -> None:
        self._make = make
        self._made: dict[str, tuple[R, V]] = {}

    def of(self, objects: Iterable[R]) -> Portions[list[V]]:
        """The views of all objects there are, in their order; those of others are forgotten."""
        made: dict[str, tuple[R, V]] = {}
        views: list[V] = []
        for portion in portioned(objects, VIEWS_OF_A_PORTION):
            for obj in portion:
                known = self._made.get(obj.metadata.name)
                if known is None or known[0] is not obj:
                    known = (obj, self._make(obj))
                made[obj.metadata.name] = known
                views.append(known[1])
            yield
        self._made = made
        return views


class World(Protocol):
    """Where hosts, slots and flavor groups are read; each call raises ``Unavailable`` where that is impossible."""

    async def hypervisors(self) -> Sequence[Hypervisor]:
        """All hosts, by name."""
        ...

    async def slots(self) -> Sequence[Reservation]:
        """All reservations with the label of slots, by name."""
        ...

    async def groups(self) -> Sequence[FlavorGroupSpec]:
        """All flavor groups."""
        ...


class StoreWorld:
    """Reads the store each time."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def hypervisors(self) -> Sequence[Hypervisor]:
        """All hosts, by name."""
        return [host async for host in list_all(self._store, Hypervisor)]

    async def slots(self) -> Sequence[Reservation]:
        """All reservations with the label of slots, by name."""
        return [slot async for slot in list_all(self._store, Reservation, selector=SLOT_SELECTOR)]

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

    async def hypervisors(self) -> Sequence[Hypervisor]:
        """All hosts, by name."""
        return believed(self._hypervisors)

    async def slots(self) -> Sequence[Reservation]:
        """All reservations with the label of slots, by name."""
        return [slot for slot in believed(self._reservations) if is_slot(slot)]

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
    """Our own ``VirtualMachine`` objects as a VM source, from an informer. Views of unchanged objects are kept."""

    def __init__(self, vms: Informer[VirtualMachine], clock: Clock) -> None:
        self._vms = vms
        self._clock = clock
        self._views = Views(vm_of_resource)

    async def list_vms(self) -> VmList:
        """Every VM that is assigned to a host, by name; all of them as at the moment of the call."""
        found = await in_portions(self._views.of(believed(self._vms)), self._clock)
        views = tuple(view for view in found if view is not None)
        return VmList(vms=views, without_host=len(found) - len(views))

    async def get_vm(self, vm_id: str) -> VmView | None:
        """One VM, if it is assigned to a host."""
        believed(self._vms)
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
        self._host_views = Views(host_view)
        self._slot_views = Views(slot_view)
        self._last = Observation()

    async def look(self) -> Observation:
        """Hosts and slots, then VMs; ``Aborted`` names the step that failed.

        Caches are read before anything else gets a turn, so that the three are of one moment.
        """
        hypervisors = tuple(await _step(Step.HYPERVISORS, self._world.hypervisors()))
        objects = await _step(Step.SLOTS, self._world.slots())
        listing = await _step(Step.VMS, self._source.list_vms())
        hosts = tuple(await self._share(self._host_views.of(hypervisors)))
        slots = tuple(await self._share(self._slot_views.of(objects)))
        merged = await self._merged(hypervisors, hosts, listing)
        self._last = Observation(
            hypervisors=hypervisors,
            hosts=hosts,
            vms=merged.vms,
            slots=slots,
            objects={slot.name: slot for slot in objects},
            listing=listing,
            merged=merged,
        )
        return self._last

    async def _merged(
        self, hypervisors: Sequence[Hypervisor], hosts: tuple[HostView, ...], listing: VmList
    ) -> OnHypervisors:
        last = self._last
        if hosts == last.hosts and listing.vms == last.listing.vms:
            return last.merged
        names = await self._share(_names(hypervisors))
        return await self._share(merging(listing.vms, hosts, trust_hosts=self._trust_hosts, names=names))

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
    """A slot as the rules see it."""
    spec, status, meta = slot.spec, slot.status, slot.metadata
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
        members=dict(failover.allocations) if failover else {},
        ready=None if ready is None else ready.status == "True",
        initialised=failover is not None,
        created_at=meta.creation_timestamp.timestamp() if meta.creation_timestamp else 0.0,
        last_changed=failover.last_changed.timestamp() if failover and failover.last_changed else None,
        acknowledged_at=failover.acknowledged_at.timestamp() if failover and failover.acknowledged_at else None,
        uid=meta.uid,
        version=meta.resource_version,
    )


def is_slot(reservation: Reservation) -> bool:
    """Whether cycles see it."""
    return SLOT_SELECTOR.matches(reservation.metadata.labels)


def believed(informer: Informer[R]) -> list[R]:
    """What the informer shows; ``Unavailable`` while it has never been complete, or is too old to act on."""
    if not informer.synced:
        raise Unavailable(f"{informer.name} have not been listed yet", remedy="wait until the store answers")
    if informer.stalled_s() > STALE_S:
        raise Unavailable(
            f"{informer.name} were last heard of {informer.stalled_s():.0f} s ago",
            remedy="check the connection to the store",
        )
    return informer.items()


async def _step(step: Step, reading: Awaitable[T]) -> T:
    try:
        return await reading
    except OutliveError as error:
        raise Aborted(step, error) from error

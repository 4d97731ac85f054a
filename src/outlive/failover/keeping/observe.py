"""What a cycle sees: hosts, VMs and slots as frozen views, gathered from caches or from a store.

Gathering is all or nothing: whatever cannot be read ends the cycle with the name of the step
(docs/reference/failover.md#cycle). What is *not* promised is one moment for all of it: hosts, VMs and slots are three
reads. The rules tolerate that, because a membership is judged again in every cycle.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Sequence
from typing import Protocol, TypeVar

import msgspec

from outlive.base.clock import Clock
from outlive.base.errors import NotFound, OutliveError, Unavailable
from outlive.failover.model import HostView, SlotView, VmView
from outlive.failover.ports import VMSource
from outlive.failover.vms import OnHypervisors, VmList, host_view, list_resources, on_hypervisors, vm_of_resource
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


YIELD_EVERY = 1_000
"""Objects after which others get their turn."""

T = TypeVar("T")


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
    """Our own ``VirtualMachine`` objects as a VM source, from an informer."""

    def __init__(self, vms: Informer[VirtualMachine], clock: Clock) -> None:
        self._vms = vms
        self._clock = clock

    async def list_vms(self) -> VmList:
        """Every VM that is assigned to a host, by name."""
        views: list[VmView] = []
        without_host = 0
        for number, vm in enumerate(believed(self._vms), 1):
            view = vm_of_resource(vm, now=self._clock.now())
            if view is None:
                without_host += 1
            else:
                views.append(view)
            if number % YIELD_EVERY == 0:
                await self._clock.sleep(0)
        return VmList(vms=tuple(views), without_host=without_host)

    async def get_vm(self, vm_id: str) -> VmView | None:
        """One VM, if it is assigned to a host."""
        believed(self._vms)
        found = self._vms.get(vm_id)
        return None if found is None else vm_of_resource(found, now=self._clock.now())


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
    def active(self) -> frozenset[str]:
        """VMs that any host reports as active."""
        return frozenset(vm for host in self.hosts for vm in host.active)


async def observe(world: World, source: VMSource, *, trust_hosts: bool) -> Observation:
    """Hosts, then VMs, then slots; ``Aborted`` names the step that failed."""
    hypervisors = await _step(Step.HYPERVISORS, world.hypervisors())
    hosts = tuple(host_view(host) for host in hypervisors)
    listing = await _step(Step.VMS, source.list_vms())
    names = {i.id: i.name for host in hypervisors for i in host.status.instances if i.active and i.name}
    merged = on_hypervisors(listing.vms, hosts, trust_hosts=trust_hosts, names=names)
    objects = {slot.name: slot for slot in await _step(Step.SLOTS, world.slots())}
    slots = tuple(slot_view(objects[name]) for name in sorted(objects))
    return Observation(
        hypervisors=tuple(hypervisors),
        hosts=hosts,
        vms=merged.vms,
        slots=slots,
        objects=objects,
        listing=listing,
        merged=merged,
    )


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

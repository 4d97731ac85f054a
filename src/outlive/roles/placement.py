"""Wires placement: the service, its pipelines and flavor groups, and what follows from its answers."""

from __future__ import annotations

from typing import Protocol

from outlive.base.clock import Clock
from outlive.base.random import Random
from outlive.placement.arrivals import InFlightController
from outlive.placement.controllers import FlavorGroupController, PipelineController
from outlive.placement.fleet import Fleet
from outlive.placement.history import HistoryCleanup, HistoryWriter
from outlive.placement.in_flight import InFlightRoom
from outlive.placement.pipelines import PipelineTable
from outlive.placement.quota import VmSize
from outlive.placement.service import PlacementService
from outlive.placement.settings import PlacementSettings
from outlive.placement.vms import VMSource
from outlive.resources import (
    Amounts,
    CommittedResource,
    Flavor,
    FlavorGroup,
    Hypervisor,
    Pipeline,
    ProjectQuota,
    R,
    Reservation,
    VirtualMachine,
)
from outlive.runtime.controller import Watch
from outlive.runtime.election import Elector
from outlive.runtime.informer import Informer
from outlive.runtime.manager import Manager
from outlive.runtime.metrics import Metrics
from outlive.store import Store


class InformerOf(Protocol):
    """Makes an informer of a kind."""

    def __call__(self, kind: type[R], /) -> Informer[R]:
        """The informer, which nobody runs yet."""
        ...


class PlacementRole:
    """What only one process is to do runs behind ``elector``."""

    def __init__(
        self,
        store: Store,
        settings: PlacementSettings,
        *,
        hypervisors: Informer[Hypervisor],
        reservations: Informer[Reservation],
        groups: Informer[FlavorGroup],
        vms: Informer[VirtualMachine],
        informer_of: InformerOf,
        source: VMSource | None,
        manager: Manager,
        elector: Elector,
        metrics: Metrics,
        clock: Clock,
        random: Random,
    ) -> None:
        self._vms = vms
        self._source = source
        pipelines, flavors = informer_of(Pipeline), informer_of(Flavor)
        service = PlacementService(Fleet(settings), PipelineTable(), clock=clock, random=random, metrics=metrics)
        self.commitments, self.quotas = informer_of(CommittedResource), informer_of(ProjectQuota)
        manager.add_informer(self.commitments)
        manager.add_informer(self.quotas)
        service.watch(
            hypervisors=hypervisors,
            reservations=reservations,
            pipelines=pipelines,
            commitments=self.commitments,
            quotas=self.quotas,
        )
        service.fleet.quotas.size_of = self._size_in_group
        self.service = service
        manager.add_controller(PipelineController(store, pipelines, service.pipelines, clock=clock), [Watch(pipelines)])
        kept = FlavorGroupController(store, flavors, groups, settings=settings, clock=clock)
        manager.add_controller(kept, [Watch(flavors, kept.keys), Watch(groups, kept.keys)])
        self._history = service.history = HistoryWriter(store, clock=clock)
        self._history.expose(metrics)
        manager.add_task("placement-history-writer", self._history.run)
        cleanup = HistoryCleanup(store, self._known, clock=clock)
        manager.add_task("placement-history-cleanup", cleanup.run, elector=elector, after_sync=True)
        self._room = service.in_flight = InFlightRoom(store, service.fleet, reservations.get, clock=clock)
        self._room.expose(metrics)
        manager.add_task("in-flight-writer", self._room.run)
        arrivals = InFlightController(store, reservations, service.fleet, self._size_of, clock=clock)
        manager.add_controller(
            arrivals,
            [Watch(reservations, arrivals.keys), Watch(hypervisors, arrivals.keys_of_host)],
            elector=elector,
        )

    async def _size_of(self, vm: str) -> Amounts | None:
        """The size of a VM as whoever knows all VMs has it."""
        if self._source is not None:
            found = await self._source.get_vm(vm)
            return Amounts(cpu=found.cpu_milli, memory=found.memory_bytes) if found is not None else None
        own = self._vms.get(vm)
        return own.spec.resources if own is not None else None

    def _size_in_group(self, vm: str) -> VmSize | None:
        """The size of one of our own VMs, with its flavor group."""
        own = self._vms.get(vm)
        if own is None:
            return None
        keys = self.service.settings.flavor_group_keys
        group = next((own.spec.extra_specs[key] for key in keys if own.spec.extra_specs.get(key)), "")
        return VmSize(group=group, resources=own.spec.resources)

    async def _known(self) -> frozenset[str]:
        """Ids of all VMs that somebody knows, and names of all reservations."""
        listed = (await self._source.list_vms()).vms if self._source is not None else ()
        return frozenset(
            (
                *(vm.id for vm in listed),
                *(vm.name for vm in self._vms.items()),
                *self.service.fleet.vms,
                *(one.name for one in self.service.fleet.reservations()),
            )
        )

    async def flush(self) -> None:
        """Write what waits, at the end of the process."""
        await self._history.flush()
        await self._room.flush()

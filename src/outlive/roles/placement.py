"""Wires placement: the service, its pipelines and flavor groups, and what follows from its answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from outlive.base import Clock, Random
from outlive.placement import (
    ALL_GROUPS,
    NOVA,
    OWN,
    Descheduler,
    DeschedulingController,
    FlavorGroupController,
    Fleet,
    HistoryCleanup,
    HistoryWriter,
    InFlightController,
    InFlightWriter,
    OvercommitController,
    PipelineController,
    PipelineTable,
    PlacementService,
    PlacementSettings,
    VmMoves,
    VmSize,
    VMSource,
    pipeline_metrics,
)
from outlive.placement.capacity_metrics import capacity_metrics
from outlive.resources import (
    Amounts,
    CommittedResource,
    Descheduling,
    Flavor,
    FlavorGroup,
    FlavorGroupCapacity,
    Hypervisor,
    Knowledge,
    Pipeline,
    ProjectQuota,
    R,
    Reservation,
    VirtualMachine,
)
from outlive.runtime import ControllerOptions, Elector, EventRecorder, Informer, Manager, Metrics, Watch
from outlive.store import Store


class InformerOf(Protocol):
    """Makes an informer of a kind."""

    def __call__(self, kind: type[R], /) -> Informer[R]:
        """The informer, which nobody runs yet."""
        ...


@dataclass(frozen=True, slots=True)
class Followed:
    """Informers that others have as well."""

    hypervisors: Informer[Hypervisor]
    reservations: Informer[Reservation]
    groups: Informer[FlavorGroup]
    flavors: Informer[Flavor]
    vms: Informer[VirtualMachine]
    commitments: Informer[CommittedResource]
    quotas: Informer[ProjectQuota]
    capacities: Informer[FlavorGroupCapacity]


@dataclass(frozen=True, slots=True)
class Runtime:
    """What everything that runs needs. What only one process is to do runs behind ``elector``."""

    store: Store
    manager: Manager
    elector: Elector
    metrics: Metrics
    events: EventRecorder
    clock: Clock
    random: Random


class PlacementRole:
    """See the module. ``knowledge`` and ``pipelines`` are informers for others as well."""

    def __init__(
        self,
        runtime: Runtime,
        settings: PlacementSettings,
        followed: Followed,
        informer_of: InformerOf,
        *,
        source: VMSource | None,
        moves: Mapping[str, VmMoves],
    ) -> None:
        self._runtime = runtime
        self._followed = followed
        self._source = source
        self.knowledge, self.pipelines = informer_of(Knowledge), informer_of(Pipeline)
        self.service = self._serve(settings)
        self._prepare(settings)
        self._room, self._history = self._keep_answers()
        self._deschedule(informer_of(Descheduling), moves, dry_run=settings.descheduler_dry_run)

    def _serve(self, settings: PlacementSettings) -> PlacementService:
        """The service, which follows everything that its answers rest on."""
        run, fleet = self._runtime, Fleet(settings)
        table = PipelineTable(fleet.records.usable_names)
        service = PlacementService(fleet, table, clock=run.clock, random=run.random, metrics=run.metrics)
        service.watch(
            hypervisors=self._followed.hypervisors,
            reservations=self._followed.reservations,
            pipelines=self.pipelines,
            commitments=self._followed.commitments,
            quotas=self._followed.quotas,
            knowledge=self.knowledge,
        )
        fleet.quotas.size_of = self._size_in_group
        run.manager.add_informer(self._followed.commitments)
        run.manager.add_informer(self._followed.quotas)
        run.manager.add_informer(self._followed.capacities)
        run.metrics.register_collector(lambda: capacity_metrics(self._followed.capacities.items()))
        return service

    def _prepare(self, settings: PlacementSettings) -> None:
        """The controllers of pipelines, flavor groups and overcommit."""
        run, groups, flavors = self._runtime, self._followed.groups, self._followed.flavors
        run.metrics.register_collector(lambda: pipeline_metrics(self.pipelines.items()))
        builder = PipelineController(run.store, self.pipelines, self.service.pipelines, clock=run.clock)
        run.manager.add_controller(builder, [Watch(self.pipelines), Watch(self.knowledge, builder.keys_of_knowledge)])
        kept = FlavorGroupController(run.store, flavors, groups, settings=settings, clock=run.clock)
        watches = [Watch(flavors, kept.keys), Watch(groups, kept.keys)]
        run.manager.add_controller(kept, watches, options=ControllerOptions(keys=(ALL_GROUPS,)))
        if settings.overcommit_mappings:
            hypervisors = self._followed.hypervisors
            overcommit = OvercommitController(run.store, hypervisors, settings.overcommit_mappings)
            run.manager.add_controller(overcommit, [Watch(hypervisors)], elector=run.elector)

    def _keep_answers(self) -> tuple[InFlightWriter, HistoryWriter]:
        """What follows from answers: room in flight, and history."""
        run, service, reservations = self._runtime, self.service, self._followed.reservations
        history = service.history = HistoryWriter(run.store, clock=run.clock, events=run.events)
        history.expose(run.metrics)
        run.manager.add_task("placement-history-writer", history.run)
        cleanup = HistoryCleanup(run.store, self._list_known, clock=run.clock)
        run.manager.add_task("placement-history-cleanup", cleanup.run, elector=run.elector, after_sync=True)
        room = service.in_flight = InFlightWriter(run.store, service.fleet, reservations.get, clock=run.clock)
        room.expose(run.metrics)
        run.manager.add_task("in-flight-writer", room.run)
        arrivals = InFlightController(run.store, reservations, service.fleet, self._size_of, clock=run.clock)
        hosts = Watch(self._followed.hypervisors, arrivals.keys_of_host)
        run.manager.add_controller(arrivals, [Watch(reservations, arrivals.keys), hosts], elector=run.elector)
        return room, history

    def _deschedule(self, records: Informer[Descheduling], moves: Mapping[str, VmMoves], *, dry_run: bool) -> None:
        """Add detectors, and the controller that carries out what they find."""
        run = self._runtime
        descheduler = Descheduler(
            run.store,
            self.service.pipelines.detector_pipelines,
            self.service.fleet.records,
            moves,
            self._kind_of,
            records.get,
            metrics=run.metrics,
            clock=run.clock,
            random=run.random.fork("descheduler"),
        )
        run.manager.add_task("descheduler", descheduler.run, elector=run.elector, after_sync=True)
        executor = DeschedulingController(run.store, records, moves, dry_run=dry_run, clock=run.clock)
        run.manager.add_controller(executor, [Watch(records)], elector=run.elector)

    def _kind_of(self, vm: str) -> str:
        """Whose it is to move a VM: what Nova runs may be kept as an object too, and is no business of a daemon."""
        own = self._followed.vms.get(vm)
        host = self._followed.hypervisors.get(own.host) if own is not None else None
        return OWN if host is not None and host.spec.management == "node" else NOVA

    async def _size_of(self, vm: str) -> Amounts | None:
        """The size of a VM as the source of VMs has it."""
        if self._source is not None:
            found = await self._source.get_vm(vm)
            return Amounts(cpu=found.cpu_milli, memory=found.memory_bytes) if found is not None else None
        own = self._followed.vms.get(vm)
        return own.spec.resources if own is not None else None

    def _size_in_group(self, vm: str) -> VmSize | None:
        """The size of one of our own VMs, with its flavor group."""
        own = self._followed.vms.get(vm)
        if own is None:
            return None
        keys = self.service.settings.flavor_group_keys
        group = next((own.spec.extra_specs[key] for key in keys if own.spec.extra_specs.get(key)), "")
        return VmSize(group=group, resources=own.spec.resources)

    async def _list_known(self) -> frozenset[str]:
        """Ids of all VMs that somebody knows, and names of all reservations."""
        listed = (await self._source.list_vms()).vms if self._source is not None else ()
        return frozenset(
            (
                *(vm.id for vm in listed),
                *(vm.name for vm in self._followed.vms.items()),
                *self.service.fleet.vms,
                *(one.name for one in self.service.fleet.list_reservations()),
            )
        )

    async def flush(self) -> None:
        """Write what waits, at the end of the process."""
        await self._history.flush()
        await self._room.flush()

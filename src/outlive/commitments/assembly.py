"""Puts commitments together: one view, one lock, and the controllers and changes that share them.

Everything of the outside is handed in, so that the same assembly runs in production, in simulation and in tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from outlive.base import Clock, Ids, OutliveError, get_logger
from outlive.commitments.application import ChangeApplier
from outlive.commitments.catalogue import Catalogue
from outlive.commitments.change_log import ChangeLog
from outlive.commitments.changes import CommitmentChanges
from outlive.commitments.controllers.capacity import CAPACITY, CapacityController
from outlive.commitments.controllers.commitment import CommitmentController
from outlive.commitments.controllers.consistency import AUDIT, ConsistencyController, RepairRuns
from outlive.commitments.controllers.oversubscription import Departures, OversubscriptionController
from outlive.commitments.controllers.quota import EVERYTHING, QuotaController
from outlive.commitments.controllers.slot import SlotController
from outlive.commitments.controllers.usage import UsageController, UsageRecorder
from outlive.commitments.decision import BatchDecider
from outlive.commitments.domains import DomainNames
from outlive.commitments.liquid_metrics import LiquidMetrics
from outlive.commitments.open_changes import OpenChanges
from outlive.commitments.placer import SlotPlacer
from outlive.commitments.ports import DomainSource, Offload, run_inline
from outlive.commitments.records import InformedRecords
from outlive.commitments.service import CommitmentService
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.survival import HostLossMetric
from outlive.commitments.tracker import SlotTracker
from outlive.commitments.view import CommitmentInformers, CommitmentView
from outlive.commitments.vm_table import VmTable
from outlive.placement import Engine, VMSource, VmView
from outlive.resources import Pipeline, VirtualMachine
from outlive.runtime import (
    ControllerOptions,
    ControllerRun,
    Elector,
    EventRecorder,
    FaultRecorder,
    Informer,
    Manager,
    Metrics,
    Periodic,
    Watch,
)
from outlive.store import Store

HISTORY_S: Final = 86_400.0
"""How often old histories of usage are looked for."""
HISTORY_AGAIN_S: Final = 60.0
"""How soon again where the store was away."""

_log = get_logger("commitments")


class Commitments:
    """All of commitments on one store. ``turn``: held by each placement; ``offload``: where long work runs."""

    def __init__(
        self,
        store: Store,
        *,
        informers: CommitmentInformers,
        vms: Informer[VirtualMachine],
        pipelines: Informer[Pipeline],
        engine: Engine,
        settings: CommitmentSettings,
        metrics: Metrics,
        events: EventRecorder,
        turn: asyncio.Lock,
        clock: Clock,
        ids: Ids,
        source: VMSource | None = None,
        domains: DomainSource | None = None,
        faults: FaultRecorder | None = None,
        offload: Offload = run_inline,
        group_keys: tuple[str, ...] = (),
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self.informers = informers
        self._clock = clock
        self._vm_informer, self._pipelines = vms, pipelines
        self.vms = VmTable(vms, source, clock=clock)
        self.view = view = CommitmentView(informers, self.vms, engine.fleet)
        placer = SlotPlacer(engine, settings)
        applier = ChangeApplier(store, view, placer, clock=clock, leads=leads)
        decider = BatchDecider(view, placer, settings, clock=clock, ids=ids, turn=turn)
        departures = Departures(clock)
        self._domains = DomainNames(engine.fleet.domains, domains, clock=clock)
        self.change_log = ChangeLog(store, informers.changes, clock=clock, ids=ids)
        opened = OpenChanges(informers.changes, applier)
        self.changes = CommitmentChanges(
            self.change_log, decider, applier, settings, domains=self._domains, turn=turn, clock=clock
        )
        self.commitments = CommitmentController(
            view,
            placer,
            applier,
            settings,
            domains=self._domains,
            deciding=self.changes.lock_decisions,
            turn=turn,
            clock=clock,
            metrics=metrics,
        )
        self.slots = SlotController(
            store,
            view,
            placer,
            departures,
            settings,
            domains=self._domains,
            moving=self._find_moving,
            turn=turn,
            clock=clock,
        )
        self.oversubscription = OversubscriptionController(
            store, view, engine.fleet, departures, settings, clock=clock, metrics=metrics
        )
        self._recorder = UsageRecorder(store, settings, clock=clock)
        self.usage = UsageController(view, applier, self._recorder, settings, clock=clock, metrics=metrics)
        self.quota = QuotaController(store, view, settings, clock=clock, metrics=metrics)
        self.capacity = CapacityController(store, view, engine, settings, offload=offload, clock=clock)
        self._losses = HostLossMetric(view, placer, turn=turn, clock=clock, metrics=metrics)
        self._runs = RepairRuns(self.usage)
        self.consistency = ConsistencyController(
            store,
            view,
            applier,
            settings,
            self._runs,
            unapplied=self.change_log.unapplied,
            moving=self._find_moving,
            faults=faults,
            offload=offload,
            clock=clock,
            metrics=metrics,
        )
        self.tracker = SlotTracker(store, view, placer, opened, group_keys=group_keys, clock=clock, metrics=metrics)
        self.records = InformedRecords(
            commitments=informers.commitments,
            quotas=informers.quotas,
            capacities=informers.capacities,
            project_vms=self._vms_of,
            host_zone=view.zone_of,
        )
        self.service = CommitmentService(
            store,
            catalogue=Catalogue(store, informers.groups, settings, clock=clock),
            records=self.records,
            changes=self.changes,
            settings=settings,
            metrics=LiquidMetrics(metrics),
            events=events,
            clock=clock,
        )

    def attach(self, manager: Manager, elector: Elector | None = None) -> None:
        """Run the changes and the controllers under the manager, while the elector leads.

        VMs are known, and placements written down, in every process: each answers reports and calls of Nova.
        """
        for informer in (*self.informers.list_all(), self._vm_informer):
            manager.add_informer(informer)
        self.informers.hypervisors.subscribe(self.vms.on_host)
        self.informers.commitments.subscribe(self.consistency.on_commitment)
        manager.add_task("commitment-vms", self.vms.run)
        manager.add_task("commitment-slot-writer", self.tracker.run)
        manager.add_task("commitment-changes", self.changes.run, elector=elector, after_sync=True)
        manager.add_task("commitment-changes-sweeper", self.change_log.clean, elector=elector, after_sync=True)
        manager.add_task("commitment-host-losses", self._losses.run, elector=elector, after_sync=True)
        manager.add_task("commitment-usage-history", self._clean_history, elector=elector, after_sync=True)
        slots, hosts = self.informers.reservations, self.informers.hypervisors
        commitments, over = self.commitments, self.oversubscription
        watches = [
            Watch(self.informers.commitments),
            Watch(slots, commitments.keys_of_slot),
            Watch(self.informers.groups, commitments.keys_of_group),
        ]
        self._runs.commitments = manager.add_controller(commitments, watches, elector=elector)
        watches = [Watch(slots, self.slots.keys_of_slot), Watch(hosts, self.slots.keys_of_host)]
        self._runs.slots = manager.add_controller(self.slots, watches, elector=elector)
        watches = [Watch(hosts, over.keys_of_host), Watch(slots, over.keys_of_slot)]
        manager.add_controller(over, watches, elector=elector)
        self._attach_counts(manager, elector)
        options = ControllerOptions(keys=(AUDIT,))
        manager.add_controller(self.consistency, elector=elector, options=options)
        if self._domains.has_source:
            manager.add_task("domain-names", self._domains.run)

    def _attach_counts(self, manager: Manager, elector: Elector | None) -> None:
        """What counts usage, quota and capacity; all of it follows VMs."""
        informers, usage, quota, capacity = self.informers, self.usage, self.quota, self.capacity
        promised = informers.commitments
        self._runs.usages = manager.add_controller(usage, [Watch(promised, usage.keys_of_commitment)], elector=elector)
        quotas = manager.add_controller(
            quota,
            [
                Watch(informers.quotas, quota.keys_of_quota),
                Watch(promised, quota.keys_of_commitment),
                Watch(informers.groups, quota.keys_of_group),
            ],
            elector=elector,
            options=ControllerOptions(keys=(EVERYTHING,)),
        )
        manager.add_controller(
            capacity,
            [
                Watch(informers.groups, capacity.keys_of_group),
                Watch(informers.hypervisors, capacity.keys_of_host),
                Watch(informers.reservations, capacity.keys_of_reservation),
                Watch(self._pipelines, capacity.keys_of_pipeline),
                Watch(promised, capacity.keys_of_commitment),
            ],
            elector=elector,
            options=ControllerOptions(keys=(CAPACITY,)),
        )
        self.vms.follow(capacity.on_vm)
        self.vms.follow(_Follower(self._runs.usages, quota, quotas))

    def _find_moving(self, vms: Iterable[str]) -> tuple[str, ...]:
        """Those of the VMs that our own daemons move now."""
        found = ((vm, self._vm_informer.get(vm)) for vm in vms)
        return tuple(vm for vm, one in found if one is not None and one.status.migration is not None)

    async def _vms_of(self, project: str) -> Sequence[VmView]:
        return self.view.vms_of(project)

    async def _clean_history(self) -> None:
        """At the begin of each term another process may have written before, and a project may have nothing left that
        would wake its count."""

        async def clean() -> float:
            try:
                for project in await self._recorder.clean():
                    if self._runs.usages is not None:
                        self._runs.usages.add(project)
            except OutliveError as error:
                _log.warning("usage_history.not_cleaned", error=str(error))
                return HISTORY_AGAIN_S
            return HISTORY_S

        await Periodic(clean, HISTORY_S, clock=self._clock).run()


class _Follower:
    """Wakes usage and quota when a VM appears, changes or goes."""

    def __init__(self, usages: ControllerRun, quota: QuotaController, quotas: ControllerRun) -> None:
        self._usages = usages
        self._quota = quota
        self._quotas = quotas

    def __call__(self, old: VmView | None, new: VmView | None) -> None:
        if old is None or new is None or _usage_key(old) != _usage_key(new):
            for project in dict.fromkeys(one.project for one in (old, new) if one is not None):
                self._usages.add(project)
        for quota in self._quota.keys_of_vm(old, new):
            self._quotas.add(quota)


def _usage_key(vm: VmView) -> object:
    """What of a VM usage counts."""
    return vm.project, vm.zone or vm.host, vm.flavor, vm.created_at

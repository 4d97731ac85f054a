"""Puts commitments together: one view, one lock, and the controllers and changes that share them.

Everything of the outside is handed in, so that the same assembly runs in production, in simulation and in tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from outlive.base.clock import Clock
from outlive.base.ids import Ids
from outlive.commitments.application import ChangeApplier
from outlive.commitments.changes import Changes
from outlive.commitments.controllers.commitment import CommitmentController
from outlive.commitments.controllers.oversubscription import Departures, OversubscriptionController
from outlive.commitments.controllers.slot import SlotController
from outlive.commitments.decision import Decider
from outlive.commitments.placer import SlotPlacer
from outlive.commitments.settings import CommitmentSettings
from outlive.commitments.view import CommitmentInformers, CommitmentView
from outlive.commitments.vm_table import VmTable
from outlive.placement.engine import Engine
from outlive.placement.vms import VMSource
from outlive.resources import VirtualMachine
from outlive.runtime.controller import Watch
from outlive.runtime.election import Elector
from outlive.runtime.informer import Informer
from outlive.runtime.manager import Manager
from outlive.runtime.metrics import Metrics
from outlive.store import Store

CHANGES_TASK = "commitment-changes"
SWEEP_TASK = "commitment-changes-sweeper"
VMS_TASK = "commitment-vms"
SWEEP_S = 3600.0
"""How often old records of changes are looked for."""
VMS_S = 60.0
"""How often a VM source is asked for all VMs."""


class Commitments:
    """All of commitments on one store. ``turn`` is held by whoever places."""

    def __init__(
        self,
        store: Store,
        *,
        informers: CommitmentInformers,
        vms: Informer[VirtualMachine],
        engine: Engine,
        settings: CommitmentSettings,
        metrics: Metrics,
        turn: asyncio.Lock,
        clock: Clock,
        ids: Ids,
        source: VMSource | None = None,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self.informers = informers
        self._clock = clock
        self._vm_informer = vms
        lock = asyncio.Lock()
        self.vms = VmTable(vms, source, clock=clock)
        self.view = CommitmentView(informers, self.vms)
        placer = SlotPlacer(engine, settings, informers.reservations)
        applier = ChangeApplier(store, self.view, placer, clock=clock)
        decider = Decider(self.view, placer, settings, clock=clock, ids=ids)
        departures = Departures(clock)
        self.changes = Changes(
            store, decider, applier, settings, lock=lock, turn=turn, clock=clock, ids=ids, leads=leads
        )
        self.commitments = CommitmentController(
            self.view, placer, applier, settings, lock=lock, turn=turn, clock=clock, metrics=metrics
        )
        self.slots = SlotController(
            store, self.view, placer, departures, settings, moving=self._moving, turn=turn, clock=clock
        )
        self.oversubscription = OversubscriptionController(
            store, self.view, engine.fleet, departures, settings, clock=clock, metrics=metrics
        )

    def attach(self, manager: Manager, elector: Elector | None = None) -> None:
        """Run the changes and the controllers under the manager, while the elector leads."""
        informers = self.informers
        for informer in (*informers.all(), self._vm_informer):
            manager.add_informer(informer)
        manager.add_task(CHANGES_TASK, self.changes.run, elector=elector, after_sync=True)
        manager.add_task(SWEEP_TASK, self._sweep, elector=elector, after_sync=True)
        manager.add_task(VMS_TASK, self._refresh, elector=elector)
        slots, hosts = informers.reservations, informers.hypervisors
        commitments, over = self.commitments, self.oversubscription
        watches = [Watch(informers.commitments), Watch(slots, commitments.of_slot)]
        manager.add_controller(commitments, watches, elector=elector)
        watches = [Watch(slots, self.slots.of_slot), Watch(hosts, self.slots.of_host)]
        manager.add_controller(self.slots, watches, elector=elector)
        manager.add_controller(over, [Watch(hosts, over.of_host), Watch(slots, over.of_slot)], elector=elector)

    def _moving(self, vms: Iterable[str]) -> tuple[str, ...]:
        """Those of the VMs that our own daemons move now."""
        found = ((vm, self._vm_informer.get(vm)) for vm in vms)
        return tuple(vm for vm, one in found if one is not None and one.status.migration is not None)

    async def _sweep(self) -> None:
        while True:
            await self.changes.sweep()
            await self._clock.sleep(SWEEP_S)

    async def _refresh(self) -> None:
        while True:
            await self.vms.refresh()
            await self._clock.sleep(VMS_S)

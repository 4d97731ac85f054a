"""The role of ``outlive up``: everything on one store, in one event loop.

Built from ports, so that the command line passes the real drivers and a simulation its own. Whoever runs it opens the
store before and closes it after; the HTTP server is not part of the role but serves what it offers.
"""

from __future__ import annotations

from dataclasses import dataclass

from outlive.base.clock import Clock
from outlive.base.ids import Ids
from outlive.base.random import Random
from outlive.failover.placing import InProcessPlacement
from outlive.failover.ports import Computer, PlacementPort, VMSource
from outlive.placement.controllers import FlavorGroupController, PipelineController, install_shipped
from outlive.placement.fleet import Fleet
from outlive.placement.pipelines import PipelineTable
from outlive.placement.service import PlacementService
from outlive.roles.failover import ROLE, Caches, FailoverRole, Outside, Shared
from outlive.roles.settings import RoleSettings
from outlive.runtime.controller import Watch
from outlive.runtime.decisions import DecisionLog
from outlive.runtime.election import Elector
from outlive.runtime.events import EventRecorder, EventSweeper
from outlive.runtime.manager import Manager
from outlive.runtime.metrics import Metrics
from outlive.store import Store

EVENT_SOURCE = "failover-reservation-controller"


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside, as the role needs it; ``None`` stands for what is inside the process."""

    computer: Computer
    source: VMSource | None = None
    placement: PlacementPort | None = None


class UpRole:
    """See the module. ``run`` until cancelled; ``ready`` says why it is not ready, or nothing."""

    def __init__(
        self,
        store: Store,
        settings: RoleSettings,
        ports: Ports,
        *,
        identity: str,
        clock: Clock,
        random: Random,
        ids: Ids,
    ) -> None:
        self.settings = settings
        self.metrics = Metrics(settings.metrics.prefix)
        self.decisions = DecisionLog(clock)
        self.caches = Caches.of(store, clock=clock, random=random.fork("informers"))
        self.manager = Manager(clock, random.fork("manager"), self.metrics, ids)
        self._store = store
        self._events = EventRecorder(store, clock=clock, ids=ids, source=EVENT_SOURCE)
        self._events.expose(self.metrics)
        self._clock = clock
        self.placement = self._placement(random)
        self.elector = Elector(
            store,
            ROLE,
            identity,
            clock=clock,
            ids=ids,
            renew_s=settings.election.renew,
            silence_s=settings.election.silence,
        )
        shared = Shared(store, clock, random, ids, settings, self.metrics, self._events, self.decisions)
        outside = Outside(
            placement=ports.placement or InProcessPlacement(self.placement, self.placement.fleet),
            computer=ports.computer,
            source=ports.source,
        )
        self.failover = FailoverRole(shared, self.caches, self.placement.fleet, outside)
        self._add_all()

    @property
    def fleet(self) -> Fleet:
        """Hosts and reservations as placement has them."""
        return self.placement.fleet

    def ready(self) -> str:
        """Why the role is not ready, in a few words; empty when it is."""
        return "; ".join(self.manager.reasons())

    async def prepare(self) -> None:
        """Create what must be there before anything runs: the shipped pipelines."""
        await install_shipped(self._store)

    async def run(self) -> None:
        """Run everything until ``stop`` or cancellation; events that wait are written last."""
        try:
            await self.manager.run()
        finally:
            await self._events.flush()

    def stop(self) -> None:
        """Let running work end, and then ``run``."""
        self.manager.stop()

    def _placement(self, random: Random) -> PlacementService:
        settings = self.settings.scheduler
        service = PlacementService(
            Fleet(settings), PipelineTable(), clock=self._clock, random=random.fork("placement"), metrics=self.metrics
        )
        service.watch(
            hypervisors=self.caches.hypervisors, reservations=self.caches.reservations, pipelines=self.caches.pipelines
        )
        return service

    def _add_all(self) -> None:
        manager, caches, settings = self.manager, self.caches, self.settings.scheduler
        for informer in (caches.hypervisors, caches.reservations, caches.vms, caches.flavors, caches.groups):
            manager.add_informer(informer)
        manager.add_controller(
            PipelineController(
                self._store, caches.pipelines, self.placement.pipelines, clock=self._clock, settings=settings
            ),
            [Watch(caches.pipelines)],
        )
        groups = FlavorGroupController(self._store, caches.flavors, caches.groups, settings=settings)
        manager.add_controller(groups, [Watch(caches.flavors, groups.keys), Watch(caches.groups, groups.keys)])
        manager.add_task("events", self._events.run)
        manager.add_task("event-sweeper", EventSweeper(self._store, clock=self._clock).run)
        self.failover.add_to(manager, self.elector)

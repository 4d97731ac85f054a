"""Puts failover together: one cache, one lock, one budget, and the reconciler and validation that share them.

Everything of the outside is handed in, so that the same assembly runs on real drivers, in simulation and in tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from outlive.base import Clock, Ids, Random
from outlive.failover.calls import resolve_no_domain
from outlive.failover.config import FailoverConfig, FailoverUpkeepSettings
from outlive.failover.offers import WithCandidates, free_amounts
from outlive.failover.ports import Computer, PlacementPort
from outlive.failover.protection import Demands, ProtectionSettings
from outlive.failover.reconciler.cache import FleetCache, Informers, check_current, doubt_reason
from outlive.failover.reconciler.context import Context, Decider, RemovalBudget
from outlive.failover.reconciler.coverage import CoverageWriter
from outlive.failover.reconciler.reconciler import Reconciler, usual_forecast
from outlive.failover.reconciler.validation import SlotValidation
from outlive.failover.reconciler.writes import SlotWriter, UsedSlots
from outlive.failover.report.metrics import Gauges
from outlive.failover.report.reporter import Events, Reporter
from outlive.failover.slots import OverbookedHosts
from outlive.placement import Fleet, VMSource
from outlive.resources import CoveredBy, R, Reservation
from outlive.runtime import DecisionLog, Elector, FaultRecorder, Informer, Manager, Metrics, Watch
from outlive.store import Store

__all__ = ["HOST_INDEX", "Failover", "Informers"]

HOST_INDEX = "host"
"""Index of reservations by the hosts that they hold something on (``blocked_hosts``)."""
SETTLE_S = 5.0
"""How long a slot's members stay unchanged before the slot is validated."""


class Failover:
    """All of failover on one store."""

    def __init__(
        self,
        store: Store,
        *,
        informers: Informers,
        fleet: Fleet,
        placement: PlacementPort,
        computer: Computer,
        config: FailoverConfig,
        settings: FailoverUpkeepSettings,
        metrics: Metrics,
        events: Events,
        decisions: DecisionLog,
        clock: Clock,
        random: Random,
        ids: Ids,
        source: VMSource | None = None,
        protection: ProtectionSettings = ProtectionSettings(),
        faults: FaultRecorder | None = None,
        domain_of: Callable[[str], str] = resolve_no_domain,
        covered_by: Callable[[str], CoveredBy | None] = lambda host: None,
    ) -> None:
        """``source`` is a database; without one VMs are our own objects, from ``informers.vms``. ``domain_of``: the
        domain of a project, where hosts are set aside for it. ``covered_by``: of a host, by what its covered VMs are
        covered; nobody here knows of fencing."""
        if placement.needs_candidates:
            placement = WithCandidates(placement, fleet)
        config = config.apply_defaults().adapt_to_profile(settings.profile)
        self._workers = settings.validation_workers
        self._informers = informers
        self.lock = asyncio.Lock()
        """Held while members of slots are placed or removed."""
        self.reporter = Reporter(metrics, events)
        self.coverage = CoverageWriter(
            store,
            clock,
            store_is=lambda: (getattr(store, "incarnation", ""), informers.reservations.figures.syncs),
            covered_by=covered_by,
        )
        self.cache = FleetCache(
            informers,
            Demands(config.requirements, protection),
            clock=clock,
            trust_hosts=config.trust_hypervisor_location,
            choice=settings.topology_choice,
            follow_vms=source is None,
        )
        writer = partial(SlotWriter, store, clock=clock, ids=ids, creator=config.creator)
        self.forecast = usual_forecast(clock, config, self.reporter, self.coverage)
        context = Context(
            cache=self.cache,
            source=source,
            faults=faults,
            placement=placement,
            free=lambda: free_amounts(fleet),
            writer=writer(shown=self.cache),
            decider=Decider(decisions, computer, clock=clock, inline_needs=settings.inline_planning_vms),
            coverage=self.coverage,
            reporter=self.reporter,
            forecast=self.forecast,
            lock=self.lock,
            budget=RemovalBudget(share=settings.brake_share, number=settings.brake_number),
            clock=clock,
            random=random.fork("failover-cycle"),
            ids=ids,
            config=config,
            settings=settings,
            domain_of=domain_of,
            protection=protection,
        )
        self.reconciler = Reconciler(context)
        # What validation takes away, and what goes because of a failure, calls for a reaction.
        noticed = writer(shown=informers.reservations)
        self.validation = SlotValidation(
            store,
            context,
            hosts=informers.hypervisors.get,
            locate=self.reconciler.sources.locate,
            writer=noticed,
            random=random.fork("failover-validation"),
            overbooked=OverbookedHosts(self._slots_on, fleet.overbooked_amounts),
            settle_s=SETTLE_S,
            doubt=lambda: (
                doubt_reason(informers.hypervisors)
                or doubt_reason(informers.reservations)
                or doubt_reason(informers.vms)
            ),
        )
        self.used = UsedSlots(
            store, informers.hypervisors.get, self._slots_on, self._consumed_by, noticed, self.reporter
        )
        gauges = Gauges(lambda: _list_current(informers.hypervisors), lambda: _list_current(informers.reservations))
        metrics.register_collector(gauges.collect)

    def attach(self, manager: Manager, elector: Elector | None = None) -> None:
        """Run the reconciler and validation under the manager, while the elector leads."""

        async def run_ticks() -> None:
            self.coverage.forget()
            await self.reconciler.run_ticks()

        informers = self._informers
        for informer in (informers.hypervisors, informers.reservations, informers.groups, informers.vms):
            manager.add_informer(informer)
        manager.add_task("failover-cycle", run_ticks, elector=elector, after_sync=True)
        manager.add_task("failover-events", self.reconciler.run_events, elector=elector, after_sync=True)
        validation, used = self.validation, self.used
        slots, hosts = informers.reservations, informers.hypervisors
        watches = [Watch(slots, validation.keys_of_slot), Watch(hosts, validation.keys_of_host)]
        manager.add_controller(validation, watches, self._workers, elector=elector)
        watches = [
            Watch(slots, used.keys_of_slot),
            Watch(hosts, used.keys_of_host),
            Watch(informers.vms, used.keys_of_vm),
        ]
        manager.add_controller(used, watches, elector=elector)

    def _slots_on(self, host: str) -> list[Reservation]:
        return self._informers.reservations.list_by_index(HOST_INDEX, host)

    def _consumed_by(self, vm: str) -> list[Reservation]:
        slots = self._informers.reservations.items()
        return [slot for slot in slots if slot.status.consumer is not None and slot.status.consumer.vm == vm]


def _list_current(informer: Informer[R]) -> list[R]:
    check_current(informer)
    return informer.items()

"""Puts failover together: one writer, one turn, one budget, and the cycle, upkeep and validation that share them.

Everything of the outside is handed in, so that the same assembly runs on real drivers, in simulation and in tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from outlive.base.clock import Clock
from outlive.base.ids import Ids
from outlive.base.random import Random
from outlive.failover.config import FailoverConfig, FailoverUpkeepSettings
from outlive.failover.keeping.budget import RemovalBudget
from outlive.failover.keeping.changed import ChangedHosts
from outlive.failover.keeping.covering import CoverageWriter
from outlive.failover.keeping.crowding import Crowding
from outlive.failover.keeping.decide import Decider
from outlive.failover.keeping.following import Following
from outlive.failover.keeping.kept import KeptState
from outlive.failover.keeping.observe import CachedVMs, CachedWorld, believed
from outlive.failover.keeping.parts import Parts
from outlive.failover.keeping.periodic import PeriodicCycle
from outlive.failover.keeping.placing import WithCandidates, free_amounts
from outlive.failover.keeping.upkeep import Upkeep
from outlive.failover.keeping.using import UsedKeys, UsedSlots
from outlive.failover.keeping.validation import SlotValidation, doubts
from outlive.failover.keeping.writes import SlotWriter
from outlive.failover.ports import Computer, PlacementPort, VMSource
from outlive.failover.protection import Demands, ProtectionSettings
from outlive.failover.report.metrics import Gauges
from outlive.failover.report.reporter import Events, Reporter
from outlive.placement.fleet import Fleet
from outlive.placement.reservations import blocked_hosts
from outlive.resources import FlavorGroup, Hypervisor, Reservation, VirtualMachine
from outlive.runtime.controller import Watch
from outlive.runtime.decisions import DecisionLog
from outlive.runtime.election import Elector
from outlive.runtime.informer import Informer
from outlive.runtime.manager import Manager
from outlive.runtime.metrics import Metrics
from outlive.store import Store

HOST_INDEX = "host"
"""Index of reservations by the hosts that they hold something on."""
SETTLE_S = 5.0
"""How long a slot's members stay unchanged before the slot is validated."""
CYCLE_TASK = "failover-cycle"
UPKEEP_TASK = "failover-upkeep"


@dataclass(frozen=True, slots=True)
class Informers:
    """The caches that failover reads; ``reservations`` must have the index ``HOST_INDEX`` (``hosts_of``)."""

    hypervisors: Informer[Hypervisor]
    reservations: Informer[Reservation]
    groups: Informer[FlavorGroup]
    vms: Informer[VirtualMachine]


def hosts_of(reservation: Reservation) -> Iterable[str]:
    """The keys of the index ``HOST_INDEX``: where it is wanted and where it is, each once."""
    return blocked_hosts(reservation)


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
    ) -> None:
        """``source`` is a database; without one VMs are our own objects, from ``informers.vms``."""
        if placement.needs_candidates:
            placement = WithCandidates(placement, fleet)
        config = config.apply_defaults().for_profile(settings.profile)
        own_vms = source is None
        self._workers = settings.validation_workers
        self._informers = informers
        self._crowding = Crowding(self._slots_on, fleet.overbooked)
        """Which slots have no room; such slots go."""
        turn = asyncio.Lock()
        budget = RemovalBudget(share=settings.brake_share, number=settings.brake_number)
        state = KeptState(
            Demands(config.requirements, protection),
            trust_hosts=config.trust_hypervisor_location,
            choice=settings.topology_choice,
        )
        writing = partial(SlotWriter, store, clock=clock, ids=ids, creator=config.creator)
        writer = writing()
        reporter = Reporter(metrics, events)
        parts = Parts(
            world=CachedWorld(informers.hypervisors, informers.reservations, informers.groups),
            source=source or CachedVMs(informers.vms),
            placement=placement,
            free=lambda: free_amounts(fleet),
            writer=writer,
            decider=Decider(decisions, computer, clock=clock, inline_needs=settings.inline_planning_vms),
            coverage=CoverageWriter(
                store,
                clock,
                store_is=lambda: (getattr(store, "incarnation", ""), informers.reservations.figures.resets),
            ),
            reporter=reporter,
            clock=clock,
            random=random.fork("failover-cycle"),
            ids=ids,
            config=config,
            settings=settings,
            protection=protection,
            turn=turn,
        )
        self.parts = parts
        following = Following(
            state,
            hypervisors=informers.hypervisors,
            reservations=informers.reservations,
            vms=informers.vms if own_vms else None,
            clock=clock,
        )
        self.upkeep = Upkeep(parts, following, budget)
        writer.show_to(following)
        self.cycle = PeriodicCycle(parts, watcher=self.upkeep)
        self.validation = SlotValidation(
            store,
            hosts=informers.hypervisors,
            locator=self.upkeep,
            placement=placement,
            # What validation takes away calls for a reaction, unlike what cycles and upkeep write.
            writer=writing(shown=informers.reservations),
            reporter=reporter,
            budget=budget,
            config=config,
            profile=settings.profile,
            clock=clock,
            random=random.fork("failover-validation"),
            ids=ids,
            turn=turn,
            settle_s=SETTLE_S,
            doubt=lambda: doubts(informers.hypervisors, informers.reservations, informers.vms),
            crowding=self._crowding,
        )
        # What goes because of a failure calls for a reaction, too.
        self.used = UsedSlots(store, informers.hypervisors, writing(shown=informers.reservations), reporter)
        gauges = Gauges(lambda: believed(informers.hypervisors), lambda: believed(informers.reservations))
        metrics.register_collector(gauges.collect)

    def attach(
        self,
        manager: Manager,
        elector: Elector | None = None,
        *,
        first: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Run cycle, upkeep and validation under the manager, while the elector leads; ``first`` before any cycle."""

        async def cycles() -> None:
            self.parts.coverage.forget()
            if first is not None:
                await first()
            await self.cycle.run()

        informers = self._informers
        for informer in (informers.hypervisors, informers.reservations, informers.groups, informers.vms):
            manager.add_informer(informer)
        manager.add_task(CYCLE_TASK, cycles, elector=elector, after_sync=True)
        manager.add_task(UPKEEP_TASK, self.upkeep.run, elector=elector, after_sync=True)
        changed = ChangedHosts(self.validation, self._slots_on, self._crowding)
        manager.add_controller(
            self.validation,
            [
                Watch(informers.reservations, changed.of_slot),
                Watch(informers.hypervisors, changed.keys),
                Watch(informers.vms, changed.of_vm),
            ],
            self._workers,
            elector=elector,
        )

        used = UsedKeys(
            informers.hypervisors,
            self._slots_on,
            self._consumed_by,
        )
        watches = [
            Watch(informers.reservations, used.of_slot),
            Watch(informers.hypervisors, used.of_host),
            Watch(informers.vms, used.of_vm),
        ]
        manager.add_controller(self.used, watches, elector=elector)

    def _slots_on(self, host: str) -> list[Reservation]:
        return self._informers.reservations.by_index(HOST_INDEX, host)

    def _consumed_by(self, vm: str) -> list[Reservation]:
        slots = self._informers.reservations.items()
        return [slot for slot in slots if slot.status.consumer is not None and slot.status.consumer.vm == vm]

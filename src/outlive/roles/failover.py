"""Wires failover: cycles, upkeep and validation over one set of caches, behind one election.

The parts themselves are ``outlive.failover``'s; here is only who gets what. All of it runs while this process leads the
role ``failover``, so that of several equal processes one places slots and the others wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from outlive.base.clock import Clock
from outlive.base.ids import Ids
from outlive.base.random import Random
from outlive.failover.budget import RemovalBudget
from outlive.failover.covering import CoverageWriter
from outlive.failover.decide import Decider
from outlive.failover.gauges import Gauges
from outlive.failover.kept import KeptState
from outlive.failover.observe import CachedVMs, CachedWorld
from outlive.failover.periodic import Parts, PeriodicCycle
from outlive.failover.placing import free_capacity
from outlive.failover.ports import Computer, PlacementPort, VMSource
from outlive.failover.reporting import Reporter
from outlive.failover.requirements import Requirements
from outlive.failover.upkeep import Upkeep
from outlive.failover.validation import ChangedHosts, SlotValidation
from outlive.failover.writes import SlotWriter
from outlive.placement.fleet import Fleet
from outlive.resources import (
    FAILOVER,
    Flavor,
    FlavorGroup,
    Hypervisor,
    ObjectRef,
    Pipeline,
    Reservation,
    VirtualMachine,
)
from outlive.roles.settings import RoleSettings
from outlive.runtime.controller import Watch, own_name
from outlive.runtime.decisions import DecisionLog
from outlive.runtime.election import Elector
from outlive.runtime.events import EventRecorder
from outlive.runtime.informer import Informer
from outlive.runtime.manager import Manager
from outlive.runtime.metrics import Metrics
from outlive.store import Store

ROLE = "failover"
BY_HOST = "host"
"""Index of reservations: the hosts that each is wanted or found on."""


@dataclass(frozen=True, slots=True)
class Caches:
    """The informers that a role shares."""

    hypervisors: Informer[Hypervisor]
    reservations: Informer[Reservation]
    vms: Informer[VirtualMachine]
    flavors: Informer[Flavor]
    groups: Informer[FlavorGroup]
    pipelines: Informer[Pipeline]

    @classmethod
    def of(cls, store: Store, *, clock: Clock, random: Random) -> Caches:
        """Informers on everything that failover and placement read."""

        return cls(
            hypervisors=Informer(store, Hypervisor, clock=clock, random=random),
            reservations=Informer(store, Reservation, clock=clock, random=random, indexes={BY_HOST: hosts_of}),
            vms=Informer(store, VirtualMachine, clock=clock, random=random),
            flavors=Informer(store, Flavor, clock=clock, random=random),
            groups=Informer(store, FlavorGroup, clock=clock, random=random),
            pipelines=Informer(store, Pipeline, clock=clock, random=random),
        )


def hosts_of(reservation: Reservation) -> Iterable[str]:
    """The hosts that a reservation is wanted or found on."""
    return {host for host in (reservation.spec.target_host, reservation.status.host) if host}


@dataclass(frozen=True, slots=True)
class Outside:
    """What failover needs of the outside; ``None`` stands for our own resources."""

    placement: PlacementPort
    computer: Computer
    source: VMSource | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """What the parts of a role share."""

    store: Store
    clock: Clock
    random: Random
    ids: Ids
    settings: RoleSettings
    metrics: Metrics
    events: EventRecorder
    decisions: DecisionLog


class FailoverRole:
    """Cycles, upkeep and validation, added to a manager."""

    def __init__(self, shared: Shared, caches: Caches, fleet: Fleet, outside: Outside) -> None:
        config, settings = shared.settings.failover, shared.settings.upkeep
        compat = shared.settings.compat
        own_vms = outside.source is None
        self._caches = caches
        self._settings = settings
        self._reporter = Reporter(shared.metrics, shared.events)
        budget = RemovalBudget(
            share=settings.brake_share, number=settings.brake_number, unlimited=compat.reverted("D12")
        )
        writer = SlotWriter(
            shared.store,
            clock=shared.clock,
            ids=shared.ids,
            creator=config.creator,
            compat=compat,
            shown=_Later(self),
        )
        self._parts = Parts(
            world=CachedWorld(caches.hypervisors, caches.reservations, caches.groups),
            source=outside.source if outside.source is not None else CachedVMs(caches.vms, shared.clock),
            placement=outside.placement,
            free=_Free(fleet, keep_unknown=compat.reverted("D13")).now,
            writer=writer,
            decider=Decider(shared.decisions, outside.computer, inline_needs=settings.inline_planning_vms),
            coverage=CoverageWriter(shared.store, shared.clock),
            reporter=self._reporter,
            clock=shared.clock,
            random=shared.random.fork("failover"),
            ids=shared.ids,
            config=config,
            settings=settings,
        )
        state = KeptState(
            Requirements(config.requirements), trust_hosts=config.trust_hypervisor_location, compat=compat
        )
        self.upkeep = Upkeep(
            self._parts,
            state,
            budget,
            hypervisors=caches.hypervisors,
            reservations=caches.reservations,
            vms=caches.vms if own_vms else None,
        )
        self.cycle = PeriodicCycle(self._parts, watcher=self.upkeep)
        self.validation = SlotValidation(
            shared.store,
            hosts=caches.hypervisors,
            locator=self.upkeep,
            placement=outside.placement,
            writer=writer,
            reporter=self._reporter,
            budget=budget,
            config=config,
            profile=settings.profile,
            clock=shared.clock,
            random=shared.random.fork("validation"),
            ids=shared.ids,
            turn=self._parts.turn,
        )
        gauges = Gauges(caches.hypervisors.items, caches.reservations.items)
        shared.metrics.register_collector(gauges.collect)

    def add_to(self, manager: Manager, elector: Elector) -> None:
        """Run cycles, upkeep and validation while the elector leads."""
        changed = ChangedHosts(self.validation, self._slots_on)
        manager.add_task("failover-cycles", self.cycle.run, elector=elector)
        if self._settings.events_react:
            manager.add_task("failover-upkeep", self.upkeep.run, elector=elector)
        manager.add_controller(
            self.validation,
            [Watch(self._caches.reservations, _slot_name), Watch(self._caches.hypervisors, changed.keys)],
            workers=self._settings.validation_workers,
            elector=elector,
        )

    def _slots_on(self, host: str) -> list[str]:
        return [one.name for one in self._caches.reservations.by_index(BY_HOST, host) if one.spec.type == FAILOVER]


class _Later:
    """Shows acknowledged writes to upkeep, which is made after the writer that it uses itself."""

    def __init__(self, role: FailoverRole) -> None:
        self._role = role

    def note(self, obj: Reservation, *, replaced: str | None = None) -> None:
        self._role.upkeep.note(obj, replaced=replaced)

    def note_gone(self, ref: ObjectRef) -> None:
        self._role.upkeep.note_gone(ref)


class _Free:
    """Free amounts by host, as placement has them at this moment."""

    def __init__(self, fleet: Fleet, *, keep_unknown: bool) -> None:
        self._fleet = fleet
        self._keep_unknown = keep_unknown

    def now(self) -> Mapping[str, tuple[int, int]]:
        return free_capacity(self._fleet, keep_unknown=self._keep_unknown)


def _slot_name(old: Reservation | None, new: Reservation | None) -> Iterable[str]:
    """Slots that exist; a deleted one needs no validation."""
    return own_name(old, new) if new is not None and new.spec.type == FAILOVER else ()

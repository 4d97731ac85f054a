"""What of the role of ``outlive up`` sells capacity: placement and commitments on one store, behind one election.

The whole role also recovers VMs, looks for failures and tells of them every second, which costs most of the time of a
story that lasts an hour. Stories of failover beside sales run on the whole role.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from outlive.base import Clock, Ids, Random
from outlive.commitments import (
    BY_PROJECT,
    OPEN,
    CommitmentInformers,
    Commitments,
    CommitmentSyncer,
    commitment_indexes,
    project_of,
    read_store,
)
from outlive.commitments import slot_indexes as commitment_slot_indexes
from outlive.failover import HOST_INDEX
from outlive.failover.reconciler import Informers
from outlive.placement import Fleet, blocked_hosts, install_shipped
from outlive.resources import (
    CLUSTER,
    Cluster,
    CommitmentChange,
    CommittedResource,
    Flavor,
    FlavorGroup,
    FlavorGroupCapacity,
    Hypervisor,
    ObjectMeta,
    ProjectQuota,
    R,
    Reservation,
    VirtualMachine,
)
from outlive.roles import Ports, RoleSettings
from outlive.roles.placement import Followed, PlacementRole, Runtime
from outlive.runtime import Elector, EventRecorder, FaultRecorder, Informer, Manager, Metrics
from outlive.store import Selector, Store


class SellingRole:
    """See the module. It has the names of ``UpRole``."""

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
        self.metrics = Metrics(settings.metrics.prefix)
        self.manager = Manager(clock, random.fork("manager"), self.metrics, ids)
        self.turn = asyncio.Lock()
        self._store, self._clock, self._random = store, clock, random.fork("informers")
        make = self._make_informer
        self.informers = Informers(
            hypervisors=make(Hypervisor),
            reservations=make(Reservation, {HOST_INDEX: blocked_hosts, **commitment_slot_indexes()}),
            groups=make(FlavorGroup),
            vms=make(VirtualMachine),
        )
        sold = CommitmentInformers(
            commitments=make(CommittedResource, commitment_indexes()),
            reservations=self.informers.reservations,
            hypervisors=self.informers.hypervisors,
            groups=self.informers.groups,
            capacities=make(FlavorGroupCapacity),
            quotas=make(ProjectQuota, {BY_PROJECT: project_of}),
            changes=make(CommitmentChange, selector=OPEN),
        )
        self._events = EventRecorder(store, clock=clock, ids=ids, source="test")
        times = settings.election
        elector = Elector(
            store, "failover", identity, clock=clock, ids=ids, renew_s=times.renew, silence_s=times.silence
        )
        self._placing = PlacementRole(
            Runtime(store, self.manager, elector, self.metrics, self._events, clock, random.fork("placement")),
            settings.scheduler,
            Followed(
                hypervisors=sold.hypervisors,
                reservations=sold.reservations,
                groups=sold.groups,
                flavors=make(Flavor),
                vms=self.informers.vms,
                commitments=sold.commitments,
                quotas=sold.quotas,
                capacities=sold.capacities,
            ),
            make,
            source=ports.source,
            moves={},
        )
        self.placement = self._placing.service
        self.commitments = Commitments(
            store,
            informers=sold,
            vms=self.informers.vms,
            pipelines=self._placing.pipelines,
            engine=self.placement.engine,
            settings=settings.commitments,
            metrics=self.metrics,
            events=self._events,
            turn=self.turn,
            clock=clock,
            ids=ids,
            source=ports.source,
            domains=ports.domains,
            faults=FaultRecorder(store, clock, "commitments"),
            group_keys=settings.scheduler.flavor_group_keys,
            leads=lambda: elector.is_leader,
        )
        self.placement.tracker = self.commitments.tracker
        self.commitments.attach(self.manager, elector)
        if ports.limes is not None:
            syncer = CommitmentSyncer(
                ports.limes.projects,
                ports.limes.commitments,
                partial(read_store, store),
                self.commitments.changes.carry_out,
                settings.commitments,
                clock=clock,
                random=random.fork("commitments-sync"),
                metrics=self.metrics,
                faults=FaultRecorder(store, clock, "commitments-sync"),
            )
            self.commitments.consistency.listing = syncer
            self.manager.add_task("commitments-sync", syncer.run, elector=elector, after_sync=True)
        self.manager.add_task("events", self._events.run)

    @property
    def fleet(self) -> Fleet:
        return self.placement.fleet

    def explain_unready(self) -> str:
        return "; ".join(self.manager.explain_unready())

    async def prepare(self) -> None:
        await install_shipped(self._store)
        if not (await self._store.list(Cluster)).items:
            await self._store.create(Cluster(metadata=ObjectMeta(name=CLUSTER)))

    async def run(self) -> None:
        try:
            await self.manager.run()
        finally:
            await self._events.flush()
            await self._placing.flush()

    def stop(self) -> None:
        self.manager.stop()

    def _make_informer(
        self,
        kind: type[R],
        indexes: Mapping[str, Callable[[Any], Iterable[str]]] | None = None,
        *,
        selector: Selector | None = None,
    ) -> Informer[R]:
        return Informer(self._store, kind, clock=self._clock, random=self._random, indexes=indexes, selector=selector)

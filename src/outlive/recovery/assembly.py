"""Puts recovery together: what it sees, how it decides, what it writes, behind the elector that leads it.

Everything of the outside is handed in, so that the same assembly runs on real drivers, in simulation and in tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from outlive.base.clock import Clock
from outlive.base.ids import Ids
from outlive.failover.keeping.calls import Caller
from outlive.failover.planning.offers import FreeAmounts
from outlive.failover.ports import PlacementPort
from outlive.failover.protection import Demands
from outlive.failover.telling.reporting import Events
from outlive.failover.vms import view_of_resource
from outlive.node.ports.faults import Faults, NoFaults
from outlive.recovery.act import Acting
from outlive.recovery.caches import RecoveryInformers
from outlive.recovery.controller import RecoveryLoop
from outlive.recovery.hosts import Incarnation, LostHosts, incarnation_of
from outlive.recovery.observe import Lookout
from outlive.recovery.places import Places
from outlive.recovery.standing import StandingFaults
from outlive.recovery.telling import Teller
from outlive.runtime.decisions import DecisionLog
from outlive.runtime.election import Elector
from outlive.runtime.manager import Manager
from outlive.runtime.metrics import Metrics
from outlive.store import Store

RECOVERY_TASK = "recovery"
STANDING_TASK = "standing-faults"


class RecoveryControllers:
    """All of recovery on one store. ``placement`` must name hosts by itself (``needs_candidates`` is false)."""

    def __init__(
        self,
        store: Store,
        informers: RecoveryInformers,
        *,
        placement: PlacementPort,
        free: Callable[[], FreeAmounts],
        demands: Demands,
        caller: Caller,
        metrics: Metrics,
        events: Events,
        decisions: DecisionLog,
        clock: Clock,
        ids: Ids,
        faults: Faults | None = None,
        cluster_store: Store | None = None,
        turn: asyncio.Lock | None = None,
    ) -> None:
        """``cluster_store``: the same store in the name of whoever owns the status of ``Cluster``. ``turn``: held by
        whoever gives room away in this process.
        """
        faults = faults or NoFaults()
        teller = Teller(events, metrics, faults, clock)
        cluster_store = cluster_store or store
        lookout = Lookout(
            informers,
            clock,
            priority=lambda vm: demands.priority(view_of_resource(vm)),
            incarnation=lambda: incarnation_of(cluster_store),
        )
        self._informers = informers
        self._standing = StandingFaults(store, informers, faults, clock)
        self.loop = RecoveryLoop(
            informers,
            lookout,
            Acting(
                store,
                lookout,
                teller,
                vms=informers.vms,
                reservations=informers.reservations,
                decisions=decisions,
                clock=clock,
            ),
            Places(placement, free, ids, caller),
            LostHosts(store, informers),
            Incarnation(cluster_store, informers, lookout, faults, clock),
            teller,
            decisions=decisions,
            clock=clock,
            ids=ids,
            turn=turn or asyncio.Lock(),
        )

    def attach(self, manager: Manager, elector: Elector | None = None) -> None:
        """Run under the manager, while the elector leads."""
        informers = self._informers
        for informer in (
            informers.vms,
            informers.reservations,
            informers.hypervisors,
            informers.memberships,
            informers.clusters,
        ):
            manager.add_informer(informer)
        manager.add_task(RECOVERY_TASK, self.loop.run, elector=elector, after_sync=True)
        manager.add_task(STANDING_TASK, self._standing.run, elector=elector, after_sync=True)

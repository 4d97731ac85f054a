"""A network controller by itself, which leads whatever others say: as two do for a moment after an election."""

from __future__ import annotations

from outlive.base.clock import Clock
from outlive.base.ids import SeededIds
from outlive.base.random import Random
from outlive.network.controller import NetworkController
from outlive.network.informers import NetworkInformers, interface_indexes, port_indexes
from outlive.resources import Cluster, Hypervisor, VirtualMachine, VirtualMachinePort, VirtualNetwork
from outlive.roles.up import NetworkDatabases
from outlive.runtime.decisions import DecisionLog
from outlive.runtime.events import EventRecorder
from outlive.runtime.informer import Informer
from outlive.runtime.manager import Manager
from outlive.runtime.metrics import Metrics
from outlive.store import Store


class LoneNetworkController:
    """See the module."""

    def __init__(self, store: Store, databases: NetworkDatabases, *, clock: Clock, random: Random) -> None:
        ids, metrics = SeededIds(random.fork("ids")), Metrics("second")
        informing = random.fork("informers")
        self._manager = Manager(clock, random.fork("manager"), metrics, ids)
        informers = NetworkInformers(
            ports=Informer(store, VirtualMachinePort, clock=clock, random=informing, indexes=port_indexes()),
            networks=Informer(store, VirtualNetwork, clock=clock, random=informing),
            vms=Informer(store, VirtualMachine, clock=clock, random=informing, indexes=interface_indexes()),
            hosts=Informer(store, Hypervisor, clock=clock, random=informing),
            clusters=Informer(store, Cluster, clock=clock, random=informing),
        )
        events = EventRecorder(store, clock=clock, ids=ids, source="network")
        controller = NetworkController(
            store,
            informers,
            databases.northbound,
            databases.southbound,
            metrics=metrics,
            decisions=DecisionLog(clock),
            clock=clock,
            emit=events.emit,
        )
        controller.attach(self._manager, None)
        self._manager.add_task("events", events.run)

    async def run(self) -> None:
        """Until killed."""
        await self._manager.run()

"""What processes of a virtual cluster get of OVN: daemons their host's networks, controllers the databases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from outlive.base import Clock, Random, SeededIds
from outlive.drivers.ovn.arrived_ports import ArrivedPorts
from outlive.drivers.ovn.chassis_table import chassis_table
from outlive.drivers.ovn.cuts import OvnCuts
from outlive.drivers.ovn.host_network import OvnNetwork
from outlive.network import NetworkController, NetworkInformers, interface_indexes, port_indexes
from outlive.node.ports import CutPort
from outlive.resources import Cluster, Hypervisor, VirtualMachine, VirtualMachinePort, VirtualNetwork
from outlive.roles import NetworkDatabases, NodePorts
from outlive.runtime import DecisionLog, EventRecorder, Informer, Manager, Metrics
from outlive.simulation.disks import CutAbility
from outlive.simulation.hosts import SimHost
from outlive.simulation.network.clients import ProcessOvnClient, SimulatedHostSwitch, SplitCuts
from outlive.simulation.network.databases import SimulatedNorthbound, SimulatedSouthbound
from outlive.simulation.network.fabric import Fabric
from outlive.simulation.networks import Networks, Segment
from outlive.simulation.process import Process
from outlive.store import Store

PREPARE_LIMIT_S = 10.0
"""How long a move waits for its network."""


class NetworkProcesses:
    """See the module."""

    def __init__(self, fabric: Fabric, networks: Networks) -> None:
        self._fabric = fabric
        self._networks = networks
        self._connected: list[tuple[Process, SimulatedNorthbound, SimulatedSouthbound]] = []

    def connect_databases(
        self, host: str, process: Process, clock: Clock, random: Random, kill: Callable[[], None]
    ) -> NetworkDatabases:
        """Both databases as a process on that machine reaches them; ``kill``: what ends it where it is to crash."""
        for one, northbound, southbound in self._connected:
            if not one.alive:
                northbound.close()
                southbound.close()
        self._connected = [one for one in self._connected if one[0].alive]
        client = ProcessOvnClient(process, lambda: self._networks.can_reach(Segment.STORE, host), kill)
        nb = SimulatedNorthbound(self._fabric.ovn, clock, random.fork("northbound"), client)
        sb = SimulatedSouthbound(self._fabric.ovn, clock, random.fork("southbound"), client)
        self._connected.append((process, nb, sb))
        return NetworkDatabases(nb, sb)

    def add_network(
        self,
        ports: NodePorts,
        store: Store,
        coordinator: Store | None,
        *,
        host: SimHost,
        process: Process,
        random: Random,
        cuts: CutAbility,
    ) -> NodePorts:
        """The ports of a daemon, with the networks of its host; that of a coordinator isolates others from ports.

        ``store``: as the daemon reads it; ``coordinator``: the same as a coordinator does.
        """
        clock, name = host.machine.clock, host.name
        switch = SimulatedHostSwitch(self._fabric, name, clock, process)
        network = OvnNetwork(store, switch, name, PREPARE_LIMIT_S, clock=clock)
        ports = replace(ports, network=network)
        if ports.cut is None or cuts != "all":
            return ports
        isolation: CutPort = ArrivedPorts()
        if coordinator is not None:
            found = self.connect_databases(name, process, clock, random, host.daemon.kill)
            assert isinstance(found.northbound, SimulatedNorthbound)
            assert isinstance(found.southbound, SimulatedSouthbound)
            read_table = chassis_table(coordinator, found.southbound)
            isolation = OvnCuts(found.northbound, found.southbound, read_table)
        return replace(ports, cut=SplitCuts(self._fabric, ports.cut, isolation))


class LoneNetworkController:
    """A network controller that leads whatever others say: as two do for a moment after an election."""

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

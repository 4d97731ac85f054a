"""What processes of a virtual cluster get of OVN: daemons their host's networks, controllers the databases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from outlive.base.clock import Clock
from outlive.base.random import Random
from outlive.drivers.ovn.arrived_ports import ArrivedPorts
from outlive.drivers.ovn.chassis_table import chassis_table
from outlive.drivers.ovn.cuts import OvnCuts
from outlive.drivers.ovn.host_network import OvnNetwork
from outlive.node.ports import CutPort
from outlive.roles.node import NodePorts
from outlive.roles.up import NetworkDatabases
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

    def databases(
        self, host: str, process: Process, clock: Clock, random: Random, kill: Callable[[], None]
    ) -> NetworkDatabases:
        """Both databases as a process on that machine reaches them; ``kill``: what ends it where it is to crash."""
        for one, northbound, southbound in self._connected:
            if not one.alive:
                northbound.close()
                southbound.close()
        self._connected = [one for one in self._connected if one[0].alive]
        client = ProcessOvnClient(process, lambda: self._networks.reaches(Segment.STORE, host), kill)
        nb = SimulatedNorthbound(self._fabric.ovn, clock, random.fork("northbound"), client)
        sb = SimulatedSouthbound(self._fabric.ovn, clock, random.fork("southbound"), client)
        self._connected.append((process, nb, sb))
        return NetworkDatabases(nb, sb)

    def with_networks(
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
            found = self.databases(name, process, clock, random, host.daemon.kill)
            assert isinstance(found.northbound, SimulatedNorthbound)
            assert isinstance(found.southbound, SimulatedSouthbound)
            read_table = chassis_table(coordinator, found.southbound)
            isolation = OvnCuts(found.northbound, found.southbound, read_table)
        return replace(ports, cut=SplitCuts(self._fabric, ports.cut, isolation))

"""What daemons of a virtual cluster get of their hosts' own networks, and the guests there that ask for addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from outlive.node.links import LinkSettings, SystemLink
from outlive.node.ports import ServicePorts
from outlive.node.services import ServicesSettings, ZoneState
from outlive.resources import PORTS_LIMIT, SystemNetworkName, VirtualMachine, VirtualMachinePort, port_object_name
from outlive.roles import HostLinks, HostServices, NodePorts
from outlive.simulation.history import History
from outlive.simulation.hosts import SimHost
from outlive.simulation.links.kernel import LinkClient, SimKernel, SimLinkNotes
from outlive.simulation.links.role_guards import RoleGuardClient, SimRoleGuard
from outlive.simulation.links.services import (
    GivenAddress,
    GuestLeases,
    LeaseSpool,
    SimDhcp,
    SimFirewall,
    SimMetadata,
    SimNames,
)
from outlive.simulation.networks import Networks, Segment
from outlive.simulation.process import Process
from outlive.simulation.spec import WorldSpec

if TYPE_CHECKING:
    from outlive.base import Clock
    from outlive.simulation.hypervisors import SimHypervisor
    from outlive.simulation.stores import WorldStore

CARDS: Final[Mapping[SystemNetworkName, str]] = {"upstream": "eth0", "cluster": "eth1", "storage": "eth2"}
"""By which every host is on system networks."""
VLAN_CARD: Final = "eth3"
"""On which the VLANs of bridged networks lie."""
ASKS_S: Final = 1.0
"""How often a guest without an address asks for one."""


class OwnNetworks:
    """See the module. ``hosts``: filled while the cluster is built."""

    def __init__(
        self,
        spec: WorldSpec,
        store: WorldStore,
        hosts: Mapping[str, SimHost],
        hypervisors: Mapping[str, SimHypervisor],
        networks: Networks,
        history: History,
    ) -> None:
        self.kernels: dict[str, SimKernel] = {}
        self.guards: dict[str, SimRoleGuard] = {}
        self.guests = GuestLeases()
        self._spec = spec
        self._store = store
        self._hosts = hosts
        self._hypervisors = hypervisors
        self._networks = networks
        self._history = history
        self._spools: dict[str, LeaseSpool] = {}
        self._zones: dict[str, dict[str, ZoneState]] = {}
        self._dhcp: dict[str, SimDhcp] = {}
        """Of each coordinator, what its daemon that began last has."""
        self.changed = self._ignore_change
        self.managed = tuple(one for one in spec.networks if one.type == "managed")
        self.settings = LinkSettings(
            system_networks={name: SystemLink(device=CARDS[name]) for name in spec.system_networks},
            bridge_device=VLAN_CARD if any(one.type == "bridged" for one in spec.networks) else "",
        )

    def _ignore_change(self) -> None:
        """What is called after every change of an address, until somebody says otherwise."""

    def add_host(self, host: SimHost) -> None:
        """A host with its cards."""
        name = host.name
        self.kernels[name] = SimKernel((*CARDS.values(), VLAN_CARD), lambda: self.changed())
        self.guards[name] = SimRoleGuard(self.kernels[name], host.machine)
        self._spools[name], self._zones[name] = LeaseSpool(), {}

    def handle_end(self, host: str) -> None:
        """The machine has ended: nothing of its network is left, whatever comes after."""
        self.guards[host].kill()
        self.kernels[host].boot()

    def add_links(self, ports: NodePorts, host: SimHost, process: Process) -> NodePorts:
        """The ports of a daemon, with its host's own network; a coordinator also serves as the primary."""
        name, machine, kernel = host.name, host.machine, self.kernels[host.name]
        links = LinkClient(kernel, process)
        ports = replace(ports, links=HostLinks(links, SimLinkNotes(kernel, machine, process), self.settings))
        if host.spec.mode != "coordinator" or not self._spec.primary_role:
            return ports
        guard = self.guards[name]
        process.at_end = guard.handle_daemon_end
        dhcp = self._dhcp[name] = SimDhcp(self._spools[name], machine, process)
        served = ServicePorts(dhcp, SimNames(self._zones[name], process), SimFirewall(process), SimMetadata(process))
        services = HostServices(served, RoleGuardClient(guard, process), ServicesSettings())
        return replace(ports, services=services)

    # Guests

    async def ask(self, clock: Clock) -> None:
        """Every guest on a managed network asks for an address, again and again until it has one."""
        while self.managed:
            await clock.sleep(ASKS_S)
            for network in self.managed:
                for vm, host, run_id, mac in self._running_interfaces(network.name):
                    if not self.guests.address_of(network.name, mac, run_id) and self._networks.can_reach(
                        Segment.VM, host
                    ):
                        self._request_lease(network.name, vm, run_id, mac)

    def _running_interfaces(self, network: str) -> Iterator[tuple[str, str, str, str]]:
        """Of every guest that runs, and has an interface there: VM, host, run, MAC."""
        for vm in self._store.list_all(VirtualMachine):
            for host, hypervisor in self._hypervisors.items():
                if not hypervisor.runs(vm.name):
                    continue
                for index in range(len(vm.spec.ports[:PORTS_LIMIT])):
                    port = self._store.find(VirtualMachinePort, port_object_name(vm.name, index))
                    if port is not None and port.spec.network == network:
                        yield vm.name, host, hypervisor.domains[vm.name].run_id, port.spec.mac

    def _request_lease(self, network: str, vm: str, run_id: str, mac: str) -> None:
        """A guest asks everybody, and takes what is answered first."""
        answering = {one.address: one.mac for one in self.used_addresses(network)}
        for host, dhcp in self._dhcp.items():
            if network in dhcp.servers and self._serves(host, dhcp, network):
                own = {one for one, owner in answering.items() if owner == mac}
                address = dhcp.give(network, mac, answering.keys() - own)
                if address:
                    at_s = asyncio.get_running_loop().time()
                    self.guests.note(GivenAddress(network, mac, run_id, address, host, at_s))
                    self._history.add("lease", vm, f"{vm} is given {address} on {network} by {host}")
                return

    def _serves(self, host: str, dhcp: SimDhcp, network: str) -> bool:
        sim, served = self._hosts[host], dhcp.servers[network].network
        present = self.kernels[host].list_addresses(served.bridge)
        is_there = all(subnet.interface in present for subnet in served.subnets)
        return dhcp.alive and sim.lives and not sim.paused and is_there and self._networks.can_reach(Segment.VM, host)

    def used_addresses(self, network: str) -> list[GivenAddress]:
        """What guests of the network have that run."""
        running = {mac: run_id for _, _, run_id, mac in self._running_interfaces(network)}
        return [one for one in self.guests.list_leases(network) if running.get(one.mac) == one.run_id]

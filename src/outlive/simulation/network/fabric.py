"""OVN under a virtual cluster: one chassis a host, interfaces of domains, and who answers at a VM's addresses.

A chassis follows the southbound database as long as its host has power and does not stand still, its ovn-controller
runs, and its host is on the network of the store, over which the databases are reached too; else it goes on with the
flows that it has. Packets of VMs take the network ``vm``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from outlive.base import Random
from outlive.node.ports import DomainState
from outlive.resources import PortMode, VirtualMachinePort, interface_id
from outlive.runtime import outside_parts
from outlive.simulation.hypervisors import SimDomain, SimHypervisor
from outlive.simulation.network.answers import PacketDestination, Senders, is_installed, passes_packets
from outlive.simulation.network.ovn import OvnBackup, SimulatedOvn
from outlive.simulation.networks import Networks, Segment

LAG_S: Final = (0.002, 0.05)
"""How long northd, and then a chassis, takes for a change."""
STARTS_S: Final = 1.0
"""From the boot of a kernel until its ovn-controller follows the database."""
WAKES_S: Final = 0.05
"""From when a host goes on until its ovn-controller has read what it missed."""
ANNOUNCES_S: Final = (0.0, 0.05, 0.2, 0.45, 0.8)
"""When QEMU announces a guest that was received, from when it runs."""
CHASSIS: Final = "ch-"
"""Before the name of a host: its chassis."""


class FabricPort(NamedTuple):
    """An interface of a VM that is on a network of OVN."""

    name: str
    """Of its ``VirtualMachinePort``."""
    vm: str
    interface: str
    """As the VM's definition has it."""
    network: str
    mode: PortMode
    mac: str
    routed: bool


class Fabric:
    """See the module. ``find_port``: the port's object as it is in the store."""

    def __init__(
        self,
        ports: Sequence[FabricPort],
        hypervisors: Mapping[str, SimHypervisor],
        networks: Networks,
        find_port: Callable[[str], VirtualMachinePort | None],
        random: Random,
    ) -> None:
        self.ovn = SimulatedOvn()
        self.ovn.defer = self._defer
        self.lag_s = LAG_S
        """From a change until northd has translated it, and from that until a chassis has it; drawn between these."""
        self.backup: OvnBackup | None = None
        """Of the northbound database, if somebody has made one."""
        self.stopped: set[str] = set()
        """Hosts whose ovn-controller is stopped, or hangs."""
        self._ports: dict[str, list[FabricPort]] = {}
        self._vms: dict[str, str] = {}
        """By interface, as definitions and as hosts have it."""
        for port in ports:
            self._ports.setdefault(port.vm, []).append(port)
            self._vms[port.interface] = port.vm
        self._random = random
        self._hypervisors = hypervisors
        self._networks = networks
        self._find_port = find_port
        self._senders = Senders(self.ovn)
        self._up: dict[str, None] = {}
        """Hosts whose ovn-controller was started since they booted."""
        self._plugged: dict[tuple[str, str], tuple[str, ...]] = {}
        """Host and VM → interfaces of its domain there."""
        self._incoming: dict[tuple[str, str], SimDomain] = {}
        """Host and VM → the domain that waits there for a guest."""

    def _defer(self, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(self._random.uniform(*self.lag_s), act, context=outside_parts())

    def add_host(self, host: str) -> None:
        """A host that has not booted yet."""
        self.ovn.add_chassis(chassis_of(host), hostname=host)
        for ports in self._ports.values():
            self._vms |= {interface_id(port.interface, port.mode, host): port.vm for port in ports}

    # What the switch of each host is told

    def ports_of(self, vm: str) -> Sequence[FabricPort]:
        """Interfaces of a VM that are on networks of OVN."""
        return self._ports.get(vm, ())

    def vm_of(self, interface: str) -> str:
        """The VM whose interface that is, by the id in its definition or on any host; empty: none."""
        return self._vms.get(interface, "")

    def update_domain(self, host: str, vm: str) -> None:
        """Plug and unplug what its domain there has now; one that was received is announced once it runs."""
        if vm not in self._ports:
            return
        domain, key = self._hypervisors[host].domains.get(vm), (host, vm)
        has = domain.ports if domain is not None and domain.state is not DomainState.OFF else ()
        before = self._plugged.pop(key, ())
        if has:
            self._plugged[key] = has
        chassis = chassis_of(host)
        for port in before:
            if port not in has:
                self.ovn.unplug(port, chassis)
        for port in has:
            if port not in before:
                self.ovn.plug(port, chassis)
        waited = self._incoming.pop(key, None)
        if domain is not None and domain.state is DomainState.INCOMING:
            self._incoming[key] = domain
        elif waited is domain and domain is not None and domain.state is DomainState.RUNNING:
            self._announce(host, domain)

    def _announce(self, host: str, domain: SimDomain) -> None:
        """As QEMU does, several times; once the guest does not run there any more nobody does."""

        def announce() -> None:
            hypervisor = self._hypervisors[host]
            if hypervisor.domains.get(domain.vm) is domain and hypervisor.runs(domain.vm):
                for port in domain.ports:
                    self.ovn.announce(port, chassis_of(host))

        announce()
        for after_s in ANNOUNCES_S[1:]:
            asyncio.get_running_loop().call_later(after_s, announce, context=outside_parts())

    # What chassis follow

    def handle_boot(self, host: str) -> None:
        """The kernel has started; its ovn-controller follows."""

        def start() -> None:
            if self._hypervisors[host].powered:
                self._up[host] = None
                self.refresh(host)

        asyncio.get_running_loop().call_later(STARTS_S, start, context=outside_parts())

    def handle_power_loss(self, host: str) -> None:
        """The machine has ended."""
        self._up.pop(host, None)
        self.stopped.discard(host)
        for key in [key for key in self._plugged if key[0] == host]:
            del self._plugged[key]
        self.ovn.kill(chassis_of(host))

    def handle_pause(self, host: str) -> None:
        """Everything on the host stands still, or goes on."""
        if self._hypervisors[host].paused:
            self.refresh(host)
        else:
            asyncio.get_running_loop().call_later(WAKES_S, self.refresh, host, context=outside_parts())

    def refresh(self, host: str) -> None:
        """The chassis of a host follows the database, or does not, as things are now."""
        if host not in self._up:
            return
        chassis = chassis_of(host)
        runs = host not in self.stopped and not self._hypervisors[host].paused
        if runs and self._networks.can_reach(Segment.STORE, host):
            if not self.ovn.chassis[chassis].alive:
                self.ovn.revive(chassis)
        else:
            self.ovn.freeze(chassis, announces=runs)

    # Who answers

    def answered_addresses(self, host: str, port: FabricPort) -> tuple[str, ...]:
        """Addresses of the port, or its MAC where it has none, at which the host's running domain answers others."""
        hypervisor, own = self._hypervisors[host], interface_id(port.interface, port.mode, host)
        domain, chassis = hypervisor.domains.get(port.vm), chassis_of(host)
        if domain is None or own not in domain.ports or not hypervisor.runs(port.vm):
            return ()
        if not self._networks.can_reach(Segment.VM, host) or not passes_packets(self.ovn, chassis, own):
            return ()
        return self._senders.reached_addresses(chassis, own, self.packet_destination(port))

    def packet_destination(self, port: FabricPort) -> PacketDestination:
        """What packets for the port are addressed to."""
        found = self._find_port(port.name)
        addresses = found.status.addresses if found is not None else ()
        return PacketDestination(port.mac, tuple(one.partition("/")[0] for one in addresses), port.routed)

    def is_installed(self, host: str, interface: str) -> bool:
        """Whether the host's own switch has flows for its interface."""
        return is_installed(self.ovn, chassis_of(host), interface)


def chassis_of(host: str) -> str:
    """The chassis of a host."""
    return f"{CHASSIS}{host}"

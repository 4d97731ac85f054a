"""What the network controller follows, and how it writes what it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec

from outlive.base import Clock
from outlive.network.addressing import address_key, mac_key
from outlive.network.views import PortFacts, VmPlace, reach_problem
from outlive.resources import (
    Cluster,
    Condition,
    Hypervisor,
    VirtualMachine,
    VirtualMachinePort,
    VirtualMachinePortStatus,
    VirtualNetwork,
    VirtualNetworkStatus,
    bridges_in,
    is_interface_id,
    present_network,
    vm_and_index,
)
from outlive.resources.reasons import Reason, render
from outlive.runtime import Informer
from outlive.store import Store, change_status

BY_VM: Final = "vm"
BY_NETWORK: Final = "network"
BY_MAC: Final = "mac"
BY_ADDRESS: Final = "address"
BY_INTERFACE: Final = "interface"
BY_BRIDGE: Final = "bridge"
PortChange = Callable[[VirtualMachinePortStatus], VirtualMachinePortStatus]
NetworkChange = Callable[[VirtualNetworkStatus], VirtualNetworkStatus]
_replace = msgspec.structs.replace


def port_indexes() -> dict[str, Any]:
    """Of the informer of ports. Networks are those that a port is on, and is to be on."""
    return {
        BY_VM: lambda port: (port.spec.vm,),
        BY_NETWORK: networks_of,
        BY_MAC: lambda port: tuple(f"{network}/{mac_key(port.spec.mac)}" for network in networks_of(port)),
        BY_ADDRESS: lambda port: tuple("/".join(key) for key in (*wanted_addresses(port), *granted_addresses(port))),
    }


def networks_of(port: VirtualMachinePort) -> tuple[str, ...]:
    """The networks that a port is on, and is to be on."""
    return tuple(dict.fromkeys((port.spec.network, present_network(port))))


def wanted_addresses(port: VirtualMachinePort) -> set[tuple[str, str]]:
    """Network and address, without mask, of each that its user gives the port."""
    return {(port.spec.network, address_key(one)) for one in port.spec.addresses}


def granted_addresses(port: VirtualMachinePort) -> set[tuple[str, str]]:
    """Network and address, without mask, of each that the port has."""
    return {(present_network(port), address_key(one)) for one in port.status.addresses}


def interface_indexes() -> dict[str, Any]:
    """Of the informer of VMs."""
    return {BY_INTERFACE: interfaces_of, BY_BRIDGE: lambda vm: bridges_in(vm.spec.definition)}


def interfaces_of(vm: VirtualMachine) -> tuple[str, ...]:
    """The ids of its interfaces in Open vSwitch, in the form in which they are compared."""
    return tuple(one.lower() for one in vm.spec.ports if is_interface_id(one))


@dataclass(frozen=True, slots=True)
class NetworkInformers:
    """What the controller follows."""

    ports: Informer[VirtualMachinePort]
    """With ``port_indexes``."""
    networks: Informer[VirtualNetwork]
    vms: Informer[VirtualMachine]
    """With ``interface_indexes``."""
    hosts: Informer[Hypervisor]
    clusters: Informer[Cluster]

    def facts_of(self, port: VirtualMachinePort, vm: VirtualMachine | None, place: VmPlace, overlaps: str) -> PortFacts:
        """What the port is judged by; ``overlaps`` as there."""
        hosts = {one: found for one in (place.host, place.target) if (found := self.hosts.get(one)) is not None}
        same_mac = self.ports.list_by_index(BY_MAC, f"{port.spec.network}/{mac_key(port.spec.mac)}")
        number = vm_and_index(port.name)[1]
        defined = vm.spec.ports[number] if vm is not None and 0 <= number < len(vm.spec.ports) else ""
        same_interface = self.vms.list_by_index(BY_INTERFACE, defined.lower())
        network = self.networks.get(port.spec.network)
        return PortFacts(port, network, vm, place, hosts, overlaps, same_mac, same_interface)

    def rivals_of(self, *vms: VirtualMachine | None) -> set[str]:
        """Names of other VMs that have an interface id of one of these."""
        interfaces = {one for vm in vms if vm is not None for one in interfaces_of(vm)}
        names = {found.name for one in interfaces for found in self.vms.list_by_index(BY_INTERFACE, one)}
        return names - {vm.name for vm in vms if vm is not None}

    def vms_at(self, *ports: VirtualMachinePort | None) -> set[str]:
        """Names of VMs with ports that have, or are to have, an address of one of these."""
        found = [one for one in ports if one is not None]
        keys = {"/".join(key) for one in found for key in (*wanted_addresses(one), *granted_addresses(one))}
        return {port.spec.vm for key in keys for port in self.ports.list_by_index(BY_ADDRESS, key)}

    def find_unreached(self, ports: Iterable[str], host: str) -> dict[str, Reason]:
        """Those of the ports whose networks do not reach the host, and why."""
        target, found = self.hosts.get(host), {}
        for name in ports:
            port = self.ports.get(name)
            network = self.networks.get(present_network(port)) if port is not None else None
            if network is not None and (problem := reach_problem(network, target)) is not None:
                found[name] = problem
        return found


class StatusWriter:
    """Writes statuses of ports and networks where they differ from what is there."""

    def __init__(self, store: Store, informers: NetworkInformers, clock: Clock) -> None:
        self._store = store
        self._informers = informers
        self._clock = clock

    async def write_port(self, name: str, change: PortChange) -> VirtualMachinePort | None:
        """Change the status of a port; the port afterwards."""
        cached = self._informers.ports.get(name)
        if cached is not None and change(cached.status) == cached.status:
            return cached
        after: VirtualMachinePort | None = await self._write(
            VirtualMachinePort, name, change, self._informers.ports.get
        )
        return after

    async def write_network(self, name: str, change: NetworkChange) -> VirtualNetwork | None:
        """Change the status of a network; the network afterwards."""
        after: VirtualNetwork | None = await self._write(VirtualNetwork, name, change, self._informers.networks.get)
        return after

    async def _write(self, kind: Any, name: str, change: Any, cache: Callable[[str], Any]) -> Any:
        return await change_status(
            self._store, kind, name, lambda now: change(now.status), clock=self._clock, cache=cache
        )


def condition_of(kind: str, problem: Reason | None, at: datetime | None) -> Condition:
    """True where there is no problem, else false with it and what helps."""
    if problem is None:
        return Condition(type=kind, status="True", last_transition_time=at)
    message = str(render(problem))
    return Condition(type=kind, status="False", reason=problem.code, message=message, last_transition_time=at)

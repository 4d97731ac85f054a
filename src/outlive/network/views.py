"""A VM of our own hosts as the network sees it: where it is, and what of each of its ports can be programmed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from outlive.base import BadInput, Invalid
from outlive.network.addressing import parse_address, parse_any, parse_mac, parse_subnet
from outlive.network.own_networks import host_prefix, read_cidr
from outlive.network.own_vms import OwnNetwork, OwnPort
from outlive.network.owners import ForeignRow
from outlive.network.pool import add_mask, check_network, gateway_of, parts_of_subnets
from outlive.network.ports import Chassis, chassis_name
from outlive.resources import (
    IN_OVN,
    Hypervisor,
    MigrationPhase,
    PortMode,
    VirtualMachine,
    VirtualMachinePort,
    VirtualNetwork,
    creation_order,
    interface_id,
    is_interface_id,
    is_made_by_hosts,
    parse,
    port_mode,
    present_network,
    present_type,
    vm_and_index,
)
from outlive.resources.reasons import NetworkReason, Reason, make_reason

MODES: Final[tuple[PortMode, ...]] = ("shared", "twin")


class VmPlace(NamedTuple):
    """Where a VM is, and where it moves to while it runs; empty: nowhere."""

    host: str = ""
    target: str = ""
    move: str = ""
    """Id of the live migration under way."""


def place_of(vm: VirtualMachine | None) -> VmPlace:
    """The place of a VM by its assignment and its migration.

    In a live migration it stays at the source until the target has adopted it, which ends the record. A cold one is
    at the source until it is stopped there.
    """
    if vm is None:
        return VmPlace()
    move = vm.status.migration
    if move is None or move.phase is MigrationPhase.ABORTED:
        return VmPlace(vm.host)
    if move.mode == "live":
        return VmPlace(move.source, move.target, move.id)
    return VmPlace(move.target if move.phase is MigrationPhase.STOPPED else move.source)


@dataclass(frozen=True, slots=True)
class PortFacts:
    """A port, and what it is judged by."""

    port: VirtualMachinePort
    network: VirtualNetwork | None
    vm: VirtualMachine | None
    place: VmPlace
    hosts: Mapping[str, Hypervisor]
    """Those that the VM is on, and moves to."""
    overlaps: str = ""
    """An older network whose subnets overlap."""
    same_mac: Iterable[VirtualMachinePort] = ()
    """Ports of the same network with the same MAC, this one too."""
    same_interface: Iterable[VirtualMachine] = ()
    """VMs with the same interface id, this one too."""


def host_chassis(host: Hypervisor | None, name: str, known: Collection[Chassis]) -> str:
    """The chassis of a host: as its record names it, else as the host says, else as OVN knows the host."""
    named = host.spec.chassis or host.status.chassis if host is not None else ""
    return named or chassis_name(name, known)


def is_programmed(network: VirtualNetwork | None) -> bool:
    """True if the network controller programs the network; a missing one may be meant for OVN."""
    return network is None or present_type(network) in IN_OVN


def obstacle_of(facts: PortFacts) -> Reason | None:
    """Why the port cannot be programmed where the VM is, apart from its addresses; ``None``: it can."""
    port, network, vm, place = facts.port, facts.network, facts.vm, facts.place
    if network is None:
        return make_reason(NetworkReason.NETWORK_MISSING, network=port.spec.network)
    if (problem := network_problem(network, facts.overlaps)) is not None:
        return problem
    if vm is None:
        return make_reason(NetworkReason.VM_MISSING, vm=port.spec.vm)
    name, number = vm_and_index(port.name)
    if name != vm.name or not 0 <= number < len(vm.spec.ports):
        return make_reason(NetworkReason.NO_INTERFACE, vm=vm.name, number=port.name.rpartition(".")[2])
    if not is_interface_id(vm.spec.ports[number]):
        return make_reason(NetworkReason.NO_INTERFACE_ID, vm=vm.name, number=str(number))
    oldest = min(facts.same_interface, key=creation_order, default=vm)
    if creation_order(oldest) < creation_order(vm):
        interface = vm.spec.ports[number]
        return make_reason(NetworkReason.INTERFACE_TWICE, vm=vm.name, other=oldest.name, interface=interface)
    try:
        own_mac = parse_mac(port.spec.mac)
    except Invalid as error:
        return make_reason(NetworkReason.MAC_INVALID, problem=error.message, remedy=error.remedy or "")
    if vm.spec.definition and (mac := _defined_mac(vm, number)) not in ("", own_mac):
        return make_reason(NetworkReason.MAC_DIFFERS, vm=vm.name, number=str(number), mac=mac)
    first = min(facts.same_mac, key=creation_order, default=port)
    if creation_order(first) < creation_order(port):
        return make_reason(NetworkReason.MAC_TWICE, other=first.name, mac=own_mac, network=network.name)
    if not place.host:
        return make_reason(NetworkReason.NO_HOST, vm=vm.name)
    has_part = network.spec.type != "routed" or place.host in network.status.host_subnets
    if has_part and port.status.active_on:
        return None  # it follows a VM that has run with it, wherever that runs now
    return reach_problem(network, facts.hosts.get(place.host))


def was_prepared(port: VirtualMachinePort | None, move: str) -> bool:
    """True if the target of that move was told that it can have the port, so that it may have the guest by now."""
    reported = port.status.migration if port is not None else None
    return reported is not None and reported.id == move and (reported.prepared or "prepare" in reported.times_ms)


def lacks_ovn(host: Hypervisor) -> bool:
    """Whether the host says that it runs no OVN; one that says nothing may run it."""
    return host.status.chassis == "" and not host.spec.chassis


def reaches_host(network: VirtualNetwork, host: Hypervisor) -> bool:
    """Whether the host has the network's labels, and what it needs: OVN, or its own devices for the network."""
    if not network.reaches(host.metadata.labels):
        return False
    if is_made_by_hosts(network):
        return (host.status.networks or {}).get(network.name) == ""
    return not (present_type(network) in IN_OVN and lacks_ovn(host))


def reach_problem(network: VirtualNetwork, host: Hypervisor | None) -> Reason | None:
    """That the network does not reach the host; ``None``: it does, or nobody knows."""
    if host is None or reaches_host(network, host):
        return None
    if is_made_by_hosts(network) and network.reaches(host.metadata.labels):
        why = (host.status.networks or {}).get(network.name) or "its daemon has not said so"
        return make_reason(NetworkReason.HOST_LACKS_NETWORK, network=network.name, host=host.name, why=why)
    return make_reason(NetworkReason.HOST_NOT_REACHED, network=network.name, host=host.name)


def network_problem(network: VirtualNetwork, overlaps: str = "") -> Reason | None:
    """Why the network cannot be programmed; ``None``: it can."""
    if (now := present_type(network)) != (wanted := network.spec.type):
        return make_reason(NetworkReason.TYPE_CHANGED, network=network.name, type=now, wanted=wanted)
    try:
        check_network(network.spec)
    except BadInput as error:
        return make_reason(
            NetworkReason.NETWORK_INVALID, network=network.name, problem=error.message, remedy=error.remedy or ""
        )
    if overlaps:
        return make_reason(NetworkReason.SUBNETS_OVERLAP, network=network.name, other=overlaps)
    return None


def row_names(port: VirtualMachinePort, vm: VirtualMachine | None, place: VmPlace) -> set[str]:
    """Names of the logical ports that it may have: those that were reported, and those of its VM's place."""
    names, number = set(port.status.interfaces.values()), vm_and_index(port.name)[1]
    if vm is not None and 0 <= number < len(vm.spec.ports):
        names |= {
            interface_id(vm.spec.ports[number], mode, host)
            for mode in MODES
            for host in (place.host, place.target)
            if host
        }
    return names


def foreign_reason(found: ForeignRow) -> Reason:
    """That OVN has a row of somebody else in place of one of ours."""
    return make_reason(NetworkReason.FOREIGN_ROW, row=found.row, owner=found.owner)


def _defined_mac(vm: VirtualMachine, number: int) -> str:
    try:
        ports = parse(vm.spec.definition).ports
    except BadInput:
        return ""
    return ports[number].mac if number < len(ports) else ""


def serves_dhcp(network: VirtualNetwork) -> bool:
    """True if OVN answers guests of the network."""
    enabled, managed = network.spec.dhcp.enabled, network.spec.addressing == "managed"
    return enabled if enabled is not None else managed and network.spec.type in ("routed", "layer2")


def own_network(network: VirtualNetwork) -> OwnNetwork:
    """What of the network the rows of its VMs depend on."""
    spec = network.spec
    assert spec.type in ("routed", "layer2", "localnet")
    return OwnNetwork(
        name=network.name,
        type=spec.type,
        dhcp=serves_dhcp(network),
        dhcp_router=spec.dhcp.router,
        dns_servers=spec.dhcp.dns_servers,
        mtu=spec.mtu,
        host_subnets=network.status.host_subnets if spec.type == "routed" else {},
    )


def own_port(port: VirtualMachinePort, network: VirtualNetwork, vm: VirtualMachine) -> OwnPort:
    """The port as it is planned; nothing is in its way."""
    security = port.spec.port_security
    return OwnPort(
        interface=vm.spec.ports[vm_and_index(port.name)[1]],
        network=own_network(network),
        mode=port_mode(port, network),
        mac=parse_mac(port.spec.mac),
        addresses=port.status.addresses,
        gateways=port.status.gateways,
        port_security=network.spec.port_security if security is None else security,
    )


def wants_address(port: VirtualMachinePort, network: VirtualNetwork) -> Reason | None:
    """That the port has no addresses yet though its network manages them."""
    if port.status.addresses or network.spec.addressing == "none":
        return None
    return make_reason(
        NetworkReason.NO_ADDRESS,
        problem=f"port {port.name} has no addresses yet",
        remedy="see its condition Programmed: outlive describe virtualmachineport",
    )


def cidrs_for(network: VirtualNetwork, host: str) -> dict[str, str]:
    """Subnet → gateway: where a port that is born on this host gets its addresses from."""
    if network.spec.type == "routed":
        parts = parts_of_subnets(network.spec, network.status.host_subnets.get(host, ()))
        return {cidr: gateway_of(cidr) for cidr in parts if cidr}
    return {one.cidr: str(parse_address(one.gateway)) if one.gateway else "" for one in network.spec.subnets}


def network_cidrs(network: VirtualNetwork) -> list[str]:
    """The subnets of the network, on a routed one those of all hosts."""
    if network.spec.type == "routed":
        return [cidr for parts in network.status.host_subnets.values() for cidr in parts]
    return [one.cidr for one in network.spec.subnets]


def add_masks(addresses: Iterable[str], network: VirtualNetwork) -> tuple[str, ...]:
    """Each of the addresses once, with the mask of its subnet. ``Invalid``.

    On a routed network that is the subnet of a host, also of one that none has yet, or none has any more.
    """
    found, cidrs = list(addresses), network_cidrs(network)
    for subnet in network.spec.subnets if network.spec.type == "routed" else ():
        whole = read_cidr(subnet.cidr)
        length = host_prefix(subnet, whole)
        cidrs += [str(parse_subnet(f"{address}/{length}")) for address in map(parse_any, found) if address in whole]
    return tuple(dict.fromkeys(add_mask(one, cidrs) for one in found))


def gateways_for(addresses: Iterable[str], network: VirtualNetwork) -> tuple[str, ...]:
    """The gateways of the subnets that these addresses lie in."""
    found = [parse_any(one) for one in addresses]
    cidrs = [cidr for cidr in network_cidrs(network) if any(one in read_cidr(cidr) for one in found)]
    of_network = cidrs_for(network, "")
    gateways = [gateway_of(one) if network.spec.type == "routed" else of_network[one] for one in cidrs]
    return tuple(one for one in gateways if one)


def is_down(vm: VirtualMachine | None) -> bool:
    """True if no host may be running the VM, and none is to start it."""
    if vm is None:
        return True
    is_to_run = bool(vm.host) and vm.spec.power_state != "stopped"
    return not is_to_run and not vm.status.holders and vm.status.migration is None


def portless_interfaces(vm: VirtualMachine | None, ports: Collection[VirtualMachinePort]) -> dict[str, str]:
    """Of a VM that may run: the name of a port that the store lacks → the interface that the port would be of."""
    if vm is None or is_down(vm):
        return {}
    numbers = {vm_and_index(port.name)[1] for port in ports}
    present = {one.lower() for number, one in enumerate(vm.spec.ports) if number in numbers}
    return {
        f"{vm.name}.{number}": one
        for number, one in enumerate(vm.spec.ports)
        if is_interface_id(one) and one.lower() not in present
    }


def present_port(port: VirtualMachinePort, vm: VirtualMachine | None) -> VirtualMachinePort:
    """The port as it is: where its user has changed its network, it stays on the old one until its VM is down."""
    network = present_network(port)
    if is_down(vm) or network == port.spec.network:
        return port
    return msgspec.structs.replace(port, spec=msgspec.structs.replace(port.spec, network=network, addresses=()))

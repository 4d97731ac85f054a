"""Addresses of networks: which are free, and which subnet each host of a routed network has; and what is wrong with a
network or a port as its user wrote it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping
from typing import Final, NamedTuple

from outlive.base import BadInput, Invalid, LimitExceeded
from outlive.network.addressing import (
    is_group,
    parse_address,
    parse_any,
    parse_host,
    parse_mac,
    parse_subnet,
)
from outlive.network.own_networks import IpSubnet, check_own_network, host_prefix, overlaps, read_cidr, read_subnet
from outlive.resources import (
    Subnet,
    VirtualMachinePort,
    VirtualNetwork,
    VirtualNetworkSpec,
    creation_order,
    port_object_name,
    present_type,
    vm_and_index,
)

TRIES: Final = 1 << 16
"""Addresses, or subnets, that are looked at for a free one."""


def check_network(spec: VirtualNetworkSpec) -> None:
    """``BadInput`` where a network cannot be as its user wrote it."""
    networks = [read_subnet(one) for one in spec.subnets]
    for number, one in enumerate(networks):
        for other in networks[:number]:
            if overlaps(one, other):
                raise BadInput(f"{one} overlaps {other}", place="spec.subnets", remedy="leave one of them out")
    if spec.type == "routed" and not spec.subnets:
        raise BadInput("a routed network needs subnets", place="spec.subnets", remedy="write one, such as 10.44.0.0/16")
    if spec.type == "routed" and spec.addressing == "none":
        remedy = "leave it out, or choose layer2 or localnet"
        raise BadInput("addresses of a routed network are always managed", place="spec.addressing", remedy=remedy)
    if spec.type == "localnet" and not spec.physical_network:
        remedy = "name it as in ovn-bridge-mappings of the hosts"
        raise BadInput("a localnet network needs a physical network", place="spec.physicalNetwork", remedy=remedy)
    check_own_network(spec, networks)
    for server in spec.dhcp.dns_servers:
        try:
            parse_address(server)
        except Invalid as error:
            raise BadInput(error.message, place="spec.dhcp.dnsServers", remedy=error.remedy) from None


def check_port(port: VirtualMachinePort) -> None:
    """``BadInput`` where a port cannot be as its user wrote it, whatever its network is."""
    spec, (vm, number) = port.spec, vm_and_index(port.name)
    if vm != spec.vm or number < 0:
        raise BadInput(
            f"its name is that of no interface of VM {spec.vm}",
            place="spec.vm",
            remedy=f"name it after its VM and the number of the interface, such as {port_object_name(spec.vm, 0)}",
        )
    try:
        mac = parse_mac(spec.mac)
    except Invalid as error:
        raise BadInput(error.message, place="spec.mac", remedy=error.remedy) from None
    if is_group(mac):
        remedy = "write one whose first byte is even, such as 0a:58:0a:2c:07:17"
        raise BadInput(f"{mac} is the MAC of a group, not of an interface", place="spec.mac", remedy=remedy)
    for text in spec.addresses:
        try:
            parse_any(text)
        except Invalid as error:
            raise BadInput(error.message, place="spec.addresses", remedy=error.remedy) from None


def find_overlaps(networks: Iterable[VirtualNetwork]) -> dict[str, str]:
    """Routed network → an older one whose subnets overlap its own: they share one router, and the older one keeps it.

    A network that is malformed has no subnets here; that is told of the network itself (``check_network``).
    """
    found: dict[str, str] = {}
    taken: list[tuple[IpSubnet, str]] = []
    for network in sorted(networks, key=creation_order):
        if "routed" not in (network.spec.type, present_type(network)):
            continue
        try:
            check_network(network.spec)
        except BadInput:
            continue
        for own in map(read_subnet, network.spec.subnets):
            for other, owner in taken:
                if owner != network.name and overlaps(own, other):
                    found.setdefault(network.name, owner)
            taken.append((own, network.name))
    return found


def parts_of_subnets(spec: VirtualNetworkSpec, parts: Iterable[str]) -> list[str]:
    """Of each subnet of a routed network, in order, the first of these parts that lies in it; empty: none does."""
    found = [(one, read_cidr(one)) for one in parts]
    wholes = map(read_subnet, spec.subnets)
    return [next((one for one, part in found if overlaps(part, whole)), "") for whole in wholes]


def free_part(subnet: Subnet, taken: Iterable[str]) -> str:
    """A free part of a routed network's subnet for one more host; ``LimitExceeded``: none left."""
    network, used = read_subnet(subnet), [read_cidr(one) for one in taken]
    parts: Iterable[IpSubnet] = network.subnets(new_prefix=host_prefix(subnet, network))
    barred = [read_cidr(one) for one in subnet.excluded]
    for _, part in zip(range(TRIES), parts, strict=False):
        covered = any(one.prefixlen <= part.prefixlen and overlaps(one, part) for one in barred)
        if not covered and not any(overlaps(part, one) for one in used):
            return str(part)
    raise LimitExceeded(f"{network} has no part left for another host", remedy="add a subnet to the network")


def is_part(part: str, subnet: Subnet, taken: Iterable[str]) -> bool:
    """Whether this is the part of a host of a routed network's subnet, and nobody else has it."""
    own, whole = read_cidr(part), read_subnet(subnet)
    if not overlaps(own, whole) or own.prefixlen != host_prefix(subnet, whole):
        return False
    return not any(overlaps(own, read_cidr(one)) for one in taken)


class SharedSubnets(NamedTuple):
    """The parts that the hosts of a routed network have."""

    parts: dict[str, tuple[str, ...]]
    """By host, in the order of the network's subnets."""
    lacking: dict[str, str]
    """Host → why it does not have a part of each subnet."""


def share_subnets(
    spec: VirtualNetworkSpec,
    known: Mapping[str, tuple[str, ...]],
    hosts: Collection[str],
    in_ovn: Mapping[str, tuple[str, ...]],
    used: Collection[str],
) -> SharedSubnets:
    """Give each of these ``hosts`` its part of each subnet; what a host has stays its own.

    What it lacks is what its switch in OVN has, as in a store that was restored, else the first free part. A part of a
    subnet that the network no longer has stays for as long as one of the addresses ``used`` lies in it.
    """
    taken = [one for parts in known.values() for one in parts]
    wanted = {host: parts_of_subnets(spec, known.get(host, ())) for host in sorted(hosts)}
    gaps = [(host, number) for host, parts in wanted.items() for number, part in enumerate(parts) if not part]
    for host, number in gaps:
        part = parts_of_subnets(spec, in_ovn.get(host, ()))[number]
        if part and is_part(part, spec.subnets[number], taken):
            wanted[host][number] = part
            taken.append(part)
    lacking: dict[str, str] = {}
    exhausted: dict[int, str] = {}
    for host, number in gaps:
        if not wanted[host][number] and number not in exhausted:
            try:
                wanted[host][number] = free_part(spec.subnets[number], taken)
                taken.append(wanted[host][number])
            except LimitExceeded as error:
                exhausted[number] = error.message
        if not wanted[host][number]:
            lacking.setdefault(host, exhausted[number])
    addresses, shared = [parse_any(one) for one in used], dict(known)
    for host, parts in wanted.items():
        others = (read_cidr(one) for one in known.get(host, ()) if one not in parts)
        kept = (str(other) for other in others if any(address in other for address in addresses))
        shared[host] = (*filter(None, parts), *kept)
    return SharedSubnets({host: parts for host, parts in shared.items() if parts}, lacking)


def gateway_of(cidr: str) -> str:
    """The gateway of a subnet: its first address; empty: it is too small for one."""
    network = read_cidr(cidr)
    return str(network.network_address + 1) if network.num_addresses > 2 else ""


def address_problem(text: str, network: VirtualNetwork) -> str:
    """Why no port of the network can have this address; empty: one may. ``Invalid`` where it is none.

    On a network whose addresses are not managed, one may lie in no subnet. The network is well-formed.
    """
    address, spec = parse_any(text), network.spec
    for subnet in spec.subnets:
        whole = read_cidr(subnet.cidr)
        if whole.version != address.version or address not in whole:
            continue
        if any(address in read_cidr(one) for one in subnet.excluded):
            return f"{address} is excluded on network {network.name}"
        own, gateway = whole, str(parse_address(subnet.gateway)) if subnet.gateway else ""
        if spec.type == "routed":
            own = parse_subnet(f"{address}/{host_prefix(subnet, whole)}")
            gateway = gateway_of(str(own))
        if str(address) == gateway:
            return f"{address} is the gateway of {own} on network {network.name}"
        if own.version == 4 and own.num_addresses > 2 and address in (own.network_address, own.broadcast_address):
            return f"{address} is no address of an interface in {own}, but that of the subnet or of all in it"
        return ""
    if spec.subnets and spec.addressing == "managed":
        return f"{address} lies in no subnet of network {network.name}"
    return ""


def free_address(
    cidr: str, taken: Container[str], excluded: Iterable[str] = (), gateway: str = "", after: str = ""
) -> str:
    """The first address of the subnet that nobody has, with its mask; ``LimitExceeded``: there is none.

    ``taken``: addresses without mask. Network and broadcast addresses and the gateway are nobody's. ``after``: an
    address after which is looked first.
    """
    network = read_cidr(cidr)
    barred = [read_cidr(one) for one in excluded]
    most = int(network.num_addresses)
    first = 1 if most > 2 else 0
    last = most - 2 if network.version == 4 and most > 2 else most - 1
    start = int(parse_address(after)) - int(network.network_address) + 1 if after else first
    position, tried = start, 0
    while tried < TRIES:
        if position > last:
            if start == first:
                break
            position, last, start = first, start - 1, first
            continue
        address = network.network_address + position
        inside = next((one for one in barred if one.version == address.version and address in one), None)
        if inside is not None:
            position = int(inside.broadcast_address) - int(network.network_address) + 1
            continue
        if str(address) not in taken and str(address) != gateway:
            return f"{address}/{network.prefixlen}"
        position, tried = position + 1, tried + 1
    raise LimitExceeded(f"{network} has no free address", remedy="add a subnet to the network, or delete ports")


def add_mask(address: str, cidrs: Iterable[str]) -> str:
    """The address with the mask of the subnet that it lies in; with its own where it lies in none. ``Invalid``."""
    found = parse_any(address)
    for cidr in cidrs:
        network = read_cidr(cidr)
        if network.version == found.version and found in network:
            return f"{found}/{network.prefixlen}"
    return str(parse_host(address)) if "/" in address else f"{found}/{found.max_prefixlen}"

"""What is wrong with a bridged or managed network as its user wrote it, alone and beside others. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

import msgspec

from outlive.base.errors import BadInput, Invalid
from outlive.network.addressing import is_group, parse_address, parse_mac
from outlive.network.firewall import RuleOrderInput, order_rules
from outlive.network.subnets import IpSubnet, overlaps, read_subnet
from outlive.resources import Cluster, VirtualNetwork
from outlive.resources.networks import (
    SMALLEST_MTU,
    DhcpRange,
    FirewallRule,
    Subnet,
    VirtualNetworkSpec,
    is_made_by_hosts,
)

LARGEST_VLAN: Final = 4094
DHCPV6_PREFIX: Final = 64
_NAME: Final = re.compile(r"(?!-)[a-zA-Z0-9-]{1,63}(?<!-)(\.(?!-)[a-zA-Z0-9-]{1,63}(?<!-))*\.?", re.ASCII)
_replace = msgspec.structs.replace


def completed_network(network: VirtualNetwork) -> VirtualNetwork:
    """The same, where an IPv6 subnet of a managed network without gateway gets one, and DHCP with it."""
    if network.spec.type != "managed":
        return network
    subnets = tuple(_completed_subnet(one) for one in network.spec.subnets)
    if subnets == network.spec.subnets:
        return network
    return _replace(network, spec=_replace(network.spec, subnets=subnets))


def _completed_subnet(subnet: Subnet) -> Subnet:
    try:
        own = read_subnet(subnet)
    except BadInput:
        return subnet  # its check says what is wrong
    if own.version != 6 or subnet.gateway or own.num_addresses < 2:
        return subnet
    return _replace(subnet, gateway=str(own.network_address + 1), dhcp=subnet.dhcp or DhcpRange())


def check_own_network(spec: VirtualNetworkSpec, subnets: Iterable[IpSubnet]) -> None:
    """``BadInput`` where what only networks of hosts have cannot be so."""
    if spec.type not in ("bridged", "managed"):
        for name, value in (("vni", spec.vni), ("domain", spec.domain), ("nameServers", spec.name_servers)):
            _refuse(bool(value), name, f"a {spec.type} network has none", "leave it out, or choose managed")
    if spec.type != "managed":
        for name, is_given in (("reservations", bool(spec.reservations)), ("rules", bool(spec.rules))):
            _refuse(is_given, name, f"a {spec.type} network has none", "leave it out, or choose managed")
        with_dhcp = any(one.dhcp is not None for one in spec.subnets)
        _refuse(with_dhcp, "subnets", f"a {spec.type} network has no DHCP server of its own", "leave dhcp out")
        if spec.type == "bridged":
            above = spec.vni > LARGEST_VLAN
            _refuse(above, "vni", f"{spec.vni} is no VLAN", f"write one from 1 to {LARGEST_VLAN}")
            _check_mtu(spec)
        return
    _refuse(not spec.vni, "vni", "a managed network needs a VNI", "write one from 1 to 16777215")
    _check_mtu(spec)
    own = list(zip(spec.subnets, subnets, strict=True))
    for version in (4, 6):
        many = [str(one) for _, one in own if one.version == version]
        _refuse(len(many) > 1, "subnets", f"{' and '.join(many[:2])} are both IPv{version}", "leave one of them out")
    for subnet, whole in own:
        _check_range(subnet, whole)
    _check_names(spec)
    _check_reservations(spec, own)
    check_rules(spec.rules)


def _refuse(is_wrong: bool, field: str, what: str, remedy: str) -> None:
    if is_wrong:
        raise BadInput(what, place=f"spec.{field}", remedy=remedy)


def _check_mtu(spec: VirtualNetworkSpec) -> None:
    small = 0 < spec.mtu < SMALLEST_MTU
    _refuse(small, "mtu", f"{spec.mtu} is no MTU", f"write a number from {SMALLEST_MTU} on, or 0 for as much as goes")


def _check_range(subnet: Subnet, whole: IpSubnet) -> None:
    given = subnet.dhcp
    if given is None:
        return
    _refuse(not subnet.gateway, "subnets", f"DHCP of {whole} has no gateway to answer from", "write gateway")
    if whole.version == 6:
        some = bool(given.start or given.end)
        _refuse(some, "subnets", f"DHCP of {whole} has a range, and serves the whole subnet", "leave start and end out")
        what = f"DHCP of {whole} cannot serve a /{whole.prefixlen}"
        _refuse(whole.prefixlen != DHCPV6_PREFIX, "subnets", what, f"choose a /{DHCPV6_PREFIX}, or leave dhcp out")
        return
    ends = []
    for name, text in (("start", given.start), ("end", given.end)):
        _refuse(not text, "subnets", f"DHCP of {whole} has no {name}", f"write dhcp.{name}")
        ends.append(_address_in(text, whole, f"the {name} of DHCP", "subnets"))
    behind = ends[0] > ends[1]
    _refuse(behind, "subnets", f"DHCP of {whole} begins behind its end", "write the smaller address as start")


def _address_in(text: str, whole: IpSubnet, what: str, field: str) -> int:
    """An address of the subnet that an interface can have, as a number."""
    remedy = f"write an address of {whole}"
    try:
        address = ip_address(text)
    except ValueError:
        raise BadInput(f"{what}, {text[:60]!r}, is no address", place=f"spec.{field}", remedy=remedy) from None
    inside = address.version == whole.version and address in whole
    _refuse(not inside, field, f"{what}, {text}, is not in {whole}", remedy)
    if whole.version == 4 and whole.num_addresses > 2:
        nobody = address in (whole.network_address, whole.broadcast_address)
        _refuse(nobody, field, f"{what}, {text}, is that of {whole} itself, or of all in it", remedy)
    return int(address)


def _check_names(spec: VirtualNetworkSpec) -> None:
    if spec.domain:
        _check_name(spec.domain, "domain", "domain")
    for one in spec.name_servers:
        _check_name(one, "nameServers", "name server")


def _check_name(text: str, field: str, what: str) -> None:
    wrong = _NAME.fullmatch(text) is None
    _refuse(wrong, field, f"{what} {text[:60]!r} is no name in DNS", "write letters, digits, '-' and '.'")


def _check_reservations(spec: VirtualNetworkSpec, own: list[tuple[Subnet, IpSubnet]]) -> None:
    macs: set[str] = set()
    taken: set[str] = set()
    for one in spec.reservations:
        try:
            mac, address = parse_mac(one.mac), parse_address(one.address)
        except Invalid as error:
            raise BadInput(error.message, place="spec.reservations", remedy=error.remedy) from None
        _refuse(is_group(mac), "reservations", f"{mac} is the MAC of a group", "write that of one interface")
        pair = f"{mac}/{address.version}"
        _refuse(pair in macs, "reservations", f"{mac} is reserved twice", "leave one of them out")
        _refuse(str(address) in taken, "reservations", f"{address} is reserved twice", "leave one of them out")
        macs.add(pair)
        taken.add(str(address))
        found = next(((subnet, whole) for subnet, whole in own if whole.version == address.version), None)
        if found is None:
            what = f"{address} for {mac} lies in no subnet of the network"
            raise BadInput(what, place="spec.reservations", remedy="add the subnet, or leave the reservation out")
        _address_in(one.address, found[1], f"the address for {mac}", "reservations")
        gateway = found[0].gateway and ip_address(found[0].gateway) == address
        _refuse(bool(gateway), "reservations", f"{address} for {mac} is the gateway", "reserve another address")
        if one.hostname:
            _check_name(one.hostname, "reservations", "hostname")


def check_rules(rules: Iterable[FirewallRule]) -> None:
    """``BadInput`` for two rules of one name, in whatever direction, or a rule that is not one line."""
    names: set[str] = set()
    for one in rules:
        _refuse(one.name in names, "rules", f"there are two rules {one.name!r}", "give one of them another name")
        names.add(one.name)
        odd = not one.rule.isprintable() or ";" in one.rule or not one.rule.strip()
        _refuse(odd, "rules", f"rule {one.name!r} is not one line of nftables", "write it without ';' and line ends")


def ordered_rules(spec: VirtualNetworkSpec, direction: str) -> tuple[FirewallRule, ...]:
    """The rules of a direction, in the order in which they are tried."""
    own = {one.name: one for one in spec.rules if one.direction == direction}
    order = order_rules(RuleOrderInput(rules={name: one.order for name, one in own.items()})).order
    return tuple(own[name] for name in order)


def domain_of(network: VirtualNetwork) -> str:
    """DNS domain of a managed network's guests."""
    return (network.spec.domain or f"{network.name}.local").rstrip(".").lower()


def check_beside(network: VirtualNetwork, other: VirtualNetwork) -> None:
    """``BadInput`` where hosts cannot make both networks, or one host cannot be the gateway of both."""
    if not (is_made_by_hosts(network) and is_made_by_hosts(other)):
        return
    vni = network.spec.vni
    remedy = "write another one: bridged and managed networks share the bridges of hosts"
    _refuse(vni == other.spec.vni, "vni", f"network {other.name} has VNI {vni} as well", remedy)
    if network.spec.type != "managed" or other.spec.type != "managed":
        return
    domain = domain_of(network)
    _refuse(domain == domain_of(other), "domain", f"network {other.name} has domain {domain} as well", "write another")
    theirs = [whole for one in other.spec.subnets if (whole := _read_or_none(one)) is not None]
    for subnet in network.spec.subnets:
        own = _read_or_none(subnet)
        same = next((one for one in theirs if own is not None and overlaps(own, one)), None)
        what = f"{own} overlaps {same} of network {other.name}, and one host is the gateway of both"
        _refuse(same is not None, "subnets", what, "write another subnet")


def check_beside_hosts(network: VirtualNetwork, cluster: Cluster | None) -> None:
    """``BadInput`` where a managed network overlaps one that hosts are on themselves: its gateway would cut the primary
    off from it."""
    if cluster is None or network.spec.type != "managed" or not is_made_by_hosts(network):
        return
    for name, system in cluster.spec.system_networks.items():
        theirs = _read_or_none(Subnet(cidr=system.cidr))
        for subnet in network.spec.subnets:
            own = _read_or_none(subnet)
            both = own is not None and theirs is not None and overlaps(own, theirs)
            what = f"{own} overlaps {theirs} of system network {name}, which the gateway would be cut off from"
            _refuse(both, "subnets", what, "write another subnet")


def _read_or_none(subnet: Subnet) -> IpSubnet | None:
    try:
        return read_subnet(subnet)
    except BadInput:
        return None

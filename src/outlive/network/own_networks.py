"""Bridged and managed networks as users write them: what is wrong with one, and what a change makes of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final, Literal

import msgspec

from outlive.base import AlreadyExists, BadInput, InUse, Invalid, NotFound
from outlive.network.addressing import TEXTS_KEPT, is_group, mac_key, parse_address, parse_any, parse_mac
from outlive.resources import (
    SMALLEST_MTU,
    Cluster,
    DhcpRange,
    DhcpReservation,
    FirewallRule,
    Subnet,
    VirtualNetwork,
    VirtualNetworkSpec,
    is_made_by_hosts,
)
from outlive.runtime import Decision

# The order of the rules of a network's firewall, and what adding or removing one makes of it. Pure.
#
# docs/design/network-decisions.md#firewallorder

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,1000}", re.ASCII)


class RuleExists(InUse):
    """A rule has that name already."""

    code = "exists"


class RuleMissing(NotFound):
    """No rule has that name."""

    code = "missing"


class RuleChange(msgspec.Struct, frozen=True, kw_only=True):
    """One rule that is added or removed; exactly one of both."""

    add: str | None = None
    """Name of the new rule."""
    at: int | None = None
    """Where it goes, from 0 on; absent or behind the end: last."""
    remove: str | None = None
    """Name of the rule that goes."""


class RuleOrderInput(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of one direction."""

    rules: dict[str, int | str]
    """Name → its number; the smallest is tried first."""
    op: RuleChange | None = None
    """What is changed; absent: nothing."""


class RuleOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the rules in the order in which they are tried; a rule's new number is its place, from 0 on."""

    order: tuple[str, ...]


def order_rules(given: RuleOrderInput) -> RuleOrder:
    """The names by their numbers, equal ones by name, after the change."""
    numbers = {name: _parse_order(name, order) for name, order in given.rules.items()}
    names = sorted(numbers, key=lambda name: (numbers[name], name))
    change = given.op
    if change is None:
        return RuleOrder(order=tuple(names))
    if (change.add is None) == (change.remove is None):
        raise Invalid("op has to name one rule, to add or to remove", remedy='write {"add": NAME} or {"remove": NAME}')
    if change.at is not None and change.at < 0:
        raise Invalid(f"{change.at} is no place of a rule", remedy="count from 0 on")
    if change.add is not None:
        if change.add in numbers:
            remedy = "remove it before, or choose another name"
            raise RuleExists(f"there is a rule {change.add!r} already", remedy=remedy)
        names.insert(len(names) if change.at is None else change.at, change.add)
    elif change.remove is not None:
        if change.remove not in numbers:
            known = ", ".join(names[:8]) or "there is none"
            raise RuleMissing(f"there is no rule {change.remove!r}", remedy=f"rules of this direction: {known}")
        names.remove(change.remove)
    return RuleOrder(order=tuple(names))


def _parse_order(name: str, order: int | str) -> int:
    if isinstance(order, str) and _INTEGER.fullmatch(order) is None:
        raise Invalid(f"order {order[:40]!r} of rule {name!r} is no integer", remedy="write a number from 0 on")
    return int(order)


RULE_ORDER: Final = Decision(
    "firewall.order",
    order_rules,
    RuleOrderInput,
    RuleOrder,
    "The order of a network's firewall rules",
    lambda _: False,
    nulls_are_absent=True,
)


HOST_PREFIXES: Final = {4: 24, 6: 64}
"""Length of a host's part of a routed subnet where the network does not say."""
IpSubnet = IPv4Network | IPv6Network


@lru_cache(maxsize=TEXTS_KEPT)
def read_cidr(text: str) -> IpSubnet:
    """The addresses of a cidr, or a single one; ``ValueError``."""
    return ip_network(text)


def read_subnet(subnet: Subnet) -> IpSubnet:
    """The addresses of a subnet; ``BadInput`` names what is wrong with it."""
    try:
        network = read_cidr(subnet.cidr)
        for one in subnet.excluded:
            read_cidr(one)
    except ValueError as error:
        remedy = "write subnets such as 10.44.0.0/16, with all host bits zero"
        raise BadInput(str(error), place="spec.subnets", remedy=remedy) from None
    length = host_prefix(subnet, network)
    if not network.prefixlen <= length <= network.max_prefixlen:
        remedy = f"write a length from {network.prefixlen} to {network.max_prefixlen}"
        raise BadInput(f"hostPrefix {length} does not lie in {network}", place="spec.subnets", remedy=remedy)
    if subnet.gateway:
        try:
            inside = ip_address(subnet.gateway) in network
        except ValueError:
            inside = False
        if not inside:
            remedy = "write an address of that subnet"
            raise BadInput(f"gateway {subnet.gateway} is not in {network}", place="spec.subnets", remedy=remedy)
    return network


def overlaps(one: IpSubnet, other: IpSubnet) -> bool:
    """True if they are of one family and have an address in common."""
    return one.version == other.version and one.overlaps(other)


def host_prefix(subnet: Subnet, network: IpSubnet) -> int:
    """Length of the part that each host gets of it."""
    default = min(max(HOST_PREFIXES[network.version], network.prefixlen), network.max_prefixlen)
    return subnet.host_prefix if subnet.host_prefix is not None else default


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


Direction = Literal["in", "out"]


def add_rule(spec: VirtualNetworkSpec, new: FirewallRule, at: int | None) -> VirtualNetworkSpec:
    """With the rule at its place among those of its direction, which are numbered anew; ``RuleExists``."""
    other = next((one for one in spec.rules if one.name == new.name), None)
    if other is not None and other.direction != new.direction:
        what = f"there is a rule {new.name!r} already, for what goes {other.direction}"
        raise RuleExists(what, remedy="choose another name")
    return _renumber(spec, (*spec.rules, new), new.direction, RuleChange(add=new.name, at=at))


def remove_rule(spec: VirtualNetworkSpec, name: str) -> VirtualNetworkSpec:
    """Without that rule; those that stay of its direction are numbered anew. ``RuleMissing``."""
    found = next((one for one in spec.rules if one.name == name), None)
    direction: Direction = found.direction if found is not None else "in"
    return _renumber(spec, spec.rules, direction, RuleChange(remove=name))


def _renumber(
    spec: VirtualNetworkSpec, rules: Iterable[FirewallRule], direction: Direction, change: RuleChange
) -> VirtualNetworkSpec:
    before: dict[str, int | str] = {one.name: one.order for one in spec.rules if one.direction == direction}
    places = {name: place for place, name in enumerate(order_rules(RuleOrderInput(rules=before, op=change)).order)}
    kept = [one for one in rules if one.direction != direction or one.name in places]
    numbered = (_replace(one, order=places[one.name]) if one.direction == direction else one for one in kept)
    return _replace(spec, rules=tuple(sorted(numbered, key=lambda one: (one.direction, one.order, one.name))))


def add_reservation(spec: VirtualNetworkSpec, mac: str, address: str, hostname: str) -> VirtualNetworkSpec:
    """With an address kept for an interface; ``AlreadyExists`` where one of its family is kept for it."""
    own, wanted = parse_mac(mac), parse_any(address)
    for one in spec.reservations:
        if mac_key(one.mac) == mac_key(own) and parse_any(one.address).version == wanted.version:
            remedy = "remove it first: outlive network dhcp remove"
            raise AlreadyExists(f"{own} has {one.address} already", remedy=remedy)
    new = DhcpReservation(mac=own, address=str(wanted), hostname=hostname)
    return _replace(spec, reservations=(*spec.reservations, new))


def remove_reservation(spec: VirtualNetworkSpec, mac: str) -> VirtualNetworkSpec:
    """Without what is kept for an interface, of both families; ``NotFound``."""
    own = mac_key(parse_mac(mac))
    kept = tuple(one for one in spec.reservations if mac_key(one.mac) != own)
    if len(kept) == len(spec.reservations):
        remedy = "outlive network dhcp list NETWORK shows those that there are"
        raise NotFound(f"nothing is reserved for {mac}", remedy=remedy)
    return _replace(spec, reservations=kept)


def change_network(spec: VirtualNetworkSpec, given: Mapping[str, Any]) -> VirtualNetworkSpec:
    """With these changes, as options of commands name them; those that are ``None`` are none, empty texts remove.

    ``subnet4``, ``subnet6``, ``gateway4``, ``gateway6``, ``dhcp4`` (``START-END``, or ``off``), ``dhcp6`` (a truth);
    all others are fields of the spec.
    """
    changes = {name: value for name, value in given.items() if value is not None}
    families = {number: _change_family(spec, changes, number) for number in ("4", "6")}
    others = [one for one in spec.subnets if _version_of(one) not in families]
    subnets = tuple(one for one in (*families.values(), *others) if one is not None)
    return _replace(spec, subnets=subnets, **changes)


def _change_family(spec: VirtualNetworkSpec, changes: dict[str, Any], number: str) -> Subnet | None:
    """The subnet of one family after the changes, which are taken out."""
    cidr, gateway = changes.pop(f"subnet{number}", None), changes.pop(f"gateway{number}", None)
    dhcp = changes.pop(f"dhcp{number}", None)
    old = next((one for one in spec.subnets if _version_of(one) == number), None)
    if cidr == "":
        return None
    if cidr is None and old is None:
        if gateway or dhcp:
            what = f"the network has no IPv{number} subnet for a gateway, or DHCP"
            raise BadInput(what, place=f"--ipv{number}", remedy=f"give --ipv{number} CIDR as well")
        return None
    subnet = old if cidr is None and old is not None else Subnet(cidr=str(cidr))
    if _version_of(subnet) != number:
        what = f"{subnet.cidr} is no IPv{number} subnet"
        raise BadInput(what, place=f"--ipv{number}", remedy="write it like 10.44.0.0/24 or fd44::/64")
    if gateway is not None:
        subnet = _replace(subnet, gateway=gateway)
    if dhcp is not None:
        subnet = _replace(subnet, dhcp=_parse_range(dhcp))
    return subnet


def _version_of(subnet: Subnet) -> str:
    try:
        return str(read_subnet(_replace(subnet, gateway="", excluded=())).version)
    except BadInput as error:
        raise Invalid(error.message, place=error.place, remedy=error.remedy) from None


def _parse_range(given: str | bool) -> DhcpRange | None:
    if isinstance(given, bool):
        return DhcpRange() if given else None
    if given == "off":
        return None
    start, dash, end = given.partition("-")
    if not dash:
        raise BadInput(f"{given[:80]!r} is no range", place="--dhcp", remedy="write START-END, or off")
    return DhcpRange(start=start.strip(), end=end.strip())

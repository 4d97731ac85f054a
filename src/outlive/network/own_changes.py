"""Changes of one managed or bridged network: its firewall rules, its reservations, its subnets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from outlive.base.errors import AlreadyExists, BadInput, Invalid, NotFound
from outlive.network.addressing import mac_key, parse_any, parse_mac
from outlive.network.firewall import RuleChange, RuleExists, RuleOrderInput, order_rules
from outlive.network.subnets import read_subnet
from outlive.resources.networks import DhcpRange, DhcpReservation, FirewallRule, Subnet, VirtualNetworkSpec

Direction = Literal["in", "out"]
_replace = msgspec.structs.replace


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

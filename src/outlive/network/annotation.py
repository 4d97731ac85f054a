"""The network annotation of a pod: what each of its ports has, as JSON text, read and written.

A pod's address is written once and never changed (docs/design/network-decisions.md#addresses).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

import msgspec

from outlive.base import BadInput, Invalid
from outlive.network.addressing import HostAddress, parse_address, parse_host, parse_mac, parse_subnet
from outlive.network.copies import PortAddresses, PortRoute
from outlive.resources import convert, decode_as
from outlive.runtime import Decision


class AnnotationNotSet(BadInput):
    """The pod has no addresses on the network yet."""

    code = "not-set"


class AddressOverride(BadInput):
    """The pod has other addresses already."""

    code = "address-override"


class AnnotationRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A route as the annotation writes it."""

    dest: str = ""
    next_hop: str | None = msgspec.field(default=None, name="nextHop")


class AnnotationEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One port as the annotation writes it; any member may be ``null``."""

    ip_addresses: tuple[str, ...] | None = None
    mac_address: str | None = None
    gateway_ips: tuple[str, ...] | None = None
    routes: tuple[AnnotationRoute, ...] | None = None
    ip_address: str | None = None
    """The only address once more; the list counts, and must agree."""
    gateway_ip: str | None = None
    ipv6_lla_gateway_ip: str | None = None
    tunnel_id: int | None = None
    """From 1; 0 is none."""
    role: str | None = None


def decode_annotation(text: str | None, network: str) -> PortAddresses:
    """The entry of a network; ``AnnotationNotSet`` where there is none, ``Invalid`` where it cannot be read."""
    entry = parse_annotation(text).get(network)
    if entry is None:
        raise AnnotationNotSet(f"the pod has no entry for network {network[:80]!r}", remedy="wait until it is written")
    return decode_entry(entry)


def parse_annotation(text: str | None) -> dict[str, Any]:
    """The entries of all networks, unread; ``AnnotationNotSet`` for no text, ``Invalid`` where it is no JSON object."""
    if text is None:
        raise AnnotationNotSet("the pod has no network annotation", remedy="wait until it is written")
    try:
        return decode_as(dict[str, Any] | None, text) or {}
    except RecursionError:
        raise Invalid("the network annotation is nested too deeply") from None


def decode_entry(entry: object) -> PortAddresses:
    """What an entry says, all texts in their one form; ``Invalid`` names the value that cannot be read."""
    read: AnnotationEntry = convert(AnnotationEntry, entry)
    return normalise_addresses(
        PortAddresses(
            mac=read.mac_address or "",
            addresses=_merge(read.ip_addresses, read.ip_address, parse_host),
            gateways=_merge(read.gateway_ips, read.gateway_ip, parse_address),
            routes=tuple(PortRoute(dest=one.dest, next_hop=one.next_hop or "") for one in read.routes or ()),
            role=read.role,
            tunnel_id=read.tunnel_id,
            ipv6_lla_gateway=read.ipv6_lla_gateway_ip,
        )
    )


def _merge(several: tuple[str, ...] | None, single: str | None, parse: Callable[[str], object]) -> tuple[str, ...]:
    if not several:
        return (single,) if single else ()
    if single and parse(single) != parse(several[0]):
        raise Invalid(f"the single value {single[:80]!r} is not {several[0][:80]!r}", remedy="it repeats the first")
    return several


def normalise_addresses(given: PortAddresses) -> PortAddresses:
    """The same with all texts in their one form; ``Invalid`` names the value that cannot be read."""
    lla = parse_address(given.ipv6_lla_gateway) if given.ipv6_lla_gateway else None
    if lla is not None and not (isinstance(lla, IPv6Address) and lla.is_link_local):
        raise Invalid(f"{lla} is no IPv6 link-local address", remedy="write one of fe80::/10")
    if given.tunnel_id is not None and given.tunnel_id < 0:
        raise Invalid(f"{given.tunnel_id} is no tunnel id", remedy="write a number from 1")
    return PortAddresses(
        mac=parse_mac(given.mac),
        addresses=tuple(str(parse_host(one)) for one in given.addresses),
        gateways=tuple(str(parse_address(one)) for one in given.gateways),
        routes=tuple(map(_normalise_route, given.routes)),
        role=given.role or None,
        tunnel_id=given.tunnel_id or None,
        ipv6_lla_gateway=str(lla) if lla is not None else None,
    )


def _normalise_route(route: PortRoute) -> PortRoute:
    dest = parse_subnet(route.dest)
    if dest.prefixlen == 0:
        raise Invalid(f"a route to {dest} is a default route", remedy="default routes belong to the gateways")
    if not route.next_hop:
        return PortRoute(dest=str(dest))
    next_hop = parse_address(route.next_hop)
    if next_hop.version != dest.version:
        raise Invalid(f"the route to {dest} goes over {next_hop}", remedy="give a next hop of the same family")
    return PortRoute(dest=str(dest), next_hop=str(next_hop))


def encode_entry(given: PortAddresses) -> dict[str, Any]:
    """An entry as it is written; members that it does not have are left out, but for its address list."""
    port = normalise_addresses(given)
    gateways = sorted(port.gateways, key=lambda one: not isinstance(parse_address(one), IPv4Address))
    entry: dict[str, Any] = {"ip_addresses": list(port.addresses) or None, "mac_address": port.mac}
    optional = {
        "gateway_ips": gateways,
        "routes": [{"dest": one.dest, "nextHop": one.next_hop} for one in port.routes],
        "ip_address": port.addresses[0] if len(port.addresses) == 1 else "",
        "gateway_ip": gateways[0] if len(port.addresses) == len(gateways) == 1 else "",
        "ipv6_lla_gateway_ip": port.ipv6_lla_gateway,
        "tunnel_id": port.tunnel_id,
        "role": port.role,
    }
    return entry | {name: value for name, value in optional.items() if value}


def write_entry(existing: Mapping[str, Any], network: str, port: PortAddresses) -> dict[str, Any]:
    """The whole annotation with this entry; other networks stay as they are.

    ``AddressOverride`` where the network has other addresses already; ``Invalid`` for one address with two gateways.
    """
    if len(port.addresses) == 1 and len(port.gateways) > 1:
        raise Invalid(f"{port.addresses[0]} has {len(port.gateways)} gateways", remedy="one address has one gateway")
    entry = encode_entry(port)
    before = existing.get(network)
    if before is not None and _parse_hosts(before) != _parse_hosts(entry):
        raise AddressOverride(
            f"network {network[:80]!r} has other addresses already", remedy="a pod's addresses are never changed"
        )
    return {**existing, network: entry}


def _parse_hosts(entry: object) -> set[HostAddress]:
    read: AnnotationEntry = convert(AnnotationEntry, entry)
    return {parse_host(one) for one in _merge(read.ip_addresses, read.ip_address, parse_host)}


class AnnotationInput(msgspec.Struct, frozen=True, kw_only=True):
    """The text of the annotation, and one of its networks."""

    annotation: str | None = None
    """``None``: the pod has none."""
    network: str


class AnnotationChange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a network's entry has to be. ``null`` is the same as absent."""

    network: str
    mac: str
    addresses: tuple[str, ...] | None = None
    gateways: tuple[str, ...] | None = None
    routes: tuple[AnnotationRoute, ...] | None = None
    role: str | None = None
    tunnel_id: int | None = None
    ipv6_lla_gateway: str | None = None
    existing: dict[str, Any] | None = None
    """The annotation as an object; entries of other networks are kept as they are, nulls in them too."""


class AnnotationValue(msgspec.Struct, frozen=True, kw_only=True):
    """The whole annotation as an object."""

    value: dict[str, Any]


def _encode(given: AnnotationChange) -> AnnotationValue:
    port = PortAddresses(
        mac=given.mac,
        addresses=given.addresses or (),
        gateways=given.gateways or (),
        routes=tuple(PortRoute(dest=one.dest, next_hop=one.next_hop or "") for one in given.routes or ()),
        role=given.role,
        tunnel_id=given.tunnel_id,
        ipv6_lla_gateway=given.ipv6_lla_gateway,
    )
    return AnnotationValue(value=write_entry(given.existing or {}, given.network, port))


ANNOTATION_DECODE: Final[Decision[AnnotationInput, PortAddresses]] = Decision(
    "network.annotation_decode",
    lambda given: decode_annotation(given.annotation, given.network),
    AnnotationInput,
    PortAddresses,
    "What an annotation says of one network",
    nulls_are_absent=True,
)
ANNOTATION_ENCODE: Final = Decision(
    "network.annotation_encode",
    _encode,
    AnnotationChange,
    AnnotationValue,
    "The annotation with one network's entry written",
)

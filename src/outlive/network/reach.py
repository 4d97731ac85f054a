"""Which ports get a packet for an address, as the rows of all zones have it.

This is what OVN makes of routes and ports, in a few lines: longest prefix on the cluster router, then the ports of a
switch that have the address and are not disabled. The simulation delivers packets by it, and tests ask it who of two
copies is reachable (docs/reference/network-decisions.md#reach).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from outlive.base.errors import Invalid
from outlive.network.addressing import Address, Subnet, parse_any, parse_subnet
from outlive.network.names import router_port
from outlive.network.operations import PORTS, ROUTES, Columns, Rows
from outlive.network.owners import is_on_cluster_router
from outlive.network.routes import BY_DESTINATION, NetworkZone
from outlive.network.switch_ports import REMOTE_PORT

HOPS_LIMIT: Final = 4
"""Zones that a packet passes; more is a loop, and the packet is lost."""


class Arrival(msgspec.Struct, frozen=True, order=True):
    """A port that gets the packet."""

    zone: str
    port: str


class ZoneRows(msgspec.Struct, frozen=True, kw_only=True):
    """One zone and the rows of its database."""

    zone: NetworkZone
    rows: Rows


def find_arrivals(zones: Mapping[str, ZoneRows], start: str, address: str, switch: str = "") -> set[Arrival]:
    """The ports that get a packet for the address which enters the cluster router of a zone.

    With ``switch``, the packet comes from a neighbour on that switch, which finds a port there without a router. More
    than one answer: routes share the flows, or two ports answer on one switch.
    """
    target = parse_any(address)
    if switch:
        found = set(_on_switch(zones, start, switch, target))
        if found:
            return found
    return set(_route(zones, start, target, HOPS_LIMIT))


def _route(zones: Mapping[str, ZoneRows], name: str, address: Address, hops: int) -> Iterator[Arrival]:
    """Where the cluster router of a zone sends the packet."""
    if hops == 0:
        return
    zone = zones[name].zone
    length, ways = -1, set[str]()
    for prefix, hypervisor in _ways(zones[name]):
        if address in prefix and prefix.prefixlen >= length:
            ways = ways | {hypervisor} if prefix.prefixlen == length else {hypervisor}
            length = prefix.prefixlen
    for hypervisor in sorted(ways):
        if zone.is_local(hypervisor):
            yield from _on_switch(zones, name, hypervisor, address)
        else:
            yield from (
                arrival
                for other in zones
                if other != name and zones[other].zone.is_local(hypervisor)
                for arrival in _route(zones, other, address, hops - 1)
            )


def _ways(zone: ZoneRows) -> Iterator[tuple[Subnet, str]]:
    """What the router knows: the subnets of all hypervisors, and its routes by destination."""
    by_port = {router_port(name): name for name in zone.zone.local}
    by_transit = {parse_any(one): name for name, found in zone.zone.hypervisors.items() for one in found.transit}
    for name, found in zone.zone.hypervisors.items():
        yield from ((parse_subnet(one), name) for one in found.subnets)
    for row in zone.rows.get(ROUTES, ()):
        if row.get("policy", BY_DESTINATION) != BY_DESTINATION or not is_on_cluster_router(row):
            continue
        try:
            prefix, next_hop = _prefix_of(row), parse_any(row.get("nexthop", ""))
        except Invalid:
            continue
        hypervisor = by_port.get(row.get("output_port", "")) or by_transit.get(next_hop)
        if hypervisor is not None:
            yield prefix, hypervisor


def _prefix_of(row: Columns) -> Subnet:
    text = str(row.get("ip_prefix", ""))
    return parse_subnet(text if "/" in text else f"{text}/{parse_any(text).max_prefixlen}")


def _on_switch(zones: Mapping[str, ZoneRows], name: str, switch: str, address: Address) -> Iterator[Arrival]:
    """The ports of a switch that answer for the address; a remote one is that of another zone."""
    for row in zones[name].rows.get(PORTS, ()):
        if row.get("switch") != switch or row.get("enabled") is False or not _answers(row, address):
            continue
        if row.get("type") != REMOTE_PORT:
            yield Arrival(zone=name, port=row["name"])
            continue
        for other, found in zones.items():
            is_there = any(
                one.get("name") == row["name"] and one.get("type") != REMOTE_PORT and one.get("enabled") is not False
                for one in found.rows.get(PORTS, ())
            )
            if is_there:
                yield Arrival(zone=other, port=row["name"])


def _answers(row: Columns, address: Address) -> bool:
    words = [word for text in row.get("addresses", ()) for word in text.split()[1:]]
    return str(address) in words

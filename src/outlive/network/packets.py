"""Packets by which a VM's network is tried: which there are, what each looks like, and where it should arrive. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_interface
from typing import Final, Literal

import msgspec

from outlive.base import Invalid
from outlive.network.addressing import Address, Subnet, parse_any, parse_subnet
from outlive.network.names import LOCALNET, PROXY_IPV4, PROXY_MAC, ROUTED, router_port
from outlive.network.operations import PORTS, ROUTES, Rows
from outlive.network.own_vms import OwnPort, switch_on
from outlive.network.owners import is_on_cluster_router
from outlive.network.routes import BY_DESTINATION, NetworkZone
from outlive.network.switch_ports import REMOTE_PORT
from outlive.network.views import VmPlace
from outlive.resources import interface_id

FAR_AWAY: Final = {4: "9.9.9.9", 6: "2620:fe::fe"}
"""Addresses outside of every network of VMs."""
BROADCAST: Final = "ff:ff:ff:ff:ff:ff"
Question = Literal["gateway", "neighbour", "dhcp", "out", "in", "to"]


class TracePort(msgspec.Struct, frozen=True, kw_only=True):
    """A port where it is now."""

    name: str
    """Of the ``VirtualMachinePort``."""
    interface: str
    """The logical port."""
    switch: str
    mac: str
    addresses: tuple[str, ...]
    """With masks."""
    network: str
    type: str
    dhcp: bool = False
    router: str = ""
    """The IPv4 gateway that its guest has been given; empty: none."""


class TracePacket(msgspec.Struct, frozen=True, kw_only=True):
    """One packet, and where it should arrive."""

    question: Question
    text: str
    """What it tries, in words."""
    switch: str
    """The logical switch on which it begins …"""
    inport: str
    """… and the port that sends it."""
    flow: str
    """The packet in the words of OVN's expressions."""
    expected: tuple[str, ...] = ()
    """Ports of which one has to get it; the sender's own where it has to be answered; none: wherever it ends."""


def trace_port(name: str, own: OwnPort, place: VmPlace) -> TracePort:
    """The port of a VM at its place."""
    network = own.network
    ipv4 = [one for one in own.gateways if parse_any(one).version == 4]
    given = PROXY_IPV4 if network.type == ROUTED and network.dhcp_router == "link-local" else next(iter(ipv4), "")
    return TracePort(
        name=name,
        interface=interface_id(own.interface, own.mode, place.host),
        switch=switch_on(network, place.host),
        mac=own.mac,
        addresses=own.addresses,
        network=network.name,
        type=network.type,
        dhcp=network.dhcp,
        router=given,
    )


def compose_packets(port: TracePort, others: Sequence[TracePort]) -> Iterator[TracePacket]:
    """The packets that must work wherever the VM is; ``others``: further ports of its network."""
    source = next((one for one in port.addresses if ip_interface(one).version == 4), "")
    if port.type == ROUTED and source and port.router:
        yield _ask_packet(port, source, port.router, "gateway", f"{port.name} asks for its gateway {port.router}")
    if port.dhcp and source:
        yield TracePacket(
            question="dhcp",
            text=f"{port.name} asks for its address by DHCP",
            switch=port.switch,
            inport=port.interface,
            flow=f"{_source_match(port)} && eth.dst=={BROADCAST} && ip4.src==0.0.0.0 && ip4.dst==255.255.255.255 "
            "&& udp.src==68 && udp.dst==67 && ip.ttl==64",
            expected=(port.interface,),
        )
    near = _find_neighbour(port, others)
    if near is not None and source:
        address = str(ip_interface(_address_like(near, source)).ip)
        yield _ask_packet(
            port, source, address, "neighbour", f"{port.name} asks for its neighbour {near.name}, {address}"
        )
    for version in (4, 6):
        own = next((one for one in port.addresses if ip_interface(one).version == version), "")
        if own and port.type == ROUTED:
            yield compose_packet(port, FAR_AWAY[version], others, "out")
        sender = next((one for one in others if _address_like(one, own)), None) if own else None
        if sender is not None:
            yield compose_packet(sender, str(ip_interface(own).ip), (port, *others), "in")


def compose_packet(source: TracePort, to: str, known: Iterable[TracePort], question: Question = "to") -> TracePacket:
    """A packet from a port to an address; ``known``: ports that may have it."""
    address = parse_any(to)
    own = next((one for one in source.addresses if ip_interface(one).version == address.version), "")
    owner = next((one for one in known if _has_address(one, address) and one.network == source.network), None)
    owner = owner or next((one for one in known if _has_address(one, address)), None)
    text = f"{source.name} sends to {to}" + (f" of {owner.name}" if owner is not None else "")
    expected = (owner.interface,) if owner is not None else ()
    if not own:
        if owner is None:
            return _broadcast_packet(source, text)
        flow = f"{_source_match(source)} && eth.dst=={owner.mac}"
        return TracePacket(
            question=question, text=text, switch=source.switch, inport=source.interface, flow=flow, expected=expected
        )
    is_near = owner is not None and owner.switch == source.switch
    if source.type != ROUTED and not is_near:
        if address in ip_interface(own).network:
            return _ask_packet(source, own, to, question, f"{source.name} asks who has {to}", expected=())
        router = next((one for one in known if source.router and _has_address(one, parse_any(source.router))), None)
        if router is None:
            words = f"{source.name} asks for its gateway {source.router}, to send to {to}"
            return _ask_packet(source, own, source.router or to, question, words, expected=())
        next_mac = router.mac
    else:
        next_mac = owner.mac if is_near and owner is not None else PROXY_MAC
    ip = "ip4" if address.version == 4 else "ip6"
    flow = (
        f"{_source_match(source)} && eth.dst=={next_mac} && {ip}.src=={ip_interface(own).ip} && {ip}.dst=={address} "
        "&& ip.ttl==64"
    )
    return TracePacket(
        question=question, text=text, switch=source.switch, inport=source.interface, flow=flow, expected=expected
    )


def _ask_packet(
    port: TracePort, source: str, target: str, question: Question, text: str, expected: tuple[str, ...] | None = None
) -> TracePacket:
    """Who has an address: ARP, or a neighbour solicitation."""
    own, address = ip_interface(source).ip, parse_any(target)
    if address.version == 4:
        flow = f"eth.dst=={BROADCAST} && arp.op==1 && arp.sha=={port.mac} && arp.spa=={own} && arp.tpa=={address}"
    else:
        last = int(address) & 0xFFFFFF
        group = f"{last >> 16:02x}:{last >> 8 & 0xFF:02x}:{last & 0xFF:02x}"
        flow = (
            f"eth.dst==33:33:ff:{group} && ip6.src=={own} && ip6.dst==ff02::1:ff{last >> 16:02x}:{last & 0xFFFF:x} "
            f"&& ip.ttl==255 && icmp6.type==135 && nd.target=={address} && nd.sll=={port.mac}"
        )
    return TracePacket(
        question=question,
        text=text,
        switch=port.switch,
        inport=port.interface,
        flow=f"{_source_match(port)} && {flow}",
        expected=(port.interface,) if expected is None else expected,
    )


def _broadcast_packet(port: TracePort, text: str) -> TracePacket:
    return TracePacket(
        question="to",
        text=text,
        switch=port.switch,
        inport=port.interface,
        flow=f"{_source_match(port)} && eth.dst=={BROADCAST}",
    )


def _source_match(port: TracePort) -> str:
    return f'inport=="{port.interface}" && eth.src=={port.mac}'


def _find_neighbour(port: TracePort, others: Sequence[TracePort]) -> TracePort | None:
    """A port whose guest believes to be on the same link; on localnet OVN answers for none of them."""
    if port.type == LOCALNET:
        return None
    nets = {ip_interface(one).network for one in port.addresses if ip_interface(one).version == 4}
    return next((one for one in others if nets & {ip_interface(cidr).network for cidr in one.addresses}), None)


def _address_like(port: TracePort, cidr: str) -> str:
    version = ip_interface(cidr).version
    return next((one for one in port.addresses if ip_interface(one).version == version), "")


def _has_address(port: TracePort, address: Address) -> bool:
    return any(ip_interface(one).ip == address for one in port.addresses)


# Which ports get a packet for an address, as the rows of all zones have it.
#
# This is what OVN makes of routes and ports, in a few lines: longest prefix on the cluster router, then the ports of
# a switch that have the address and are not disabled. The simulation delivers packets by it, and tests ask it who of
# two copies is reachable (docs/design/network-decisions.md#reach).

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
        found = set(_find_on_switch(zones, start, switch, target))
        if found:
            return found
    return set(_route(zones, start, target, HOPS_LIMIT))


def _route(zones: Mapping[str, ZoneRows], name: str, address: Address, hops: int) -> Iterator[Arrival]:
    """Where the cluster router of a zone sends the packet."""
    if hops == 0:
        return
    zone = zones[name].zone
    length, ways = -1, set[str]()
    for prefix, hypervisor in _list_routes(zones[name]):
        if address in prefix and prefix.prefixlen >= length:
            ways = ways | {hypervisor} if prefix.prefixlen == length else {hypervisor}
            length = prefix.prefixlen
    for hypervisor in sorted(ways):
        if zone.is_local(hypervisor):
            yield from _find_on_switch(zones, name, hypervisor, address)
        else:
            yield from (
                arrival
                for other in zones
                if other != name and zones[other].zone.is_local(hypervisor)
                for arrival in _route(zones, other, address, hops - 1)
            )


def _list_routes(zone: ZoneRows) -> Iterator[tuple[Subnet, str]]:
    """What the router knows: the subnets of all hypervisors, and its routes by destination."""
    by_port = {router_port(name): name for name in zone.zone.local}
    by_transit = {parse_any(one): name for name, found in zone.zone.hypervisors.items() for one in found.transit}
    for name, found in zone.zone.hypervisors.items():
        yield from ((parse_subnet(one), name) for one in found.subnets)
    for row in zone.rows.get(ROUTES, ()):
        if row.get("policy", BY_DESTINATION) != BY_DESTINATION or not is_on_cluster_router(row):
            continue
        try:
            text = str(row.get("ip_prefix", ""))
            prefix = parse_subnet(text if "/" in text else f"{text}/{parse_any(text).max_prefixlen}")
            next_hop = parse_any(row.get("nexthop", ""))
        except Invalid:
            continue
        hypervisor = by_port.get(row.get("output_port", "")) or by_transit.get(next_hop)
        if hypervisor is not None:
            yield prefix, hypervisor


def _find_on_switch(zones: Mapping[str, ZoneRows], name: str, switch: str, address: Address) -> Iterator[Arrival]:
    """The ports of a switch that answer for the address; a remote one is that of another zone."""
    for row in zones[name].rows.get(PORTS, ()):
        if row.get("switch") != switch or row.get("enabled") is False:
            continue
        if str(address) not in [word for text in row.get("addresses", ()) for word in text.split()[1:]]:
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

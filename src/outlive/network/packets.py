"""Packets by which a VM's network is tried: which there are, what each looks like, and where it should arrive. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from ipaddress import ip_interface
from typing import Final, Literal

import msgspec

from outlive.network.addressing import Address, parse_any
from outlive.network.names import LOCALNET, PROXY_IPV4, PROXY_MAC, ROUTED
from outlive.network.own_vms import OwnPort, switch_on
from outlive.network.views import VmPlace
from outlive.resources.networks import interface_id

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
        yield _ask(port, source, port.router, "gateway", f"{port.name} asks for its gateway {port.router}")
    if port.dhcp and source:
        yield TracePacket(
            question="dhcp",
            text=f"{port.name} asks for its address by DHCP",
            switch=port.switch,
            inport=port.interface,
            flow=f"{_from(port)} && eth.dst=={BROADCAST} && ip4.src==0.0.0.0 && ip4.dst==255.255.255.255 "
            "&& udp.src==68 && udp.dst==67 && ip.ttl==64",
            expected=(port.interface,),
        )
    near = _neighbour(port, others)
    if near is not None and source:
        address = str(ip_interface(_address_like(near, source)).ip)
        yield _ask(port, source, address, "neighbour", f"{port.name} asks for its neighbour {near.name}, {address}")
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
    owner = next((one for one in known if _has(one, address) and one.network == source.network), None)
    owner = owner or next((one for one in known if _has(one, address)), None)
    text = f"{source.name} sends to {to}" + (f" of {owner.name}" if owner is not None else "")
    expected = (owner.interface,) if owner is not None else ()
    if not own:
        if owner is None:
            return _broadcast(source, text)
        flow = f"{_from(source)} && eth.dst=={owner.mac}"
        return TracePacket(
            question=question, text=text, switch=source.switch, inport=source.interface, flow=flow, expected=expected
        )
    is_near = owner is not None and owner.switch == source.switch
    if source.type != ROUTED and not is_near:
        if address in ip_interface(own).network:
            return _ask(source, own, to, question, f"{source.name} asks who has {to}", expected=())
        router = next((one for one in known if source.router and _has(one, parse_any(source.router))), None)
        if router is None:
            words = f"{source.name} asks for its gateway {source.router}, to send to {to}"
            return _ask(source, own, source.router or to, question, words, expected=())
        next_mac = router.mac
    else:
        next_mac = owner.mac if is_near and owner is not None else PROXY_MAC
    ip = "ip4" if address.version == 4 else "ip6"
    flow = (
        f"{_from(source)} && eth.dst=={next_mac} && {ip}.src=={ip_interface(own).ip} && {ip}.dst=={address} "
        "&& ip.ttl==64"
    )
    return TracePacket(
        question=question, text=text, switch=source.switch, inport=source.interface, flow=flow, expected=expected
    )


def _ask(
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
        flow=f"{_from(port)} && {flow}",
        expected=(port.interface,) if expected is None else expected,
    )


def _broadcast(port: TracePort, text: str) -> TracePacket:
    return TracePacket(
        question="to",
        text=text,
        switch=port.switch,
        inport=port.interface,
        flow=f"{_from(port)} && eth.dst=={BROADCAST}",
    )


def _from(port: TracePort) -> str:
    return f'inport=="{port.interface}" && eth.src=={port.mac}'


def _neighbour(port: TracePort, others: Sequence[TracePort]) -> TracePort | None:
    """A port whose guest believes to be on the same link; on localnet OVN answers for none of them."""
    if port.type == LOCALNET:
        return None
    nets = {ip_interface(one).network for one in port.addresses if ip_interface(one).version == 4}
    return next((one for one in others if nets & {ip_interface(cidr).network for cidr in one.addresses}), None)


def _address_like(port: TracePort, cidr: str) -> str:
    version = ip_interface(cidr).version
    return next((one for one in port.addresses if ip_interface(one).version == version), "")


def _has(port: TracePort, address: Address) -> bool:
    return any(ip_interface(one).ip == address for one in port.addresses)

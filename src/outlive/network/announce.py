"""Frames that tell caches of a new place, as data and as bytes.

QEMU announces the MAC of a guest that resumes; these are for what it does not cover: the gateway's and neighbours'
addresses, bridges that filter, devices without the feature (docs/design/network-decisions.md#frames). Which frames
are sent is decided elsewhere; who sends them needs no other knowledge than the bytes, the interface and the schedule.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_interface
from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from outlive.base import Invalid
from outlive.network.addressing import Address, parse_address, parse_any, parse_host, parse_mac, parse_subnet
from outlive.network.names import PROXY_MAC
from outlive.network.own_vms import OwnPort
from outlive.resources import Announcement, VirtualMachinePort, interface_id
from outlive.runtime import Decision

BROADCAST: Final = "ff:ff:ff:ff:ff:ff"
NO_MAC: Final = "00:00:00:00:00:00"
ALL_NODES: Final = "ff02::1"
ALL_NODES_MAC: Final = "33:33:00:00:00:01"
HOP_LIMIT: Final = 255
"""Of neighbour discovery: a smaller one shows that a router was passed, and is ignored."""
FOREVER_S: Final = 65_535
"""The longest lifetime of a router."""
RESUME_SCHEDULE_MS: Final = (0, 100, 300, 700, 1500)
"""When a guest's own addresses are announced, from its resumption on."""
GATEWAY_SCHEDULE_MS: Final = (0, 500, 2000)
"""When a gateway is announced, once for each migration."""

_ARP: Final = 0x0806
_RARP: Final = 0x8035
_IPV6: Final = 0x86DD
_VLAN: Final = 0x8100
_ICMPV6: Final = 58
_ROUTER_ADVERTISEMENT: Final = 134
_NEIGHBOUR_ADVERTISEMENT: Final = 136
_SOURCE_LINK_LAYER: Final = 1
_TARGET_LINK_LAYER: Final = 2
_PREFIX: Final = 3
_MANAGED: Final = 0x80
_HIGH: Final = 0x08
_ON_LINK: Final = 0x80
_AUTONOMOUS: Final = 0x40
_ROUTER: Final = 0x80
_OVERRIDE: Final = 0x20
_REVERSE_REQUEST: Final = 3
_VLANS: Final = range(1, 4095)
_LIFETIMES: Final = range(2**32)


class ArpFrame(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A broadcast ARP that says which MAC an IPv4 address has."""

    op: Literal["request", "reply"]
    """Some hosts learn from the one, some from the other."""
    eth_dst: str = BROADCAST
    sender_mac: str
    sender_ip: str
    target_mac: str = NO_MAC
    target_ip: str


class PrefixInformation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a router says of a prefix."""

    prefix: str
    on_link: bool = False
    autonomous: bool = False
    valid_lifetime: int = 0
    """Seconds; with 0 an address that was once made from the prefix dies."""
    preferred_lifetime: int = 0
    """Seconds."""


class RouterAdvertisement(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A router that tells one guest of itself."""

    eth_src: str
    eth_dst: str
    ip_src: str
    ip_dst: str
    hop_limit: int = HOP_LIMIT
    icmp_type: int = _ROUTER_ADVERTISEMENT
    cur_hop_limit: int = HOP_LIMIT
    """What the guest is to send with."""
    managed: bool = True
    """Addresses come from DHCPv6."""
    preference: Literal["high", "medium"]
    router_lifetime: int
    """Seconds; with 0 the guest forgets the router."""
    source_link_layer: str
    prefixes: tuple[PrefixInformation, ...] | UnsetType = UNSET


class NeighbourAdvertisement(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Says to all nodes which MAC an IPv6 address has, unasked."""

    address: str
    mac: str
    router: bool = False
    """Whether it is a router's address."""


class RarpFrame(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A broadcast by which switches learn where a MAC is; caches of addresses do not change."""

    mac: str


Frame = ArpFrame | RarpFrame | NeighbourAdvertisement | RouterAdvertisement


def announce_address(address: str, mac: str) -> tuple[ArpFrame, ArpFrame]:
    """The two broadcasts by which hosts learn the MAC of an IPv4 address."""
    request = ArpFrame(op="request", sender_mac=mac, sender_ip=address, target_ip=address)
    return request, msgspec.structs.replace(request, op="reply")


def encode_frame(frame: Frame, *, vlan: int | None = None) -> bytes:
    """The bytes of an Ethernet frame without its checksum, with the tag of a VLAN; ``Invalid``."""
    if vlan is not None and vlan not in _VLANS:
        raise Invalid(f"{vlan} is no VLAN", remedy="a tag is 1 to 4094")
    match frame:
        case ArpFrame():
            op = 1 if frame.op == "request" else 2
            sender, target = _pack_ipv4(frame.sender_ip), _pack_ipv4(frame.target_ip)
            body = _encode_arp(op, frame.sender_mac, sender, frame.target_mac, target)
            return _encode_ethernet(frame.eth_dst, frame.sender_mac, _ARP, body, vlan)
        case RarpFrame():
            body = _encode_arp(_REVERSE_REQUEST, frame.mac, bytes(4), frame.mac, bytes(4))
            return _encode_ethernet(BROADCAST, frame.mac, _RARP, body, vlan)
        case NeighbourAdvertisement():
            source = _pack_ipv6(frame.address)
            flags = _OVERRIDE | (_ROUTER if frame.router else 0)
            body = struct.pack("!BBHB3x16s", _NEIGHBOUR_ADVERTISEMENT, 0, 0, flags, source)
            body += _encode_link_layer(_TARGET_LINK_LAYER, frame.mac)
            packet = _encode_ipv6(source, _pack_ipv6(ALL_NODES), HOP_LIMIT, body)
            return _encode_ethernet(ALL_NODES_MAC, frame.mac, _IPV6, packet, vlan)
        case RouterAdvertisement():
            flags = (_MANAGED if frame.managed else 0) | (_HIGH if frame.preference == "high" else 0)
            body = struct.pack(
                "!BBHBBHII", frame.icmp_type, 0, 0, frame.cur_hop_limit, flags, frame.router_lifetime, 0, 0
            )
            body += _encode_link_layer(_SOURCE_LINK_LAYER, frame.source_link_layer)
            for prefix in frame.prefixes or ():
                option = encode_prefix(prefix)
                body += bytes([_PREFIX, (len(option) + 2) // 8]) + option
            packet = _encode_ipv6(_pack_ipv6(frame.ip_src), _pack_ipv6(frame.ip_dst), frame.hop_limit, body)
            return _encode_ethernet(frame.eth_dst, frame.eth_src, _IPV6, packet, vlan)


def encode_prefix(prefix: PrefixInformation) -> bytes:
    """The 30 bytes of a prefix option behind its type and its own length."""
    subnet = parse_subnet(prefix.prefix)
    if not isinstance(subnet, IPv6Network):
        raise Invalid(f"{subnet} is no IPv6 prefix", remedy="router advertisements are of IPv6")
    lifetimes = (prefix.valid_lifetime, prefix.preferred_lifetime)
    for lifetime in lifetimes:
        if lifetime not in _LIFETIMES:
            raise Invalid(f"{lifetime} is no lifetime", remedy="seconds from 0 to 4294967295")
    flags = (_ON_LINK if prefix.on_link else 0) | (_AUTONOMOUS if prefix.autonomous else 0)
    return struct.pack("!BBIII16s", subnet.prefixlen, flags, *lifetimes, 0, subnet.network_address.packed)


def _encode_ethernet(destination: str, source: str, kind: int, body: bytes, vlan: int | None) -> bytes:
    tag = b"" if vlan is None else struct.pack("!HH", _VLAN, vlan)
    return _encode_mac(destination) + _encode_mac(source) + tag + struct.pack("!H", kind) + body


def _encode_arp(op: int, sender_mac: str, sender: bytes, target_mac: str, target: bytes) -> bytes:
    head = struct.pack("!HHBBH", 1, 0x0800, 6, 4, op)
    return head + _encode_mac(sender_mac) + sender + _encode_mac(target_mac) + target


def _encode_link_layer(kind: int, mac: str) -> bytes:
    return bytes([kind, 1]) + _encode_mac(mac)


def _encode_ipv6(source: bytes, destination: bytes, hop_limit: int, message: bytes) -> bytes:
    """An IPv6 packet with an ICMPv6 message, whose checksum covers a pseudo header of both addresses."""
    pseudo = source + destination + struct.pack("!II", len(message), _ICMPV6)
    total = sum(word for (word,) in struct.iter_unpack("!H", pseudo + message))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    message = message[:2] + struct.pack("!H", ~total & 0xFFFF) + message[4:]
    return struct.pack("!IHBB", 6 << 28, len(message), _ICMPV6, hop_limit) + source + destination + message


def _encode_mac(text: str) -> bytes:
    return bytes.fromhex(parse_mac(text).replace(":", ""))


def _pack_ipv4(text: str) -> bytes:
    """Four bytes, also of an address that is mapped into IPv6."""
    address = parse_address(text)
    if not isinstance(address, IPv4Address):
        raise Invalid(f"{address} is no IPv4 address", remedy="ARP is of IPv4")
    return address.packed


def _pack_ipv6(text: str) -> bytes:
    address = parse_address(text)
    if not isinstance(address, IPv6Address):
        raise Invalid(f"{address} is no IPv6 address", remedy="neighbour discovery is of IPv6")
    return address.packed


class PrefixOption(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of a prefix option behind its type and its own length."""

    hex: str
    length: int


def _encode_option(prefix: PrefixInformation) -> PrefixOption:
    option = encode_prefix(prefix)
    return PrefixOption(hex=option.hex(), length=len(option))


PREFIX_OPTION: Final = Decision(
    "network.prefix_option",
    _encode_option,
    PrefixInformation,
    PrefixOption,
    "The bytes by which a router tells of a prefix",
    nulls_are_absent=True,
)


# What a guest of our own hosts is told after it has moved on a routed network: at which MACs its neighbours are now.
#
# Away from home its neighbours are behind the router, whose proxy answers for them; at home they have their own MACs
# again. The neighbours learn from their own host where the guest is (``drivers.ovn.host_network``). The gateway has
# the same MAC everywhere, and on one switch for all hosts nobody's MAC changes its meaning.


def tell_guest(
    own: OwnPort, host: str, move: str, neighbours: Iterable[tuple[VirtualMachinePort, str]], limit: int
) -> tuple[Announcement, ...]:
    """The announcement for the guest, which is on that host now; none where it has no neighbours of its home.

    ``neighbours``: other ports of the network, and the host of each.
    """
    homes = {ip_interface(one).network for one in own.addresses}
    is_home = any(str(ip_interface(one).network) in own.network.host_subnets.get(host, ()) for one in own.addresses)
    frames: list[Frame] = []
    for port, place in neighbours:
        try:
            mac, addresses = parse_mac(port.spec.mac), [parse_host(one) for one in port.status.addresses]
        except Invalid:
            continue  # it has no rows in OVN either, and its own condition says why
        for address in addresses:
            if address.network in homes and len(frames) < limit:
                frames.append(_build_frame(own.mac, address.ip, mac if is_home and place == host else PROXY_MAC))
    if not frames:
        return ()
    interface = interface_id(own.interface, own.mode, host)
    encoded = tuple(encode_frame(one).hex() for one in frames)
    return (Announcement(id=move, hypervisor=host, interface=interface, frames=encoded),)


def tell_neighbours(addresses: Iterable[str], mac: str, *, is_home: bool) -> tuple[bytes, ...]:
    """Frames for the guests of the home host: the VM's addresses are at its own MAC again, or at the router's."""
    frames: list[Frame] = []
    for cidr in addresses:
        address = parse_any(cidr)
        at = mac if is_home else PROXY_MAC
        if isinstance(address, IPv4Address):
            frames += announce_address(str(address), at)
        else:
            frames.append(NeighbourAdvertisement(address=str(address), mac=at))
    return tuple(encode_frame(one) for one in frames)


def _build_frame(guest: str, address: Address, mac: str) -> Frame:
    if isinstance(address, IPv4Address):
        text = str(address)
        return ArpFrame(op="reply", eth_dst=guest, sender_mac=mac, sender_ip=text, target_mac=guest, target_ip=text)
    return NeighbourAdvertisement(address=str(address), mac=mac)

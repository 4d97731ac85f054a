"""A managed network as its services see it: checked, with every address in one form.

A network whose spec is nonsense is refused by its name, and no other network is held up by it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from outlive.base import BadInput
from outlive.resources import DhcpReservation, FirewallRule, Subnet, VirtualNetwork

# Section ``services`` of a host's configuration: what it serves to managed networks while it is the primary.

PUBLIC_DIR: Final = "/run/outlive-services"


class ServicesSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``services``. It counts on coordinators whose section ``links`` makes networks."""

    managed_networks: bool = True
    """Whether the primary serves managed networks: gateways, DHCP, metadata, firewall."""
    name_server: bool = True
    """Whether it serves DNS for all managed networks on its floating addresses; needs PowerDNS."""
    default_name_server: str = "ns.local"
    """Default name of the name server in zones."""
    public_dir: str = PUBLIC_DIR
    """Folder of files for unprivileged programs; it may be empty after a boot."""
    dnsmasq: str = "dnsmasq"
    """The DHCP server."""
    pdns: str = "pdns_server"
    """The name server."""

    def __post_init__(self) -> None:
        server = self.default_name_server
        if DOMAIN.fullmatch(server) is None:
            place = "services.defaultNameServer"
            raise BadInput(f"{server!r} is no name", place=place, remedy="write one such as ns.example")


_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network

DOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*", re.IGNORECASE)
"""A domain, and the name of a guest."""
MAC: Final = re.compile(r"[0-9a-f]{2}([:-][0-9a-f]{2}){5}", re.IGNORECASE)
V6_LENGTH: Final = 64
"""Router advertisements need a subnet of this length."""


class ServedSubnet(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Addresses of one family on a managed network."""

    cidr: str
    gateway: str
    """The address that the primary coordinator has on the network's bridge."""
    dhcp: bool = False
    start: str = ""
    """Of the addresses that DHCP gives; empty for IPv6."""
    end: str = ""

    @property
    def network(self) -> _Network:
        """The subnet."""
        return ipaddress.ip_network(self.cidr)

    @property
    def interface(self) -> str:
        """The gateway with the length of the subnet, as a bridge gets it."""
        return f"{self.gateway}/{self.network.prefixlen}"


class ServedNetwork(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A managed network."""

    name: str
    vni: int
    domain: str
    name_servers: tuple[str, ...] = ()
    v4: ServedSubnet | None = None
    v6: ServedSubnet | None = None
    reservations: tuple[DhcpReservation, ...] = ()
    rules: tuple[FirewallRule, ...] = ()
    mtu: int = 0
    """Largest packet in bytes that arrives; 0: the primary has not written it yet."""

    @property
    def bridge(self) -> str:
        """Device that guests are attached to."""
        return f"vmbr{self.vni}"

    @property
    def subnets(self) -> tuple[ServedSubnet, ...]:
        """Of both families."""
        return tuple(one for one in (self.v4, self.v6) if one is not None)

    @property
    def serves_dhcp(self) -> bool:
        """Whether a DHCP server runs, of whichever family."""
        return any(one.dhcp for one in self.subnets)


def view_network(network: VirtualNetwork) -> ServedNetwork:
    """Return the network as services see it. ``BadInput`` names the field that makes no sense."""
    spec, place = network.spec, f"VirtualNetwork/{network.name}"
    if spec.type != "managed" or spec.vni < 1:
        raise BadInput("it is no managed network with a VNI", place=place, remedy="set spec.type and spec.vni")
    domain = (spec.domain or f"{network.name}.local").lower().rstrip(".")
    if DOMAIN.fullmatch(domain) is None:
        raise BadInput(
            f"{domain!r} is no domain", place=f"{place} spec.domain", remedy="write one such as blue.example"
        )
    found: dict[int, ServedSubnet] = {}
    for number, subnet in enumerate(spec.subnets):
        where = f"{place} spec.subnets[{number}]"
        served = _view_subnet(subnet, where)
        version = served.network.version
        if version in found:
            raise BadInput(f"a second subnet of IPv{version}", place=where, remedy="a managed network has one of each")
        found[version] = served
    v4, v6 = found.get(4), found.get(6)
    for number, kept in enumerate(spec.reservations):
        where = f"{place} spec.reservations[{number}]"
        address = _parse_address(kept.address, f"{where}.address")
        if not any(address in one.network for one in found.values()):
            raise BadInput(f"{address} is not of the network", place=where, remedy="write one of its subnets")
        if MAC.fullmatch(kept.mac) is None:
            raise BadInput(f"{kept.mac!r} is no MAC address", place=where, remedy="such as 02:00:00:00:00:01")
        if kept.hostname and DOMAIN.fullmatch(kept.hostname) is None:
            raise BadInput(
                f"{kept.hostname!r} is no name", place=f"{where}.hostname", remedy="letters, digits and dashes"
            )
    for server in spec.name_servers:
        if DOMAIN.fullmatch(server.rstrip(".")) is None:
            raise BadInput(
                f"{server!r} is no name", place=f"{place} spec.nameServers", remedy="such as ns1.example.com"
            )
    return ServedNetwork(
        name=network.name,
        vni=spec.vni,
        domain=domain,
        name_servers=tuple(one.rstrip(".").lower() for one in spec.name_servers),
        v4=v4,
        v6=v6,
        reservations=spec.reservations,
        rules=spec.rules,
        mtu=network.status.mtu or 0,
    )


def _view_subnet(subnet: Subnet, where: str) -> ServedSubnet:
    try:
        network = ipaddress.ip_network(subnet.cidr)
    except ValueError:
        remedy = "write it with all host bits zero, such as 10.8.0.0/24"
        raise BadInput(f"{subnet.cidr!r} is no subnet", place=f"{where}.cidr", remedy=remedy) from None
    gateway = subnet.gateway or (str(network[1]) if network.version == 6 else "")
    if not gateway:
        raise BadInput("IPv4 needs a gateway", place=f"{where}.gateway", remedy=f"such as {network[1]}")
    if _parse_address(gateway, f"{where}.gateway") not in network:
        raise BadInput(f"{gateway} is not in {network}", place=f"{where}.gateway", remedy=f"such as {network[1]}")
    start, end = "", ""
    if subnet.dhcp is not None and network.version == 4:
        first = _parse_address(subnet.dhcp.start, f"{where}.dhcp.start")
        last = _parse_address(subnet.dhcp.end, f"{where}.dhcp.end")
        if first not in network or last not in network or int(last) < int(first):
            raise BadInput(f"{first} to {last} is no range of {network}", place=f"{where}.dhcp", remedy="see its cidr")
        start, end = str(first), str(last)
    if subnet.dhcp is not None and network.version == 6 and network.prefixlen != V6_LENGTH:
        remedy = f"a subnet of length {V6_LENGTH}, or no dhcp"
        raise BadInput(f"{network} is not of the length that guests can use", place=f"{where}.cidr", remedy=remedy)
    return ServedSubnet(
        cidr=str(network),
        gateway=str(ipaddress.ip_address(gateway)),
        dhcp=subnet.dhcp is not None,
        start=start,
        end=end,
    )


def _parse_address(text: str, where: str) -> _Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise BadInput(f"{text!r} is no address", place=where, remedy="such as 10.8.0.1") from None


def view_networks(
    networks: Iterable[VirtualNetwork], systems: Mapping[str, str] = MappingProxyType({})
) -> tuple[dict[str, ServedNetwork], dict[str, str]]:
    """Return the managed networks that can be served, and why others cannot, both by name.

    Of two networks with one VNI or one domain, or with subnets that overlap, the first by name is served; none is whose
    subnet overlaps one of ``systems`` (system network → cidr): its gateway would cut the primary off from that.
    """
    served: dict[str, ServedNetwork] = {}
    refused: dict[str, str] = {}
    vnis: dict[int, str] = {}
    domains: dict[str, str] = {}
    taken: list[tuple[str, _Network]] = []
    for name, cidr in systems.items():
        with contextlib.suppress(ValueError):  # no host is on one that makes no sense
            taken.append((f"system network {name}", ipaddress.ip_network(cidr)))
    for network in sorted(networks, key=lambda one: one.name):
        if network.spec.type != "managed" or network.deleting:
            continue
        try:
            view = view_network(network)
        except BadInput as error:
            refused[network.name] = str(error)
            continue
        other = vnis.setdefault(view.vni, view.name)
        if other != view.name:
            refused[view.name] = f"VNI {view.vni} is that of {other} (give it another)"
            continue
        other = domains.setdefault(view.domain, view.name)
        if other != view.name:
            refused[view.name] = f"domain {view.domain} is that of {other} (give it another)"
            continue
        own = [one.network for one in view.subnets]
        both = next(
            (
                (one, other, name)
                for one in own
                for name, other in taken
                if one.version == other.version and one.overlaps(other)
            ),
            None,
        )
        if both is not None:
            refused[view.name] = f"{both[0]} overlaps {both[1]} of {both[2]} (write another subnet)"
            continue
        taken += [(view.name, one) for one in own]
        served[view.name] = view
    return served, refused

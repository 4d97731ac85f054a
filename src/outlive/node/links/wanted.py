"""What a host's links have to be: made of its configuration, of the cluster's system networks and of the networks of
VMs that reach it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from outlive.base import BadInput, Invalid
from outlive.node.links.host_addresses import AddressInput, plan_addresses
from outlive.node.links.settings import LinkSettings
from outlive.node.ports.links import FoundLinks, HostRoute
from outlive.resources import (
    SMALLEST_MTU,
    SystemNetwork,
    SystemNetworkName,
    VirtualNetwork,
    bridge_name,
    is_made_by_hosts,
)
from outlive.runtime import Decision

# The MTU of a network that hosts make themselves. Pure (docs/design/node-decisions.md#netmtu).

VXLAN_BYTES: Final = 50
"""What VXLAN puts around a frame."""
_NUMBER: Final = re.compile(r"[0-9]+", re.ASCII)
_LONGEST: Final = 18
"""Digits of a number that is not certainly too large."""


class BadMtu(BadInput):
    """What is asked for is no MTU."""

    code = "bad_mtu"


class MtuInput(msgspec.Struct, frozen=True, kw_only=True):
    """A network, and what the devices below it take."""

    type: Literal["bridged", "managed"]
    requested: int | float | str = ""
    """What its user wants; absent or empty: as much as goes."""
    bridge_mtu: int | None = None
    """Of the device that VLANs lie on; needed for a bridged network."""
    cluster_mtu: int | None = None
    """Of the cluster network, which VXLANs go over; needed for a managed network."""


class MtuAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the network gets."""

    mtu: int
    store: bool
    """Whether it is another one than was asked for, and is written down."""
    max: int
    """The largest that goes."""


def choose_mtu(given: MtuInput) -> MtuAnswer:
    """What is asked for, at most what the devices below take."""
    below = given.bridge_mtu if given.type == "bridged" else given.cluster_mtu
    if below is None:
        member = "bridge_mtu" if given.type == "bridged" else "cluster_mtu"
        raise Invalid(f"{member} is missing", remedy=f"a {given.type} network needs it")
    largest = below if given.type == "bridged" else below - VXLAN_BYTES
    if given.requested == "":
        return MtuAnswer(mtu=largest, store=True, max=largest)
    asked = given.requested
    text = f"{asked:.0f}" if isinstance(asked, float) and asked.is_integer() else str(asked)
    if _NUMBER.fullmatch(text) is not None:
        digits = text.lstrip("0")
        wanted = int(digits or 0) if len(digits) <= _LONGEST else largest + 1
        if wanted >= SMALLEST_MTU or len(digits) > _LONGEST:
            return MtuAnswer(mtu=min(wanted, largest), store=wanted > largest, max=largest)
    raise BadMtu(f"{text[:80]!r} is no MTU", remedy=f"write a number from {SMALLEST_MTU} to {largest}")


NETWORK_MTU: Final = Decision(
    "net.mtu",
    choose_mtu,
    MtuInput,
    MtuAnswer,
    "The MTU of a bridged or managed network",
    lambda answer: not answer.store,
    nulls_are_absent=True,
)


ORDER: Final[tuple[SystemNetworkName, ...]] = ("cluster", "storage", "upstream")
"""In which system networks are made."""
VXLAN_PORT: Final = 4789
USUAL_MTU: Final = 1500


class SystemBridge(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A bridge by which the host is on system networks."""

    bridge: str
    device: str
    """Its way to the other hosts."""
    mtu: int = 0
    """0: as it is."""
    addresses: tuple[str, ...] = ()
    """The host's own addresses there, with their lengths."""


class NetworkDevices(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The devices of one network of VMs."""

    network: str
    type: Literal["bridged", "managed"]
    vni: int
    mtu: int
    lower: str
    """The device that its VLAN, or its VXLAN, lies on."""
    local: str = ""
    """Of a managed network: the host's own address that its VXLAN sends from."""

    @property
    def bridge(self) -> str:
        """The device that VMs are attached to."""
        return bridge_name(self.vni)

    @property
    def carrier(self) -> str:
        """The device that leads to the other hosts."""
        return f"{'vlan' if self.type == 'bridged' else 'vxlan'}{self.vni}"


class PlacedAddress(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An address that the daemon has put on a bridge."""

    bridge: str
    address: str


class PlacedPort(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A device that the daemon has put into a bridge."""

    bridge: str
    device: str


class WantedLinks(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All of it."""

    bridges: tuple[SystemBridge, ...] = ()
    """In the order in which they are made."""
    bridge_of: dict[str, str] = {}
    """System network → the bridge that the host is on it by."""
    own: dict[str, str] = {}
    """System network → the host's own address there."""
    route: HostRoute | None = None
    """Where what is for elsewhere is sent; absent: left as it is."""
    sysctls: dict[str, str] = {}
    """Settings of the kernel."""
    networks: tuple[NetworkDevices, ...] = ()
    cluster_mtu: int = 0
    """Of the device that VXLANs lie on; 0: there is none."""
    remotes: tuple[str, ...] = ()
    """Addresses of the other hosts, which VXLANs flood to."""
    evpn: bool = False
    """Whether a routing daemon enters those."""
    bridge_device: str = ""
    """The device of VLANs …"""
    bridge_mtu: int = 0
    """… and what it has to take at least."""
    former: tuple[PlacedAddress, ...] = ()
    """Addresses that the daemon has put on bridges before."""
    former_ports: tuple[PlacedPort, ...] = ()
    """Devices that it has put into bridges before."""
    problems: dict[str, str] = {}
    """System network, or network of VMs → why it is not made."""


class LinkFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that is wanted follows from."""

    host: str
    settings: LinkSettings
    system_networks: Mapping[SystemNetworkName, SystemNetwork]
    networks: tuple[VirtualNetwork, ...]
    """Those that reach the host."""
    cluster_address: str = ""
    """The host's address on the cluster network, where another than the daemon makes that."""
    others: tuple[str, ...] = ()
    """Addresses of the other hosts there."""
    former: tuple[PlacedAddress, ...] = ()
    former_ports: tuple[PlacedPort, ...] = ()


def compose_links(facts: LinkFacts, found: FoundLinks) -> WantedLinks:
    """What the links have to be; what cannot be is among the problems, and all else is served."""
    problems: dict[str, str] = {}
    bridges: dict[str, SystemBridge] = {}
    bridge_of: dict[str, str] = {}
    own: dict[str, str] = {}
    for name in ORDER:
        link = facts.settings.system_networks.get(name)
        if link is None:
            continue
        network = facts.system_networks.get(name)
        if network is None:
            problems[name] = f"Cluster/default has no spec.systemNetworks.{name}"
            continue
        try:
            plan = plan_addresses(
                AddressInput(
                    hostname=facts.host,
                    network=network.cidr,
                    floating=network.floating,
                    selection=link.address,
                    gateway=network.gateway,
                )
            )
        except BadInput as error:
            problems[name] = f"{error.message} ({error.remedy})"
            continue
        former = bridges.get(link.device)
        addresses = tuple(dict.fromkeys((*(former.addresses if former is not None else ()), plan.own)))
        bridge = former.bridge if former is not None else f"br{name}"
        mtu = former.mtu if former is not None and former.mtu else link.mtu
        bridges[link.device] = SystemBridge(bridge=bridge, device=link.device, mtu=mtu, addresses=addresses)
        bridge_of[name], own[name] = bridge, plan.own.partition("/")[0]
    upstream = facts.system_networks.get("upstream")
    route = None
    if upstream is not None and upstream.gateway and "upstream" in bridge_of:
        route = HostRoute(gateway=upstream.gateway, device=bridge_of["upstream"])
    wanted = WantedLinks(
        bridges=tuple(bridges.values()),
        bridge_of=bridge_of,
        own=own,
        route=route,
        sysctls=_build_sysctls(facts.settings, bridges.values(), bridge_of) if bridges else {},
        remotes=tuple(sorted({*facts.others} - {own.get("cluster", facts.cluster_address)})),
        evpn=facts.settings.evpn,
        bridge_device=facts.settings.bridge_device,
        bridge_mtu=facts.settings.bridge_mtu,
        former=facts.former,
        former_ports=facts.former_ports,
    )
    local = own.get("cluster", facts.cluster_address)
    carrier, mtu = _cluster_device(wanted, local, found)
    networks = []
    for each in sorted(facts.networks, key=lambda one: one.name):
        try:
            networks.append(_devices_of(each, facts.settings, local, carrier, mtu))
        except BadInput as error:
            problems[each.name] = f"{error.message} ({error.remedy})" if error.remedy else error.message
    return msgspec.structs.replace(wanted, networks=tuple(networks), cluster_mtu=mtu, problems=problems)


def _build_sysctls(
    settings: LinkSettings, bridges: Iterable[SystemBridge], bridge_of: Mapping[str, str]
) -> dict[str, str]:
    """Forwarding on, redirects sent, source routes as configured, and no reverse-path filter on the cluster and
    upstream networks. The kernel takes the stricter one of ``all`` and the device, so ``all`` is off as well."""
    source_route = "1" if settings.legacy_source_route else "0"
    found = {
        "net.ipv4.ip_forward": "1",
        "net.ipv6.conf.all.forwarding": "1",
        "net.ipv4.conf.all.send_redirects": "1",
        "net.ipv4.conf.default.send_redirects": "1",
        "net.ipv4.conf.all.accept_source_route": source_route,
        "net.ipv4.conf.default.accept_source_route": source_route,
        "net.ipv4.conf.all.rp_filter": "0",
    }
    open_bridges = {bridge_of.get("cluster"), bridge_of.get("upstream")}
    for one in bridges:
        if one.bridge in open_bridges:
            found |= {f"net.ipv4.conf.{device}.rp_filter": "0" for device in (one.device, one.bridge)}
    return found


def _cluster_device(wanted: WantedLinks, local: str, found: FoundLinks) -> tuple[str, int]:
    """The device that VXLANs lie on, and its MTU; empty: there is none."""
    name = wanted.bridge_of.get("cluster", "")
    bridge = next((one for one in wanted.bridges if one.bridge == name), None) if name else None
    if bridge is not None:
        device = found.find_link(bridge.device)
        return name, bridge.mtu or (device.mtu if device is not None else USUAL_MTU)
    for link in found.links:
        if local and any(one.partition("/")[0] == local for one in link.addresses):
            return link.name, link.mtu
    return "", 0


def _devices_of(
    network: VirtualNetwork, settings: LinkSettings, local: str, carrier: str, cluster_mtu: int
) -> NetworkDevices:
    """The devices of a network; ``BadInput``: it cannot be made here."""
    kind, vni = network.spec.type, network.spec.vni
    if kind == "bridged":
        if not settings.bridge_device:
            raise BadInput("this host has no device for bridged networks", remedy="set links.bridgeDevice in node.yaml")
        if not 1 <= vni <= 4094:
            raise BadInput(f"VNI {vni} is no VLAN", remedy="a bridged network has one from 1 to 4094")
    elif not carrier:
        remedy = "set links.systemNetworks.cluster, or host.addresses.cluster, in node.yaml"
        raise BadInput("this host has no address on the cluster network", remedy=remedy)
    elif not vni:
        raise BadInput("it has no VNI", remedy="write spec.vni of the network")
    answer = choose_mtu(_mtu_input(network, settings, cluster_mtu, network.status.mtu or network.spec.mtu))
    if kind == "bridged":
        lower = settings.bridge_device
        return NetworkDevices(network=network.name, type="bridged", vni=vni, mtu=answer.mtu, lower=lower)
    return NetworkDevices(network=network.name, type="managed", vni=vni, mtu=answer.mtu, lower=carrier, local=local)


def mtu_of(network: VirtualNetwork, settings: LinkSettings, cluster_mtu: int) -> int:
    """The MTU that hosts are to give a network, by what this host's devices take; 0: they do not tell."""
    if not is_made_by_hosts(network) or not (settings.bridge_device if network.spec.type == "bridged" else cluster_mtu):
        return 0
    try:
        return choose_mtu(_mtu_input(network, settings, cluster_mtu, network.spec.mtu)).mtu
    except BadInput:
        return 0


def _mtu_input(network: VirtualNetwork, settings: LinkSettings, cluster_mtu: int, requested: int) -> MtuInput:
    return MtuInput(
        type="bridged" if network.spec.type == "bridged" else "managed",
        requested=requested or "",
        bridge_mtu=settings.bridge_mtu or USUAL_MTU,
        cluster_mtu=cluster_mtu,
    )

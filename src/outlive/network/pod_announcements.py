"""What nodes are to announce after a VM of pods has moved, so that no cache leads to where it was.

Each announcement is sent once for a migration, by the node that it names. The guest learns its gateway's MAC where that
depends on the node, and on a routed network the neighbours of its home subnet; those learn where the guest is now.
QEMU itself announces the guest's MAC (docs/design/network-decisions.md#networkpod_announcements).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address
from typing import Final, Literal

import msgspec

from outlive.network.addressing import parse_any, parse_host
from outlive.network.announce import (
    GATEWAY_SCHEDULE_MS,
    ArpFrame,
    Frame,
    NeighbourAdvertisement,
    announce_address,
    encode_frame,
)
from outlive.network.copies import PortAddresses
from outlive.network.dhcp import DhcpRouter
from outlive.network.gateway import (
    INTERFACE_LENGTH,
    GatewayAdvertisementsInput,
    GatewayGarpsInput,
    advertise_gateway,
    announce_gateway,
)
from outlive.network.names import PROXY_MAC, ROUTED
from outlive.network.status import MigrationState
from outlive.runtime import Decision

NEIGHBOURS_LIMIT: Final = 256
"""Neighbours that are told of, unless the settings say otherwise."""
DEFAULT_NUMBER: Final = "0"
"""Of the default network's management interfaces."""


class PodAnnouncement(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Frames that one node sends into one of its interfaces."""

    id: str
    """Of the migration and the network; each is sent once."""
    hypervisor: str
    """The node that sends."""
    interface: str
    """Its management interface on the network."""
    frames: tuple[str, ...]
    """Ethernet frames in hexadecimal digits."""
    schedule_ms: tuple[int, ...] = GATEWAY_SCHEDULE_MS
    """When they are sent, from the first sight on."""


class HomeNeighbour(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Somebody with an address of the VM's home subnet."""

    address: str
    """Without mask."""
    mac: str
    at_home: bool = True
    """Whether it is on the home hypervisor."""


class PodAnnouncementsInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ``network.pod_announcements`` gets."""

    id: str
    """Of the migration."""
    topology: Literal["routed", "layer2", "localnet"]
    role: str = "primary"
    """Of the network."""
    number: str = ""
    """Of its management interfaces; empty: it is not known, and nothing can be sent."""
    state: MigrationState | None = None
    target: str
    """The hypervisor."""
    home: str | None = None
    """The hypervisor whose subnet has the VM's addresses; only on a routed network."""
    entry: PortAddresses
    """What the target has."""
    join_addresses: dict[str, tuple[str, ...]] = {}
    """Of each hypervisor's gateway router on this network."""
    join_subnet_v6: str = ""
    transit_router: bool = False
    dhcp_router: DhcpRouter = "link-local"
    neighbours: tuple[HomeNeighbour, ...] = ()
    """Of the home subnet, without the VM itself."""


class PodAnnouncements(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be sent; nothing where no cache can be wrong."""

    announcements: tuple[PodAnnouncement, ...]


def plan_announcements(given: PodAnnouncementsInput) -> PodAnnouncements:
    """The announcements of a migration: empty for all states but ``TargetDomainReady``."""
    if given.state is not MigrationState.TARGET_READY or not given.number or given.topology == "localnet":
        return PodAnnouncements(announcements=())
    if given.topology == ROUTED:
        planned = list(_routed_frames(given))
    else:
        planned = [("gateway", given.target, list(_layer2_frames(given)))] if given.role == "primary" else []
    interface = f"ovn-k8s-mp{given.number}"[:INTERFACE_LENGTH]
    return PodAnnouncements(
        announcements=tuple(
            PodAnnouncement(
                id=f"{given.id}/{what}",
                hypervisor=hypervisor,
                interface=interface,
                frames=tuple(encode_frame(one).hex() for one in frames),
            )
            for what, hypervisor, frames in planned
            if frames
        )
    )


def _layer2_frames(given: PodAnnouncementsInput) -> Iterator[Frame]:
    """The gateway's MAC is derived from the router of the hypervisor."""
    entry = given.entry
    join = given.join_addresses.get(given.target, ())
    yield from announce_gateway(
        GatewayGarpsInput(
            state=given.state,
            subnets=tuple(str(parse_host(one).network) for one in entry.addresses),
            gateways=entry.gateways,
            transit_router=given.transit_router,
            target_join_address=join[0] if join else "",
        )
    ).frames
    yield from advertise_gateway(
        GatewayAdvertisementsInput(
            state=given.state,
            target=given.target,
            join_addresses=given.join_addresses,
            join_subnet_v6=given.join_subnet_v6,
            mac=entry.mac,
            addresses=entry.addresses,
            gateways=entry.gateways,
            transit_router=given.transit_router,
        )
    ).advertisements


def _routed_frames(given: PodAnnouncementsInput) -> Iterator[tuple[str, str, list[Frame]]]:
    """What is sent by whom: to the guest on the target's switch, and of the guest on the home switch."""
    entry, is_home = given.entry, given.home == given.target
    frames: list[Frame] = []
    if given.dhcp_router == "subnet" and not is_home:
        subnets = tuple(str(parse_host(one).network) for one in entry.addresses)
        gateways = GatewayGarpsInput(state=given.state, topology=ROUTED, subnets=subnets, gateways=entry.gateways)
        frames += announce_gateway(gateways).frames
    for neighbour in given.neighbours:
        mac = neighbour.mac if is_home and neighbour.at_home else PROXY_MAC
        frames += _tell_guest(entry.mac, neighbour.address, mac)
    yield "guest", given.target, frames
    if given.home is not None:
        own = entry.mac if is_home else PROXY_MAC
        yield "home", given.home, [frame for one in entry.addresses for frame in _tell_all(one, own)]


def _tell_guest(guest: str, address: str, mac: str) -> list[Frame]:
    """To one guest: an address is at a MAC. Of IPv6 all nodes of the switch hear it, for which it is right as well."""
    if isinstance(parse_any(address), IPv4Address):
        return [
            ArpFrame(op="reply", eth_dst=guest, sender_mac=mac, sender_ip=address, target_mac=guest, target_ip=address)
        ]
    return [NeighbourAdvertisement(address=address, mac=mac)]


def _tell_all(cidr: str, mac: str) -> Sequence[Frame]:
    address = parse_any(cidr)
    if isinstance(address, IPv4Address):
        return announce_address(str(address), mac)
    return (NeighbourAdvertisement(address=str(address), mac=mac),)


POD_ANNOUNCEMENTS: Final = Decision(
    "network.pod_announcements",
    plan_announcements,
    PodAnnouncementsInput,
    PodAnnouncements,
    "What nodes announce after a VM of pods has moved",
    nulls_are_absent=True,
)

"""The gateway's address stays the same for a guest that moves.

On a routed network a proxy on each hypervisor's switch answers for the gateway and for neighbours of the home subnet
with one MAC that is the same everywhere. Where the gateway's MAC changes with the hypervisor, the target's is announced
(docs/design/network-decisions.md#gateway).
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import Final

import msgspec

from outlive.base import BadInput, Invalid
from outlive.network.addressing import (
    Address,
    derive_link_local,
    derive_mac,
    parse_address,
    parse_any,
    parse_mac,
    parse_subnet,
)
from outlive.network.announce import (
    FOREVER_S,
    ArpFrame,
    PrefixInformation,
    RouterAdvertisement,
    announce_address,
)
from outlive.network.names import (
    DEFAULT_NETWORK,
    LAYER2,
    PROXY_IPV4,
    PROXY_IPV6,
    PROXY_MAC,
    ROUTED,
    router_port,
    switch_port_to_router,
)
from outlive.network.status import MigrationState
from outlive.runtime import Decision

INTERFACE_LENGTH: Final = 15
"""Characters that Linux allows in an interface's name."""


class GatewaysMissing(BadInput):
    """The new gateway of a guest is not known."""

    code = "gateways-missing"


class MacInput(msgspec.Struct, frozen=True, kw_only=True):
    """An address or a MAC."""

    address: str = ""
    mac: str = ""


class MacResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The MAC that belongs to it, and the link-local address of that."""

    mac: str
    link_local: str


class ProxyInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """For whom the proxy answers."""

    cluster_subnets: tuple[str, ...] = ()
    full: bool = True
    """Whether OVN takes a MAC, IPv6 and subnets here (from 23.06 on)."""
    gateways: tuple[str, ...] = ()
    """For an older one: those of the hypervisors …"""
    neighbours: tuple[str, ...] = ()
    """… and the addresses in home subnets of VMs on this switch. Only IPv4 counts there."""


class ProxyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The value of the option."""

    arp_proxy: str


class RouterPortInput(ProxyInput, frozen=True, kw_only=True, rename="camel"):
    """A hypervisor's switch on a network."""

    hypervisor: str
    network: str = DEFAULT_NETWORK
    topology: str = ROUTED


class RouterPortRow(msgspec.Struct, frozen=True, kw_only=True):
    """The port of the switch that leads to the router."""

    name: str
    type: str
    addresses: tuple[str, ...]
    options: dict[str, str]


class GatewayGarpsInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A migration, and what its network's gateway is."""

    state: MigrationState | None = None
    topology: str = LAYER2
    subnets: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    transit_router: bool = False
    """Whether one router is shared by all hypervisors; else each has its own."""
    target_join_address: str = ""
    """Of the target's router."""
    interface: str = ""
    """The network's management interface on the target's hypervisor."""


class GatewayGarps(msgspec.Struct, frozen=True, kw_only=True):
    """Frames to send, in this order, and where."""

    interface: str
    frames: tuple[ArpFrame, ...]


class GatewayAdvertisementsInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A migration, the guest, and the routers that it may have known."""

    state: MigrationState | None = None
    target: str = ""
    """The hypervisor."""
    join_addresses: dict[str, tuple[str, ...]] = {}
    """Of each hypervisor's router."""
    join_subnet_v6: str = ""
    mac: str = ""
    addresses: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ()
    """Of the target's annotation."""
    transit_router: bool = False


class GatewayAdvertisements(msgspec.Struct, frozen=True, kw_only=True):
    """Frames to send to the guest, in this order."""

    advertisements: tuple[RouterAdvertisement, ...]


def describe_mac(given: MacInput) -> MacResult:
    """The MAC of an address, or the given one, with its link-local address; ``Invalid`` for neither."""
    if not given.address and not given.mac:
        raise Invalid("there is neither an address nor a MAC", remedy="give address or mac")
    mac = derive_mac(parse_address(given.address)) if given.address else parse_mac(given.mac)
    return MacResult(mac=mac, link_local=str(derive_link_local(mac)))


def compose_arp_proxy(given: ProxyInput) -> str:
    """The option by which a switch answers for the gateway and for subnets that are elsewhere.

    An OVN that takes only IPv4 hosts would make no flow at all of anything else, without a word.
    """
    if given.full:
        return " ".join((PROXY_MAC, PROXY_IPV4, PROXY_IPV6, *(str(parse_subnet(one)) for one in given.cluster_subnets)))
    hosts = [parse_any(one) for one in (PROXY_IPV4, *given.gateways, *given.neighbours)]
    return " ".join(dict.fromkeys(str(host) for host in hosts if isinstance(host, IPv4Address)))


def compose_router_port(given: RouterPortInput) -> RouterPortRow:
    """The port of a hypervisor's switch to the router; only the routed default network has the proxy."""
    options = {"router-port": router_port(given.hypervisor)}
    if given.network == DEFAULT_NETWORK and given.topology == ROUTED:
        options["arp_proxy"] = compose_arp_proxy(given)
    name = switch_port_to_router(given.hypervisor)
    return RouterPortRow(name=name, type="router", addresses=("router",), options=options)


def announce_gateway(given: GatewayGarpsInput) -> GatewayGarps:
    """The frames by which a guest on the target learns the MAC of its IPv4 gateways."""
    frames: list[ArpFrame] = []
    interface = given.interface[:INTERFACE_LENGTH]
    if given.state is not MigrationState.TARGET_READY:
        return GatewayGarps(interface=interface, frames=())
    gateways = [parse_any(one) for one in given.gateways]
    for subnet in map(parse_subnet, given.subnets):
        gateway = next((one for one in gateways if one in subnet), None)
        if isinstance(subnet, IPv4Network) and gateway is not None:
            frames += announce_address(str(gateway), _gateway_mac(given, gateway))
    return GatewayGarps(interface=interface, frames=tuple(frames))


def _gateway_mac(given: GatewayGarpsInput, gateway: Address) -> str:
    if given.topology == ROUTED:
        return PROXY_MAC
    if given.transit_router:
        return derive_mac(gateway)
    if not given.target_join_address:
        raise Invalid("the target's router has no join address", remedy="give targetJoinAddress")
    return derive_mac(parse_any(given.target_join_address))


def advertise_gateway(given: GatewayAdvertisementsInput) -> GatewayAdvertisements:
    """The advertisements by which a guest on the target forgets other routers and learns its own.

    ``GatewaysMissing`` where its own is not known.
    """
    address = next((one for one in map(parse_any, given.addresses) if isinstance(one, IPv6Address)), None)
    if given.state is not MigrationState.TARGET_READY or address is None:
        return GatewayAdvertisements(advertisements=())
    guest = (parse_mac(given.mac), str(address))
    prefixes: tuple[PrefixInformation, ...] = ()
    if given.transit_router:
        if not given.gateways:
            raise GatewaysMissing(f"{address} has no gateway", remedy="wait until the target's annotation has one")
        others, own = list(given.join_addresses), given.gateways[0]
        if given.join_subnet_v6:
            prefix = str(parse_subnet(given.join_subnet_v6))
            prefixes = (PrefixInformation(prefix=prefix, on_link=True, autonomous=True),)
    else:
        own = _first_join_address(given.join_addresses.get(given.target, ()))
        if not own:
            raise GatewaysMissing(
                f"the router of {given.target[:80]!r} has no join address", remedy="give joinAddresses of the target"
            )
        others = [one for one in given.join_addresses if one != given.target]
    joins = [_first_join_address(given.join_addresses[one]) for one in others]
    withdrawn = [_advertise(join, guest, lifetime=0) for join in joins if join]
    return GatewayAdvertisements(
        advertisements=(*withdrawn, _advertise(own, guest, lifetime=FOREVER_S, prefixes=prefixes))
    )


def _first_join_address(addresses: Sequence[str]) -> str:
    """That by which a router's MAC is derived: the IPv4 one in dual stack; empty: it has none."""
    found = [parse_any(one) for one in addresses]
    return next((str(one) for one in found if isinstance(one, IPv4Address)), str(found[0]) if found else "")


def _advertise(
    router: str, guest: tuple[str, str], *, lifetime: int, prefixes: tuple[PrefixInformation, ...] = ()
) -> RouterAdvertisement:
    own = describe_mac(MacInput(address=str(parse_any(router))))
    return RouterAdvertisement(
        eth_src=own.mac,
        eth_dst=guest[0],
        ip_src=own.link_local,
        ip_dst=guest[1],
        preference="high" if lifetime else "medium",
        router_lifetime=lifetime,
        source_link_layer=own.mac,
        prefixes=prefixes or msgspec.UNSET,
    )


MAC: Final = Decision(
    "network.mac",
    describe_mac,
    MacInput,
    MacResult,
    "The MAC that belongs to an address, and its link-local address",
    nulls_are_absent=True,
)
ARP_PROXY: Final[Decision[ProxyInput, ProxyResult]] = Decision(
    "network.arp_proxy",
    lambda given: ProxyResult(arp_proxy=compose_arp_proxy(given)),
    ProxyInput,
    ProxyResult,
    "For whom a switch answers ARP",
    nulls_are_absent=True,
)
ROUTER_PORT: Final = Decision(
    "network.router_port",
    compose_router_port,
    RouterPortInput,
    RouterPortRow,
    "The port of a hypervisor's switch to the router",
    nulls_are_absent=True,
)
GATEWAY_GARPS: Final = Decision(
    "network.gateway_garps",
    announce_gateway,
    GatewayGarpsInput,
    GatewayGarps,
    "How a guest learns its IPv4 gateway's MAC",
    nulls_are_absent=True,
)
GATEWAY_ADVERTISEMENTS: Final = Decision(
    "network.gateway_advertisements",
    advertise_gateway,
    GatewayAdvertisementsInput,
    GatewayAdvertisements,
    "How a guest learns its IPv6 gateway",
    nulls_are_absent=True,
)

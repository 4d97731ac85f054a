"""The addresses of a host on one of its system networks, its own and the floating one of the primary. Pure.

docs/design/node-decisions.md#addrplan
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import msgspec

from outlive.base import BadInput, Invalid
from outlive.resources import SystemNetwork, SystemNetworkName
from outlive.runtime import Decision

BY_ID: Final = "by-id"
"""The own address follows from the number of the host."""
_DIGITS: Final = re.compile(r"[0-9]+", re.ASCII)
_LONGEST: Final = 40
"""Digits of a number that may be an index at all."""
Address = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network


class BadNetwork(BadInput):
    """What is given as a network is none, or names a host in it."""

    code = "bad_network"


class BadFloating(BadInput):
    """The floating address is no address that a host of the network can have."""

    code = "bad_floating"


class NoHostNumber(BadInput):
    """The host's name has no number from 1 on."""

    code = "no_id"


class BadOwnAddress(BadInput):
    """The own address is no address that a host of the network can have."""

    code = "bad_own"


class AddressCollision(BadInput):
    """The own address belongs to somebody else already."""

    code = "collision"


class AddressInput(msgspec.Struct, frozen=True, kw_only=True):
    """A host and a system network."""

    hostname: str
    """Short name of the host."""
    network: str
    """Such as ``10.0.0.0/24``."""
    floating: str
    """Address that the primary has beside its own."""
    selection: str
    """``by-id``: by the number in the host's name; else the own address itself."""
    gateway: str = ""
    """Address of the network's router; absent: none is known."""


class AddressPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Both addresses, with the length of the network."""

    own: str
    floating: str


def plan_addresses(given: AddressInput) -> AddressPlan:
    """The addresses of the host; the first thing that is wrong is the error."""
    gateway = _parse(given.gateway, Invalid, f"gateway {given.gateway}") if given.gateway else None
    try:
        network = ip_network(given.network)
    except ValueError as error:
        raise BadNetwork(str(error), remedy="write it with all host bits zero, such as 10.0.0.0/24") from None
    floating = _parse(given.floating, BadFloating, f"floating address {given.floating}")
    if not _is_usable(floating, network):
        raise BadFloating(f"floating address {floating} is no host's in {network}", remedy=_suggest_usable(network))
    if given.selection == BY_ID:
        groups = _DIGITS.findall(given.hostname.partition(".")[0])
        digits = groups[-1].lstrip("0") if groups else ""
        if not digits:
            remedy = "end it with a number from 1 on, such as node3, or write the address instead of by-id"
            raise NoHostNumber(f"host name {given.hostname[:80]!r} has no number from 1 on", remedy=remedy)
        first, last = usable_range(network)
        if len(digits) > _LONGEST or first + int(digits) - 1 > last:
            what = f"{network} has no address for host number {digits[:_LONGEST]}"
            raise BadOwnAddress(what, remedy=f"choose a larger network; it has {last - first + 1} addresses for hosts")
        own = type(network.network_address)(first + int(digits) - 1)
    else:
        own = _parse(given.selection, BadOwnAddress, f"own address {given.selection}")
        if not _is_usable(own, network):
            raise BadOwnAddress(f"own address {own} is no host's in {network}", remedy=_suggest_usable(network))
    for other, owner in ((floating, "the floating address"), (gateway, "the gateway")):
        if own == other:
            raise AddressCollision(f"own address {own} is {owner} as well", remedy="choose another one of them")
    return AddressPlan(own=f"{own}/{network.prefixlen}", floating=f"{floating}/{network.prefixlen}")


def check_system_networks(networks: Mapping[SystemNetworkName, SystemNetwork]) -> None:
    """``BadInput`` where a system network cannot be, whatever its hosts are called, or overlaps another one."""
    seen: list[tuple[str, IpNetwork]] = []
    for name, one in networks.items():
        place = f"spec.systemNetworks.{name}"
        given = AddressInput(hostname="", network=one.cidr, floating=one.floating, selection=BY_ID, gateway=one.gateway)
        try:
            plan_addresses(given)
        except NoHostNumber:
            pass  # nobody's name was given, and all else was good
        except BadInput as error:
            raise BadInput(error.message, place=place, remedy=error.remedy) from None
        own = ip_network(one.cidr)
        if one.gateway and not _is_usable(ip_address(one.gateway), own):
            raise BadInput(f"gateway {one.gateway} is no host's in {own}", place=place, remedy=_suggest_usable(own))
        if one.gateway and ip_address(one.gateway) == ip_address(one.floating):
            raise BadInput(f"{one.gateway} is gateway and floating address", place=place, remedy="change one of them")
        other = next((each for each, theirs in seen if theirs.version == own.version and own.overlaps(theirs)), "")
        if other:
            raise BadInput(f"{own} overlaps that of {other}", place=place, remedy="write another network")
        seen.append((name, own))


def usable_range(network: IpNetwork) -> tuple[int, int]:
    """The first and the last address that a host can have, as numbers.

    Network and broadcast address of IPv4 are none, nor is the first one of IPv6; where there are but one or two, they
    all are.
    """
    first, last = int(network.network_address), int(network.broadcast_address)
    if network.max_prefixlen - network.prefixlen < 2:
        return first, last
    return first + 1, last - 1 if network.version == 4 else last


def _is_usable(address: Address, network: IpNetwork) -> bool:
    first, last = usable_range(network)
    return address.version == network.version and first <= int(address) <= last


def _suggest_usable(network: IpNetwork) -> str:
    first, last = (type(network.network_address)(one) for one in usable_range(network))
    return f"choose one from {first} to {last}"


def _parse(text: str, error: type[BadInput], what: str) -> Address:
    try:
        if "%" in text:
            raise ValueError("it has a zone")
        return ip_address(text)
    except ValueError:
        raise error(f"{what[:120]} is no address", remedy="write it like 10.0.0.7 or fd00::7") from None


ADDRESS_PLAN: Final = Decision(
    "addr.plan",
    plan_addresses,
    AddressInput,
    AddressPlan,
    "The own and the floating address of a host on a system network",
    nulls_are_absent=True,
)

"""Subnets of networks as users write them. Pure."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

from outlive.base.errors import BadInput
from outlive.network.addressing import TEXTS_KEPT
from outlive.resources.networks import Subnet

HOST_PREFIXES: Final = {4: 24, 6: 64}
"""Length of a host's part of a routed subnet where the network does not say."""
IpSubnet = IPv4Network | IPv6Network


@lru_cache(maxsize=TEXTS_KEPT)
def read_cidr(text: str) -> IpSubnet:
    """The addresses of a cidr, or a single one; ``ValueError``."""
    return ip_network(text)


def read_subnet(subnet: Subnet) -> IpSubnet:
    """The addresses of a subnet; ``BadInput`` names what is wrong with it."""
    try:
        network = read_cidr(subnet.cidr)
        for one in subnet.excluded:
            read_cidr(one)
    except ValueError as error:
        remedy = "write subnets such as 10.44.0.0/16, with all host bits zero"
        raise BadInput(str(error), place="spec.subnets", remedy=remedy) from None
    length = host_prefix(subnet, network)
    if not network.prefixlen <= length <= network.max_prefixlen:
        remedy = f"write a length from {network.prefixlen} to {network.max_prefixlen}"
        raise BadInput(f"hostPrefix {length} does not lie in {network}", place="spec.subnets", remedy=remedy)
    if subnet.gateway:
        try:
            inside = ip_address(subnet.gateway) in network
        except ValueError:
            inside = False
        if not inside:
            remedy = "write an address of that subnet"
            raise BadInput(f"gateway {subnet.gateway} is not in {network}", place="spec.subnets", remedy=remedy)
    return network


def overlaps(one: IpSubnet, other: IpSubnet) -> bool:
    """True if they are of one family and have an address in common."""
    return one.version == other.version and one.overlaps(other)


def host_prefix(subnet: Subnet, network: IpSubnet) -> int:
    """Length of the part that each host gets of it."""
    default = min(max(HOST_PREFIXES[network.version], network.prefixlen), network.max_prefixlen)
    return subnet.host_prefix if subnet.host_prefix is not None else default

"""Which addresses the primary coordinator has on which devices of this host."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final

from outlive.node.role_addresses import Place
from outlive.node.services.callers import METADATA_ADDRESS
from outlive.node.services.served_networks import ServedNetwork
from outlive.resources import AddressPhase, SystemNetwork, SystemNetworkName

LOOPBACK: Final = "lo"
UPSTREAM: Final[tuple[SystemNetworkName, ...]] = ("upstream",)
INSIDE: Final[tuple[SystemNetworkName, ...]] = ("cluster", "storage")


def role_places(
    system_networks: Mapping[SystemNetworkName, SystemNetwork],
    bridge_of: Mapping[str, str],
    networks: Iterable[ServedNetwork],
) -> dict[AddressPhase, list[Place]]:
    """Return the addresses by phase of the hand-over.

    ``bridge_of``: by which bridge this host is on a system network; one that it is not on has no floating address
    here. ``networks``: managed networks that this host has made.
    """
    floating: dict[SystemNetworkName, Place] = {}
    for name, network in system_networks.items():
        if name in bridge_of:  # then its addresses make sense
            length = ipaddress.ip_network(network.cidr).prefixlen
            floating[name] = bridge_of[name], f"{network.floating}/{length}"
    served = list(networks)
    return {
        "upstream": [floating[name] for name in UPSTREAM if name in floating],
        "cluster": [floating[name] for name in INSIDE if name in floating],
        "metadata": [(LOOPBACK, f"{METADATA_ADDRESS}/32")] if served else [],
        "gateways": [(one.bridge, subnet.interface) for one in served for subnet in one.subnets],
    }

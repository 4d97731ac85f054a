"""Which networks a VM's pods are on, by the entries of their annotations.

The entry ``default`` is the cluster's routed network, which is followed for pods that may take their address along
(the bridge annotation). Any other entry is named like its NetworkAttachmentDefinition, ``namespace/name``, and belongs
to the ``VirtualNetwork`` that lists it in its annotation ``outlive.dev/attachments``, or else is called
``namespace.name``. An entry that no VirtualNetwork claims is somebody else's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from outlive.network.copies import Copy, is_allowed
from outlive.network.dhcp import PRIMARY, SECONDARY
from outlive.network.names import DEFAULT_NETWORK
from outlive.resources import VirtualNetwork

ATTACHMENTS: Final = "outlive.dev/attachments"
"""Annotation of a ``VirtualNetwork``: its NetworkAttachmentDefinitions, ``namespace/name`` with commas between."""
NETWORK_NUMBER: Final = "outlive.dev/network-id"
"""Annotation of a ``VirtualNetwork``: the number by which nodes name their management interface there."""
TRANSIT_ROUTER: Final = "outlive.dev/transit-router"
"""Annotation of a ``VirtualNetwork``: ``true`` where one router is shared by all nodes."""
LOCKED: Final = "infrastructure-locked"
"""Role of the default network in a pod whose primary network is another one."""


class PodNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """One network that a VM's pods are on, besides the default one."""

    nad: str
    """Its key in the annotation."""
    network: str
    """Name of the ``VirtualNetwork``."""
    topology: Literal["layer2", "localnet"]
    role: Literal["primary", "secondary"] = "secondary"
    port_security: bool = True
    mtu: int = 0
    dns_servers: tuple[str, ...] = ()
    """That guests are given in place of the cluster's."""
    number: str = ""
    """Of the network's management interfaces; empty: it is not known."""
    transit_router: bool = False


def attachments_of(network: VirtualNetwork) -> tuple[str, ...]:
    """The attachments that a network has: as it lists them, else the one that it is called after."""
    listed = network.metadata.annotations.get(ATTACHMENTS, "")
    if listed:
        return tuple(one.strip() for one in listed.split(",") if one.strip())
    namespace, dot, name = network.name.partition(".")
    return (f"{namespace}/{name}",) if dot else ()


def index_attachments(networks: Iterable[VirtualNetwork]) -> dict[str, VirtualNetwork]:
    """Attachment → its network; of two that list one, the first by name."""
    found: dict[str, VirtualNetwork] = {}
    for network in sorted(networks, key=lambda one: one.name):
        for nad in attachments_of(network):
            found.setdefault(nad, network)
    return found


def networks_of(copies: Sequence[Copy], attachments: Mapping[str, VirtualNetwork]) -> list[PodNetwork]:
    """The named networks of a VM's pods, by their keys."""
    roles: dict[str, str] = {}
    for copy in copies:
        for nad, entry in copy.networks.items():
            roles[nad] = entry.role or roles.get(nad, SECONDARY)
    found = []
    for nad, role in sorted(roles.items()):
        network = attachments.get(nad)
        if nad == DEFAULT_NETWORK or network is None:
            continue
        if any(is_allowed(copy, network.spec.type) for copy in copies):
            found.append(pod_network(nad, network, role))
    return found


def pod_network(nad: str, network: VirtualNetwork, role: str = SECONDARY) -> PodNetwork:
    """A network as a VM's pods are on it."""
    assert network.spec.type in ("layer2", "localnet")
    annotations = network.metadata.annotations
    return PodNetwork(
        nad=nad,
        network=network.name,
        topology=network.spec.type,
        role="primary" if role == PRIMARY else "secondary",
        port_security=network.spec.port_security,
        mtu=network.spec.mtu,
        dns_servers=network.spec.dhcp.dns_servers,
        number=annotations.get(NETWORK_NUMBER, ""),
        transit_router=annotations.get(TRANSIT_ROUTER, "") == "true",
    )


def follows_default(copy: Copy) -> bool:
    """True if the default network follows the copy."""
    entry = copy.networks.get(DEFAULT_NETWORK)
    return copy.migratable and not (entry is not None and entry.role == LOCKED)

"""Copies of a VM: the places where it runs or ran, and what can be said of them.

A pod or a libvirt domain becomes a copy at the edge; all decisions about the network are made on copies
(docs/reference/network-decisions.md#copies).
"""

from __future__ import annotations

from datetime import datetime

import msgspec


class VmKey(msgspec.Struct, frozen=True, order=True):
    """A VM by namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class PortRoute(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A route of the guest."""

    dest: str
    next_hop: str = ""


class PortAddresses(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one port of a copy has: an entry of the network annotation, read."""

    mac: str
    addresses: tuple[str, ...] = ()
    """Host addresses with the subnet's mask."""
    gateways: tuple[str, ...] = ()
    """IPv4 first in dual stack."""
    routes: tuple[PortRoute, ...] = ()
    role: str | None = None
    tunnel_id: int | None = None
    ipv6_lla_gateway_ip: str | None = None


class Copy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One place where a VM runs or ran."""

    id: str
    """Of a pod its uid; of a domain its run."""
    namespace: str = ""
    name: str = ""
    """Of the pod; of a domain that of its host."""
    vm: VmKey | None = None
    """``None``: a pod that is no copy of a VM."""
    hypervisor: str | None = None
    """``None``: not scheduled."""
    created: datetime | None = None
    completed: bool = False
    host_network: bool = False
    migratable: bool = False
    """Whether addresses on a routed network follow it."""
    runs_on: str | None = None
    """Where the VM is said to run."""
    ready_at: str | None = None
    """Set on the target of a migration once the VM is active there, and for the rest of its life."""
    networks: dict[str, PortAddresses] = {}
    """By the key of the network attachment; only what can be read."""

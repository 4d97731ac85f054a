"""Settings of what hosts and VMs are kept from: an OpenStack (section ``openstack``, docs/operating/openstack.md), or a
cloud whose hypervisors are Kubernetes objects (section ``inventory``, docs/operating/hypervisors.md)."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec

from outlive.runtime.units import Duration

CLUSTERS_LIMIT: Final = 64
"""Clusters of one inventory."""
_CLUSTER: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
OVERLAP_LIMIT_S: Final = 3600.0
"""The longest ``overlap``."""


class OpenStackSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """How an OpenStack is reached, and what is taken from it. Without ``cloud`` nothing is."""

    cloud: str = ""
    """Name of an entry of the clouds file; empty: there is no OpenStack."""
    clouds_file: str = "/etc/openstack/clouds.yaml"
    """The file; nobody but us may read it where it holds a password."""
    secret: str = ""
    """Name of the ``Secret`` with our user name and password, or the id and secret of an application credential; empty:
    they are in the file."""
    region: str = ""
    """Another region than the entry's."""
    interface: Literal["public", "internal", "admin"] = "public"
    """Which endpoints of the catalogue are used; Limes is always asked at its public one."""
    inventory: bool = True
    """Keep hosts, VMs and flavors as Nova has them."""
    commitments: bool = False
    """Keep commitments as Limes has them."""
    poll_interval: Duration = Duration(10.0)
    """How often Nova is asked what has changed."""
    full_interval: Duration = Duration(600.0)
    """How often everything is read anew."""
    overlap: Duration = Duration(60.0)
    """By how much each question about changes goes back further than the one before."""
    stale_after: Duration = Duration(120.0)
    """How old what is known of Nova may become before a fault says so."""
    request_limit: Duration = Duration(30.0)
    """How long one request may take, a login included."""
    page_size: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000
    """Servers, hypervisors or flavors that are asked for at once; Nova may give fewer."""
    project_pause: Duration = Duration(0.05)
    """Time between the starts of two requests to Limes, more or less half of it."""
    project_requests: Annotated[int, msgspec.Meta(ge=1, le=256)] = 16
    """Requests to Limes at the same time."""

    def __post_init__(self) -> None:
        for name in ("poll_interval", "full_interval", "stale_after", "request_limit"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is 0; write a duration that is more than nothing")
        if self.full_interval < self.poll_interval:
            raise ValueError(f"fullInterval {self.full_interval} is less than pollInterval {self.poll_interval}")
        if self.stale_after < self.poll_interval:
            raise ValueError(f"staleAfter {self.stale_after} is less than pollInterval {self.poll_interval}")
        if self.overlap > OVERLAP_LIMIT_S:
            raise ValueError(f"overlap is {self.overlap}; write at most {Duration(OVERLAP_LIMIT_S)}")


class InventoryClusterSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One API server with ``Hypervisor`` objects."""

    kubeconfig: str = ""
    """File that says how it is reached; empty: as for ``outlive controller`` without one, such as a pod's account."""
    context: str = ""
    """Of that file; empty: its current one."""
    zones: list[str] = msgspec.field(default_factory=list)
    """Zones of its hosts; a host of any other one is not taken over. Empty: all zones, where it is the only cluster."""


class InventorySettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Hosts that are kept as their objects in other clusters have them. Without ``source`` none are."""

    source: Literal["", "kvm.cloud.sap"] = ""
    """``kvm.cloud.sap``: ``Hypervisor`` objects of that group."""
    clusters: dict[str, InventoryClusterSettings] = {}
    """Name → API server that has such objects."""
    reservations: bool = False
    """Write each slot as ``Reservation`` of ``cortex.cloud/v1alpha1`` beside its host's object as well, so that the
    scheduler in place keeps off it."""
    full_interval: Duration = Duration(600.0)
    """How often all objects are listed, besides being watched, to see which hosts are missing."""
    stale_after: Duration = Duration(120.0)
    """How long a cluster may not be read before a fault says so."""

    def __post_init__(self) -> None:
        if self.source and not self.clusters:
            raise ValueError(f"source is {self.source} and clusters is empty; name each API server and its zones")
        if len(self.clusters) > CLUSTERS_LIMIT:
            raise ValueError(f"clusters has {len(self.clusters)} entries; at most {CLUSTERS_LIMIT}")
        for name in ("full_interval", "stale_after"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is 0; write a duration that is more than nothing")
        owner: dict[str, str] = {}
        for name, cluster in self.clusters.items():
            if not _CLUSTER.match(name):
                raise ValueError(f"clusters names {name[:80]!r}; write lower-case letters, digits and '-'")
            if not cluster.zones and len(self.clusters) > 1:
                raise ValueError(f"clusters.{name} has no zones, and is not the only cluster; list its zones")
            for zone in cluster.zones:
                if owner.setdefault(zone, name) != name:
                    raise ValueError(f"zone {zone!r} is of cluster {owner[zone]} and of {name}; keep one of the two")

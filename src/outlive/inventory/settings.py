"""Settings of what hosts and VMs are kept from: an OpenStack (section ``openstack``, docs/how-to/openstack.md), or a
cloud whose hypervisors are Kubernetes objects (section ``inventory``, docs/how-to/hypervisors.md)."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec

from outlive.runtime import Duration

CLUSTERS_LIMIT: Final = 64
"""Clusters of one inventory."""
_CLUSTER: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
OVERLAP_LIMIT_S: Final = 3600.0
"""The longest ``overlap``."""


class OpenStackSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Connection to an OpenStack. Without ``cloud`` it is not used."""

    cloud: str = ""
    """Name of an entry of the clouds file; empty: there is no OpenStack."""
    clouds_file: str = "/etc/openstack/clouds.yaml"
    """The file; with a password only the server's user may read it."""
    secret: str = ""
    """Name of the ``Secret`` with user name and password, or application credential; empty: they are in the file."""
    region: str = ""
    """Region, if not the entry's."""
    interface: Literal["public", "internal", "admin"] = "public"
    """Endpoints of the catalogue; Limes always uses the public one."""
    inventory: bool = True
    """Keep hosts, VMs and flavors as Nova has them."""
    commitments: bool = False
    """Keep commitments as Limes has them."""
    poll_interval: Duration = Duration(10.0)
    """How often Nova is asked for changes."""
    full_interval: Duration = Duration(600.0)
    """How often everything is read."""
    overlap: Duration = Duration(60.0)
    """Overlap of two questions about changes."""
    stale_after: Duration = Duration(120.0)
    """Age of Nova's data that raises a fault."""
    request_limit: Duration = Duration(30.0)
    """How long a request may take, with login."""
    page_size: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000
    """Servers, hypervisors or flavors in one page."""
    project_pause: Duration = Duration(0.05)
    """Time between two requests to Limes, give or take half."""
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
    """Kubeconfig; empty: as for ``outlive controller``, such as a pod's account."""
    context: str = ""
    """Context; empty: the current one."""
    zones: list[str] = msgspec.field(default_factory=list)
    """Zones of its hosts; others are ignored. Empty: all zones, for the only cluster."""


class InventorySettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Hosts that are copied from objects in other clusters. Without ``source`` none are."""

    source: Literal["", "kvm.cloud.sap"] = ""
    """``kvm.cloud.sap``: ``Hypervisor`` objects of that group."""
    clusters: dict[str, InventoryClusterSettings] = {}
    """Name → API server that has such objects."""
    reservations: bool = False
    """Also write each slot as ``Reservation`` of ``cortex.cloud/v1alpha1`` for Cortex."""
    full_interval: Duration = Duration(600.0)
    """How often all objects are listed, to find missing hosts."""
    stale_after: Duration = Duration(120.0)
    """Time without an answer of a cluster that raises a fault."""

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

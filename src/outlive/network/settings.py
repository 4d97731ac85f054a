"""Section ``network`` of a server's configuration: where OVN's databases are, and how ports follow their VMs."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from outlive.network.names import PREFIX
from outlive.network.pod_settings import PodNetworkSettings
from outlive.runtime.units import Duration

KeyPrefix = Annotated[str, Meta(pattern=r"^(?!outlive\.dev$)[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
"""A DNS name; ``outlive.dev`` has keys of another kind."""


class NetworkSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``network``."""

    northbound: str = ""
    """OVN's northbound database, such as ``ssl:10.0.0.1:6641``; servers of a cluster with commas between them. Empty:
    Outlive programs no network."""
    southbound: str = ""
    """OVN's southbound database, in the same way."""
    key_file: str = ""
    """Private key (PEM) for ``ssl:`` connections."""
    certificate_file: str = ""
    """Certificate (PEM) for ``ssl:`` connections."""
    ca_file: str = ""
    """Authorities (PEM) that the databases' certificates are checked with."""
    key_prefix: KeyPrefix = PREFIX
    """Of the keys in ``external_ids`` by which rows are known again; the same on coordinators. Rows that another prefix
    was used for are nobody's: change it only where Outlive has no rows."""
    zone_mode: Literal["global", "interconnect"] = "global"
    """``global``: one pair of databases for all hosts; ``interconnect``: one for each host, and a controller beside
    each (``localHypervisors``)."""
    local_hypervisors: tuple[str, ...] = ()
    """In mode ``interconnect``: the hosts that these databases program."""
    probe: Duration = Duration(5.0)
    """After so long without a word the databases are asked for one; after twice as long the connection is made anew."""
    gc_period: Duration = Duration(600.0)
    """How often rows of VMs that are gone are looked for; what is found is deleted one period later."""
    max_parallel: Annotated[int, Meta(ge=1, le=256)] = 16
    """VMs whose rows are worked on at once."""
    announce_neighbours_max: Annotated[int, Meta(ge=0, le=4096)] = 256
    """Neighbours of a routed VM that are told, and of which it is told, after a move."""
    pods: PodNetworkSettings = PodNetworkSettings()
    """VMs that are pods of a Kubernetes cluster, such as KubeVirt's."""

    def __post_init__(self) -> None:
        if bool(self.northbound) != bool(self.southbound):
            raise ValueError("northbound and southbound are named together")
        if self.pods.follow and not self.northbound:
            raise ValueError("pods.follow needs northbound and southbound")
        if self.probe <= 0:
            raise ValueError(f"probe {self.probe} must be more than 0")
        if self.gc_period <= 0:
            raise ValueError(f"gcPeriod {self.gc_period} must be more than 0")

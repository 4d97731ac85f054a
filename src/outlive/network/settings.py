"""Sections ``network`` and ``network.pods`` of a server's configuration: OVN, and VMs that are pods."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from outlive.network.dhcp import DhcpRouter
from outlive.network.names import PREFIX
from outlive.network.routes import ClusterSubnet
from outlive.runtime import Duration


class EvpnNetwork(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Where one network is on this machine."""

    port: str
    """Port of the bridge behind which the VMs are."""
    vlan: Annotated[int, Meta(ge=0, le=4094)] = 0
    """VLAN of the network on the bridge; 0: none."""
    gateway_interface: str = ""
    """Interface of the network with the addresses of its gateway (SVI), which has entries for VMs' addresses; empty:
    there is none, and the fabric learns only where MACs are."""


class EvpnSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Networks that an EVPN fabric carries in place of OVN's tunnels."""

    hypervisor: str = ""
    """Name of this machine in the cluster; empty: no entries for the fabric."""
    networks: Annotated[dict[str, EvpnNetwork], Meta(max_length=1024)] = {}
    """``VirtualNetwork`` → its place on this machine."""


class PodNetworkSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``network.pods``."""

    follow: bool = False
    """Whether networks follow VMs that are pods."""
    kubeconfig: str = ""
    """File with the access to the cluster; empty: as ``kubectl`` finds it."""
    context: str = ""
    """Its context; empty: the current one."""
    zone: str = ""
    """In mode ``interconnect``: zone of nodes (``k8s.ovn.org/zone-name``) that are programmed here, besides
    ``localHypervisors``."""
    cluster_subnets: Annotated[tuple[ClusterSubnet, ...], Meta(max_length=8)] = ()
    """Default network: ranges of the nodes' subnets."""
    join_subnets: Annotated[tuple[str, ...], Meta(max_length=2)] = ("100.64.0.0/16", "fd98::/64")
    """Default network: the gateway router of node number n has address n there."""
    primary_join_subnets: Annotated[tuple[str, ...], Meta(max_length=2)] = ("100.65.0.0/16", "fd99::/64")
    """The same for primary networks with names."""
    dns_service: str = "kube-system/kube-dns"
    """Service with the name servers of guests; empty: none."""
    mtu: Annotated[int, Meta(ge=0, le=65535)] = 0
    """MTU of guests of the default network; 0: not given."""
    dhcp_router: DhcpRouter = "link-local"
    """Gateway of the default network: ``169.254.1.1``, or that of the node where the VM was born."""
    disable_source: bool = True
    """Disable a port of the default network as soon as its VM has left."""
    allocate: bool = True
    """Give a VM's first pod addresses; false: another program does."""
    identities: str = ""
    """File with further identities that may write network annotations of pods (docs/how-to/kubevirt-network.md)."""
    evpn: EvpnSettings = EvpnSettings()
    """Networks that an EVPN fabric carries."""

    def __post_init__(self) -> None:
        for cidr in (*(one.cidr for one in self.cluster_subnets), *self.join_subnets, *self.primary_join_subnets):
            ip_network(cidr)
        if self.dns_service and self.dns_service.count("/") != 1:
            raise ValueError(f"dnsService {self.dns_service!r} must be NAMESPACE/NAME")
        if self.follow and not self.cluster_subnets:
            raise ValueError("clusterSubnets is needed to follow pods: name those of the default network")


KeyPrefix = Annotated[str, Meta(pattern=r"^(?!outlive\.dev$)[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
"""A DNS name; ``outlive.dev`` has keys of another kind."""


class NetworkSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``network``."""

    northbound: str = ""
    """OVN's northbound database, such as ``ssl:10.0.0.1:6641``, with commas. Empty: no network is programmed."""
    southbound: str = ""
    """OVN's southbound database, in the same way."""
    key_file: str = ""
    """Private key (PEM) for ``ssl:`` connections."""
    certificate_file: str = ""
    """Certificate (PEM) for ``ssl:`` connections."""
    ca_file: str = ""
    """Authorities (PEM) that the databases' certificates are checked with."""
    key_prefix: KeyPrefix = PREFIX
    """Prefix of keys in ``external_ids`` that mark Outlive's rows; the same on coordinators. Change it only if Outlive
    has no rows."""
    zone_mode: Literal["global", "interconnect"] = "global"
    """``interconnect``: a pair of databases for each host, and a controller beside each (``localHypervisors``)."""
    local_hypervisors: tuple[str, ...] = ()
    """In mode ``interconnect``: the hosts that these databases program."""
    probe: Duration = Duration(5.0)
    """Silence after which the databases are probed; after twice that the connection is reopened."""
    gc_period: Duration = Duration(600.0)
    """How often rows of deleted VMs are searched; they are deleted one period later."""
    max_parallel: Annotated[int, Meta(ge=1, le=256)] = 16
    """VMs in parallel."""
    announce_neighbours_max: Annotated[int, Meta(ge=0, le=4096)] = 256
    """Neighbours of a routed VM that get announcements after a move."""
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

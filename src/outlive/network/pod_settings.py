"""Section ``network.pods`` of a server's configuration: VMs that are pods of a cluster, such as KubeVirt's."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated

import msgspec
from msgspec import Meta

from outlive.network.dhcp import DhcpRouter
from outlive.network.routes import ClusterSubnet


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
    """Name of this machine in the cluster; empty: entries for the fabric are not touched."""
    networks: Annotated[dict[str, EvpnNetwork], Meta(max_length=1024)] = {}
    """``VirtualNetwork`` → where it is on this machine; empty: none."""


class PodNetworkSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``network.pods``."""

    follow: bool = False
    """Whether networks follow VMs that are pods."""
    kubeconfig: str = ""
    """File with the access to the cluster; empty: as ``kubectl`` finds it."""
    context: str = ""
    """Its context; empty: the current one."""
    zone: str = ""
    """In mode ``interconnect``: name of this zone; nodes whose annotation ``k8s.ovn.org/zone-name`` is this one are
    programmed here, beside those of ``localHypervisors``."""
    cluster_subnets: Annotated[tuple[ClusterSubnet, ...], Meta(max_length=8)] = ()
    """Of the default network: the ranges from which nodes have their subnets."""
    join_subnets: Annotated[tuple[str, ...], Meta(max_length=2)] = ("100.64.0.0/16", "fd98::/64")
    """Of the default network: where the gateway router of the node with number n has address n."""
    primary_join_subnets: Annotated[tuple[str, ...], Meta(max_length=2)] = ("100.65.0.0/16", "fd99::/64")
    """The same for primary networks with names."""
    dns_service: str = "kube-system/kube-dns"
    """Service whose addresses guests are given for names; empty: none is given."""
    mtu: Annotated[int, Meta(ge=0, le=65535)] = 0
    """That guests of the default network are given; 0: none."""
    dhcp_router: DhcpRouter = "link-local"
    """The gateway that guests of the default network are given: ``169.254.1.1``, or that of the node where the VM was
    born (``subnet``)."""
    disable_source: bool = True
    """Whether the port that a VM of the default network has left is disabled at once, and not only once its pod is
    gone."""
    allocate: bool = True
    """Whether a VM's first pod is given addresses of its node; false: somebody else writes them into its annotation."""
    identities: str = ""
    """File with further identities that may write network annotations of pods (docs/operating/kubevirt-network.md)."""
    evpn: EvpnSettings = EvpnSettings()
    """Networks that an EVPN fabric carries."""

    def __post_init__(self) -> None:
        for cidr in (*(one.cidr for one in self.cluster_subnets), *self.join_subnets, *self.primary_join_subnets):
            ip_network(cidr)
        if self.dns_service and self.dns_service.count("/") != 1:
            raise ValueError(f"dnsService {self.dns_service!r} must be NAMESPACE/NAME")
        if self.follow and not self.cluster_subnets:
            raise ValueError("clusterSubnets is needed to follow pods: name those of the default network")

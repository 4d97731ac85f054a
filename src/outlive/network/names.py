"""Names and numbers that OVN's rows and Kubernetes' objects have (docs/design/network-decisions.md#names).

They are those that ovn-kubernetes writes, so that rows of Outlive can be read with the tools and habits that operators
already have.
"""

from __future__ import annotations

from typing import Final

PREFIX: Final = "k8s.ovn.org"
"""Of keys of rows and of Kubernetes' objects. Rows in a database may have another one (setting ``keyPrefix``), which
the driver replaces."""
ZONE_KEY: Final = f"{PREFIX}/zone"
LOCAL: Final = "local"
REMOTE: Final = "remote"
NAMESPACE_KEY: Final = f"{PREFIX}/namespace"
VM_KEY: Final = f"{PREFIX}/vm"
NAME_KEY: Final = f"{PREFIX}/name"
"""``namespace/vm`` on DHCP rows; other features give other rows a name of the same look."""
OWNER_KEY: Final = f"{PREFIX}/owner-controller"
OWNER_TYPE_KEY: Final = f"{PREFIX}/owner-type"
CIDR_KEY: Final = f"{PREFIX}/cidr"
ID_KEY: Final = f"{PREFIX}/id"
NETWORK_KEY: Final = f"{PREFIX}/network"
NAD_KEY: Final = f"{PREFIX}/nad"
TOPOLOGY_KEY: Final = f"{PREFIX}/topology"
OWNER_TYPE: Final = "VirtualMachine"
DEFAULT_CONTROLLER: Final = "default-network-controller"
DEFAULT_NETWORK: Final = "default"

CLUSTER_ROUTER: Final = "ovn_cluster_router"
PROXY_IPV4: Final = "169.254.1.1"
PROXY_IPV6: Final = "fe80::1"
PROXY_MAC: Final = "0a:58:a9:fe:01:01"
DHCPV6_SERVER_ID: Final = "0a:58:6d:6d:c1:50"
"""The MAC that belongs to ``PROXY_IPV6``, which is not ``PROXY_MAC``."""
LEASE_S: Final = 3500
POLICY_PRIORITY: Final = 10
"""Below every rule for traffic inside the cluster, which stays as it is."""

OWN_NAMESPACE: Final = "outlive.dev"
"""Of VMs of our own hosts, which have no namespace; no namespace of Kubernetes has a dot."""
OWN_CONTROLLER: Final = "outlive-network-controller"
"""Owner of rows for VMs and networks of our own hosts."""
INTERFACE_KEY: Final = "outlive.dev/interface"
"""On a port of a VM of our own hosts: the id of its interface in the VM's definition."""
HOST_KEY: Final = "outlive.dev/host"
"""On a port that one host alone may bind: that host."""
ISOLATED_KEY: Final = "outlive.dev/isolated."
"""Before the name of a host: it is isolated from that port through the epoch that is the value."""
NOBODY: Final = "outlive-isolated"
"""A chassis that does not exist: a port that requests it is bound nowhere."""

CHECK_PATH: Final = "/network/check"
"""Where a server compares OVN with what should be …"""
TRACE_PATH: Final = "/network/trace"
"""… and follows packets."""

POD_NETWORKS: Final = f"{PREFIX}/pod-networks"
ROUTED: Final = "routed"
LAYER2: Final = "layer2"
LOCALNET: Final = "localnet"


def own_switch(network: str, topology: str, host: str = "") -> str:
    """The logical switch of a network of our own hosts, on a routed one that of a host.

    Names of objects have no underscore, so that no two networks have a switch of one name.
    """
    return f"{network}_{host}" if topology == ROUTED else f"{network}_ovn_{topology}_switch"


def router_port(switch: str) -> str:
    """The cluster router's port to the switch of a hypervisor."""
    return f"rtos-{switch}"


def switch_of_router_port(port: str) -> str:
    """The switch that such a port leads to."""
    return port.removeprefix(router_port(""))


def switch_port_to_router(switch: str) -> str:
    """The port of a hypervisor's switch that leads to the cluster router."""
    return f"stor-{switch}"


def flatten_name(name: str) -> str:
    """A name of a network or of an attachment, as names of OVN rows have it."""
    return name.replace("-", ".").replace("/", ".")


def port_name(namespace: str, name: str, nad: str = DEFAULT_NETWORK) -> str:
    """The logical port of a pod, which is its interface's id too."""
    own = f"{namespace}_{name}"
    return own if nad == DEFAULT_NETWORK else f"{flatten_name(nad)}_{own}"


def controller_name(network: str) -> str:
    """The owner of a network's rows."""
    return f"{network}-network-controller"


def switch_name(network: str, topology: str) -> str:
    """The logical switch of a layer2 or localnet network of pods."""
    return f"{flatten_name(network)}_ovn_{topology}_switch"

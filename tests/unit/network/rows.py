"""A small routed network of three hypervisors, and rows of it to compare."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.network.builders import MAC

Row = dict[str, Any]
Rows = dict[str, list[Row]]
ROUTES, POLICIES, DHCP, PORTS = (
    "Logical_Router_Static_Route",
    "Logical_Router_Policy",
    "DHCP_Options",
    "Logical_Switch_Port",
)
FAMILIES = {
    "IPv4": ("10.44.7.23/24",),
    "IPv6": ("fd44:0:0:7::17/64",),
    "dual": ("10.44.7.23/24", "fd44:0:0:7::17/64"),
}
GATEWAYS = {"IPv4": ["10.44.7.1"], "IPv6": ["fd44:0:0:7::1"], "dual": ["10.44.7.1", "fd44:0:0:7::1"]}
JOIN = {"hv-a": ("100.64.0.7", "fd98::7"), "hv-b": ("100.64.0.9", "fd98::9"), "hv-c": ("100.64.0.11", "fd98::b")}
TRANSIT = {"hv-a": ("100.88.0.7", "fd97::7"), "hv-b": ("100.88.0.9", "fd97::9"), "hv-c": ("100.88.0.11", "fd97::b")}
SUBNETS = {"hv-a": "7", "hv-b": "9", "hv-c": "b"}
HYPERVISORS = {
    name: {
        "subnets": [f"10.44.{int(number, 16)}.0/24", f"fd44:0:0:{number}::/64"],
        "gatewayRouter": list(JOIN[name]),
        "transit": [f"{TRANSIT[name][0]}/16", f"{TRANSIT[name][1]}/64"],
        "chassis": f"c-{name}",
    }
    for name, number in SUBNETS.items()
}
CLUSTER = {
    "IPv4": [("10.44.0.0/16", 24)],
    "IPv6": [("fd44::/48", 64)],
    "dual": [("10.44.0.0/16", 24), ("fd44::/48", 64)],
}
IDS = {"k8s.ovn.org/namespace": "shop", "k8s.ovn.org/vm": "cart"}
LOCAL = {"k8s.ovn.org/zone": "local", **IDS}
REMOTE = {"k8s.ovn.org/zone": "remote", **IDS}


def as_sets(rows: Rows) -> dict[str, list[str]]:
    """Rows to compare: their order, and tables that are empty, mean nothing; every column counts."""
    return {table: sorted(json.dumps(row, sort_keys=True) for row in found) for table, found in rows.items() if found}


def copy(number: int, hypervisor: str | None, *, families: str = "dual", at: int | None = None, **changes: Any) -> Row:
    """A copy of ``shop/cart``: a pod that was created at minute ``at``."""
    return {
        "id": f"uid-{number}",
        "namespace": "shop",
        "name": f"virt-launcher-cart-{number}",
        "vm": {"namespace": "shop", "name": "cart"},
        "hypervisor": hypervisor,
        "created": f"2030-01-01T00:{number if at is None else at:02}:00Z",
        "completed": False,
        "hostNetwork": False,
        "migratable": True,
        "runsOn": None,
        "readyAt": None,
        "networks": {"default": {"mac": MAC, "addresses": list(FAMILIES[families]), "gateways": GATEWAYS[families]}},
    } | changes


def cluster_subnets(families: str = "dual") -> list[Row]:
    """The ranges of the cluster."""
    return [{"cidr": cidr, "hostPrefix": length} for cidr, length in CLUSTER[families]]


def question(zone: str, copies: list[Row], rows: Rows, *, families: str = "dual", **changes: Any) -> Row:
    """What ``network.follow`` gets in a zone: ``global`` or the name of a hypervisor."""
    return {
        "zoneMode": "global" if zone == "global" else "interconnect",
        "localHypervisors": list(HYPERVISORS) if zone == "global" else [zone],
        "hypervisors": HYPERVISORS,
        "clusterSubnets": cluster_subnets(families),
        "dnsServiceIPs": ["10.45.0.10"] if families == "IPv4" else ["10.45.0.10", "fd45::a"],
        "controller": "default-network-controller",
        "dhcpRouter": "link-local",
        "mtu": 1342,
        "vm": {"namespace": "shop", "name": "cart"},
        "copies": copies,
        "rows": rows,
    } | changes


def hosts(families: str) -> list[str]:
    """The VM's addresses without masks."""
    return [one.partition("/")[0] for one in FAMILIES[families]]


def next_hop(places: dict[str, tuple[str, str]], hypervisor: str, address: str) -> str:
    """The address of the hypervisor in the family of another one."""
    return places[hypervisor][":" in address]


def local_routes(hypervisor: str, families: str) -> list[Row]:
    """Routes of the zone where the VM is away from home."""
    return [
        {
            "ip_prefix": address,
            "nexthop": address,
            "policy": "dst-ip",
            "output_port": f"rtos-{hypervisor}",
            "external_ids": LOCAL,
        }
        for address in hosts(families)
    ]


def remote_routes(hypervisor: str, families: str) -> list[Row]:
    """Routes of the other zones."""
    return [
        {
            "ip_prefix": address,
            "nexthop": next_hop(TRANSIT, hypervisor, address),
            "policy": "dst-ip",
            "external_ids": REMOTE,
        }
        for address in hosts(families)
    ]


def policies(hypervisor: str, families: str) -> list[Row]:
    """Policies of ``global`` mode."""
    return [
        {
            "priority": 10,
            "match": f"ip{6 if ':' in address else 4}.src == {address}",
            "action": "reroute",
            "nexthops": [next_hop(JOIN, hypervisor, address)],
            "external_ids": LOCAL,
        }
        for address in hosts(families)
    ]


def catch_alls(hypervisor: str, families: str) -> list[Row]:
    """The ways out of a zone."""
    return [
        {"ip_prefix": cidr, "nexthop": next_hop(JOIN, hypervisor, cidr), "policy": "src-ip"}
        for cidr, _ in CLUSTER[families]
    ]


def dhcp_rows(families: str) -> list[Row]:
    """What the VM is told by DHCP, on every hypervisor."""
    v4 = {
        "dns_server": "10.45.0.10",
        "hostname": '"cart"',
        "lease_time": "3500",
        "mtu": "1342",
        "router": "169.254.1.1",
        "server_id": "169.254.1.1",
        "server_mac": "0a:58:a9:fe:01:01",
    }
    v6 = {"dns_server": "fd45::a", "fqdn": '"cart"', "server_id": "0a:58:6d:6d:c1:50"}
    return [
        {
            "cidr": cidr,
            "options": v6 if ":" in cidr else v4,
            "external_ids": {
                "k8s.ovn.org/owner-controller": "default-network-controller",
                "k8s.ovn.org/owner-type": "VirtualMachine",
                "k8s.ovn.org/name": "shop/cart",
                "k8s.ovn.org/cidr": cidr.replace(":", "."),
                "k8s.ovn.org/id": dhcp_id(cidr),
                "k8s.ovn.org/zone": "local",
            },
        }
        for cidr in home_subnets(families)
    ]


def home_subnets(families: str) -> list[str]:
    """The subnets where the VM was born."""
    return [
        {"10.44.7.23/24": "10.44.7.0/24", "fd44:0:0:7::17/64": "fd44:0:0:7::/64"}[one] for one in FAMILIES[families]
    ]


def dhcp_id(cidr: str) -> str:
    """By which ports refer to a DHCP row."""
    return f"default-network-controller:VirtualMachine:shop/cart:{cidr.replace(':', '.')}"


def port(
    number: int, hypervisor: str, families: str = "dual", *, enabled: bool | None = None, dhcp: bool = True
) -> Row:
    """The port of a copy; a disabled one has no addresses."""
    text = " ".join([MAC, *hosts(families)])
    row: Row = {
        "name": f"shop_virt-launcher-cart-{number}",
        "switch": hypervisor,
        "addresses": [text],
        "port_security": [text],
        "options": {"requested-chassis": f"c-{hypervisor}", "iface-id-ver": f"uid-{number}"},
        "external_ids": {"namespace": "shop", "pod": "true", **IDS},
    }
    if enabled is not None:
        row["enabled"] = enabled
    if enabled is False:
        del row["addresses"]
    for cidr in home_subnets(families) if dhcp else ():
        row[f"dhcpv{6 if ':' in cidr else 4}_options"] = dhcp_id(cidr)
    return row

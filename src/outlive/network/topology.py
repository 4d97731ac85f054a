"""Switches and routers of one network of our own hosts (docs/reference/network-decisions.md#networktopology).

A layer2 network is one switch, a localnet network one switch with a port to the physical network. On a routed network
each host has a switch with its subnets, and the cluster router has a port to each of them. All these ports have one
MAC, so that a guest's cached gateway stays right wherever it goes, and the link-local address from which it gets its
IPv6 default route is the same everywhere.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import Final, Literal

import msgspec

from outlive.network.gateway import ProxyInput, compose_arp_proxy
from outlive.network.names import (
    CLUSTER_ROUTER,
    LAYER2,
    LOCALNET,
    NETWORK_KEY,
    OWN_CONTROLLER,
    OWNER_KEY,
    PROXY_MAC,
    ROUTED,
    hypervisor_switch,
    router_port,
    switch_name,
    switch_port_to_router,
)
from outlive.network.operations import (
    PORTS,
    ROUTER_PORTS,
    ROUTERS,
    SWITCHES,
    Columns,
    Rows,
    RowsChange,
    RowsDraft,
    delete,
)
from outlive.network.owners import external_ids
from outlive.network.pool import gateway_of
from outlive.runtime.decisions import Decision


class Travellers(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What VMs on one host that have left home believe to be on their own link."""

    gateways: tuple[str, ...] = ()
    """Gateways of their home subnets."""
    neighbours: tuple[str, ...] = ()
    """Living addresses of their home subnets."""


class TopologyInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ``network.topology`` gets."""

    network: str
    type: Literal["routed", "layer2", "localnet"] | None = None
    """``None``: the network is gone."""
    physical_network: str = ""
    vlan: int = 0
    cluster_subnets: tuple[str, ...] = ()
    host_subnets: dict[str, tuple[str, ...]] = {}
    """On a routed network: host → its subnets."""
    travellers: dict[str, Travellers] = {}
    """Host → of its guests; only an OVN whose proxy does not take subnets needs them."""
    arp_proxy_full: bool = False
    """OVN's proxy takes subnets."""
    rows: Rows = {}


def plan_topology(given: TopologyInput) -> RowsChange:
    """The operations that make the network's switches, routers and their ports right; those of others stay."""
    draft = RowsDraft(given.rows)
    wanted = _wanted(given)
    for table, row in wanted:
        if table is not ROUTERS:
            row = {**row, "external_ids": {OWNER_KEY: OWN_CONTROLLER, NETWORK_KEY: given.network}}
        draft.replace(table, {"name": row["name"]}, row)
    names = {(table, row["name"]) for table, row in wanted}
    for table in (PORTS, ROUTER_PORTS, SWITCHES):
        gone = [
            row["name"]
            for row in draft.table(table)
            if is_of_network(row, given.network) and (table, row["name"]) not in names
        ]
        if gone:
            draft.add(delete(table, *({"name": name} for name in gone)))
    return draft.change()


def is_of_network(row: Columns, network: str) -> bool:
    """True for a part of the network itself; ports of VMs name their VM as well."""
    ids = external_ids(row)
    own = {OWNER_KEY: OWN_CONTROLLER, NETWORK_KEY: network}
    return bool(row.get("name")) and ids == own


def _wanted(given: TopologyInput) -> list[tuple[str, Columns]]:
    """Table and row of all that the network consists of."""
    if given.type in (LAYER2, LOCALNET):
        switch = switch_name(given.network, given.type)
        found: list[tuple[str, Columns]] = [(SWITCHES, {"name": switch})]
        if given.type == LOCALNET:
            port: Columns = {
                "name": f"{switch}_localnet",
                "switch": switch,
                "type": "localnet",
                "addresses": ["unknown"],
                "options": {"network_name": given.physical_network},
                "tag": given.vlan or None,
            }
            found.append((PORTS, port))
        return found
    if given.type != ROUTED:
        return []
    found = [(ROUTERS, {"name": CLUSTER_ROUTER})]
    for host, subnets in sorted(given.host_subnets.items()):
        switch = hypervisor_switch(host, given.network)
        networks = [f"{gateway_of(one)}/{ip_network(one).prefixlen}" for one in subnets]
        has_ipv6 = any(ip_network(one).version == 6 for one in subnets)
        advertised = {"address_mode": "dhcpv6_stateful", "send_periodic": "true"} if has_ipv6 else {}
        travellers = given.travellers.get(host, Travellers())
        proxy = compose_arp_proxy(
            ProxyInput(
                cluster_subnets=given.cluster_subnets,
                full=given.arp_proxy_full,
                gateways=travellers.gateways,
                neighbours=travellers.neighbours,
            )
        )
        found.append((SWITCHES, {"name": switch}))
        row: Columns = {
            "name": router_port(switch),
            "mac": PROXY_MAC,
            "networks": networks,
            "ipv6_ra_configs": advertised,
        }
        found.append((ROUTER_PORTS, row))
        port = {
            "name": switch_port_to_router(switch),
            "switch": switch,
            "type": "router",
            "addresses": ["router"],
            "options": {"router-port": router_port(switch), "arp_proxy": proxy},
        }
        found.append((PORTS, port))
    return found


TOPOLOGY: Final = Decision(
    "network.topology",
    plan_topology,
    TopologyInput,
    RowsChange,
    "The switches and routers of one network of our own hosts",
    nulls_are_absent=True,
)

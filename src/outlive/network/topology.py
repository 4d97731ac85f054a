"""Switches and routers of one network of our own hosts (docs/design/network-decisions.md#networktopology).

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
    own_switch,
    router_port,
    switch_of_router_port,
    switch_port_to_router,
)
from outlive.network.operations import (
    PORTS,
    ROUTER_PORTS,
    ROUTERS,
    SWITCHES,
    Columns,
    Op,
    Rows,
    delete,
    is_same_row,
    patch_row,
    replacing_patch,
    upsert,
    without_empty,
)
from outlive.network.owners import ForeignRow, foreign_row, is_part_of, occupied_switches
from outlive.network.pool import gateway_of
from outlive.network.ports import Scope
from outlive.runtime import Decision


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


class TopologyResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What ``network.topology`` answers."""

    ops: tuple[Op, ...]
    """Only what changes something. In this order, any first part of them may be committed by itself."""
    rows: Rows
    """The tables after them, all of them."""
    occupied: tuple[str, ...] = ()
    """Switches that the network is not to have, and keeps with their ports because some are of VMs."""
    foreign: tuple[ForeignRow, ...] = ()
    """Rows of others in place of ours; what hangs together with one of them is left as it is."""


def plan_topology(given: TopologyInput) -> TopologyResult:
    """The operations that make the network's switches, routers and their ports right; those of others stay.

    What is gone goes first, so that no two ports of the router ever have one subnet. A switch with ports of VMs stays
    when its host or network is removed: the ports would go with it.
    """
    rows, units, ops = without_empty(given.rows), wanted_rows(given), list[Op]()
    occupied, kept_switches = occupied_switches(rows), set[str]()
    names = {(table, row["name"]) for unit in units for table, row in unit}
    ours = {OWNER_KEY: OWN_CONTROLLER, NETWORK_KEY: given.network}
    for table in (PORTS, ROUTER_PORTS, SWITCHES):
        kept, gone = list[Columns](), list[Columns]()
        for row in rows.get(table, []):
            is_gone = row.get("name") and is_part_of(row, given.network) and (table, row["name"]) not in names
            if is_gone and (switch := _switch_of(table, row)) in occupied:
                kept_switches.add(switch)
                is_gone = False
            (gone if is_gone else kept).append(row)
        if gone:
            ops.append(delete(table, *({"name": row["name"], "external_ids": ours} for row in gone)))
            rows[table] = kept
    tables: dict[str, dict[str, list[Columns]]] = {table: {} for table in (ROUTERS, SWITCHES, ROUTER_PORTS, PORTS)}
    for table, by_name in tables.items():
        for row in rows.get(table, []):
            by_name.setdefault(row.get("name", ""), []).append(row)
    foreign: list[ForeignRow] = []
    for unit in units:
        found = [(table, row, tables[table].get(row["name"], [])) for table, row in unit]
        others = [
            foreign_row(table, one)
            for table, _, ones in found
            for one in ones
            if table is not ROUTERS and not is_part_of(one, given.network)
        ]
        foreign += others
        for table, row, ones in found if not others else ():
            patch = replacing_patch(ones, row if table is ROUTERS else {**row, "external_ids": ours})
            after = patch_row(ones[0] if ones else {}, patch)
            if len(ones) != 1 or not is_same_row(ones[0], after):
                ops.append(upsert(table, {"name": row["name"]}, patch))
                tables[table][row["name"]] = [after]
    for table, by_name in tables.items():
        if by_name:
            rows[table] = [row for ones in by_name.values() for row in ones]
    return TopologyResult(ops=tuple(ops), rows=rows, occupied=tuple(sorted(kept_switches)), foreign=tuple(foreign))


def _switch_of(table: str, row: Columns) -> str:
    """The switch that this part of a network is, is on, or leads to."""
    if table == ROUTER_PORTS:
        return switch_of_router_port(row["name"])
    return str(row["name"] if table == SWITCHES else row.get("switch", ""))


def topology_scope(given: TopologyInput) -> Scope:
    """The rows that the plan of this network reads: its own, and all that have one of their names."""
    wanted = [(table, row["name"]) for unit in wanted_rows(given) for table, row in unit]
    return Scope(
        networks=(given.network,),
        names=tuple(name for table, name in wanted if table is not PORTS),
        ports=tuple(name for table, name in wanted if table is PORTS),
    )


def wanted_rows(given: TopologyInput) -> list[list[tuple[str, Columns]]]:
    """Table and row of all that the network consists of, by what hangs together, each after what it hangs on.

    The cluster router is everybody's: it is made where it is missing, and else left as it is.
    """
    if given.type in (LAYER2, LOCALNET):
        switch = own_switch(given.network, given.type)
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
        return [found]
    if given.type != ROUTED:
        return []
    units: list[list[tuple[str, Columns]]] = [[(ROUTERS, {"name": CLUSTER_ROUTER})]]
    for host, subnets in sorted(given.host_subnets.items()):
        switch = own_switch(given.network, ROUTED, host)
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
        row: Columns = {
            "name": router_port(switch),
            "mac": PROXY_MAC,
            "networks": networks,
            "ipv6_ra_configs": advertised,
        }
        port = {
            "name": switch_port_to_router(switch),
            "switch": switch,
            "type": "router",
            "addresses": ["router"],
            "options": {"router-port": router_port(switch), "arp_proxy": proxy},
        }
        units.append([(SWITCHES, {"name": switch}), (ROUTER_PORTS, row), (PORTS, port)])
    return units


TOPOLOGY: Final = Decision(
    "network.topology",
    plan_topology,
    TopologyInput,
    TopologyResult,
    "The switches and routers of one network of our own hosts",
    nulls_are_absent=True,
)

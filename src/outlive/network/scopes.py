"""Which rows a scope has, said once: drivers answer the same by their indexes."""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Final

from outlive.network.names import CLUSTER_ROUTER, ISOLATED_KEY, NAME_KEY, NAMESPACE_KEY, NETWORK_KEY, VM_KEY
from outlive.network.operations import (
    DHCP,
    POLICIES,
    PORTS,
    ROUTER_PORTS,
    ROUTERS,
    ROUTES,
    SWITCHES,
    Columns,
    Rows,
)
from outlive.network.ports import Scope

_ADDRESS: Final = re.compile(r"(?<![\w.:])[0-9a-f]*[.:][0-9a-f.:]*(?:/\d+)?")


def without_host_mask(prefix: str) -> str:
    """The prefix, without the mask if it is a single address."""
    address, _, mask = prefix.partition("/")
    return address if mask == ("128" if ":" in address else "32") else prefix


def prefix_bounds(prefix: str) -> tuple[int, int, int]:
    """Version, first address and length; of a text that is none, zeros."""
    try:
        network = ip_network(prefix, strict=False)
    except ValueError:
        return (0, 0, 0)
    return (network.version, int(network.network_address), network.prefixlen)


def is_within(inner: tuple[int, int, int], outer: tuple[int, int, int]) -> bool:
    """True if one prefix, by its bounds, is the other or a part of it."""
    shift = (32 if outer[0] == 4 else 128) - outer[2]
    return inner[0] == outer[0] and inner[2] >= outer[2] and inner[1] >> shift == outer[1] >> shift


def match_addresses(match: str) -> set[str]:
    """The addresses and prefixes that a policy's match names."""
    return {without_host_mask(one) for one in _ADDRESS.findall(match)}


def row_vm(table: str, row: Columns) -> str:
    """The VM of a row, as ``namespace/name``; empty: it names none."""
    ids = row.get("external_ids") or {}
    if table == DHCP:
        return str(ids.get(NAME_KEY, ""))
    if table in (PORTS, ROUTES, POLICIES) and ids.get(NAMESPACE_KEY) and ids.get(VM_KEY):
        return f"{ids[NAMESPACE_KEY]}/{ids[VM_KEY]}"
    return ""


def row_network(table: str, row: Columns) -> str:
    """The network that the row is a part of itself; empty: none, or it is a port of a VM."""
    ids = row.get("external_ids") or {}
    if table in (SWITCHES, ROUTER_PORTS, PORTS) and not ids.get(VM_KEY):
        return str(ids.get(NETWORK_KEY, ""))
    return ""


def is_marked(row: Columns) -> bool:
    """True for a port that some host is isolated from."""
    return any(key.startswith(ISOLATED_KEY) for key in row.get("external_ids") or {})


def is_in_scope(table: str, row: Columns, scope: Scope) -> bool:
    """True if the scope has the row by what is in it."""
    if row_vm(table, row) in {str(vm) for vm in scope.vms}:
        return True
    hosts = {without_host_mask(one) for one in scope.addresses}
    if row_network(table, row) in scope.networks or (table == PORTS and scope.isolated and is_marked(row)):
        return True
    if table == ROUTERS and scope.networks and row.get("name") == CLUSTER_ROUTER:
        return True
    if table == PORTS:
        return row.get("name") in scope.ports
    if table in (SWITCHES, ROUTERS, ROUTER_PORTS):
        return row.get("name") in scope.names
    if table == POLICIES:
        return not hosts.isdisjoint(match_addresses(row.get("match", "")))
    if table == ROUTES:
        prefix = row.get("ip_prefix", "")
        return without_host_mask(prefix) in hosts or any(
            is_within(prefix_bounds(prefix), prefix_bounds(one)) for one in scope.addresses if "/" in one
        )
    return False


def scoped_rows(rows: Rows, scope: Scope) -> Rows:
    """The rows of a scope."""
    if scope == Scope():
        return {table: list(found) for table, found in rows.items()}
    switches = {row.get("name") for row in rows.get(SWITCHES, ()) if row_network(SWITCHES, row) in scope.networks}
    found = {
        table: [
            row for row in all if is_in_scope(table, row, scope) or (table == PORTS and row.get("switch") in switches)
        ]
        for table, all in rows.items()
    }
    return {table: some for table, some in found.items() if some}

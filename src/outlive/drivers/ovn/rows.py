"""The northbound rows as decisions see them, and indexes by which a scope is read in the time of its own rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import msgspec

from outlive.drivers.ovn.replica import NeededColumns, Replica, Row
from outlive.network import (
    CLUSTER_ROUTER,
    DHCP,
    ID_KEY,
    POLICIES,
    PORTS,
    ROUTER_PORTS,
    ROUTERS,
    ROUTES,
    SWITCHES,
    Columns,
    Rows,
    Scope,
    is_marked,
    is_within,
    match_addresses,
    prefix_bounds,
    row_names,
    row_network,
    row_vm,
    without_host_mask,
)

GLOBAL: Final = "NB_Global"


TABLES: Final = {
    ROUTES: NeededColumns(
        ("ip_prefix", "nexthop", "output_port", "policy", "options", "external_ids"), ("route_table",)
    ),
    POLICIES: NeededColumns(("priority", "match", "action", "nexthop", "nexthops", "external_ids"), ("options",)),
    DHCP: NeededColumns(("cidr", "options", "external_ids")),
    PORTS: NeededColumns(
        (
            "name",
            "type",
            "enabled",
            "addresses",
            "port_security",
            "options",
            "external_ids",
            "dhcpv4_options",
            "dhcpv6_options",
            "tag",
        )
    ),
    SWITCHES: NeededColumns(("name", "ports", "other_config", "external_ids")),
    ROUTERS: NeededColumns(("name", "ports", "static_routes", "policies", "options", "external_ids")),
    ROUTER_PORTS: NeededColumns(("name", "mac", "networks", "options", "external_ids", "ipv6_ra_configs", "enabled")),
    GLOBAL: NeededColumns(("nb_cfg", "sb_cfg", "options"), ("nb_cfg_timestamp", "sb_cfg_timestamp")),
}


class Parent(msgspec.Struct, frozen=True):
    """Where the rows of a table hang."""

    table: str
    column: str
    name: str
    """The column in which rows name it."""
    default: str = ""
    """The one that they do not name."""


PARENTS: Final = {
    PORTS: Parent(SWITCHES, "ports", "switch"),
    ROUTES: Parent(ROUTERS, "static_routes", "router", CLUSTER_ROUTER),
    POLICIES: Parent(ROUTERS, "policies", "router", CLUSTER_ROUTER),
    ROUTER_PORTS: Parent(ROUTERS, "ports", "router", CLUSTER_ROUTER),
}
CHILDREN: Final = {(parent.table, parent.column): table for table, parent in PARENTS.items()}
"""Table and column → the table of the rows that hang there."""
REFERENCES: Final = ("dhcpv4_options", "dhcpv6_options")
"""Columns of ports that name a DHCP row."""
_Key = tuple[str, str]


class NorthboundRows:
    """Follows a replica; see the module. In the replica's thread only."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.parents: dict[str, dict[str, str]] = {table: {} for table in PARENTS}
        """By table the uuid of the parent by that of the row."""
        self._index: dict[str, dict[_Key, tuple[str, ...]]] = {table: {} for table in TABLES}
        self._prefixes: dict[str, tuple[int, int, int]] = {}
        """Of routes: version, first address and length by text."""
        self.noticed: list[tuple[str, str, frozenset[str]]] = []
        """What changed: table, uuid, and the names under which it is published."""
        self.is_new = True
        """All rows came anew, so that nobody knows what changed."""
        replica.observers.append(self)

    # --- reading

    def read(self, scope: Scope) -> Rows:
        """The rows of a scope, copied."""
        if scope == Scope():
            return {table: [self.view(table, uuid) for uuid in self.replica.rows[table]] for table in _shown_tables()}
        found = {table: self._find_scoped(table, scope) for table in _shown_tables()}
        return {table: [self.view(table, uuid) for uuid in uuids] for table, uuids in found.items() if uuids}

    def view(self, table: str, uuid: str) -> Columns:
        """One row as decisions see it."""
        row = self.replica.rows[table][uuid]
        types = self.replica.types[table]
        seen: Columns = {
            name: value.copy() if isinstance(value, (dict, list)) else value
            for name, value in row.items()
            if not types[name].is_reference
        }
        for name in REFERENCES:
            if name in seen:
                seen[name] = self.dhcp_id(seen[name])
        parent = PARENTS.get(table)
        if parent is not None:
            holder = self.replica.rows[parent.table].get(self.parents[table].get(uuid, ""), {})
            if holder.get("name", "") != parent.default:
                seen[parent.name] = holder.get("name", "")
        return seen

    def dhcp_id(self, uuid: str) -> str:
        """By what a port names a DHCP row: its id, of others' rows the uuid."""
        row = self.replica.rows[DHCP].get(uuid, {})
        return str(row.get("external_ids", {}).get(ID_KEY, uuid))

    def find_candidates(self, table: str, where: Columns) -> Collection[str]:
        """The uuids of all rows that may have these columns."""
        keys = _row_keys(table, where)
        if not keys:
            return self.replica.rows[table]
        return min((self._index[table].get(key, ()) for key in keys), key=len)

    def find_named(self, table: str, name: str) -> str:
        """The uuid of the first row of this name; empty: there is none."""
        return min(self._index[table].get(("name", name), ("",)))

    def dhcp_row(self, id: str) -> str:
        """The uuid of the DHCP row of this id; empty: there is none."""
        found = self._index[DHCP].get(("id", id), ())
        return min(found) if found else id if id in self.replica.rows[DHCP] else ""

    # --- following

    def note(self, table: str, uuid: str, old: Row | None, new: Row | None) -> None:
        """Index the row, and note under which names its change is published."""
        self._link_children(table, uuid, old or {}, new or {})
        before = set(_row_keys(table, old)) if old is not None else set()
        after = set(_row_keys(table, new)) if new is not None else set()
        index = self._index[table]
        for key in before - after:
            rest = tuple(one for one in index[key] if one != uuid)
            if rest:
                index[key] = rest
            else:
                del index[key]
                self._prefixes.pop(key[1], None) if key[0] == "prefix" else None
        for key in after - before:
            index[key] = (*index.get(key, ()), uuid)
            if key[0] == "prefix":
                self._prefixes[key[1]] = prefix_bounds(key[1])
        if not self.is_new and _is_changed(self.replica, table, old, new):
            names = row_names(table, old or {}) | row_names(table, new or {})
            if names:
                self.noticed.append((table, uuid, names))

    def forget(self) -> None:
        """Forget everything."""
        for index in self._index.values():
            index.clear()
        for parents in self.parents.values():
            parents.clear()
        self._prefixes.clear()
        self.noticed.clear()
        self.is_new = True

    def take_names(self, own: Mapping[str, int]) -> frozenset[str] | None:
        """The names of what others changed since the last time, empty for everything; ``None``: nothing.

        ``own``: how often this client wrote a row. The row counts only if it changed more often.
        """
        if self.is_new:
            self.is_new = False
            self.noticed.clear()
            return frozenset()
        times: dict[str, int] = {}
        for _, uuid, _ in self.noticed:
            times[uuid] = times.get(uuid, 0) + 1
        names = [names for _, uuid, names in self.noticed if times[uuid] > own.get(uuid, 0)]
        self.noticed.clear()
        return frozenset().union(*names) if names else None

    # --- below

    def _find_scoped(self, table: str, scope: Scope) -> list[str]:
        """The rows of a scope in one table, each once, in a fixed order."""
        index, found = self._index[table], dict[str, None]()
        for key in _scope_keys(table, scope):
            found.update(dict.fromkeys(index.get(key, ())))
        if table == PORTS:
            for network in scope.networks:
                for switch in self._index[SWITCHES].get(("network", network), ()):
                    ports = self.replica.rows[SWITCHES][switch].get("ports", ())
                    found.update(dict.fromkeys(one for one in sorted(ports) if one in self.replica.rows[PORTS]))
        if table == ROUTES:
            for cidr in (one for one in scope.addresses if "/" in one):
                outer = prefix_bounds(cidr)
                for text in [text for text, bounds in self._prefixes.items() if is_within(bounds, outer)]:
                    found.update(dict.fromkeys(index.get(("prefix", text), ())))
        return list(found)

    def _link_children(self, table: str, uuid: str, old: Row, new: Row) -> None:
        for (above, column), child in CHILDREN.items():
            if above == table and old.get(column) is not new.get(column):
                parents = self.parents[child]
                before, after = old.get(column, frozenset()), new.get(column, frozenset())
                for one in before - after:
                    if parents.get(one) == uuid:
                        del parents[one]
                parents.update(dict.fromkeys(after - before, uuid))


def _shown_tables() -> Iterable[str]:
    return (table for table in TABLES if table != GLOBAL)


def _row_keys(table: str, row: Columns) -> list[_Key]:
    """By what a row is found."""
    keys: list[_Key] = [("name", row["name"])] if row.get("name") else []
    if network := row_network(table, row):
        keys.append(("network", network))
    if table == PORTS and is_marked(row):
        keys.append(("isolated", ""))
    if vm := row_vm(table, row):
        keys.append(("vm", vm))
    if table == DHCP and (row.get("external_ids") or {}).get(ID_KEY):
        keys.append(("id", row["external_ids"][ID_KEY]))
    elif table == ROUTES and row.get("ip_prefix"):
        keys.append(("prefix", without_host_mask(row["ip_prefix"])))
    elif table == POLICIES and row.get("match"):
        keys += [("match", one) for one in match_addresses(row["match"])]
    return keys


def _scope_keys(table: str, scope: Scope) -> list[_Key]:
    keys: list[_Key] = []
    if table in (ROUTES, POLICIES, DHCP, PORTS):
        keys += [("vm", str(vm)) for vm in scope.vms]
    if table == PORTS:
        keys += [("name", name) for name in scope.ports]
    if table in (SWITCHES, ROUTERS, ROUTER_PORTS):
        keys += [("name", name) for name in scope.names]
    if table in (SWITCHES, ROUTER_PORTS, PORTS):
        keys += [("network", name) for name in scope.networks]
    if table == ROUTERS and scope.networks:
        keys.append(("name", CLUSTER_ROUTER))
    if table == PORTS and scope.isolated:
        keys.append(("isolated", ""))
    if table in (ROUTES, POLICIES):
        keys += [("prefix" if table == ROUTES else "match", without_host_mask(address)) for address in scope.addresses]
    return keys


def _is_changed(replica: Replica, table: str, old: Row | None, new: Row | None) -> bool:
    """True if more than references to other rows changed."""
    if old is None or new is None:
        return True
    types: dict[str, Any] = replica.types[table]
    return any(old.get(name) != new.get(name) for name in {*old, *new} if not types[name].is_reference)

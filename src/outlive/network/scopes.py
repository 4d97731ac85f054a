"""Which rows a scope has: drivers answer the same by their indexes; and how changes of others are published."""

from __future__ import annotations

import asyncio
import re
from ipaddress import ip_network
from typing import Final
from weakref import WeakValueDictionary

from outlive.network.names import (
    CLUSTER_ROUTER,
    ISOLATED_KEY,
    NAME_KEY,
    NAMESPACE_KEY,
    NETWORK_KEY,
    OWN_CONTROLLER,
    OWN_NAMESPACE,
    OWNER_KEY,
    VM_KEY,
)
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
from outlive.network.owners import external_ids
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


# How changes of others are published: by names, in batches.

NAMES_LIMIT: Final = 10_000
"""A batch of more names becomes the empty one, which means everything."""
OWN_NETWORK: Final = f"{OWN_NAMESPACE}/network/"
"""Before the name of a network of our own hosts; no VM has a slash in its name."""


def row_names(table: str, row: Columns) -> frozenset[str]:
    """The names under which a change of the row is published: its own, and that of its VM, or of its network."""
    names = {str(row.get("name", "")), row_vm(table, row)} - {""}
    if external_ids(row).get(OWNER_KEY) == OWN_CONTROLLER and (network := row_network(table, row)):
        names.add(OWN_NETWORK + network)
    return frozenset(names)


class ChangeReader:
    """An endless iterator over batches of names: what has come since the batch before, all in one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._batch: frozenset[str] | None = None

    def add(self, names: frozenset[str]) -> None:
        """Add to the batch; empty: everything."""
        before = self._batch
        if before is None:
            self._batch = names
        elif before and names and len(before) + len(names) <= NAMES_LIMIT:
            self._batch = before | names
        else:
            self._batch = frozenset()
        self._event.set()

    def __aiter__(self) -> ChangeReader:
        return self

    async def __anext__(self) -> frozenset[str]:
        await self._event.wait()
        self._event.clear()
        batch, self._batch = self._batch, None
        return batch or frozenset()


class ChangeBatches:
    """Publishes names to any number of readers; one that nobody holds any more is forgotten."""

    def __init__(self) -> None:
        self._readers: WeakValueDictionary[int, ChangeReader] = WeakValueDictionary()
        self._number = 0

    def publish(self, names: frozenset[str]) -> None:
        """Add to everybody's batch; empty: everything."""
        for reader in list(self._readers.values()):
            reader.add(names)

    def read(self) -> ChangeReader:
        """The batches from now on."""
        reader = ChangeReader()
        self._number += 1
        self._readers[self._number] = reader
        return reader

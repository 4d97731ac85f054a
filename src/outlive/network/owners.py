"""Whose a row is: the keys in its external ids that say so.

Other features name their rows ``namespace/name`` too. Only rows of routes, policies and DHCP with the zone key are
those of VMs; ports carry the keys of namespace and VM alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from outlive.network.copies import VmKey
from outlive.network.names import (
    NAME_KEY,
    NAMESPACE_KEY,
    NETWORK_KEY,
    OWN_CONTROLLER,
    OWNER_KEY,
    VM_KEY,
    ZONE_KEY,
)
from outlive.network.operations import PORTS, ROUTER_PORTS, ROUTES, SWITCHES, Columns, Op, Rows, delete

_KEYS: Final = (ZONE_KEY, OWNER_KEY, NAME_KEY, NAMESPACE_KEY, VM_KEY)
"""All that decides whose a row is."""

_NOUNS: Final = {
    SWITCHES: "logical switch",
    ROUTER_PORTS: "logical router port",
    PORTS: "logical switch port",
    ROUTES: "route of the cluster router to",
}


class ForeignRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A row that has the name, or the place, of one of ours and belongs to somebody else: it stays as it is."""

    row: str
    """Which row it is, in words."""
    owner: str
    """Whose it is, in words."""


def external_ids(row: Columns) -> Mapping[str, str]:
    """The row's external ids; empty where it has none."""
    ids = row.get("external_ids")
    return ids if isinstance(ids, dict) else {}


def vm_in(ids: Mapping[str, str]) -> VmKey | None:
    """The VM that external ids name: by ``namespace/name``, else by the keys of namespace and VM."""
    parts = ids.get(NAME_KEY, "").split("/")
    if len(parts) == 2:
        return VmKey(*parts)
    namespace, name = ids.get(NAMESPACE_KEY, ""), ids.get(VM_KEY, "")
    return VmKey(namespace, name) if namespace and name else None


def is_on_cluster_router(row: Columns) -> bool:
    """True for a route or policy of the cluster router, which such a row does not name."""
    return not row.get("router")


def is_of_vm(row: Columns, vm: VmKey, zone: str | None = None) -> bool:
    """True for a route, policy or DHCP row that was made for the VM; with ``zone``, for its copies there."""
    ids = external_ids(row)
    return ZONE_KEY in ids and zone in (None, ids[ZONE_KEY]) and vm_in(ids) == vm and is_on_cluster_router(row)


def delete_rows(table: str, rows: Iterable[Columns]) -> tuple[Op, ...]:
    """The operation that deletes these rows and all that have the same owner; none for no rows."""
    found = {tuple(external_ids(row).get(key) for key in _KEYS) for row in rows}
    if not found:
        return ()
    where = [dict(zip(_KEYS, values, strict=True)) for values in sorted(found, key=str)]
    return (delete(table, *({"external_ids": ids, "router": None} for ids in where)),)


def vm_keys(vm: VmKey) -> dict[str, str]:
    """The external ids by which rows of the VM are found."""
    return {NAMESPACE_KEY: vm.namespace, VM_KEY: vm.name}


def is_part_of(row: Columns, network: str) -> bool:
    """True for a part of that network of our own hosts itself; a port of a VM is none."""
    ids = external_ids(row)
    return ids.get(OWNER_KEY) == OWN_CONTROLLER and ids.get(NETWORK_KEY) == network and VM_KEY not in ids


def occupied_switches(rows: Rows) -> set[str]:
    """Names of the switches that have ports of VMs: OVN deletes ports with their switch."""
    return {row["switch"] for row in rows.get(PORTS, ()) if row.get("switch") and VM_KEY in external_ids(row)}


def belongs_to(row: Columns, vm: VmKey) -> bool:
    """True for a row that the network controller made for that VM of our own hosts."""
    return external_ids(row).get(OWNER_KEY) == OWN_CONTROLLER and vm_in(external_ids(row)) == vm


def foreign_row(table: str, row: Columns) -> ForeignRow:
    """The row as it is reported to users."""
    ids = external_ids(row)
    owner, vm = ids.get(OWNER_KEY, ""), vm_in(ids)
    if owner != OWN_CONTROLLER:
        whose = owner or "somebody else"
    elif vm is None:
        whose = f"network {ids.get(NETWORK_KEY, '')}"
    else:
        whose = f"VM {vm.name}"
    return ForeignRow(row=f"{_NOUNS[table]} {row.get('name') or row.get('ip_prefix')}", owner=whose)

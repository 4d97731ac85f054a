"""What is to change in a northbound database: operations as data, and what they make of rows.

Decisions answer operations, drivers carry them out, ``apply`` says what becomes of rows. An operation is a merge patch
(RFC 7396) of the first row that it finds: columns that the patch names are set, those that it gives as ``None`` are
emptied, and of maps (``options``, ``external_ids``) single keys; all else stays as it is. Further rows that it finds
are duplicates and go. Where it finds none, a row is made of the patch.

Rows are dictionaries of OVN's columns, without those that are empty or not set. A port names its switch in ``switch``
and its DHCP rows by their id; a router's port, route or policy names its router in ``router`` unless that is the
cluster's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from outlive.network.names import ID_KEY

Columns = dict[str, Any]
"""By name: text, number, truth, list of texts, or map of texts to texts. In a patch ``None`` empties."""
Rows = dict[str, list[Columns]]
"""By table. A table that is not there is empty."""

ROUTES: Final = "Logical_Router_Static_Route"
POLICIES: Final = "Logical_Router_Policy"
DHCP: Final = "DHCP_Options"
PORTS: Final = "Logical_Switch_Port"
SWITCHES: Final = "Logical_Switch"
ROUTERS: Final = "Logical_Router"
ROUTER_PORTS: Final = "Logical_Router_Port"
TABLES: Final = (ROUTES, POLICIES, DHCP, PORTS)
"""Those of the decisions; the others are a network's own switches and routers."""
LIMIT: Final = 200
"""Operations of one plan; a larger one is refused."""


class Op(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One operation; see the module."""

    op: Literal["UpsertRoute", "UpsertPolicy", "UpsertDhcp", "SetPort", "Upsert", "DeleteWhere"]
    table: str
    where: tuple[Columns, ...]
    """Any of these: a row is found if it has all the columns of one of them; of maps, all its keys."""
    patch: Columns = {}
    """Empty for ``DeleteWhere``."""


class RowsChange(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be done in one transaction, and what comes of it."""

    ops: tuple[Op, ...]
    """Only what changes something."""
    rows: Rows
    """All tables after it."""


_UPSERTS: Final[Mapping[str, Literal["UpsertRoute", "UpsertPolicy", "UpsertDhcp", "SetPort"]]] = {
    ROUTES: "UpsertRoute",
    POLICIES: "UpsertPolicy",
    DHCP: "UpsertDhcp",
    PORTS: "SetPort",
}


def upsert(table: str, where: Columns | Sequence[Columns], patch: Columns) -> Op:
    """Set what the patch names in the row that is found; make it where there is none."""
    found = (where,) if isinstance(where, dict) else tuple(where)
    return Op(op=_UPSERTS.get(table, "Upsert"), table=table, where=found, patch=patch)


def delete(table: str, *where: Columns) -> Op:
    """Delete every row that is found."""
    return Op(op="DeleteWhere", table=table, where=where)


def has(row: Columns, columns: Columns) -> bool:
    """True if the row has these columns; of maps, these keys. ``None``: the row does not have it."""
    for name, wanted in columns.items():
        value = row.get(name)
        if isinstance(wanted, dict) and isinstance(value, dict):
            if any(value.get(key) != one for key, one in wanted.items()):
                return False
        elif value != wanted:
            return False
    return True


def find(rows: Iterable[Columns], where: Sequence[Columns]) -> list[Columns]:
    """The rows that an operation finds, in their order."""
    return [row for row in rows if any(has(row, one) for one in where)]


def patched(row: Columns, patch: Columns) -> Columns:
    """The row after the patch; columns that are empty now are left out."""
    after = dict(row)
    for name, value in patch.items():
        if isinstance(value, dict):
            merged = {**after.get(name, {}), **value}
            value = {key: one for key, one in merged.items() if one is not None}
        if value is None or value == [] or value == {}:
            after.pop(name, None)
        else:
            after[name] = value
    return after


def apply(rows: Rows, ops: Iterable[Op]) -> Rows:
    """The tables after these operations, all of them; what is given stays as it is.

    Ports no longer refer to DHCP rows that are gone, as OVSDB has it.
    """
    after: Rows = {table: list(found) for table, found in rows.items()}
    for op in ops:
        table = after.setdefault(op.table, [])
        found = find(table, op.where)
        if op.op == "DeleteWhere":
            after[op.table] = [row for row in table if not any(row is one for one in found)]
            if op.table == DHCP and found:
                gone = {row.get("external_ids", {}).get(ID_KEY) for row in found}
                after[PORTS] = [_without(port, gone) for port in after.get(PORTS, [])]
        elif found:
            kept = [row for row in table if not any(row is one for one in found[1:])]
            after[op.table] = [patched(row, op.patch) if row is found[0] else row for row in kept]
        else:
            table.append(patched({}, op.patch))
    return after


def needed(rows: Rows, ops: Iterable[Op]) -> list[Op]:
    """Those of the operations that change something, each after the ones before it."""
    left: list[Op] = []
    for op in ops:
        after = apply(rows, (op,))
        if after.get(op.table, []) != rows.get(op.table, []):
            left.append(op)
            rows = after
    return left


def change_rows(rows: Rows, ops: Iterable[Op]) -> RowsChange:
    """Those of the operations that change something, and the tables after them."""
    left = needed(rows, ops)
    return RowsChange(ops=tuple(left), rows=apply(rows, left))


def _without(port: Columns, gone: Iterable[str | None]) -> Columns:
    names = [name for name in ("dhcpv4_options", "dhcpv6_options") if port.get(name) in gone and name in port]
    return {name: value for name, value in port.items() if name not in names} if names else port

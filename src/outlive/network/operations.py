"""What is to change in a northbound database: operations as data, and what they make of rows.

Decisions answer operations, drivers carry them out, ``apply`` says what becomes of rows. An operation is a merge patch
(RFC 7396) of the first row that it finds: columns that the patch names are set, those that it gives as ``None`` are
emptied, and of maps (``options``, ``external_ids``) single keys; all else stays as it is. Further rows that it finds
are duplicates and go. Where it finds none, a row is made of the patch.

Rows are dictionaries of OVN's columns, without those that are empty or not set; an empty text is empty, and the order
of a list means nothing. A port names its switch in ``switch`` and its DHCP rows by their id; a router's port, route or
policy names its router in ``router`` unless that is the cluster's.
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
    """True if the row has these columns; of maps, these keys. ``None``: the row does not have the column or the key."""
    return all(_read_value(row, place) == value for place, value in _flatten(columns))


def find(rows: Iterable[Columns], where: Sequence[Columns]) -> list[Columns]:
    """The rows that an operation finds, in their order. Conditions of one form cost as much as one of them."""
    forms: dict[tuple[_Place, ...], set[tuple[Any, ...]]] = {}
    for columns in where:
        flat = _flatten(columns)
        forms.setdefault(tuple(place for place, _ in flat), set()).add(tuple(value for _, value in flat))
    return [
        row
        for row in rows
        if any(tuple(_read_value(row, place) for place in form) in values for form, values in forms.items())
    ]


_Place = tuple[str, str | None]
"""A column, or a key of a map."""


def _flatten(columns: Columns) -> list[tuple[_Place, Any]]:
    flat: list[tuple[_Place, Any]] = []
    for name, value in columns.items():
        if isinstance(value, dict):
            flat += [((name, key), one) for key, one in value.items()]
        else:
            flat.append(((name, None), _normalise_value(value)))
    return sorted(flat, key=lambda one: (one[0][0], one[0][1] or ""))


def _read_value(row: Columns, place: _Place) -> Any:
    name, key = place
    value = row.get(name)
    if key is None:
        return _normalise_value(value)
    return value.get(key) if isinstance(value, dict) else None


def _normalise_value(value: Any) -> Any:
    if isinstance(value, str):
        return value or None
    if is_empty(value):
        return None
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    return tuple(sorted(value)) if isinstance(value, list | tuple) else value


def is_empty(value: Any) -> bool:
    """True for what a row leaves out: nothing, an empty text, an empty list or map. False and 0 are values."""
    return value is None or (isinstance(value, str | list | tuple | dict) and not value)


def is_same(value: Any, other: Any) -> bool:
    """True if a column with these values is the same: all that is empty is, and lists in another order are."""
    return bool(_normalise_value(value) == _normalise_value(other))


def is_same_row(row: Columns, other: Columns) -> bool:
    """True if all columns are the same."""
    return row is other or all(is_same(row.get(name), other.get(name)) for name in {*row, *other})


def without_empty(rows: Rows) -> Rows:
    """The same rows without columns that are empty; every table of the decisions is there."""
    tables = dict.fromkeys((*TABLES, *rows))
    return {
        table: [{name: value for name, value in row.items() if not is_empty(value)} for row in rows.get(table, ())]
        for table in tables
    }


def patch_row(row: Columns, patch: Columns) -> Columns:
    """The row after the patch; columns that are empty now are left out."""
    after = dict(row)
    for name, value in patch.items():
        if isinstance(value, dict):
            merged = {**after.get(name, {}), **value}
            value = {key: one for key, one in merged.items() if one is not None}
        if is_empty(value):
            after.pop(name, None)
        else:
            after[name] = list(value) if isinstance(value, tuple) else value
    return after


def apply(rows: Rows, ops: Iterable[Op]) -> Rows:
    """The tables after these operations, all of them; what is given stays as it is.

    Ports no longer refer to DHCP rows that are gone, and go with their switch, as OVSDB has it.
    """
    after: Rows = {table: list(found) for table, found in rows.items()}
    for op in ops:
        table = after.setdefault(op.table, [])
        found = find(table, op.where)
        removed = {id(row) for row in (found if op.op == "DeleteWhere" else found[1:])}
        kept = [row for row in table if id(row) not in removed]
        if op.op == "DeleteWhere":
            after[op.table] = kept
            if op.table == DHCP and found:
                gone = {row.get("external_ids", {}).get(ID_KEY) for row in found}
                after[PORTS] = [_remove_options(port, gone) for port in after.get(PORTS, [])]
            elif op.table == SWITCHES and found:
                switches = {row.get("name") for row in found} - {row.get("name") for row in kept}
                after[PORTS] = [port for port in after.get(PORTS, []) if port.get("switch") not in switches]
        elif found:
            after[op.table] = [patch_row(row, op.patch) if row is found[0] else row for row in kept]
        else:
            table.append(patch_row({}, op.patch))
    return after


class RowsDraft:
    """Rows while a plan is being made, and the operations that changed them so far."""

    def __init__(self, rows: Rows) -> None:
        self.rows = without_empty(rows)
        self.ops: list[Op] = []

    def table_rows(self, name: str) -> list[Columns]:
        """The rows of a table as they are now."""
        return self.rows.get(name, [])

    def find(self, table: str, where: Columns | Sequence[Columns]) -> list[Columns]:
        """The rows that an operation would find now."""
        return find(self.table_rows(table), (where,) if isinstance(where, dict) else where)

    def add(self, *ops: Op) -> None:
        """Carry out these operations; those that change nothing are dropped."""
        for op in ops:
            before, after = self.table_rows(op.table), apply(self.rows, (op,))
            found = after.get(op.table, [])
            if len(before) != len(found) or not all(map(is_same_row, before, found)):
                self.rows = after
                self.ops.append(op)

    def replace(self, table: str, where: Columns | Sequence[Columns], row: Columns) -> None:
        """Make the row that is found this one: of maps that ``row`` names, keys that it lacks go too.

        The patch names the keys of all rows that are found, whichever of them a driver keeps.
        """
        self.add(upsert(table, where, replacing_patch(self.find(table, where), row)))

    def change(self) -> RowsChange:
        """The operations and the rows after them."""
        return RowsChange(ops=tuple(self.ops), rows=self.rows)


def replacing_patch(found: Sequence[Columns], row: Columns) -> Columns:
    """The patch that makes any of these rows this one: of maps that ``row`` names, keys that it lacks go too."""
    patch = dict(row)
    for name, value in row.items():
        if isinstance(value, dict):
            keys = {key for one in found for key in one.get(name, {})}
            patch[name] = {**dict.fromkeys(sorted(keys)), **value}
    return patch


def needed_ops(rows: Rows, ops: Iterable[Op]) -> list[Op]:
    """Those of the operations that change something, each after the ones before it."""
    return list(change_rows(rows, ops).ops)


def change_rows(rows: Rows, ops: Iterable[Op]) -> RowsChange:
    """Those of the operations that change something, and the tables after them."""
    draft = RowsDraft(rows)
    draft.add(*ops)
    return draft.change()


def _remove_options(port: Columns, gone: Iterable[str | None]) -> Columns:
    names = [name for name in ("dhcpv4_options", "dhcpv6_options") if port.get(name) in gone and name in port]
    return {name: value for name, value in port.items() if name not in names} if names else port

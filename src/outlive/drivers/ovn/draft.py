"""Operations on northbound rows, made into one OVSDB transaction.

A draft knows the replica's rows and what the operations before have made of them. The transaction begins with waits:
the rows that were found have the columns that matter as they were read, rows that go have the same children, since
these go with them, and where none was found there still is none. So it is committed only if it would be planned in the
same way again. Of maps single keys are changed, of references to children single ones, and of columns only those that
become different.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from outlive.base import BadInput, Refused
from outlive.drivers.ovn.rows import CHILDREN, GLOBAL, PARENTS, REFERENCES, TABLES, NorthboundRows
from outlive.drivers.ovn.values import EMPTY, encode, encode_keys
from outlive.network import DHCP, ID_KEY, PORTS, ROUTER_PORTS, Columns, Op, has, is_same, is_same_row, patch_row

UNIQUE_NAMES: Final = (PORTS, ROUTER_PORTS)
_PSEUDO: Final = tuple(parent.name for parent in PARENTS.values())


def raise_number(by: int = 1) -> list[Any]:
    """Raise the number of the database's state; the last result is the new one."""
    return [
        {"op": "mutate", "table": GLOBAL, "where": [], "mutations": [["nb_cfg", "+=", by]]},
        {"op": "select", "table": GLOBAL, "where": [], "columns": ["nb_cfg"]},
    ]


class OvsdbDraft:
    """See the module. Rows are named by their uuid, new ones by ``@`` and a number."""

    def __init__(self, rows: NorthboundRows) -> None:
        self.effective: list[Op] = []
        """The operations that change something."""
        self._rows = rows
        self._types = rows.replica.types
        parents = {parent.table: None for parent in PARENTS.values()}
        self._after: dict[str, dict[str, Columns | None]] = {table: {} for table in (*parents, *TABLES)}
        """Rows that were touched, as they are to be; ``None``: they go. Parents first, so that they are there."""
        self._read: dict[tuple[str, str], set[str]] = {}
        """Of rows that were found the columns that matter."""
        self._absent: list[tuple[str, Columns]] = []
        self._gone: set[str] = set()
        """DHCP rows that go."""
        self._written: set[str] = set()
        """Rows that were there and become different."""
        self._holders: set[tuple[str, str]] = set()
        """Rows that get a child, and must be there."""

    def apply(self, ops: Iterable[Op]) -> None:
        """Note what the operations make of the rows."""
        for op in ops:
            self._check(op)
            found = self._find(op)
            if not found and op.op != "DeleteWhere":
                self._absent += [(op.table, one) for one in op.where]
                self._after[op.table][f"@row{sum(map(len, self._after.values()))}"] = patch_row({}, op.patch)
                self.effective.append(op)
                continue
            is_effective = False
            for position, (uuid, before) in enumerate(found.items()):
                if not uuid.startswith("@"):
                    columns = {name for one in (*op.where, op.patch) for name in one}
                    if op.op == "DeleteWhere":
                        columns.update(column for table, column in CHILDREN if table == op.table)
                    self._read.setdefault((op.table, uuid), set()).update(columns)
                if position == 0 and op.op != "DeleteWhere":
                    after = patch_row(before, op.patch)
                    if is_same_row(before, after):
                        continue
                    self._after[op.table][uuid] = after
                else:
                    self._after[op.table][uuid] = None
                    if op.table == DHCP:
                        self._drop_references(uuid, before.get("external_ids", {}).get(ID_KEY, uuid))
                is_effective = True
            if is_effective:
                self.effective.append(op)

    def build_operations(self, comment: str, numbered: bool) -> list[Any]:
        """The transaction; empty if all rows are right already. If ``numbered``, its last result is the new number."""
        work: list[Any] = []
        for table, rows in self._after.items():
            for uuid, after in rows.items():
                if operations := self._row_operations(table, uuid, after):
                    self._written.add(uuid)
                    work += operations
        if not work:
            return []
        remark = {"op": "comment", "comment": comment}
        return [remark, *self._wait_operations(), *work, *(raise_number() if numbered else ())]

    def own_rows(self, operations: Sequence[Any], results: Sequence[Any]) -> set[str]:
        """The uuids of all rows that the transaction wrote."""
        inserted = (
            result["uuid"][1] for one, result in zip(operations, results, strict=False) if one["op"] == "insert"
        )
        return self._written.union(inserted)

    # --- finding

    def _check(self, op: Op) -> None:
        types = self._types.get(op.table)
        if types is None or op.table == GLOBAL:
            raise BadInput(f"rows of the table {op.table!r} cannot be written", remedy="use one of network.operations")
        parent = PARENTS.get(op.table)
        for columns in (*op.where, op.patch):
            for name in columns:
                if (name not in types or types[name].is_reference) and (parent is None or name != parent.name):
                    raise BadInput(f"the column {name!r} of {op.table} cannot be written")

    def _find(self, op: Op) -> dict[str, Columns]:
        """The rows that the operation finds, by uuid."""
        found: dict[str, Columns] = {}
        touched = self._after[op.table]
        for where in op.where:
            uuids = (uuid for uuid in self._rows.find_candidates(op.table, _strip_pseudo(where)) if uuid not in touched)
            rows = ((uuid, self._original_columns(op.table, uuid)) for uuid in sorted(uuids))
            found.update((uuid, row) for uuid, row in rows if has(row, where))
            found.update((uuid, row) for uuid, row in touched.items() if row is not None and has(row, where))
        return found

    def _original_columns(self, table: str, uuid: str) -> Columns:
        """A row of the replica, without references to rows that go."""
        row, seen = self._rows.replica.rows[table][uuid], self._rows.view(table, uuid)
        for name in REFERENCES:
            if row.get(name) in self._gone:
                seen.pop(name, None)
        return seen

    def _drop_references(self, uuid: str, id: str) -> None:
        """Ports no longer refer to a DHCP row that goes."""
        self._gone.add(uuid)
        for port in self._after[PORTS].values():
            for name in REFERENCES:
                if port is not None and port.get(name) == id:
                    del port[name]

    # --- writing

    def _wait_operations(self) -> list[Any]:
        waits: list[Any] = []
        for (table, uuid), names in self._read.items():
            row, types = self._rows.replica.rows[table][uuid], self._types[table]
            columns = sorted(name for name in names if name in types)
            as_read = {name: encode(types[name], row.get(name)) for name in columns} or _uuid_reference(uuid)
            waits.append(_wait(table, [["_uuid", "==", ["uuid", uuid]]], columns or ["_uuid"], [as_read]))
            if names.intersection(_PSEUDO):
                parent = PARENTS[table]
                holder = self._rows.parents[table].get(uuid, "")
                where = [["_uuid", "==", ["uuid", holder]], [parent.column, "includes", ["set", [["uuid", uuid]]]]]
                waits.append(_wait(parent.table, where, ["_uuid"], [_uuid_reference(holder)]))
        for table, absent in self._absent:
            if table in UNIQUE_NAMES and absent.get("name"):
                continue  # the server takes no second one; a search of the whole table is dear
            if conditions := self._build_conditions(table, absent):
                present = sorted(self._rows.find_candidates(table, _strip_pseudo(absent)))
                alike = [uuid for uuid in present if has(self._rows.view(table, uuid), _comparable_columns(absent))]
                waits.append(_wait(table, conditions, ["_uuid"], [_uuid_reference(uuid) for uuid in alike]))
        waits += [
            _wait(table, [["_uuid", "==", ["uuid", uuid]]], ["_uuid"], [_uuid_reference(uuid)])
            for table, uuid in sorted(self._holders)
        ]
        return waits

    def _build_conditions(self, table: str, where: Columns) -> list[Any]:
        """What the server compares: all but parents, references, and keys that are to be absent."""
        conditions = []
        for name, value in _comparable_columns(where).items():
            kind = self._types[table][name]
            if kind.form == "map" and value:
                conditions.append([name, "includes", encode(kind, value)])
            else:
                conditions.append([name, "==", encode(kind, value)])
        return conditions

    def _row_operations(self, table: str, uuid: str, after: Columns | None) -> list[Any]:
        if uuid.startswith("@"):
            return [] if after is None else self._insert(table, uuid, after)
        here = [["_uuid", "==", ["uuid", uuid]]]
        parent = PARENTS.get(table)
        holder = self._rows.parents[table].get(uuid, "") if parent is not None else ""
        if after is None:
            if parent is not None:
                return [_mutate_children(parent.table, parent.column, holder, "delete", uuid)]
            return [{"op": "delete", "table": table, "where": here}]
        operations: list[Any] = []
        update, mutations = self._diff_columns(table, uuid, after)
        if update:
            operations.append({"op": "update", "table": table, "where": here, "row": update})
        if mutations:
            operations.append({"op": "mutate", "table": table, "where": here, "mutations": mutations})
        if parent is not None and (wanted := self._find_parent(table, after)) != holder:
            operations.append(_mutate_children(parent.table, parent.column, holder, "delete", uuid))
            operations.append(_mutate_children(parent.table, parent.column, wanted, "insert", uuid))
        return operations

    def _diff_columns(self, table: str, uuid: str, after: Columns) -> tuple[dict[str, Any], list[Any]]:
        """Columns that get another value, and changes of single keys of maps."""
        row, types = self._rows.replica.rows[table][uuid], self._types[table]
        update: dict[str, Any] = {}
        mutations: list[Any] = []
        for name, kind in types.items():
            old, new = row.get(name), after.get(name)
            if kind.is_reference:
                continue
            if name in REFERENCES:
                if old in self._gone:
                    old = None  # the server takes it away
                elif old and new == self._rows.dhcp_id(old):
                    continue
                new = self._find_dhcp_row(new)
            if is_same(old, new):
                continue
            if kind.form != "map":
                update[name] = encode(kind, new)
                continue
            old, new = old or {}, new or {}
            gone = [key for key in old if new.get(key) != old[key]]
            come = {key: value for key, value in new.items() if old.get(key) != value}
            if gone:
                mutations.append([name, "delete", encode_keys(kind, gone)])
            if come:
                mutations.append([name, "insert", encode(kind, come)])
        return update, mutations

    def _insert(self, table: str, uuid: str, after: Columns) -> list[Any]:
        types = self._types[table]
        row = {}
        for name, value in after.items():
            if name in types and value not in EMPTY:
                row[name] = encode(types[name], self._find_dhcp_row(value) if name in REFERENCES else value)
        operations: list[Any] = [{"op": "insert", "table": table, "row": row, "uuid-name": uuid[1:]}]
        parent = PARENTS.get(table)
        if parent is not None:
            holder = self._find_parent(table, after)
            operations.append(_mutate_children(parent.table, parent.column, holder, "insert", uuid))
        return operations

    def _find_parent(self, table: str, row: Columns) -> str:
        """The row that it hangs on, by uuid."""
        parent = PARENTS[table]
        name = row.get(parent.name) or parent.default
        for uuid, other in self._after[parent.table].items():
            if other is not None and other.get("name") == name:
                return uuid
        found = self._rows.find_named(parent.table, name) if name else ""
        self._holders.add((parent.table, found))
        if not found or self._after[parent.table].get(found, {}) is None:
            raise Refused(
                f"there is no {parent.table} {name!r} for a new row of {table}",
                remedy="create it first, or name another",
            )
        return found

    def _find_dhcp_row(self, id: Any) -> str | None:
        """The DHCP row of this id, by uuid, as it is after the operations."""
        if not id:
            return None
        for uuid, row in self._after[DHCP].items():
            if row is not None and has(row, {"external_ids": {ID_KEY: str(id)}}):
                return uuid
        found = self._rows.dhcp_row(str(id))
        if not found or self._after[DHCP].get(found, {}) is None:
            raise Refused(f"there is no DHCP row {id!r} for a port", remedy="write it in the same plan")
        return found


def _wait(table: str, where: list[Any], columns: list[str], rows: list[Any]) -> dict[str, Any]:
    return {"op": "wait", "timeout": 0, "table": table, "where": where, "columns": columns, "until": "==", "rows": rows}


def _uuid_reference(uuid: str) -> dict[str, Any]:
    return {"_uuid": ["uuid", uuid]}


def _mutate_children(table: str, column: str, holder: str, mutator: str, uuid: str) -> dict[str, Any]:
    """Add a child to a row, or take it from it."""
    child = ["named-uuid", uuid[1:]] if uuid.startswith("@") else ["uuid", uuid]
    parent = ["named-uuid", holder[1:]] if holder.startswith("@") else ["uuid", holder]
    mutation = [column, mutator, ["set", [child]]]
    return {"op": "mutate", "table": table, "where": [["_uuid", "==", parent]], "mutations": [mutation]}


def _strip_pseudo(where: Columns) -> Columns:
    return {name: value for name, value in where.items() if name not in _PSEUDO}


def _comparable_columns(where: Columns) -> Columns:
    """The columns that the server can compare."""
    plain: Columns = {}
    for name, value in where.items():
        if name in _PSEUDO or name in REFERENCES:
            continue
        plain[name] = {key: one for key, one in value.items() if one is not None} if isinstance(value, dict) else value
    return plain

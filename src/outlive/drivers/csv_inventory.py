"""An inventory from CSV files, whatever their columns are called.

A column map says which column a field comes from and in which unit its numbers are:
``name=sn,cpu=cpu_milli:m,memory=memory_mib:Mi`` (docs/reference/cli.md#column-maps). Without a map, columns are
taken by the fields' own names. Every row that is wrong is a problem with its file and line; rows that ``--where``
does not select are not judged at all, except for being CSV.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from outlive.base.errors import BadInput, Usage
from outlive.base.quantity import parse_bytes, parse_milli
from outlive.drivers.files import open_input
from outlive.failover.protection import LEVEL_NAME, PRIORITY_LIMIT
from outlive.inventory.records import (
    GROUP_POLICIES,
    IMPORT_HOSTS_LIMIT,
    IMPORT_VMS_LIMIT,
    HostRecord,
    Inventory,
    VmRecord,
)
from outlive.resources import Amounts
from outlive.resources.documents import Problems
from outlive.resources.reasons import Reason
from outlive.resources.reasons.inventory import ImportNotice

HOST_FIELDS: Final = ("name", "cpu", "memory", "zone", "traits", "cpu_arch", "hypervisor_type")
VM_FIELDS: Final = (
    "id", "cpu", "memory", "name", "flavor", "host", "zone", "project", "status", "disk", "os_type", "server_group",
    "server_group_policy", "protection", "restart_priority",
)  # fmt: skip
DOMAIN_PREFIX: Final = "domain-"
"""Fields such as ``domain-rack`` become failure domain labels."""
UNITS: Final = ("", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
COLUMNS_LIMIT: Final = 1000
"""Columns of a file."""
PROGRESS_ROWS: Final = 2000
"""Rows between two reports of progress."""
_RESOURCE = re.compile(r"[a-z][a-zA-Z0-9._-]{0,62}\Z")
_INTEGER = re.compile(r"[+-]?[0-9]{1,12}\Z")

Progress = Callable[[int, int], None]
"""Gets bytes read and bytes of the file (0 where unknown)."""


class Column(msgspec.Struct, frozen=True):
    """Where a field comes from: the column, and the unit that its numbers get."""

    name: str
    unit: str = ""


ColumnMap = Mapping[str, Column]


def parse_column_map(texts: Sequence[str], option: str, fields: Sequence[str]) -> dict[str, Column]:
    """From ``field=column[:unit],…``; ``Usage`` for what is malformed. Unknown fields are further resources."""
    columns: dict[str, Column] = {}
    for term in (part for text in texts for part in text.split(",") if part.strip()):
        field, equals, rest = (part.strip() for part in term.partition("="))
        column, _, unit = rest.rpartition(":") if ":" in rest else (rest, "", "")
        if not equals or not field or not column:
            raise Usage(f"{term!r} is not field=column[:unit]", place=option, remedy="such as cpu=cpu_milli:m")
        if unit not in UNITS:
            raise Usage(f"unit {unit!r} is not known", place=option, remedy=f"one of {', '.join(UNITS[1:])}")
        if field in columns:
            raise Usage(f"field {field!r} is there twice", place=option, remedy="keep one of them")
        _check_field(field, option, fields)
        columns[field] = Column(column, unit)
    return columns


def _check_field(field: str, option: str, fields: Sequence[str]) -> None:
    if field in fields or field.startswith(DOMAIN_PREFIX):
        return
    near = difflib.get_close_matches(field, fields, n=1, cutoff=0.75)
    if near or not _RESOURCE.match(field):
        remedy = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(fields)}, or the name of a resource"
        raise Usage(f"field {field!r} is not known", place=option, remedy=remedy)


class Condition(msgspec.Struct, frozen=True):
    """One ``--where``: the column, whether it must be equal, and the value."""

    column: str
    equal: bool
    value: str


def parse_where(texts: Sequence[str]) -> tuple[Condition, ...]:
    """From ``column=value`` or ``column!=value``; all of them must hold."""
    conditions: list[Condition] = []
    for text in texts:
        column, equals, value = text.partition("=")
        equal = not column.endswith("!")
        column = column.removesuffix("!").strip()
        if not equals or not column:
            raise Usage(f"{text!r} is not column=value", place="--where", remedy="such as pod_phase=Running")
        conditions.append(Condition(column, equal, value.strip()))
    return tuple(conditions)


def read_hosts(
    path: Path, columns: ColumnMap | None, inventory: Inventory, progress: Progress = lambda a, b: None
) -> None:
    """Add the hosts of a file to the inventory, with its problems."""
    inventory.has_hosts = True
    table = _Table(path, columns, HOST_FIELDS, ("name", "cpu", "memory"), "--host-map", inventory.problems)
    inventory.notices.extend(table.unread())
    for row in table.rows((), progress, IMPORT_HOSTS_LIMIT):
        capacity = row.amounts()
        if capacity is None:
            continue
        traits = row.optional("traits")
        inventory.hosts.append(
            HostRecord(
                name=row.text("name"),
                place=row.place,
                capacity=capacity,
                zone=row.optional("zone"),
                domains={field.removeprefix(DOMAIN_PREFIX): row.text(field) for field in table.domains},
                traits=tuple(traits.split()) if traits is not None else None,
                cpu_arch=row.optional("cpu_arch"),
                hypervisor_type=row.optional("hypervisor_type"),
            )
        )


def read_vms(
    path: Path,
    columns: ColumnMap | None,
    inventory: Inventory,
    *,
    where: Sequence[Condition] = (),
    progress: Progress = lambda a, b: None,
) -> None:
    """Add the VMs of a file that meet all conditions to the inventory, with its problems."""
    inventory.has_vms = True
    table = _Table(path, columns, VM_FIELDS, ("id",), "--vm-map", inventory.problems)
    inventory.notices.extend(table.unread(where))
    if "flavor" not in table.columns and not {"cpu", "memory"} <= table.columns.keys():
        table.missing("cpu and memory" if "cpu" not in table.columns else "memory")
    for row in table.rows(where, progress, IMPORT_VMS_LIMIT):
        flavor = row.text("flavor")
        sizes = None if flavor and not row.text("cpu") and not row.text("memory") else row.amounts()
        if sizes is None and not flavor:
            continue
        inventory.vms.append(
            VmRecord(
                id=row.text("id"),
                place=row.place,
                name=row.text("name"),
                project=row.optional("project"),
                flavor=flavor,
                resources=sizes,
                zone=row.optional("zone"),
                host=row.optional("host"),
                phase=row.optional("status"),
                disk_gib=row.whole("disk"),
                os_type=row.optional("os_type"),
                server_group=row.optional("server_group"),
                server_group_policy=row.one_of("server_group_policy", GROUP_POLICIES),
                protection=row.matching("protection", LEVEL_NAME, "letters, digits, '.', '_' and '-'"),
                restart_priority=row.integer("restart_priority", PRIORITY_LIMIT),
            )
        )
    inventory.rows_left_out += table.left_out


class _Row:
    """One row, read by field."""

    def __init__(self, table: _Table, cells: list[str], line: int) -> None:
        self._table = table
        self._cells = cells
        self.place = f"{table.path}:{line}"

    def text(self, field: str) -> str:
        """The cell without surrounding blanks; empty where the file has no such column."""
        index = self._table.index.get(field)
        return self._cells[index].strip() if index is not None else ""

    def optional(self, field: str) -> str | None:
        """The cell, or ``None`` where the file has no such column."""
        return self.text(field) if field in self._table.index else None

    def whole(self, field: str) -> int | None:
        """A whole number, or ``None`` where there is none."""
        text = self.text(field)
        if not text:
            return None
        try:
            return parse_bytes(text + self._table.columns[field].unit)
        except BadInput as error:
            self._problem(field, error)
            return None

    def one_of(self, field: str, words: Sequence[str]) -> str | None:
        """One of these words, or ``None`` where the file has no such column or after noting that it is none."""
        text = self.optional(field)
        if text is None or text in words:
            return text
        error = BadInput(f"{text[:60]!r} is not known", remedy=f"one of {', '.join(word for word in words if word)}")
        self._problem(field, error)
        return None

    def matching(self, field: str, form: re.Pattern[str], wanted: str) -> str | None:
        """A word of that form or an empty one, or ``None`` likewise."""
        text = self.optional(field)
        if not text or form.match(text):
            return text
        self._problem(field, BadInput(f"{text[:60]!r} is no name", remedy=f"write {wanted}"))
        return None

    def integer(self, field: str, most: int) -> int | None:
        """A whole number without a unit, at most so far from 0; ``None`` where there is none or after noting why."""
        text = self.text(field)
        if not text or (_INTEGER.match(text) and abs(int(text)) <= most):
            return int(text) if text else None
        self._problem(field, BadInput(f"{text[:60]!r} is not a whole number", remedy=f"write {-most} to {most}"))
        return None

    def amounts(self) -> Amounts | None:
        """All resources of the row, or ``None`` after noting what is wrong with one of them."""
        found: dict[str, int] = {}
        failed = False
        for field in self._table.resources:
            text = self.text(field)
            if not text and field not in ("cpu", "memory"):
                continue
            try:
                if not text:
                    raise BadInput("is empty", remedy="give a number")
                parse = parse_milli if field == "cpu" else parse_bytes
                found[field] = parse(text + self._table.columns[field].unit)
            except BadInput as error:
                self._problem(field, error)
                failed = True
        return None if failed else Amounts(found)

    def _problem(self, field: str, error: BadInput) -> None:
        column = self._table.columns[field].name
        self._table.problems.add(self.place, f"column {column!r}: {error.message}", error.remedy)


class _Table:
    """A CSV file with its header resolved against a column map."""

    def __init__(
        self,
        path: Path,
        columns: ColumnMap | None,
        fields: Sequence[str],
        required: Sequence[str],
        option: str,
        problems: Problems,
    ) -> None:
        self.path = path
        self.problems = problems
        self.left_out = 0
        self._option = option
        self._fields = fields
        self._mapped = bool(columns)
        self._header = self._read_header()
        given = columns or {
            name: Column(name) for name in self._header if name in fields or name.startswith(DOMAIN_PREFIX)
        }
        self.columns = dict(given)
        for field, column in self.columns.items():
            if column.name not in self._header:
                raise self._unknown(column.name, f"{option} {field}={column.name}")
        for field in required:
            if field not in self.columns:
                self.missing(field)
        self.index = {field: self._header.index(column.name) for field, column in self.columns.items()}
        self.domains = [field for field in self.columns if field.startswith(DOMAIN_PREFIX)]
        others = [field for field in self.columns if field not in fields and field not in self.domains]
        self.resources = [field for field in ("cpu", "memory") if field in self.columns] + others

    def missing(self, field: str) -> None:
        """Refuse a file without a column for a field that is needed."""
        remedy = f"say which: {self._option} {field.split()[0]}=COLUMN; the file has {self._shown()}"
        raise BadInput(f"no column for {field}", place=f"{self.path}:1", remedy=remedy)

    def unread(self, where: Sequence[Condition] = ()) -> Iterator[Reason]:
        """The columns that nothing is read from: with the nearest field that there is, or all that no map names."""
        used = {column.name for column in self.columns.values()} | {term.column for term in where}
        left = [name for name in self._header if name and name not in used]
        if self._mapped:
            if left:
                yield Reason(ImportNotice.COLUMNS_NOT_MAPPED, {"file": str(self.path), "columns": tuple(left)})
            return
        free = [field for field in self._fields if field not in self.columns]
        for name in left:
            near = next(iter(difflib.get_close_matches(name.lower(), free, n=1)), "")
            fields = {"file": str(self.path), "column": name, "near": near}
            yield Reason(ImportNotice.COLUMN_UNKNOWN, fields)

    def rows(self, where: Sequence[Condition], progress: Progress, limit: int) -> Iterator[_Row]:
        """The rows that meet all conditions."""
        terms = []
        for term in where:
            if term.column not in self._header:
                raise self._unknown(term.column, "--where")
            terms.append((self._header.index(term.column), term.equal, term.value))
        for count, (cells, line) in enumerate(self._cells(progress)):
            if count > limit:
                raise BadInput(f"more than {limit} rows", place=f"{self.path}:{line}", remedy="split the file")
            if any("\0" in cell for cell in cells):
                raise BadInput("not CSV: a zero byte", place=f"{self.path}:{line}", remedy="save the file as text")
            if len(cells) != len(self._header):
                message = f"{len(cells)} cells, but the header has {len(self._header)}"
                self.problems.add(f"{self.path}:{line}", message, "quote cells that hold a comma")
            elif all((cells[index].strip() == value) == equal for index, equal, value in terms):
                yield _Row(self, cells, line)
            else:
                self.left_out += 1

    def _read_header(self) -> list[str]:
        with open_input(self.path) as (stream, _):
            reader = csv.reader(io.TextIOWrapper(stream, "utf-8-sig", newline=""), strict=True)
            try:
                header = [cell.strip() for cell in next(reader, [])]
            except (csv.Error, UnicodeDecodeError) as error:
                raise self._broken(error, 1) from None
        if not any(header):
            raise BadInput("is empty", place=f"{self.path}:1", remedy="the first line names the columns")
        if len(header) > COLUMNS_LIMIT:
            raise BadInput(f"{len(header)} columns", place=f"{self.path}:1", remedy=f"at most {COLUMNS_LIMIT}")
        twice = next((name for index, name in enumerate(header) if name and name in header[:index]), None)
        if twice is not None:
            raise BadInput(f"column {twice!r} is there twice", place=f"{self.path}:1", remedy="rename one of them")
        return header

    def _cells(self, progress: Progress) -> Iterator[tuple[list[str], int]]:
        with open_input(self.path) as (stream, size):
            text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
            reader = csv.reader(text, strict=True)
            line = 1
            try:
                next(reader)
                line = reader.line_num + 1
                for count, cells in enumerate(reader):
                    if cells:
                        yield cells, line
                    line = reader.line_num + 1
                    if count % PROGRESS_ROWS == 0:
                        progress(stream.tell(), size)
            except (csv.Error, UnicodeDecodeError) as error:
                raise self._broken(error, line) from None
            progress(size, size)

    def _broken(self, error: Exception, line: int) -> BadInput:
        if isinstance(error, UnicodeDecodeError):
            return BadInput("not UTF-8 text", place=f"{self.path}:{line}", remedy="save the file as UTF-8")
        remedy = (
            "repair the quotes of this row" if "quote" in str(error) or "end of data" in str(error) else "repair it"
        )
        return BadInput(f"not CSV: {error}", place=f"{self.path}:{line}", remedy=remedy)

    def _unknown(self, column: str, place: str) -> BadInput:
        near = difflib.get_close_matches(column, self._header, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return BadInput(
            f"there is no column {column!r} ({place})",
            place=f"{self.path}:1",
            remedy=f"{hint}the file has {self._shown()}",
        )

    def _shown(self) -> str:
        shown = ", ".join(self._header[:12])
        return f"{shown}, …" if len(self._header) > 12 else shown

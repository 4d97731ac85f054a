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
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from outlive.base import BadInput, Usage, parse_bytes, parse_milli
from outlive.drivers.csv_numbers import AmbiguousNumber, NumberForm
from outlive.drivers.files import open_input
from outlive.failover import LEVEL_NAME, PRIORITY_LIMIT
from outlive.inventory import (
    GROUP_POLICIES,
    IMPORT_HOSTS_LIMIT,
    IMPORT_PORTS_LIMIT,
    IMPORT_VMS_LIMIT,
    HostRecord,
    Inventory,
    PortRecord,
    RowCondition,
    VmRecord,
    check_columns,
    selects,
    unknown_column,
)
from outlive.resources import PORTS_LIMIT, Amounts
from outlive.resources.reasons import ImportNotice, Reason

HOST_FIELDS: Final = ("name", "cpu", "memory", "zone", "traits", "cpu_arch", "hypervisor_type", "disabled")
VM_FIELDS: Final = (
    "id", "cpu", "memory", "name", "flavor", "host", "zone", "project", "status", "disk", "os_type", "server_group",
    "server_group_policy", "protection", "restart_priority",
)  # fmt: skip
PORT_FIELDS: Final = ("vm", "network", "mac", "addresses", "interface")
DOMAIN_PREFIX: Final = "domain-"
"""Fields such as ``domain-rack`` become failure domain labels."""
RESOURCE_PREFIX: Final = "resource-"
"""Fields such as ``resource-gpu`` are further resources."""
DELIMITERS: Final = (",", ";", "\t", "|")
"""What may stand between cells, besides what a first line such as ``sep=#`` says."""
HOST_WORDS: Final[Mapping[str, str]] = {
    "host": "name", "hostname": "name", "displayname": "name", "uuid": "name", "sn": "name",
    "rack": "domain-rack", "row": "domain-row", "room": "domain-room", "chassis": "domain-chassis",
    "datacenter": "domain-datacenter", "dc": "domain-datacenter",
    "arch": "cpu_arch", "hypervisortype": "hypervisor_type",
}  # fmt: skip
VM_WORDS: Final[Mapping[str, str]] = {
    "vm": "name", "displayname": "name", "uuid": "id", "vmid": "id", "vmuuid": "id", "instance": "id",
    "hostname": "host", "hypervisor": "host", "node": "host", "tenant": "project", "projectid": "project",
    "state": "status", "powerstate": "status", "phase": "status", "os": "os_type", "group": "server_group",
    "priority": "restart_priority", "level": "protection", "size": "flavor", "instancetype": "flavor",
}  # fmt: skip
"""What others call a field."""
BOTH_WORDS: Final[Mapping[str, str]] = {
    "mem": "memory", "ram": "memory", "rammib": "memory", "memorymb": "memory", "cores": "cpu", "vcpu": "cpu",
    "vcpus": "cpu", "cpus": "cpu", "az": "zone", "availabilityzone": "zone",
}  # fmt: skip
UNITS: Final = ("", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
COLUMNS_LIMIT: Final = 1000
"""Columns of a file."""
PROGRESS_ROWS: Final = 2000
"""Rows between two reports of progress."""
_RESOURCE = re.compile(r"[a-z][a-zA-Z0-9._-]{0,62}\Z")
_DECLARED = re.compile(r"sep=(?P<separator>.)\r?\n?\Z")
HEADER_LIMIT: Final = 1_000_000
"""Characters of the first line."""
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
    resource = field.removeprefix(RESOURCE_PREFIX)
    if resource != field and _RESOURCE.match(resource) and resource not in fields:
        return
    near = nearest_field(field, fields)
    hint = f"did you mean {near!r}? " if near else f"one of {', '.join(fields)}; "
    further = f"for a further resource that VMs need and hosts have, write {RESOURCE_PREFIX}{resource or 'NAME'}"
    raise Usage(f"field {field!r} is not known", place=option, remedy=hint + further)


def nearest_field(name: str, fields: Sequence[str]) -> str:
    """The field that somebody likely means who writes this name; empty where none is near."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    words = {**BOTH_WORDS, **(VM_WORDS if "id" in fields else HOST_WORDS)}
    if plain in words and (words[plain] in fields or words[plain].startswith(DOMAIN_PREFIX)):
        return words[plain]
    return next(iter(difflib.get_close_matches(name.lower(), fields, n=1, cutoff=0.6)), "")


def read_hosts(
    path: Path,
    columns: ColumnMap | None,
    inventory: Inventory,
    progress: Progress = lambda a, b: None,
    *,
    where: Sequence[RowCondition] = (),
    decimal: str = "",
) -> None:
    """Add the hosts of a file that meet all conditions to the inventory, with its problems.

    ``decimal``: the sign before the fraction of a number, ``.`` or ``,``; empty: what the file's numbers show.
    """
    inventory.has_hosts = True
    required = ("name", "cpu", "memory")
    table = _Table(path, columns, HOST_FIELDS, required, ("--host-map", "--host-where"), inventory, decimal)
    inventory.notices.extend(table.find_unread_columns(where))
    for row in table.read_rows(
        where, progress, IMPORT_HOSTS_LIMIT, lambda one: inventory.leave_host_out(one.get_text("name"))
    ):
        capacity = row.read_amounts()
        if capacity is None:
            inventory.listed_hosts.add(row.get_text("name"))
            continue
        traits = row.get_optional("traits")
        inventory.hosts.append(
            HostRecord(
                name=row.get_text("name"),
                place=row.place,
                capacity=capacity,
                zone=row.get_optional("zone"),
                domains={field.removeprefix(DOMAIN_PREFIX): row.get_text(field) for field in table.domains},
                traits=tuple(traits.split()) if traits is not None else None,
                cpu_arch=row.get_optional("cpu_arch"),
                hypervisor_type=row.get_optional("hypervisor_type"),
                disabled=_disabled_reason(row.get_optional("disabled")),
            )
        )


def _disabled_reason(word: str | None) -> str | None:
    """Empty where the word says no, and ``None`` where there is none."""
    if word is None:
        return None
    return "" if word.lower() in ("", "false", "no", "0") else "it is disabled by its source"


def read_vms(
    path: Path,
    columns: ColumnMap | None,
    inventory: Inventory,
    *,
    where: Sequence[RowCondition] = (),
    progress: Progress = lambda a, b: None,
    decimal: str = "",
) -> None:
    """Add the VMs of a file that meet all conditions to the inventory, with its problems. ``decimal``: as for hosts."""
    inventory.has_vms = True
    table = _Table(path, columns, VM_FIELDS, ("id",), ("--vm-map", "--where"), inventory, decimal)
    inventory.notices.extend(table.find_unread_columns(where))
    if "flavor" not in table.columns and not {"cpu", "memory"} <= table.columns.keys():
        table.refuse_missing("cpu and memory" if "cpu" not in table.columns else "memory")
    for row in table.read_rows(where, progress, IMPORT_VMS_LIMIT, lambda one: inventory.leave_vm_out()):
        flavor = row.get_text("flavor")
        sizes = None if flavor and not row.get_text("cpu") and not row.get_text("memory") else row.read_amounts()
        if sizes is None and (not flavor or row.get_text("cpu") or row.get_text("memory")):
            inventory.listed_vms.add(row.get_text("id"))
            continue
        inventory.vms.append(
            VmRecord(
                id=row.get_text("id"),
                place=row.place,
                name=row.get_text("name"),
                project=row.get_optional("project"),
                flavor=flavor,
                resources=sizes,
                zone=row.get_optional("zone"),
                host=row.get_optional("host"),
                phase=row.get_optional("status"),
                disk_gib=row.get_quantity("disk"),
                os_type=row.get_optional("os_type"),
                server_group=row.get_optional("server_group"),
                server_group_policy=row.get_choice("server_group_policy", GROUP_POLICIES),
                protection=row.get_matching("protection", LEVEL_NAME, "letters, digits, '.', '_' and '-'"),
                restart_priority=row.get_integer("restart_priority", PRIORITY_LIMIT),
            )
        )


def read_ports(path: Path, inventory: Inventory, progress: Progress = lambda a, b: None) -> list[PortRecord]:
    """The ports that a file lists, several addresses of one between blanks; problems go to the inventory."""
    table = _Table(path, None, PORT_FIELDS, ("vm", "network", "mac"), ("", ""), inventory, "")
    inventory.notices.extend(table.find_unread_columns())
    return [
        PortRecord(
            place=row.place,
            vm=row.get_text("vm"),
            network=row.get_text("network"),
            mac=row.get_text("mac"),
            addresses=tuple(row.get_text("addresses").replace(",", " ").replace(";", " ").split()),
            interface=row.get_integer("interface", PORTS_LIMIT),
        )
        for row in table.read_rows((), progress, IMPORT_PORTS_LIMIT, lambda one: None)
    ]


class _Row:
    """One row, read by field."""

    def __init__(self, table: _Table, cells: list[str], line: int) -> None:
        self._table = table
        self._cells = cells
        self.place = f"{table.path}:{line}"

    def get_text(self, field: str) -> str:
        """The cell without surrounding blanks; empty where the file has no such column."""
        index = self._table.index.get(field)
        return self._cells[index].strip() if index is not None else ""

    def get_optional(self, field: str) -> str | None:
        """The cell, or ``None`` where the file has no such column."""
        return self.get_text(field) if field in self._table.index else None

    def get_quantity(self, field: str) -> int | None:
        """A whole number, or ``None`` where there is none."""
        text = self.get_text(field)
        if not text:
            return None
        try:
            return parse_bytes(self._table.read_number(self, field, text))
        except AmbiguousNumber:
            raise
        except BadInput as error:
            self._note_problem(field, error)
            return None

    def get_choice(self, field: str, words: Sequence[str]) -> str | None:
        """One of these words, or ``None`` where the file has no such column or after noting that it is none."""
        text = self.get_optional(field)
        if text is None or text in words:
            return text
        error = BadInput(f"{text[:60]!r} is not known", remedy=f"one of {', '.join(word for word in words if word)}")
        self._note_problem(field, error)
        return None

    def get_matching(self, field: str, form: re.Pattern[str], wanted: str) -> str | None:
        """A word of that form or an empty one, or ``None`` likewise."""
        text = self.get_optional(field)
        if not text or form.match(text):
            return text
        self._note_problem(field, BadInput(f"{text[:60]!r} is no name", remedy=f"write {wanted}"))
        return None

    def get_integer(self, field: str, most: int) -> int | None:
        """A whole number without a unit, at most so far from 0; ``None`` where there is none or after noting why."""
        text = self.get_text(field)
        if not text or (_INTEGER.match(text) and abs(int(text)) <= most):
            return int(text) if text else None
        self._note_problem(field, BadInput(f"{text[:60]!r} is not a whole number", remedy=f"write {-most} to {most}"))
        return None

    def read_amounts(self) -> Amounts | None:
        """All resources of the row, or ``None`` after noting what is wrong with one of them."""
        found: dict[str, int] = {}
        failed = False
        for field in self._table.resources:
            text = self.get_text(field)
            if not text and field not in ("cpu", "memory"):
                continue
            try:
                if not text:
                    raise BadInput("is empty", remedy="give a number")
                parse = parse_milli if field == "cpu" else parse_bytes
                found[field.removeprefix(RESOURCE_PREFIX)] = parse(self._table.read_number(self, field, text))
            except AmbiguousNumber:
                raise
            except BadInput as error:
                self._note_problem(field, error)
                failed = True
        return None if failed else Amounts(found)

    def _note_problem(self, field: str, error: BadInput) -> None:
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
        options: tuple[str, str],
        inventory: Inventory,
        decimal: str,
    ) -> None:
        self.path = path
        self.problems = inventory.problems
        self._inventory = inventory
        self._option, self._where = options
        self._separator = ","
        self._skipped_lines = 0
        self._fields = fields
        self._mapped = bool(columns)
        self._header = self._read_header()
        given = columns or {
            name: Column(name)
            for name in self._header
            if name in fields or name.startswith((DOMAIN_PREFIX, RESOURCE_PREFIX))
        }
        self.columns = dict(given)
        for field, column in self.columns.items():
            if column.name not in self._header:
                option = f"{self._option} {field}={column.name}"
                raise unknown_column(column.name, self._header, f"{self.path}:1", option)
        for field in required:
            if field not in self.columns:
                self.refuse_missing(field)
        self.index = {field: self._header.index(column.name) for field, column in self.columns.items()}
        self.domains = [field for field in self.columns if field.startswith(DOMAIN_PREFIX)]
        others = [field for field in self.columns if field not in fields and field not in self.domains]
        self.resources = [field for field in ("cpu", "memory") if field in self.columns] + others
        self._decimal = decimal
        self._form = self._number_form()

    def _number_form(self) -> NumberForm:
        """How the file writes numbers, by all cells that are read as numbers."""
        form = NumberForm(self._decimal)
        numeric = [self.index[field] for field in (*self.resources, "disk") if field in self.index]
        if not self._decimal:
            for cells, _ in self._read_cells(lambda done, size: None):
                for index in numeric:
                    if index < len(cells):
                        form.take_sample(cells[index])
        return form

    def read_number(self, row: _Row, field: str, text: str) -> str:
        """The number of a cell with the unit of its column, as ``quantity`` reads it."""
        column = self.columns[field]
        return self._form.normalise(text, f"{row.place}: column {column.name!r}") + column.unit

    def refuse_missing(self, field: str) -> None:
        """Refuse a file without a column for a field that is needed."""
        column = next((name for name in self._header if nearest_field(name, self._fields) == field), "COLUMN")
        say = f"say which: {self._option} {field.split()[0]}={column}" if self._option else f"name one {field}"
        header = ", ".join(self._header[:12]) + (", …" if len(self._header) > 12 else "")
        remedy = f"{say}; the file has {header}"
        raise BadInput(f"no column for {field}", place=f"{self.path}:1", remedy=remedy)

    def find_unread_columns(self, where: Sequence[RowCondition] = ()) -> Iterator[Reason]:
        """The columns that nothing is read from: with the nearest field that there is, or all that no map names."""
        used = {column.name for column in self.columns.values()} | {term.column for term in where}
        left = [name for name in self._header if name and name not in used]
        if self._mapped:
            if left:
                yield Reason(ImportNotice.COLUMNS_NOT_MAPPED, {"file": str(self.path), "columns": tuple(left)})
            return
        free = [field for field in self._fields if field not in self.columns]
        for name in left:
            near = nearest_field(name, self._fields)
            near = near if near in free or near.startswith(DOMAIN_PREFIX) else ""
            fields = {"file": str(self.path), "column": name, "near": near}
            yield Reason(ImportNotice.COLUMN_UNKNOWN, fields)

    def read_rows(
        self, where: Sequence[RowCondition], progress: Progress, limit: int, leave_out: Callable[[_Row], None]
    ) -> Iterator[_Row]:
        """The rows that meet all conditions; all others are handed to ``leave_out``."""
        check_columns(where, self._header, f"{self.path}:1", self._where)
        at = {term.column: self._header.index(term.column) for term in where}
        for count, (cells, line) in enumerate(self._read_cells(progress)):
            if count > limit:
                remedy = "split the file, and import each part with --partial"
                raise BadInput(f"more than {limit} rows", place=f"{self.path}:{line}", remedy=remedy)
            if any("\0" in cell for cell in cells):
                raise BadInput("not CSV: a zero byte", place=f"{self.path}:{line}", remedy="save the file as text")
            if len(cells) != len(self._header):
                message = f"{len(cells)} cells, but the header has {len(self._header)}"
                self.problems.add(f"{self.path}:{line}", message, f"quote cells that hold a {self._separator!r}")
                self._inventory.nameless = True
            elif not where or selects(where, partial(_get_cell, cells, at)):
                yield _Row(self, cells, line)
            else:
                leave_out(_Row(self, cells, line))

    def _read_header(self) -> list[str]:
        with open_input(self.path) as (stream, _):
            text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
            try:
                first = text.readline(HEADER_LIMIT)
                if declared := _DECLARED.match(first):
                    self._separator, self._skipped_lines = declared["separator"], 1
                    first = ""
                lines = itertools.chain([first] if first else [], text)
                if not self._skipped_lines:
                    # what makes most cells of the header, a comma if several do
                    counts = {one: len(next(csv.reader([first], delimiter=one), [])) for one in DELIMITERS}
                    self._separator = max(DELIMITERS, key=counts.__getitem__)
                header = [cell.strip() for cell in next(csv.reader(lines, strict=True, delimiter=self._separator), [])]
            except (csv.Error, UnicodeDecodeError) as error:
                raise self._csv_error(error, 1) from None
        if not any(header):
            raise BadInput("is empty", place=f"{self.path}:1", remedy="the first line names the columns")
        if len(header) > COLUMNS_LIMIT:
            raise BadInput(f"{len(header)} columns", place=f"{self.path}:1", remedy=f"at most {COLUMNS_LIMIT}")
        twice = next((name for index, name in enumerate(header) if name and name in header[:index]), None)
        if twice is not None:
            raise BadInput(f"column {twice!r} is there twice", place=f"{self.path}:1", remedy="rename one of them")
        return header

    def _read_cells(self, progress: Progress) -> Iterator[tuple[list[str], int]]:
        with open_input(self.path) as (stream, size):
            text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
            for _ in range(self._skipped_lines):
                text.readline(HEADER_LIMIT)
            before = self._skipped_lines
            reader = csv.reader(text, strict=True, delimiter=self._separator)
            line = 1 + before
            try:
                next(reader)
                line = reader.line_num + 1 + before
                for count, cells in enumerate(reader):
                    if cells:
                        yield cells, line
                    line = reader.line_num + 1 + before
                    if count % PROGRESS_ROWS == 0:
                        progress(stream.tell(), size)
            except (csv.Error, UnicodeDecodeError) as error:
                raise self._csv_error(error, line) from None
            progress(size, size)

    def _csv_error(self, error: Exception, line: int) -> BadInput:
        if isinstance(error, UnicodeDecodeError):
            return BadInput("not UTF-8 text", place=f"{self.path}:{line}", remedy="save the file as UTF-8")
        remedy = (
            "repair the quotes of this row" if "quote" in str(error) or "end of data" in str(error) else "repair it"
        )
        return BadInput(f"not CSV: {error}", place=f"{self.path}:{line}", remedy=remedy)


def _get_cell(cells: Sequence[str], at: Mapping[str, int], column: str) -> str:
    return cells[at[column]]

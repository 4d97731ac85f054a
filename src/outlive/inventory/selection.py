"""Which records of a source are taken: ``--where COLUMN=VALUE`` over the source's own columns, for every importer."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from outlive.base import BadInput, Usage

COLUMNS_SHOWN: Final = 12
"""Columns of a source that an error names."""


class RowCondition(msgspec.Struct, frozen=True):
    """One ``--where``: the column, whether it must be equal, and the value."""

    column: str
    equal: bool
    value: str


class Selection(msgspec.Struct, frozen=True):
    """The conditions on VMs and on hosts; all of them must hold."""

    vms: tuple[RowCondition, ...] = ()
    hosts: tuple[RowCondition, ...] = ()


def parse_where(texts: Sequence[str], option: str = "--where") -> tuple[RowCondition, ...]:
    """From ``column=value`` or ``column!=value``; all of them must hold. ``Usage`` for what is malformed."""
    conditions: list[RowCondition] = []
    for text in texts:
        column, equals, value = text.partition("=")
        equal = not column.endswith("!")
        column = column.removesuffix("!").strip()
        if not equals or not column:
            raise Usage(f"{text!r} is not column=value", place=option, remedy="such as pod_phase=Running")
        conditions.append(RowCondition(column, equal, value.strip()))
    return tuple(conditions)


def selects(conditions: Iterable[RowCondition], value: Callable[[str], str]) -> bool:
    """Whether a record meets all conditions. ``value``: the text of a column, empty where the record has none."""
    return all((value(one.column).strip() == one.value) == one.equal for one in conditions)


def check_columns(
    conditions: Iterable[RowCondition], columns: Sequence[str], place: str, option: str = "--where"
) -> None:
    """``BadInput`` for a condition on a column that the source does not have."""
    for one in conditions:
        if one.column not in columns:
            raise unknown_column(one.column, columns, place, option)


def unknown_column(column: str, columns: Sequence[str], place: str, option: str) -> BadInput:
    """The error that names the nearest column, and those that there are."""
    near = difflib.get_close_matches(column, columns, n=1)
    shown = ", ".join(columns[:COLUMNS_SHOWN]) + (", …" if len(columns) > COLUMNS_SHOWN else "")
    hint = f"did you mean {near[0]!r}? " if near else ""
    return BadInput(f"there is no column {column!r} ({option})", place=place, remedy=f"{hint}the file has {shown}")

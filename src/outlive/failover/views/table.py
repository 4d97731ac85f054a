"""A table of plain values."""

from __future__ import annotations

import msgspec

Cell = str | int | float | bool | list[str] | None
"""A value as JSON has it; a list is shown with commas."""


class Table(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Columns and rows; amounts have their unit in the column's name (``cpu``: cores, ``memoryBytes``)."""

    view: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...] = ()
    totals: tuple[Cell, ...] | None = None
    """One value a column, where sums mean something."""
    note: str = ""
    """What the reader must know, such as a source that could not be read."""

    def records(self) -> list[dict[str, Cell]]:
        """The rows as maps from column to value."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

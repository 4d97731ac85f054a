"""Tables and lines as text for people: how wide each column is, what is cut and what is wrapped.

In a width that a table exceeds, the longest cells are cut first and end in ``…``; the first column, which is the name,
and numbers stay whole. Columns that do not fit even so follow below, behind the first column once more. A table without
titles is a list of facts: the last column is wrapped and never cut; so it is where it says what helps (``advice``), on
lines of its own below each row. Without a width nothing is cut or wrapped.
"""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from outlive.base import escape_controls

GAP: Final = 2
"""Spaces between two columns."""
CUT_LEAST: Final = 8
"""No column is cut to less."""
TEXT_LEAST: Final = 24
"""The last column is cut to this before any other is."""
WRAP_LEAST: Final = 20
"""Nothing is wrapped to less."""
CUT: Final = "…"
ADVICE_INDENT: Final = "  "
ADVICE_LEAST: Final = 32
"""A last column that is read whole stands beside the others where this is left for it."""
NO_ROWS: Final = "none"
_NUMBER = re.compile(r"[-+]?\d[\d.,:TZ+/-]*( ?[a-zA-Z%]{1,4})?")
"""Amounts and times."""
_BOLD: Final = "1"
_COLOURS: Final = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36"}


class Coloured(NamedTuple):
    """A cell in a colour, where the output has colours."""

    text: str
    colour: str


Cell = str | Coloured


class TextTable(NamedTuple):
    """Titles and rows of cells; the columns named in ``numbers`` are right-aligned. ``empty`` stands for no rows.
    ``advice``: whether the last column is what somebody has to read whole."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    numbers: frozenset[str] = frozenset()
    empty: str = NO_ROWS
    headed: bool = True
    advice: bool = False

    @property
    def has_titles(self) -> bool:
        """Whether the columns have titles that are shown."""
        return self.headed and any(self.columns)


def table_lines(table: TextTable, width: int | None = None, *, colours: bool = False) -> list[str]:
    """The lines of a table in so many columns of text."""
    title = [escape_controls(table.title)] if table.title else []
    if not table.rows:
        return [*title, table.empty]
    if width is not None and not any(table.columns):
        return [*title, *_fact_lines(table, width, colours=colours)]
    natural = [
        max(
            shown_width(text)
            for text in (name if table.has_titles else "", *(_cell_text(row[at]) for row in table.rows))
        )
        for at, name in enumerate(table.columns)
    ]
    if table.advice and width is not None and sum(natural) + GAP * (len(natural) - 1) > width:
        return [*title, *_advice_lines(table, natural, width, colours=colours)]
    lines = title
    floors = natural if width is None else _least_widths(table, natural, width)
    for part in [list(range(len(natural)))] if width is None else _split_columns(floors, width):
        fitted = {at: natural[at] for at in part} if width is None else _fit_widths(natural, floors, part, width)
        if lines and lines != title:
            lines.append("")
        if table.has_titles:
            lines.append(_row_line(table, [table.columns[at] for at in part], fitted, _BOLD if colours else ""))
        lines += [_row_line(table, [row[at] for at in part], fitted, colours=colours) for row in table.rows]
    return lines


def _advice_lines(table: TextTable, natural: list[int], width: int, *, colours: bool) -> list[str]:
    """The table with its last column wrapped; where that leaves it too little, it follows each row whole."""
    if sum(natural[:-1]) + GAP * (len(natural) - 1) + ADVICE_LEAST <= width:
        style = _BOLD if colours else ""
        head = [_row_line(table, table.columns, dict(enumerate(natural)), style)] if table.has_titles else []
        return head + _fact_lines(table, width, colours=colours)
    rest = table._replace(
        columns=table.columns[:-1], rows=tuple(row[:-1] for row in table.rows), title="", advice=False
    )
    lines, titled = table_lines(rest, width, colours=colours), int(table.has_titles)
    head, blocks = lines[:titled], [[line] for line in lines[titled:]]
    if len(blocks) != len(table.rows):  # not all columns fit beside each other
        head, blocks = [], [table_lines(rest._replace(rows=(row,)), width, colours=colours) for row in rest.rows]
    for block, row in zip(blocks, table.rows, strict=True):
        advice = _cell_text(row[-1])
        head += [*block, *(wrapped_lines(f"{ADVICE_INDENT}{advice}", width) if advice else ())]
    return head


def wrapped_lines(text: str, width: int | None, *, indent: str | None = None) -> list[str]:
    """The lines of a text, broken between words; those that follow are indented as the line is, or by ``indent``."""
    found = []
    for line in text.split("\n"):
        if width is None or shown_width(line) <= width:
            found.append(line)
            continue
        start = line[: len(line) - len(line.lstrip())] if indent is None else indent
        start = start if len(start) + WRAP_LEAST <= width else ""
        found += textwrap.wrap(
            line,
            max(width, WRAP_LEAST),
            subsequent_indent=start,
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        )
    return found


def shown_width(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _cell_text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.text


def _least_widths(table: TextTable, natural: Sequence[int], width: int) -> list[int]:
    """To how much each column may be cut; amounts and times stay whole. The first column is cut only if the widest of
    the others would not fit beside it."""
    others = []
    for at in range(1, len(natural)):
        whole = all(_NUMBER.fullmatch(text) for row in table.rows if (text := _cell_text(row[at])))
        others.append(natural[at] if whole else min(natural[at], CUT_LEAST))
    return [max(CUT_LEAST, min(natural[0], width - GAP - max(others, default=0))), *others]


def _split_columns(floors: Sequence[int], width: int) -> Iterable[list[int]]:
    """The columns of each part, all of which begin with the first column."""
    part, used = [0], floors[0]
    for at in range(1, len(floors)):
        if len(part) > 1 and used + GAP + floors[at] > width:
            yield part
            part, used = [0], floors[0]
        part.append(at)
        used += GAP + floors[at]
    yield part


def _fit_widths(natural: Sequence[int], floors: Sequence[int], part: Sequence[int], width: int) -> dict[int, int]:
    """The widths of the columns of a part: the last one, which often is a sentence, loses first, then the widest."""
    widths = {at: max(floors[at], min(natural[at], width)) for at in part}
    while sum(widths.values()) + GAP * (len(part) - 1) > width:
        last = part[-1]
        first = widths[last] > max(TEXT_LEAST, floors[last])
        loser = last if first else max(part, key=lambda at: (widths[at] > floors[at], at > 0, widths[at]))
        if widths[loser] <= floors[loser]:
            break
        widths[loser] -= 1
    return widths


def _fact_lines(table: TextTable, width: int, *, colours: bool) -> list[str]:
    """A row each, the last column wrapped below itself."""
    last = len(table.columns) - 1
    titled = [table.columns] if table.has_titles else []
    widths = {at: max(shown_width(_cell_text(row[at])) for row in (*titled, *table.rows)) for at in range(last)}
    indent = " " * (sum(widths.values()) + GAP * last)
    lines = []
    for row in table.rows:
        head = _row_line(table, row[:last], widths, padded=True, colours=colours)
        text = _cell_text(row[last])
        wrapped = wrapped_lines(f"{indent}{text}", width, indent=indent)
        if isinstance(row[last], Coloured) or len(wrapped) == 1:
            wrapped = [indent + _paint_text(row[last], text, colours=colours)]
        lines.append((head + wrapped[0][len(indent) :]).rstrip())
        lines += wrapped[1:]
    return lines


def _row_line(
    table: TextTable,
    cells: Sequence[Cell],
    widths: dict[int, int],
    style: str = "",
    *,
    colours: bool = False,
    padded: bool = False,
) -> str:
    shown = []
    for (at, width), cell in zip(widths.items(), cells, strict=True):
        text = cut_text(_cell_text(cell), width)
        pad = " " * (width - shown_width(text))
        painted = _paint_text(cell, text, colours=colours) if not style else f"\x1b[{style}m{text}\x1b[0m"
        shown.append(pad + painted if table.columns[at] in table.numbers else painted + pad)
    line = (" " * GAP).join(shown)
    return line + " " * GAP if padded and shown else line.rstrip()


def cut_text(text: str, width: int) -> str:
    """The text, or as much of it as fits before the mark that something was cut."""
    if shown_width(text) <= width:
        return text
    used, kept = 0, []
    for char in text:
        used += _char_width(char)
        if used > width - 1:
            break
        kept.append(char)
    return "".join(kept) + CUT


def _paint_text(cell: Cell, text: str, *, colours: bool) -> str:
    code = _COLOURS.get(cell.colour, "") if isinstance(cell, Coloured) else ""
    return f"\x1b[{code}m{text}\x1b[0m" if code and colours else text

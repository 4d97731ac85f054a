"""What commands print: tables for people, JSON and YAML for programs.

Tables fit the terminal (``outlive.cli.print_tables``); in the wide form, and where the output is no terminal, they are
as wide as they need to be. Colours are for terminals alone. ``NO_COLOR`` is respected. Everything a command answers
goes through one ``Output``, so that watching can compare. Progress appears on standard error for whatever takes longer
than a second, and only where somebody looks.
"""

from __future__ import annotations

import contextlib
import enum
import os
import shutil
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from outlive.base import Unavailable, escape_controls
from outlive.cli.tables import NO_ROWS, Coloured, TextTable, table_lines, wrapped_lines

if TYPE_CHECKING:
    from rich.progress import Progress

    from outlive.base import Clock
    from outlive.resources import Resource

T = TypeVar("T")
Renderable = str | TextTable
"""What a command prints for people: lines and tables."""
NARROW_COLUMNS = 80
"""The width of a terminal that does not say how wide it is."""


class Form(enum.StrEnum):
    """Forms of output."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


class ListForm(enum.StrEnum):
    """Forms of output of a list of objects."""

    TABLE = "table"
    WIDE = "wide"
    NAME = "name"
    JSON = "json"
    YAML = "yaml"


class Output:
    """Where a command's answer goes."""

    def __init__(self, form: Form = Form.TABLE, watch: bool = False) -> None:
        self.form = form
        self.watching = watch
        self.held: list[str] | None = None
        """While watching: what was printed this time."""

    @property
    def wide(self) -> bool:
        """Whether the wide table is wanted."""
        return self.form is Form.WIDE

    def show(self, document: Any, table: Callable[[], Iterable[Renderable]]) -> None:
        """Print the document for programs, or what ``make_table`` renders for people."""
        if self.form is Form.JSON:
            self.print_text(json_text(document))
        elif self.form is Form.YAML:
            self.print_text(yaml_text(document))
        else:
            self.render(table())

    def render(self, renderables: Iterable[Renderable]) -> None:
        """Print tables and lines for people."""
        terminal = sys.stdout.isatty()
        columns = shutil.get_terminal_size((NARROW_COLUMNS, 24)).columns
        width = columns if terminal and not self.wide else None
        colours = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
        lines: list[str] = []
        for one in renderables:
            if isinstance(one, str):
                rest = one.lstrip("\n")  # a line may begin with empty ones
                lines += wrapped_lines(one[: len(one) - len(rest)] + escape_controls(rest), width)
            else:
                lines += table_lines(one, width, colours=colours)
        self.print_text("\n".join(line.rstrip() for line in lines))

    def print_text(self, text: str) -> None:
        """Print text as it is, with one line end."""
        text = text.rstrip("\n") + "\n"
        if self.held is not None:
            self.held.append(text)
            return
        write(text)


class ObjectOutput(Output):
    """Where a list of objects goes, which can also be their names alone."""

    def __init__(self, form: ListForm = ListForm.TABLE, watch: bool = False, no_headers: bool = False) -> None:
        super().__init__(Form.TABLE if form is ListForm.NAME else Form(form.value), watch)
        self._names_only = form is ListForm.NAME
        self._headed = not no_headers

    def print_objects(
        self,
        objects: Sequence[Resource],
        *,
        single: bool = False,
        empty: str = NO_ROWS,
        tables: Iterable[TextTable] | None = None,
        cells_of: Callable[[Resource], Mapping[str, Any]] | None = None,
    ) -> None:
        """Print objects: one as itself, several as a list; ``empty`` instead of none. ``tables``: for people,
        where these are not the columns of the kinds. ``cells_of``: by column, what a table prints instead of what a
        document says."""
        from outlive.resources import to_builtins

        if self._names_only:
            self.print_names(f"{item.singular_name()}/{item.name}" for item in objects)
        elif self.form in (Form.TABLE, Form.WIDE):
            if tables is None:
                tables = object_tables(objects, wide=self.wide, cells_of=cells_of)
            self.print_tables(tables if objects else (), empty)
        else:
            items = [to_builtins(item) for item in objects]
            self.show(items[0] if single else {"apiVersion": "v1", "kind": "List", "items": items}, tuple)

    def print_names(self, names: Iterable[str]) -> None:
        """Print names, a line each."""
        text = "\n".join(names)
        if text:
            self.print_text(text)

    def print_tables(self, tables: Iterable[TextTable], empty: str = NO_ROWS) -> None:
        """Print tables, or ``empty`` instead of none; where no titles are wanted, nothing."""
        shown = [one._replace(headed=self._headed) for one in tables]
        if shown or self._headed:
            self.render(shown or [empty])

    @property
    def names_only(self) -> bool:
        """Whether only names are wanted."""
        return self._names_only


class Report(Output):
    """Where the answer of a command goes that does something, and is therefore not repeated."""


def write(text: str) -> None:
    """Print to standard output; a reader that went away is no error, and the answer's exit code stands."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def discard_stdout() -> None:
    """The reader went away: whatever is still buffered goes nowhere, quietly."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)


def json_text(document: Any) -> str:
    """The document as indented JSON, members in their order."""
    from outlive.resources import encode

    return msgspec.json.format(encode(document), indent=2).decode()


def yaml_text(document: Any) -> str:
    """The document as YAML, members in their order."""
    import yaml  # type: ignore[import-untyped]

    from outlive.resources import to_builtins

    text: str = yaml.dump(
        to_builtins(document), Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, width=1000
    )
    return text


def make_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    title: str = "",
    numbers: Sequence[str] = (),
    empty: str = NO_ROWS,
    advice: bool = False,
) -> TextTable:
    """A plain table; the columns named in ``numbers`` are right-aligned. ``empty``: what it says without rows;
    ``advice``: whether the last column is read whole also where it does not fit."""
    cells = tuple(
        tuple(one if isinstance(one, Coloured) else escape_controls(cell_text(one)) for one in row) for row in rows
    )
    return TextTable(tuple(columns), cells, title=title, numbers=frozenset(numbers), empty=empty, advice=advice)


def colour_word(word: str, colour: str) -> Coloured:
    """A cell in a colour, where the output is a terminal that has colours and ``NO_COLOR`` is not set."""
    return Coloured(escape_controls(word), colour)


def fault_blocks(faults: Iterable[tuple[str, str, str, str]]) -> list[str]:
    """A block of lines for each fault: its code and what it is of, what is wrong, and what helps; empty parts are left
    out. Each is ``(code, subject, what, help)``."""
    lines: list[str] = []
    for code, subject, what, remedy in faults:
        lines += ["", f"{code}: {subject}" if subject else code]
        lines += [f"  {part}" for part in (what, f"what helps: {remedy}" if remedy else "") if part]
    return lines


def format_omitted(total: int, shown: int, noun: str = "", *, wide: bool = True) -> list[str]:
    """The line after a list that was cut, which says how many more there are and where; none after a whole one.

    ``wide``: whether the wide form shows more.
    """
    where = "-o wide or -o json" if wide else "-o json"
    more = f"{total - shown:,} more {noun}".rstrip()
    return [f"and {more} (see {where})"] if shown < total else []


def cut_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    most: int | None = None,
    *,
    title: str = "",
    numbers: Sequence[str] = (),
    total: int | None = None,
    noun: str = "",
    advice: bool = False,
) -> list[Any]:
    """After an empty line or a title the first ``most`` rows and how many more of ``total`` there are; else nothing."""
    shown = rows[:most]
    more = format_omitted(len(rows) if total is None else total, len(shown), noun)
    return (
        [f"\n{title}:" if title else "", make_table(columns, shown, numbers=numbers, advice=advice), *more]
        if rows
        else []
    )


def cell_text(value: Any) -> str:
    """A cell as text: yes and no for truths, nothing for ``None``."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() or abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def object_tables(
    objects: Sequence[Resource], *, wide: bool, cells_of: Callable[[Resource], Mapping[str, Any]] | None = None
) -> Iterable[TextTable]:
    """One table a kind, with the kind's own columns."""
    from outlive.resources import DISPLAY_COLUMN, name_cells, object_cells

    kinds = list(dict.fromkeys(type(item) for item in objects))
    for kind in kinds:
        columns = [title for title, _, priority in kind.info.columns if wide or priority == 0]
        mine = [item for item in objects if type(item) is kind]
        known = [cells_of(item) if cells_of is not None else {} for item in mine]
        rows = [
            [*name_cells(item), *object_cells(item, wide=wide, known=now)]
            for item, now in zip(mine, known, strict=True)
        ]
        head = [DISPLAY_COLUMN, "ID"] if kind.info.display else ["Name"]
        yield make_table([*head, *columns], rows, title=kind.__name__ if len(kinds) > 1 else "")


FOLLOW_S = 1.0
"""Pause between two readings of a log that is followed."""
Lines = Annotated[int | None, typer.Option("--lines", "-n", metavar="N", min=1, help="Only the last N lines.")]
Follow = Annotated[bool, typer.Option("--follow", help="Print new output as it comes.")]


async def follow(clock: Clock, read: Callable[[], Awaitable[T | None]], show: Callable[[T], None]) -> None:
    """Show what is read again and again, also after a moment in which the server is away; ends only from outside."""
    from outlive.runtime import Periodic

    async def show_new() -> None:
        with contextlib.suppress(Unavailable):
            found = await read()
            if found is not None:
                show(found)

    await Periodic(show_new, FOLLOW_S, clock=clock, wait_first=True).run()


QUIET_SECONDS = 1.0
"""How long an operation may take before it is worth a bar."""


class ProgressBar:
    """One operation with a known or unknown number of steps."""

    def __init__(self, title: str, total: int | None) -> None:
        self._title = title
        self._done = 0
        self._total = total
        self._progress: Progress | None = None
        self._closed = False
        self._lock = threading.Lock()

    def advance_to(self, done: int, total: int | None = None) -> None:
        """So many steps are done, of so many if that is known by now."""
        self._done, self._total = done, total or self._total
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=done, total=self._total)

    def show(self) -> None:
        """Draw it from now on."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        with self._lock:
            if self._closed:
                return
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._progress.add_task(self._title, completed=self._done, total=self._total)
            self._progress.start()

    def close(self) -> None:
        """Take it away."""
        with self._lock:
            self._closed = True
            if self._progress is not None:
                self._progress.stop()


@contextmanager
def show_progress(title: str, total: int | None = None) -> Iterator[ProgressBar]:
    """A bar for the time of the block."""
    bar = ProgressBar(title, total)
    timer = threading.Timer(QUIET_SECONDS, bar.show)
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield bar
    finally:
        timer.cancel()
        bar.close()

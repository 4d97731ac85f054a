"""HTML from values: everything that is not markup already is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | int | None


def tag(name: str, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """An element. ``class_`` is ``class``, other underscores are hyphens; ``None`` and ``False`` leave it out."""
    head = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        written = key.rstrip("_").replace("_", "-")
        head.append(written if value is True else f'{written}="{escape(str(value))}"')
    return Markup(f"<{' '.join(head)}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """Children one after the other."""
    return Markup(
        "".join(
            child if isinstance(child, Markup) else escape(str(child), quote=False)
            for child in children
            if child is not None
        )
    )


def table(
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[Child]],
    *,
    numbers: Sequence[str] = (),
    prose: Sequence[str] = (),
    note: str = "",
) -> Markup:
    """A table with its caption; the first cell of a row is its heading.

    Columns in ``numbers`` are figures, those in ``prose`` may be broken into lines.
    """
    kinds = ["n" if column in numbers else "p" if column in prose else None for column in columns]
    head = tag("tr", *(tag("th", name, scope="col", class_=kind) for name, kind in zip(columns, kinds, strict=True)))
    body = [_row(row, kinds) for row in rows]
    inside = tag(
        "table", tag("caption", caption, tag("span", note) if note else None), tag("thead", head), tag("tbody", *body)
    )
    return tag("div", inside, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _row(cells: Sequence[Child], kinds: Sequence[str | None]) -> Markup:
    first = tag("th", cells[0], scope="row", class_=kinds[0])
    return tag("tr", first, *(tag("td", cell, class_=kind) for cell, kind in zip(cells[1:], kinds[1:], strict=True)))


def bar(parts: Sequence[tuple[str, float]], text: str) -> Markup:
    """A horizontal bar of (class, share of 0 to 1); ``text`` says the same."""
    cells = (tag("i", class_=kind, style=f"width:{share * 100:.2f}%") for kind, share in parts if share > 0)
    return tag("span", *cells, class_="bar", role="img", aria_label=text)

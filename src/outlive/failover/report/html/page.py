"""Renders the templates: one file that needs nothing else, loads nothing, and runs only its own script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import jinja2

from outlive.failover.report.html.figures import FleetFigures


class Bar(NamedTuple):
    """A horizontal bar of (colour, share of 0 to 1); ``text`` says the same."""

    parts: Sequence[tuple[str, float]]
    text: str


class Word(NamedTuple):
    """A word in a coloured frame."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table with its caption; the first cell of a row is its heading.

    Columns in ``numbers`` are figures, those in ``prose`` may be broken into lines.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Bar | Word]]
    numbers: Sequence[str] = ()
    prose: Sequence[str] = ()
    note: str = ""

    @property
    def kinds(self) -> list[str]:
        """The class of each column."""
        return ["n" if one in self.numbers else "p" if one in self.prose else "" for one in self.columns]


class Card(NamedTuple):
    """One figure: what, value, remark, and ``good``, ``bad`` or nothing."""

    what: str
    value: str
    remark: str = ""
    kind: str = ""


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("outlive.failover.report.html"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, fleet: FleetFigures, **values: Any) -> bytes:
    """The page as UTF-8."""
    environment = _environment()
    script = environment.get_template("report.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template(template).render(fleet=fleet, script=script, script_digest=digest, **values)
    return page.encode()

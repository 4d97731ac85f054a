"""What reasons are made of: codes, values, templates (see the package)."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

Value = str | int | float | tuple[str, ...]
NAMED: Final = 5
"""Names of a list that a sentence gives; then it says how many more there are."""


class Message(msgspec.Struct, frozen=True):
    """A sentence, and what an operator can do about it (empty: nothing has to be done)."""

    text: str
    remedy: str = ""

    def __str__(self) -> str:
        """One line: the sentence, then the remedy in brackets."""
        return f"{self.text} ({self.remedy})" if self.remedy else self.text


class Reason(msgspec.Struct, frozen=True):
    """A code with its values; its template shows which values it has."""

    code: str
    fields: Mapping[str, Value] = {}


class Template(msgspec.Struct, frozen=True):
    """How a code reads: ``{field}`` is replaced by its value; a function computes what a pattern cannot say."""

    text: str | Callable[[Mapping[str, Value]], str]
    remedy: str | Callable[[Mapping[str, Value]], str] = ""


Table = Mapping[enum.StrEnum, Template]


def join_names(values: tuple[str, ...]) -> str:
    """A list for a sentence: the first ``NAMED``, and how many more there are."""
    shown = ", ".join(values[:NAMED])
    return shown if len(values) <= NAMED else f"{shown} and {len(values) - NAMED} more"


def fill(pattern: str | Callable[[Mapping[str, Value]], str], fields: Mapping[str, Value]) -> str:
    """The pattern with the fields' values. ``KeyError`` for a field that is missing."""
    if callable(pattern):
        return pattern(fields)
    return pattern.format_map(
        {key: join_names(value) if isinstance(value, tuple) else value for key, value in fields.items()}
    )

"""Label selectors, as Kubernetes writes them: ``a=b,c!=d,e in (x,y),f notin (z),g,!h,i>1,j<9``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from outlive.base import BadInput, Invalid
from outlive.resources import check_key, check_label_value

_TOKEN = re.compile(r"\s*(==|!=|[=!(),<>]|[^\s=!(),<>]+)")
_SIGNS = frozenset(("==", "!=", "=", "!", "(", ")", ",", "<", ">"))
_REMEDY = "write key=value"
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}\Z")
"""Whole numbers as Go reads them; of 64 bits."""


class Term(msgspec.Struct, frozen=True):
    """One requirement on one label."""

    key: str
    op: Literal["in", "notin", "exists", "absent", "gt", "lt"]
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """True if the labels meet it: ``notin`` also without the label, ``gt`` and ``lt`` only with a whole number."""
        match self.op:
            case "in":
                return labels.get(self.key) in self.values
            case "notin":
                return labels.get(self.key) not in self.values
            case "exists":
                return self.key in labels
            case "absent":
                return self.key not in labels
            case "gt" | "lt":
                value, limit = (_parse_whole_number(text) for text in (labels.get(self.key, ""), self.values[0]))
                return value is not None and limit is not None and (value > limit if self.op == "gt" else value < limit)


class Selector(msgspec.Struct, frozen=True):
    """All terms must be met; none at all selects everything."""

    terms: tuple[Term, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Selector:
        """From text; ``BadInput`` shows the part that is not understood."""
        return _Parser(text).parse()

    @classmethod
    def from_values(cls, **labels: str) -> Selector:
        """Labels with exactly these values; see ``from_labels`` for keys that are no identifiers."""
        return cls.from_labels(labels)

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> Selector:
        """Labels with exactly these values."""
        return cls(tuple(Term(key, "in", (value,)) for key, value in sorted(labels.items())))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(term.matches(labels) for term in self.terms)

    def __str__(self) -> str:
        """The text that parses to this selector."""
        return ",".join(_format_term(term) for term in self.terms)


class _Parser:
    """Reads a selector word by word, as an API server does: ``in`` and ``notin`` are also keys and values."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._found = [(match[1], match.start(1)) for match in _TOKEN.finditer(text)]
        self._next = 0

    def parse(self) -> Selector:
        terms: list[Term] = []
        while self._next < len(self._found):
            terms.append(self._parse_term())
            if self._next < len(self._found):
                self._take(",")
                if self._next == len(self._found):
                    raise BadInput(f"selector {self._text[-80:]!r} ends in a comma", remedy=_REMEDY)
        return Selector(tuple(terms))

    def _parse_term(self) -> Term:
        absent = self._peek() == "!"
        if absent:
            self._take("!")
        key = self._take_word()
        operator = self._peek()
        if absent:
            return Term(key, "absent")
        if operator in ("", ","):
            return Term(key, "exists")
        self._next += 1
        match operator:
            case "in" | "notin":
                return Term(key, operator, self._take_values(key))
            case "=" | "==" | "!=":
                value = "" if self._peek() in ("", ",") else self._take_word(key=key)
                return Term(key, "notin" if operator == "!=" else "in", (value,))
            case ">" | "<":
                value = self._take_word(key=key)
                if _parse_whole_number(value) is None:
                    raise BadInput(
                        f"selector {self._text[:80]!r} compares with {value!r}", remedy="give a whole number"
                    )
                return Term(key, "gt" if operator == ">" else "lt", (value,))
        self._next -= 1
        raise self._malformed_error()

    def _take_values(self, key: str) -> tuple[str, ...]:
        """The values in brackets; an empty place between commas is the empty value."""
        self._take("(")
        values: list[str] = []
        while True:
            values.append("" if self._peek() in (",", ")") else self._take_word(key=key))
            if self._peek() == ")":
                self._next += 1
                return tuple(values)
            self._take(",")

    def _peek(self) -> str:
        return self._found[self._next][0] if self._next < len(self._found) else ""

    def _take(self, sign: str) -> None:
        if self._peek() != sign:
            raise self._malformed_error()
        self._next += 1

    def _take_word(self, *, key: str = "") -> str:
        """The next word, a key, or with ``key`` a value of it."""
        word = self._peek()
        if not word or word in _SIGNS:
            raise self._malformed_error()
        try:
            check_label_value(word, key, "") if key else check_key(word, "")
        except Invalid as error:
            raise BadInput(f"selector {self._text[:80]!r}: {error.message}", remedy=error.remedy) from None
        self._next += 1
        return word

    def _malformed_error(self) -> BadInput:
        position = self._found[self._next][1] if self._next < len(self._found) else len(self._text)
        rest = self._text[position : position + 80] or self._text[-80:]
        return BadInput(f"selector {rest!r} is malformed", remedy=_REMEDY)


def _parse_whole_number(text: str) -> int | None:
    """The number of 64 bits that the text is; ``None`` if it is none."""
    value = int(text) if _WHOLE.match(text) else 2**63
    return value if -(2**63) <= value < 2**63 else None


def _format_term(term: Term) -> str:
    match term.op:
        case "in" | "notin":
            return f"{term.key} {term.op} ({','.join(term.values)})"
        case "exists":
            return term.key
        case "absent":
            return f"!{term.key}"
        case "gt" | "lt":
            return f"{term.key}{'>' if term.op == 'gt' else '<'}{term.values[0]}"

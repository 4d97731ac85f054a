"""Label selectors, as Kubernetes writes them: ``a=b,c!=d,e in (x,y),f notin (z),g,!h``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from outlive.base.errors import BadInput

_TERM = re.compile(
    r"\s*(?:(?P<absent>!)\s*(?P<key0>[\w./-]+)"
    r"|(?P<key1>[\w./-]+)\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)"
    r"|(?P<key2>[\w./-]+)\s*(?P<op>==|=|!=)\s*(?P<value>[\w.-]*)"
    r"|(?P<key3>[\w./-]+))\s*(?:,|\Z)"
)


class Term(msgspec.Struct, frozen=True):
    """One requirement on one label."""

    key: str
    op: Literal["in", "notin", "exists", "absent"]
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels meet it; ``notin`` is met by a label that is not there."""
        match self.op:
            case "in":
                return labels.get(self.key) in self.values
            case "notin":
                return labels.get(self.key) not in self.values
            case "exists":
                return self.key in labels
            case "absent":
                return self.key not in labels


class Selector(msgspec.Struct, frozen=True):
    """All terms must be met; none at all selects everything."""

    terms: tuple[Term, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Selector:
        """From text; ``BadInput`` shows the part that is not understood."""
        terms: list[Term] = []
        position = 0
        while position < len(text.rstrip()):
            match = _TERM.match(text, position)
            if match is None:
                raise BadInput(f"selector {text[position : position + 80]!r} is malformed", remedy="write key=value")
            terms.append(_term(match))
            position = match.end()
            if position == len(text) and text.endswith(","):
                raise BadInput(f"selector {text[-80:]!r} ends in a comma", remedy="write key=value")
        return cls(tuple(terms))

    @classmethod
    def equal(cls, **labels: str) -> Selector:
        """Labels with exactly these values; see ``labels`` for keys that are no identifiers."""
        return cls.labels(labels)

    @classmethod
    def labels(cls, labels: Mapping[str, str]) -> Selector:
        """Labels with exactly these values."""
        return cls(tuple(Term(key, "in", (value,)) for key, value in sorted(labels.items())))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(term.matches(labels) for term in self.terms)

    def __str__(self) -> str:
        """The text that parses to this selector."""
        return ",".join(_text(term) for term in self.terms)


def _term(match: re.Match[str]) -> Term:
    if match["absent"]:
        return Term(match["key0"], "absent")
    if match["set"]:
        values = tuple(value.strip() for value in match["values"].split(","))
        return Term(match["key1"], "in" if match["set"] == "in" else "notin", values)
    if match["op"]:
        return Term(match["key2"], "notin" if match["op"] == "!=" else "in", (match["value"],))
    return Term(match["key3"], "exists")


def _text(term: Term) -> str:
    match term.op:
        case "in" | "notin":
            return f"{term.key} {term.op} ({','.join(term.values)})"
        case "exists":
            return term.key
        case "absent":
            return f"!{term.key}"

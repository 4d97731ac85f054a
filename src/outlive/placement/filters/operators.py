"""Operators in ``capabilities:`` extra specs, as Nova knows them (docs/reference/placement.md#capability-operators).

A value that begins with an operator is compared by it, any other by equality. Numbers that are none never match.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Final

_NUMBERS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
}
_TEXTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "s==": operator.eq,
    "s!=": operator.ne,
    "s<": operator.lt,
    "s<=": operator.le,
    "s>": operator.gt,
    "s>=": operator.ge,
}


def satisfies(has: str, wanted: str) -> bool:
    """Whether what a host has meets what an extra spec wants."""
    words = wanted.split()
    first = words[0] if words else ""
    if first == "<or>":
        return has in [word for word in words if word != "<or>"]
    if first == "<in>":
        return len(words) > 1 and " ".join(words[1:]) in has
    if first == "<all-in>":
        return len(words) > 1 and all(word in has for word in words[1:])
    if first in _TEXTS:
        return _TEXTS[first](has, " ".join(words[1:]))
    if first in _NUMBERS:
        try:
            return _NUMBERS[first](float(has), float(" ".join(words[1:])))
        except ValueError:
            return False
    return has == wanted

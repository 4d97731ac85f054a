"""Tables of states: which state may follow which. An illegal transition raises and is written nowhere."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from outlive.base.errors import IllegalTransition

S = TypeVar("S", bound=enum.StrEnum)

Transitions = Mapping[S, frozenset[S]]


def follow(table: Transitions[S], before: S, after: S, *, what: str) -> S:
    """``after``, if it may follow ``before``; to stay in a state is always legal."""
    if after is not before and after not in table[before]:
        raise IllegalTransition(f"{what} cannot go from {before} to {after}")
    return after

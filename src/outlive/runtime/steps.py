"""Steps of a protocol: pure transitions whose preconditions have names.

A step looks at a view (plain data) and either refuses, naming the first precondition that does not hold, or answers
with what is to be done: usually the new content of one object, to be written by compare-and-swap on the version that
was looked at. Because preconditions are data, a model checker can leave one out and show what goes wrong without it
(docs/safety-proof.md). A step never sees a store, a clock or a driver, and promises nothing about what happens between
the look and the write: that is what the compare-and-swap is for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, TypeVar

import msgspec

from outlive.runtime.decisions import Decision

V = TypeVar("V")


class Refusal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Why a step must not be taken now."""

    step: str
    precondition: str
    why: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What every step answers: a refusal, or (in subclasses) what is to be done."""

    refused: Refusal | None = None


A = TypeVar("A", bound=Outcome)


@dataclass(frozen=True)
class Precondition(Generic[V]):
    """One thing that must hold, under a name that documents, counterexamples and logs share."""

    name: str
    holds: Callable[[V], bool]
    why: Callable[[V], str]
    """What an operator reads where it does not hold."""


@dataclass(frozen=True)
class ProtocolStep(Generic[V, A]):
    """See the module."""

    name: str
    """Such as ``safety.hold``; the decision is registered under it."""
    doc: str
    view: type[V]
    outcome: type[A]
    preconditions: tuple[Precondition[V], ...]
    effect: Callable[[V], A]

    def attempt(self, view: V) -> A:
        """What is to be done, or the first refusal."""
        for precondition in self.preconditions:
            if not precondition.holds(view):
                why = precondition.why(view)
                return self.outcome(refused=Refusal(step=self.name, precondition=precondition.name, why=why))
        return self.effect(view)

    def drop_precondition(self, name: str) -> ProtocolStep[V, A]:
        """The same step with one precondition left out: only to show what it is there for. ``KeyError``."""
        if all(precondition.name != name for precondition in self.preconditions):
            raise KeyError(name)
        return replace(self, preconditions=tuple(each for each in self.preconditions if each.name != name))

    @cached_property
    def decision(self) -> Decision[V, A]:
        """The step as a registered decision; it is empty where it refuses."""
        return Decision(self.name, self.attempt, self.view, self.outcome, self.doc, is_empty=refuses)


def refuses(outcome: Outcome) -> bool:
    """Whether a step refused."""
    return outcome.refused is not None

"""What a validation of one slot may come to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Valid:
    """Every member could be brought up."""


@dataclass(frozen=True, slots=True)
class Transient:
    """Somebody could not be asked."""

    why: str


@dataclass(frozen=True, slots=True)
class MemberInvalid:
    """One member could not be brought up in the slot."""

    vm: str
    why: str


@dataclass(frozen=True, slots=True)
class SlotInvalid:
    """Nobody could be brought up in the slot."""

    why: str


@dataclass(frozen=True, slots=True)
class NoRoom:
    """VMs have taken the room of the slot."""

    why: str


Verdict = Valid | Transient | MemberInvalid | SlotInvalid | NoRoom

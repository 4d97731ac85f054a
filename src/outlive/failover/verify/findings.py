"""What a check finds: violations under stable codes, the first one in full, the rest counted."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

SHOWN: Final = 20
"""Violations that are kept in full; all are counted."""


class Code(enum.StrEnum):
    """Why a certificate is not accepted, in the order in which it is looked at."""

    VERSION = "version"
    DIGEST = "digest"
    K = "k"
    UNIT = "unit"
    HOST_UNKNOWN = "host-unknown"
    HOST_REPEATED = "host-repeated"
    HOST_OMITTED = "host-omitted"
    VM_REPEATED = "vm-repeated"
    VM_UNKNOWN = "vm-unknown"
    VM_ELSEWHERE = "vm-elsewhere"
    VM_OMITTED = "vm-omitted"
    SLOT_REPEATED = "slot-repeated"
    SLOT_UNKNOWN = "slot-unknown"
    SLOT_HOST = "slot-host"
    SLOT_SIZE = "slot-size"
    SLOT_ALLOCATIONS = "slot-allocations"
    SLOT_NOT_READY = "slot-not-ready"
    SLOT_OMITTED = "slot-omitted"
    CAPACITY_UNKNOWN = "capacity-unknown"
    OVER_CAPACITY = "over-capacity"
    LISTED_TWICE = "listed-twice"
    NOT_CERTIFIED = "slot-not-certified"
    NOT_A_MEMBER = "not-a-member"
    RECORDED_ELSEWHERE = "recorded-elsewhere"
    NOT_ALLOWED = "host-not-allowed"
    TOO_SMALL = "slot-too-small"
    UNLISTED = "slot-unlisted"
    TOO_FEW = "too-few-slots"
    BELOW_REQUIRED = "need-below-required"
    PARTIAL = "partial"
    UNPLACED = "vm-unplaced"
    GROUND = "covered-by"
    COUNT = "count"
    LOST = "lost"


class Violation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One thing that is wrong, and whom it is about; what it is not about is empty."""

    code: Code
    message: str
    vm: str = ""
    slot: str = ""
    host: str = ""


class Findings:
    """Collects violations."""

    def __init__(self) -> None:
        self.shown: list[Violation] = []
        self.counts: dict[str, int] = {}

    def add(self, code: Code, message: str, *, vm: str = "", slot: str = "", host: str = "") -> None:
        """One more."""
        self.count(code)
        if len(self.shown) < SHOWN:
            self.shown.append(Violation(code=code, message=message, vm=vm, slot=slot, host=host))

    def count(self, code: Code, number: int = 1) -> None:
        """More of the same, without their sentences."""
        self.counts[code.value] = self.counts.get(code.value, 0) + number

    def full(self) -> bool:
        """Whether further sentences would be dropped."""
        return len(self.shown) >= SHOWN

"""The certificate as a document: its form, how it is read, and the violations that a check finds.

The form is written down here a second time on purpose: the maker's own structs are not shared
(docs/reference/failover-certificate.md#certificate-form).
"""

from __future__ import annotations

import enum
import json
from typing import Annotated, Final, Literal

import msgspec

from outlive.base import BadInput
from outlive.resources import json_error

VERSION: Final = 1
UNIT_OF_HOSTS: Final = "host"

Count = Annotated[int, msgspec.Meta(ge=0)]


class Strict(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A part of the document: nothing in it is passed over."""


class CertifiedVm(Strict, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """A VM, where it runs, how many failures it is to survive, and its slots."""

    id: str
    host: str
    need: Count
    slots: tuple[str, ...]
    required: Count = 0
    """Slots that it needs, where that is more than ``need``."""
    by: Literal["reserved", "recoverable", "unproven"] | None = None
    """What becomes of it when its host dies; absent: nothing is claimed of that."""


class CertifiedSlot(Strict, frozen=True, kw_only=True, gc=False):
    """A slot with everybody that it lists."""

    name: str
    host: str
    cpu_milli: int
    memory_bytes: int
    allocations: dict[str, str]


class CertifiedState(Strict, frozen=True, kw_only=True, omit_defaults=True):
    """What is certified of a state."""

    version: int
    state_digest: str
    k: Count
    hosts: tuple[str, ...]
    vms: tuple[CertifiedVm, ...]
    slots: tuple[CertifiedSlot, ...]
    unit: str = UNIT_OF_HOSTS
    """What fails as one: a host, or all hosts with the same value of this failure domain."""


def read_certificate(raw: bytes, place: str = "certificate") -> CertifiedState:
    """The certificate of a file; ``BadInput`` names the line or the member that is wrong."""
    try:
        stated = msgspec.json.decode(raw, type=CertifiedState)
        _check_members(raw, stated, place)
    except msgspec.ValidationError as error:
        remedy = "write one with: outlive failover certify --out FILE"
        raise BadInput(f"not a certificate: {error}", place=place, remedy=remedy) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message, line = json_error(error, raw)
        remedy = "the file is broken or cut off: write it again"
        raise BadInput(f"not JSON: {message}", place=f"{place}:{line}", remedy=remedy) from None
    return stated


def _check_members(raw: bytes, stated: CertifiedState, place: str) -> None:
    """``BadInput`` where a member is there twice: of two readers one may believe the first and one the last.

    What was read, written again, is as long as the file without its blanks unless something was passed over, or is
    spelt in another way (a default, an escape). Only then is it looked at member by member.
    """
    try:
        whole = len(msgspec.json.encode(stated)) == len(msgspec.json.format(raw, indent=-1))
    except OverflowError:
        whole = False
    if not whole:
        json.loads(raw, object_pairs_hook=lambda pairs: _check_unique(pairs, place), parse_int=str)


def _check_unique(pairs: list[tuple[str, object]], place: str) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInput(f"the member {twice[:80]!r} is there twice", place=place, remedy="write it once")


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


class CertificateViolation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One thing that is wrong, and whom it is about; what it is not about is empty."""

    code: Code
    message: str
    vm: str = ""
    slot: str = ""
    host: str = ""


class Findings:
    """Collects violations."""

    def __init__(self) -> None:
        self.shown: list[CertificateViolation] = []
        self.counts: dict[str, int] = {}

    def add(self, code: Code, message: str, *, vm: str = "", slot: str = "", host: str = "") -> None:
        """One more."""
        self.count(code)
        if len(self.shown) < SHOWN:
            self.shown.append(CertificateViolation(code=code, message=message, vm=vm, slot=slot, host=host))

    def count(self, code: Code, number: int = 1) -> None:
        """More of the same, without their sentences."""
        self.counts[code.value] = self.counts.get(code.value, 0) + number

    def is_full(self) -> bool:
        """Whether further sentences would be dropped."""
        return len(self.shown) >= SHOWN

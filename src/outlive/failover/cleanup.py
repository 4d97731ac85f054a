"""Take out of slots what no longer belongs there, the culprits first, and delete slots that are empty.

Pure: the steps of docs/reference/failover.md#cleaning-up on views. Nothing is written here, and capacity is not looked
at: a slot whose host shrank is found by validation.
"""

from __future__ import annotations

import enum

import msgspec

from outlive.failover.compat import Compat
from outlive.failover.model import HostView, SlotView, VmView


class Cause(enum.StrEnum):
    """Why a VM leaves a slot, or why a slot goes."""

    GONE = "vm-gone"
    MOVED = "vm-moved"
    OWN_HOST = "slot-on-own-host"
    SAME_HOST = "two-slots-on-one-host"
    CLASH = "clash"
    EMPTY = "slot-empty"
    NEVER_INITIALISED = "slot-never-initialised"


class Drop(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A VM leaves a slot."""

    slot: str
    vm: str
    cause: Cause
    detail: str = ""
    """One sentence with the VM, the other VM, the hosts and the slots."""
    rule: int = 0
    """The rule that is broken, 1 to 5; 0 where none is."""
    other_vm: str = ""
    host: str = ""


class Deletion(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A slot goes."""

    slot: str
    cause: Cause
    detail: str = ""


class Brake(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """So many memberships would have been dropped that none was (deviation D12)."""

    would_drop: int
    memberships: int
    causes: dict[str, int]


class CleanInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One observation of the world."""

    vms: tuple[VmView, ...]
    hosts: tuple[HostView, ...] = ()
    """Their ``active`` lists feed the data-loss guard."""
    slots: tuple[SlotView, ...] = ()
    now: float = 0.0
    """Seconds since 1970."""
    grace_s: float = 60.0
    """How old a slot without a failover status must be to be deleted (deviation D7)."""
    brake_share: float = 0.20
    brake_number: int = 50
    compat: Compat = Compat()


class CleanResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The slots after clean-up, and what changed."""

    slots: tuple[SlotView, ...] = ()
    """Without the deleted ones; changed ones have ``last_changed`` = now and no acknowledgement."""
    dropped: tuple[Drop, ...] = ()
    deleted: tuple[Deletion, ...] = ()
    changed: tuple[str, ...] = ()
    """Names of slots whose members changed and that still have some, in name order."""
    updated: int = 0
    """The figure of the summary: a slot changed by both steps counts twice, deleted ones included."""
    guarded: tuple[tuple[str, str], ...] = ()
    """(slot, VM) kept although no source lists the VM, because a host reports it as active."""
    waiting: tuple[str, ...] = ()
    """Slots without a failover status that are still in their grace period."""
    brake: Brake | None = None


def clean(given: CleanInput) -> CleanResult:
    """Drop members that are gone, moved or clash; then delete empty slots."""
    raise NotImplementedError

"""When a host that the store no longer acknowledges stops itself, step by step: an oracle for tests of the guard.

Nobody may conclude from these steps that a host *has* stopped: that needs the recorded timing of an armed guard.
"""

from __future__ import annotations

import enum

import msgspec

from outlive.runtime import Amount, Count, Number, Positive


class SelfFenceAction(enum.StrEnum):
    """What the host does to itself."""

    WARN = "warn"
    """Say so, and take no new work."""
    DEMOTE = "demote"
    """Give up floating and gateway addresses and what serves on them."""
    KILL_VMS = "kill_vms"
    RESET = "reset"


class SelfFenceInput(msgspec.Struct, frozen=True, kw_only=True):
    """A host and how long it has not been acknowledged. Times in seconds."""

    keepalive_interval: Positive
    self_fence_intervals: Amount
    """Intervals without acknowledgement after which it stops; 0 turns it off."""
    ack_age: Number
    running_vms: Count
    maintenance: bool = False
    holds_primary_addresses: bool = False


class SelfFenceResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the watchdog is fed, and what is done."""

    pet: bool
    actions: tuple[SelfFenceAction, ...]


def evaluate_self_fencing(given: SelfFenceInput) -> SelfFenceResult:
    """Warn at half the limit, stop the virtual machines at the limit, reset one interval later if any is left."""
    if given.self_fence_intervals == 0 or given.maintenance:
        return SelfFenceResult(pet=True, actions=())
    limit = given.keepalive_interval * given.self_fence_intervals
    empty = given.running_vms == 0
    demote = (SelfFenceAction.DEMOTE,) if given.holds_primary_addresses else ()
    if given.ack_age <= limit / 2:
        return SelfFenceResult(pet=True, actions=())
    if given.ack_age <= limit:
        return SelfFenceResult(pet=True, actions=(SelfFenceAction.WARN,))
    if empty:
        return SelfFenceResult(pet=True, actions=demote)
    if given.ack_age <= limit + given.keepalive_interval:
        return SelfFenceResult(pet=False, actions=(*demote, SelfFenceAction.KILL_VMS))
    return SelfFenceResult(pet=False, actions=(SelfFenceAction.RESET,))

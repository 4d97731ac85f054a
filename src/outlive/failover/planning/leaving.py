"""When a membership ends by itself: the VM is gone, runs elsewhere, outgrew the slot, or may not run on its host.

One question about one member (docs/reference/failover.md#cleaning-up), asked by the clean-up of a cycle for everybody
and by upkeep for the VMs that a change concerned. Broken rules are another matter (``eligibility.culprits``).
"""

from __future__ import annotations

import enum

import msgspec

from outlive.failover.eligibility.rules import fits, may_run_on
from outlive.failover.model import SlotView, VmView
from outlive.failover.planning.reasons import amounts

DETAIL_LIMIT = 300
"""Letters of a detail that names hosts."""


class Cause(enum.StrEnum):
    """Why a VM leaves a slot, or why a slot goes."""

    GONE = "vm-gone"
    MOVED = "vm-moved"
    OUTGROWN = "outgrown"
    NOT_ALLOWED = "host-not-allowed"
    OWN_HOST = "slot-on-own-host"
    SAME_HOST = "two-slots-on-one-host"
    CLASH = "clash"
    EMPTY = "slot-empty"
    NEVER_INITIALISED = "slot-never-initialised"
    CONSUMED = "consumer-arrived"
    CONSUMER_GONE = "consumer-gone"
    HOST_LOST = "host-lost"


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


def departure(vm: str, slot: SlotView, view: VmView | None, *, active: bool) -> Drop | None:
    """Why the member leaves the slot, or ``None`` where it stays; ``KeyError`` for a VM that is no member."""
    recorded = slot.members[vm]
    if view is None:
        if active:
            return None
        detail = f"VM {vm} is neither listed nor active on any host"
        return Drop(slot=slot.name, vm=vm, cause=Cause.GONE, detail=detail, host=recorded)
    if view.host != recorded:
        detail = f"VM {vm} runs on {view.host}, not on {recorded}"
        return Drop(slot=slot.name, vm=vm, cause=Cause.MOVED, detail=detail, host=view.host)
    if not fits(view, slot):
        needs, holds = amounts(view.cpu_milli, view.memory_bytes), amounts(slot.cpu_milli, slot.memory_bytes)
        detail = f"VM {vm} needs {needs}, the slot holds {holds}"
        return Drop(slot=slot.name, vm=vm, cause=Cause.OUTGROWN, detail=detail, host=slot.host)
    if not may_run_on(view, slot.host):
        detail = f"VM {vm} may not run on {slot.host}, only on {', '.join(view.host_limit)}"[:DETAIL_LIMIT]
        return Drop(slot=slot.name, vm=vm, cause=Cause.NOT_ALLOWED, detail=detail, host=slot.host)
    return None


def emptied(slot: str) -> Deletion:
    """A slot that goes because nobody is left in it."""
    return Deletion(slot=slot, cause=Cause.EMPTY, detail="its last member left")

"""Why a slot that lists a VM does not count for it: one question with one answer, for everybody who tells of it.

The answer is ``None`` exactly where ``rules.counts`` says that the slot counts. Whether the slot's host has room, and
whether the rules hold for the VM, are questions about more than the two of them.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from outlive.failover.model import SlotView, VmView
from outlive.failover.planner.reasons import amounts
from outlive.failover.rules import fits, may_run_on

HOSTS_NAMED = 3
"""Hosts of a limit that a sentence names."""


class Worthless(enum.StrEnum):
    """What is wrong with the membership, in the order in which it is looked at."""

    ELSEWHERE = "recorded-elsewhere"
    NOT_READY = "slot-not-ready"
    NOT_ALLOWED = "host-not-allowed"
    TOO_SMALL = "slot-too-small"


class Why(NamedTuple):
    """The first thing that is wrong."""

    worthless: Worthless
    text: str
    """What is so, to follow "the slot"."""
    remedy: str


def why_worthless(vm: VmView, slot: SlotView) -> Why | None:
    """Why a slot that lists the VM does not count for it; ``None`` where it counts. ``KeyError`` for no member."""
    recorded = slot.members[vm.id]
    if recorded != vm.host:
        return Why(
            Worthless.ELSEWHERE,
            f"lists it as on {recorded} and it runs on {vm.host}",
            "wait for the next clean-up, which takes it out of the slot",
        )
    if slot.ready is False:
        if slot.unready:
            return Why(Worthless.NOT_READY, f"is not ready: {slot.unready}", f"see Hypervisor/{slot.host}")
        return Why(Worthless.NOT_READY, "is not ready", f"see the condition Ready of Reservation/{slot.name}")
    if not may_run_on(vm, slot.host):
        return Why(
            Worthless.NOT_ALLOWED,
            f"is on {slot.host or 'no host'} and it may run on {_named(vm.host_limit)} only",
            "wait for the next clean-up, or change hostLimit of the VM",
        )
    if not fits(vm, slot):
        holds, needs = amounts(slot.cpu_milli, slot.memory_bytes), amounts(vm.cpu_milli, vm.memory_bytes)
        return Why(
            Worthless.TOO_SMALL,
            f"holds {holds} and it needs {needs}",
            "wait for the next clean-up, which looks for a slot that is large enough",
        )
    return None


def _named(hosts: tuple[str, ...]) -> str:
    more = len(hosts) - HOSTS_NAMED
    return ", ".join(hosts[:HOSTS_NAMED]) + (f" and {more} more" if more > 0 else "")

"""What one keepalive publishes when some of what it asks for comes late or not at all.

The stamp of being alive is written first and waits for nobody; figures share a budget that ends before the next
cycle, and what is missing keeps its old value and is named (docs/reference/node-decisions.md#keepalivecycle).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from outlive.node.numbers import Amount, Number, Positive

RESERVE_S: Final = 1
"""Seconds before the next cycle in which collectors must have ended."""


class Collected(msgspec.Struct, frozen=True, kw_only=True):
    """What one collector brought, and how long that took in seconds."""

    start: Literal["ok", "connect_error"]
    duration: Amount = 0
    values: dict[str, Any] = {}


class KeepaliveInput(msgspec.Struct, frozen=True, kw_only=True):
    """A cycle: its interval in seconds, all collectors by name, and the figures of the cycle before."""

    interval: Positive
    collectors: dict[str, Collected]
    previous: dict[str, Any] = {}


class KeepaliveResult(msgspec.Struct, frozen=True, kw_only=True):
    """What is written, and who is missing. Times in seconds from the start of the cycle."""

    stamp_at: float
    written: dict[str, Any]
    stale: tuple[str, ...]
    warnings: tuple[str, ...]
    cycle_time: Number


def budget_s(interval_s: Number) -> Number:
    """How long collectors may take."""
    return max(interval_s - RESERVE_S, 0)


def keepalive_cycle(given: KeepaliveInput) -> KeepaliveResult:
    """Merge what came in time over what was known; of two collectors of one figure the later name wins."""
    budget = budget_s(given.interval)
    written = dict(given.previous)
    warnings: dict[str, str] = {}
    for name, collected in sorted(given.collectors.items()):
        if collected.start == "connect_error":
            warnings[name] = f"connect:{name}"
        elif collected.duration > budget:
            warnings[name] = f"timeout:{name}"
        else:
            written.update(collected.values)
    return KeepaliveResult(
        stamp_at=0.0,
        written=written,
        stale=tuple(sorted(warnings)),
        warnings=tuple(sorted(warnings.values())),
        cycle_time=_cycle_time(given.collectors, budget),
    )


def _cycle_time(collectors: Mapping[str, Collected], budget: Number) -> Number:
    spent = [min(each.duration, budget) for each in collectors.values() if each.start == "ok"]
    return max(spent, default=0.0)

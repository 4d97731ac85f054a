"""What a run came to: what was lost, what came back, how fast and where, who waits and why.

A VM is lost at the moment from which its domain runs nowhere although somebody wants it to run, or, where its host was
condemned before that, at the moment the host fell silent; it is back at the moment its domain runs again. Both are the
truth of the simulated machines, not what the store says. Whether it came into a promised slot is what recovery
recorded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from outlive.base import count_of
from outlive.simulation.judges.truth import InvariantViolation

HELD_SHOWN: Final = 20
"""VMs that wait, each with a line of its own."""
VIOLATIONS_SHOWN: Final = 10
"""Broken promises that the summary for people names."""


class HeldVm(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A VM that should run and does not."""

    vm: str
    reason: str
    remedy: str = ""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    seed: int
    virtual_s: float
    vms: int = 0
    lost: int = 0
    recovered: int = 0
    in_promised_slot: int = 0
    in_contested_slot: int = 0
    """Of those in a promised slot, how many shared the claim to it with other VMs that lost their host."""
    moved_there: int = 0
    """Of those recovered, how many started where they were being moved to when their host failed."""
    took_s: tuple[float, ...] = ()
    """Seconds between loss and running again, shortest first."""
    held_vms: tuple[HeldVm, ...] = ()
    violations: tuple[InvariantViolation, ...] = ()
    replay: str = ""
    """The command that runs the same again."""

    def to_document(self, failed: Sequence[str] = ()) -> dict[str, Any]:
        """What programs read (docs/reference/scenarios.md#output-for-programs)."""
        return {
            "seed": self.seed,
            "virtualSeconds": round(self.virtual_s, 3),
            "violations": [
                {"invariant": one.invariant, "at": round(one.at_s, 3), "subject": one.subject, "text": one.text}
                for one in self.violations
            ],
            "failed": list(failed),
            "vms": self.vms,
            "lost": self.lost,
            "recovered": self.recovered,
            "held": len(self.held_vms),
            "heldVms": [msgspec.to_builtins(one) for one in self.held_vms],
            "inPromisedSlot": self.in_promised_slot,
            "inContestedSlot": self.in_contested_slot,
            "movedThere": self.moved_there,
            "times": {
                "p50": round_ms(percentile_of(self.took_s, 50)),
                "p99": round_ms(percentile_of(self.took_s, 99)),
                "max": round_ms(percentile_of(self.took_s, 100)),
            },
            "replay": self.replay,
        }

    def format_lines(self) -> list[str]:
        """The same for people."""
        lines = [f"{self.virtual_s:.0f} virtual seconds, seed {self.seed}"]
        if not self.lost:
            lines.append(f"lost       none of {count_of(self.vms, 'VM')}")
        else:
            lines.append(f"lost       {self.lost:,} of {count_of(self.vms, 'VM')}")
            lines.append(f"back       {self._format_recovered()}")
        if self.took_s:
            p50, p99, most = (percentile_of(self.took_s, share) or 0.0 for share in (50, 99, 100))
            nearly = f", {p99:.1f} s (99 %)" if p99 < most else ""
            lines.append(f"out for    {p50:.1f} s (half of them){nearly}, {most:.1f} s (all)")
        if self.held_vms:
            lines.append(f"waiting    {count_of(len(self.held_vms), 'VM')}")
            lines += [
                f"  {one.vm}: {one.reason}{f' - {one.remedy}' if one.remedy else ''}"
                for one in self.held_vms[:HELD_SHOWN]
            ]
            if len(self.held_vms) > HELD_SHOWN:
                lines.append(f"  and {len(self.held_vms) - HELD_SHOWN:,} more (see -o json)")
        if not self.violations:
            lines.append("safety     no VM ran twice, and no other promise of safety was broken")
        for one in self.violations[:VIOLATIONS_SHOWN]:
            lines.append(f"VIOLATED   {one.invariant} at {one.at_s:.1f} s, {one.subject}: {one.text}")
        if len(self.violations) > VIOLATIONS_SHOWN:
            lines.append(f"  and {len(self.violations) - VIOLATIONS_SHOWN:,} more (see -o json)")
        if self.violations and self.replay:
            lines.append(f"  again with: {self.replay}")
        return lines

    def _format_recovered(self) -> str:
        if not self.recovered:
            return f"{len(self.took_s):,}"
        promised = f"{self.in_promised_slot:,} of {self.recovered:,} in a slot that was promised to it"
        if self.in_promised_slot == self.recovered:
            promised = "each in a slot that was promised to it" if self.recovered > 1 else "in its promised slot"
        elif self.moved_there == self.recovered:
            promised = f"{'each ' if self.recovered > 1 else ''}where it was being moved to"
        elif self.moved_there:
            promised += f", {self.moved_there:,} where it was being moved to"
        if self.in_contested_slot:
            promised += f", {self.in_contested_slot:,} of these in one to which others had a claim as well"
        stayed = len(self.took_s) - self.recovered
        again = f"; {stayed:,} where they were" if stayed > 0 else ""
        return f"{self.recovered:,} elsewhere, {promised}{again}"


def percentile_of(values: Sequence[float], share: float) -> float | None:
    """The smallest value that ``share`` of a hundred do not exceed; ``values`` are sorted. ``None`` without values."""
    if not values:
        return None
    return values[max(0, math.ceil(share / 100 * len(values)) - 1)]


def round_ms(value: float | None) -> float | None:
    """To milliseconds."""
    return None if value is None else round(value, 3)

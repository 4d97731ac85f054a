"""Proposes an ``expect.yaml`` from what came out: a draft for somebody who then says whether it is right.

It holds only what a reviewer can check against the story: who runs where at the end, what became of the hosts that
did not simply live on, how many came back, how fast, and who waits and why.
"""

from __future__ import annotations

import math
from typing import Any

import yaml  # type: ignore[import-untyped]

from outlive.resources.codec import to_builtins
from outlive.simulation.story import Ended


def proposal(ended: Ended) -> str:
    """The text of the file."""
    summary = ended.summary
    wanted: dict[str, Any] = {"at": [{"at": f"{summary.virtual_s:g}s", **ended.states}]}
    if summary.took_s:
        wanted["recoveredWithin"] = {f"{math.ceil(summary.took_s[-1])}s": len(summary.took_s)}
    wanted["lost"] = summary.lost
    wanted["recovered"] = summary.recovered
    if summary.recovered:
        share = 100 * summary.in_promised_slot // summary.recovered
        wanted["inPromisedSlot"] = f"{share}%"
    held = {one.vm: one.reason for one in summary.held_vms}
    wanted["held"] = held or "none"
    names = sorted({one.invariant for one in summary.violations})
    wanted["violations"] = names or "none"
    wanted["until"] = f"{summary.virtual_s:g}s"
    text: str = yaml.safe_dump(to_builtins(wanted), sort_keys=False, allow_unicode=True, width=120)
    return f"# Proposed from seed {summary.seed}: say whether this is what should happen.\n{text}"

"""Why an answer is as it is: which step refused whom, and what put the best hosts into their order.

``explain`` finds the facts, ``explanation_text`` says them (docs/reference/placement.md#explanation). Both are pure.
The facts are found in the turn of the run, so they take a fraction of what the run takes; nothing is sorted.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from outlive.base import count_of, join_parts
from outlive.placement.columns import BoolVector
from outlive.placement.ranking import Ranking, StepTrace
from outlive.placement.request import Intent
from outlive.placement.steps import PipelineRun
from outlive.placement.weighers import own_slot_rows

NAMED: Final = 10
"""Hosts that are named, the first by name."""
COMPARED: Final = 3
"""Hosts whose order is explained, the best first."""
_AT_ONCE: Final = 256
"""Hosts among which the first are looked for, before others are."""
MATTERS: Final = 0.01
"""A smaller difference of weights does not count."""


class HostList(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Some hosts, of which the first are named."""

    count: int
    named: tuple[str, ...] = ()


class Removal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one step refused."""

    step: str
    hosts: HostList


class Comparison(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Why one host comes before the next."""

    better: str
    worse: str
    gap: float
    """Difference of their weights."""
    by: str = ""
    """The weigher that speaks most for it; empty: none does by as much as counts."""
    by_amount: float = 0.0
    incoming: float = 0.0
    """Difference of the incoming weights, where no weigher decides and it counts."""
    against: str = ""
    """The weigher that speaks most against it."""
    against_amount: float = 0.0


class Explanation(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The facts about one answer."""

    start: int
    removals: tuple[Removal, ...] = ()
    remaining: HostList
    """After all filters."""
    answered: int
    """Hosts of the answer: fewer than remained where it was limited."""
    selected: str = ""
    own_slot: bool = False
    """Whether it goes first because it has a slot of the VM."""
    decisive: str = ""
    """The first weigher without which another host would be first."""
    comparisons: tuple[Comparison, ...] = ()
    negligible: tuple[str, ...] = ()
    """Weighers that make no difference between the compared hosts."""
    failed: dict[str, str] = {}
    """Step → why it failed."""


def explain(ranking: Ranking) -> Explanation:
    """The facts. In the turn of the run: the fleet must be as it was."""
    run = ranking.run
    before = run.mask_none()
    before[ranking.start] = True
    removals: list[Removal] = []
    for trace in ranking.traces:
        if trace.kind == "filter":
            if trace.removed:
                removals.append(Removal(step=trace.name, hosts=_first_hosts(run, before & ~trace.kept, trace.removed)))
            before = trace.kept
    selected = ranking.target or ""
    weighers = [trace for trace in ranking.traces if trace.kind == "weigher" and trace.contribution is not None]
    compared, negligible = _compare_neighbours(ranking, weighers)
    own_slot = selected != "" and run.request.intent is Intent.EVACUATE and run.settings.own_slots_first
    if own_slot:
        own = run.positions_of(own_slot_rows(run.fleet, run.request.resource_id))
        own_slot = int(ranking.order[0]) in own.tolist()
    return Explanation(
        start=len(ranking.start),
        removals=tuple(removals),
        remaining=_first_hosts(run, before, int(np.count_nonzero(before))),
        answered=len(ranking),
        selected=selected,
        own_slot=own_slot,
        decisive=_find_decisive(ranking, weighers),
        comparisons=compared,
        negligible=negligible,
        failed={trace.name: trace.error.message for trace in ranking.traces if trace.error is not None},
    )


def _first_hosts(run: PipelineRun, mask: BoolVector, count: int) -> HostList:
    """The hosts of a mask over positions: their number, and the first by name."""
    rows, names = run.fleet.rows_by_name, list[str]()
    for begin in range(0, len(rows) if count else 0, _AT_ONCE):
        some = rows[begin : begin + _AT_ONCE]
        names += [run.name_at(int(at)) for at in some[mask[some]][: NAMED - len(names)]]
        if len(names) >= min(NAMED, count):
            break
    if run.extra:
        names = sorted((*names, *(name for name, at in run.extra.items() if mask[at])))[:NAMED]
    return HostList(count=count, named=tuple(names))


def _find_decisive(ranking: Ranking, weighers: list[StepTrace]) -> str:
    """The first weigher without which another host would be first."""
    if len(ranking) < 2:
        return ""
    weights = np.full(ranking.run.length, -np.inf)
    weights[ranking.order] = ranking.out
    kept, top, here = None, 0, weights
    for trace in weighers:
        if kept is not trace.kept:
            kept, at = trace.kept, np.flatnonzero(trace.kept)
            top, here = int(np.searchsorted(at, ranking.order[0])), weights[at]
        assert trace.contribution is not None
        without = here - trace.contribution
        if float(without.max()) > float(without[top]):
            return trace.name
    return ""


def _compare_neighbours(ranking: Ranking, weighers: list[StepTrace]) -> tuple[tuple[Comparison, ...], tuple[str, ...]]:
    """Each pair of neighbours among the best hosts, and the weighers that make no difference in any of them."""
    top = ranking.order[:COMPARED]
    if len(top) < 2 or not any(trace.kind == "weigher" for trace in ranking.traces):
        return (), ()
    parts: dict[str, list[float]] = {}
    kept, places = None, top
    for trace in weighers:
        if kept is not trace.kept:
            kept, places = trace.kept, np.searchsorted(np.flatnonzero(trace.kept), top)
        assert trace.contribution is not None
        found = trace.contribution[places].tolist()
        known = parts.get(trace.name)
        parts[trace.name] = found if known is None else [a + b for a, b in zip(known, found, strict=True)]
    incoming = ranking.normalized[np.searchsorted(ranking.start, top)].tolist()
    names, weights = ranking.names_at(top), ranking.out[:COMPARED].tolist()
    pairs: list[Comparison] = []
    matters: set[str] = set()
    for at, (better, worse) in enumerate(pairwise(names)):
        gaps = {name: scores[at] - scores[at + 1] for name, scores in parts.items()}
        matters.update(name for name, gap in gaps.items() if abs(gap) >= MATTERS)
        gap, came = weights[at] - weights[at + 1], incoming[at] - incoming[at + 1]
        pairs.append(_compare_hosts(better, worse, gap, came, gaps))
    return tuple(pairs), tuple(name for name in parts if name not in matters)


def _compare_hosts(better: str, worse: str, gap: float, came: float, gaps: Mapping[str, float]) -> Comparison:
    """What decides between two hosts. ``came``: difference of the incoming weights, ``gaps``: of each weigher's."""
    most = max(gaps, key=lambda name: gaps[name], default="")
    least = min(gaps, key=lambda name: gaps[name], default="")
    wins, opposes = gaps.get(most, 0.0) > MATTERS, gaps.get(least, 0.0) < -MATTERS
    return Comparison(
        better=better,
        worse=worse,
        gap=gap,
        by=most if wins else "",
        by_amount=gaps[most] if wins else 0.0,
        incoming=came if not wins and came > MATTERS else 0.0,
        against=least if opposes else "",
        against_amount=gaps[least] if opposes else 0.0,
    )


# -- sentences ---------------------------------------------------------------------------------------------


def explanation_text(found: Explanation) -> str:
    """The facts as sentences."""
    said = [f"{count_of(found.start, 'host')} at the start."]
    said += [f"{one.step} removed {_render_hosts(one.hosts)}." for one in found.removals]
    said += [f"{step} failed: {why}." for step, why in found.failed.items()]
    said.append(f"{_render_hosts(found.remaining)} remained." if found.remaining.count else "No host remained.")
    if found.answered < found.remaining.count:
        said.append(f"The answer was limited to {count_of(found.answered, 'host')}.")
    if found.selected:
        said.append(f"Selected: {found.selected}.")
    if found.own_slot:
        said.append("It goes first because it has a slot of the VM.")
    if found.decisive:
        said.append(f"Without {found.decisive} another host would be first.")
    for one in found.comparisons:
        if one.by:
            why = f"by {one.by} ({one.by_amount:+.2f})"
        elif one.incoming:
            why = f"by the incoming weights ({one.incoming:+.2f})"
        else:
            why = f"by a narrow margin ({one.gap:+.4f})"
        against = f", against {one.against} ({one.against_amount:+.2f})" if one.against else ""
        said.append(f"{one.better} before {one.worse} {why}{against}.")
    if found.negligible:
        said.append(f"No difference among the best: {', '.join(found.negligible)}.")
    return " ".join(said)


def _render_hosts(hosts: HostList) -> str:
    """``3 hosts (a, b and c)``; of more than are named, how many more there are."""
    more = hosts.count - len(hosts.named)
    names = f"{', '.join(hosts.named)} and {more:,} more" if more else join_parts(hosts.named)
    return f"{count_of(hosts.count, 'host')} ({names})"

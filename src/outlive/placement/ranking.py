"""What a run answers: hosts best first, and everything needed to understand why.

The arrays of the run are kept as they are; names, scores and maps are made when somebody asks, because most
callers want the first few hosts and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec
import numpy as np

from outlive.placement.columns import BoolVector, FloatVector, Rows
from outlive.placement.steps import Event, Levels, Reason, Run


@dataclass(slots=True)
class StepTrace:
    """What one step did. Positions are those of the run. Nobody changes it; freezing it would cost every run."""

    name: str
    kind: Literal["filter", "weigher"]
    kept: BoolVector
    """Filter: the hosts that it kept. Weigher: those that it scored."""
    scores: FloatVector | None = None
    """Weigher: its scores, aligned with the true entries of ``kept``; ``None`` when it had nothing to say."""
    levels: Levels | None = None
    """Weigher: its scores, where there are only two."""
    multiplier: float = 1.0
    statistic: str = ""
    removed: int = 0
    seconds: float = 0.0
    error: Reason | None = None
    """Why the step failed, if it did."""
    rejected_all: bool = False
    """Whether its failure refused everybody."""
    events: tuple[Event, ...] = ()

    def activations(self) -> FloatVector:
        """One number for each true entry of ``kept``; zeros for a step without scores."""
        if self.levels is not None:
            return self.levels.over(len(self.kept))[self.kept]
        return np.zeros(int(np.count_nonzero(self.kept))) if self.scores is None else self.scores


class StepResult(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One step in the answer to a person or a program."""

    step_name: str
    kind: Literal["filter", "weigher"]
    activations: dict[str, float]
    multiplier: float = 1.0
    error: Reason | None = None


class RankingDocument(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A ranking as JSON."""

    pipeline: str
    raw_in_weights: dict[str, float]
    normalized_in_weights: dict[str, float]
    step_results: tuple[StepResult, ...]
    aggregated_out_weights: dict[str, float]
    ordered_hosts: tuple[str, ...]
    target_host: str | None
    rejected: dict[str, Reason] = {}
    refusal: Reason | None = None


class Ranking:
    """The answer to one request."""

    def __init__(
        self,
        *,
        pipeline: str,
        run: Run,
        start: Rows,
        raw: FloatVector,
        normalized: FloatVector,
        order: Rows,
        out: FloatVector,
        traces: tuple[StepTrace, ...],
        rejected: Mapping[str, Reason],
        seconds: float = 0.0,
    ) -> None:
        self.pipeline = pipeline
        self.run = run
        self.start = start
        """Positions of the candidates, before any step."""
        self.raw = raw
        """Their incoming weights."""
        self.normalized = normalized
        self.order = order
        """Positions of the answer, best first."""
        self.out = out
        """Final weights, aligned with ``order``."""
        self.traces = traces
        self.rejected = rejected
        """Host → the first reason against it; only filled when reasons were asked for."""
        self.seconds = seconds

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Hosts, best first."""
        return tuple(self.names(self.order))

    @cached_property
    def scores(self) -> tuple[float, ...]:
        """Final weights, aligned with ``hosts``; equal ones are ties."""
        return tuple(self.out.tolist())

    @property
    def target(self) -> str | None:
        """The first host."""
        return self.run.name(int(self.order[0])) if len(self.order) else None

    @property
    def refusal(self) -> Reason | None:
        """The failed step that refused everybody, if one did."""
        return next((trace.error for trace in self.traces if trace.rejected_all), None)

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[str]:
        return iter(self.hosts)

    def names(self, at: Rows) -> list[str]:
        """The hosts at these positions."""
        if not self.run.extra:
            names: list[str] = self.run.names[at].tolist()
            return names
        return [self.run.name(int(one)) for one in at]

    def document(self) -> RankingDocument:
        """Everything, by host name."""
        start = self.names(self.start)
        steps = tuple(
            StepResult(
                step_name=trace.name,
                kind=trace.kind,
                activations=dict(
                    zip(self.names(np.flatnonzero(trace.kept)), trace.activations().tolist(), strict=True)
                ),
                multiplier=trace.multiplier,
                error=trace.error,
            )
            for trace in self.traces
        )
        return RankingDocument(
            pipeline=self.pipeline,
            raw_in_weights=dict(zip(start, self.raw.tolist(), strict=True)),
            normalized_in_weights=dict(zip(start, self.normalized.tolist(), strict=True)),
            step_results=steps,
            aggregated_out_weights=dict(zip(self.hosts, self.scores, strict=True)),
            ordered_hosts=self.hosts,
            target_host=self.target,
            rejected=dict(sorted(self.rejected.items())),
            refusal=self.refusal,
        )


def why_nowhere(ranking: Ranking) -> str:
    """How many hosts each step refused, the most first: ``1,400 by filter_has_enough_capacity``."""
    counts: dict[str, int] = {}
    for reason in ranking.rejected.values():
        counts[reason.step] = counts.get(reason.step, 0) + 1
    if not counts:
        return "there is no host"
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return "no host: " + ", ".join(f"{count} refused by {step}" for step, count in ordered)

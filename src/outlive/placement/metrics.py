"""What placement counts about its runs (docs/reference/placement.md#metrics).

A run has some forty figures and takes less than a millisecond, so they are kept in plain lists and only become
Prometheus metrics when somebody asks. Figures that need sorted lists before and after each step (where hosts came
from, how far they moved) are taken from every n-th run only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from outlive.placement.columns import FloatVector, Rows
from outlive.placement.filters.tenancy import DECISION
from outlive.placement.ranking import Ranking, StepTrace, squash
from outlive.placement.settings import PlacementSettings
from outlive.placement.tracker import TrackingOutcome
from outlive.runtime import Metrics

SECONDS: Final = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
HOSTS: Final = tuple(round(1000.0 ** (step / 9), 3) for step in range(10))
"""Ten buckets, each the same factor wider, from 1 to 1000."""
RANKS: Final = (0.0, 1.0, 5.0, 30.0, 300.0)
IMPACT: Final = (0.0, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
_FIRST_RANKS: Final = 5
_SERIES_LIMIT: Final = 10_000
_STEP_LABELS: Final = ("pipeline", "step")
_PREFIX: Final = "filter_weigher_pipeline"

Labels = tuple[str, ...]


class HistogramBuckets:
    """A histogram as plain lists: counts of each bucket, the last one for all beyond, then the sum."""

    def __init__(self, name: str, doc: str, labels: Labels, limits: tuple[float, ...]) -> None:
        self._family = (name, doc, labels)
        self._limits = limits
        self._series: dict[Labels, list[float]] = {}

    def observe(self, labels: Labels, value: float) -> None:
        """Count one value; beyond the limit of series it is not kept."""
        series = self._series.get(labels)
        if series is None:
            if len(self._series) >= _SERIES_LIMIT:
                return
            series = self._series[labels] = [0.0] * (len(self._limits) + 2)
        series[bisect_left(self._limits, value)] += 1
        series[-1] += value

    def build_family(self) -> Metric:
        """As Prometheus wants it: cumulative."""
        name, doc, label_names = self._family
        family = HistogramMetricFamily(name, doc, labels=label_names)
        for labels, series in self._series.items():
            total, buckets = 0.0, []
            for limit, count in zip((*map(str, self._limits), "+Inf"), series[:-1], strict=True):
                total += count
                buckets.append((limit, total))
            family.add_metric(labels, buckets=buckets, sum_value=series[-1])
        return family


Pairs = tuple[tuple[str, str], ...]
"""Names and values of labels."""


class Sums:
    """A counter or a gauge as a plain map, whose series may have labels of their own."""

    def __init__(self, kind: type[CounterMetricFamily | GaugeMetricFamily], name: str, doc: str) -> None:
        self._family = (kind, name, doc)
        self._series: dict[Pairs, float] = {}

    def add(self, labels: Pairs, amount: float = 1.0) -> None:
        """Add to one series; beyond the limit of series nothing is kept."""
        if labels in self._series or len(self._series) < _SERIES_LIMIT:
            self._series[labels] = self._series.get(labels, 0.0) + amount

    def build_family(self) -> Metric:
        """As Prometheus wants it."""
        kind, name, doc = self._family
        family = kind(name, doc)
        sample = f"{name}_total" if kind is CounterMetricFamily else name
        for labels, amount in self._series.items():
            family.add_sample(sample, dict(labels), amount)
        return family


class PlacementMetrics:
    """Counts every run. Hand it to ``Metrics`` once; it lives as long as the process."""

    def __init__(self, settings: PlacementSettings, metrics: Metrics | None = None) -> None:
        self._settings = settings
        self._runs = 0
        self._requests = Sums(CounterMetricFamily, f"{_PREFIX}_requests", "Runs")
        self._events = Sums(CounterMetricFamily, f"{_PREFIX}_step_events", "What steps noticed")
        self._quota = Sums(
            CounterMetricFamily, "nova_filter_quota_enforcement_decisions", "Decisions of the quota filter"
        )
        self._found = Sums(CounterMetricFamily, "nova_placement", "Requests that found a host")
        self._not_found = Sums(CounterMetricFamily, "nova_no_host_found", "Requests that found none")
        self._modified = Sums(GaugeMetricFamily, f"{_PREFIX}_step_weight_modification", "Weight that a step added")
        self._run_seconds = HistogramBuckets(f"{_PREFIX}_run_duration_seconds", "Time of a run", ("pipeline",), SECONDS)
        self._hosts_in = HistogramBuckets(f"{_PREFIX}_host_number_in", "Candidates of a run", ("pipeline",), HOSTS)
        self._hosts_out = HistogramBuckets(f"{_PREFIX}_host_number_out", "Hosts of an answer", ("pipeline",), HOSTS)
        self._step_seconds = HistogramBuckets(
            f"{_PREFIX}_step_run_duration_seconds", "Time of a step", _STEP_LABELS, SECONDS
        )
        self._removed = HistogramBuckets(
            f"{_PREFIX}_step_removed_hosts", "Hosts that a step refused", _STEP_LABELS, HOSTS
        )
        self._origin = HistogramBuckets(
            f"{_PREFIX}_step_shift_origin", "Rank before the step", (*_STEP_LABELS, "outidx"), RANKS
        )
        self._impact = HistogramBuckets(
            f"{_PREFIX}_step_impact", "How much a step moved its first hosts", (*_STEP_LABELS, "stat", "unit"), IMPACT
        )
        if metrics is not None:
            metrics.register_collector(self.collect)

    def observe(self, ranking: Ranking) -> None:
        """Count one run."""
        pipeline = ranking.pipeline
        self._runs += 1
        self._requests.add((("pipeline", pipeline),))
        self._run_seconds.observe((pipeline,), ranking.seconds)
        self._hosts_in.observe((pipeline,), float(len(ranking.start)))
        self._hosts_out.observe((pipeline,), float(len(ranking.order)))
        seconds, removed = self._step_seconds.observe, self._removed.observe
        for trace in ranking.traces:
            labels = (pipeline, trace.name)
            seconds(labels, trace.seconds)
            removed(labels, trace.removed)
            for event in trace.events:
                if event.name == DECISION:
                    self._quota.add(event.labels, float(event.count))
                    continue
                where = (("pipeline", pipeline), ("step", trace.name), ("event", event.name))
                self._events.add((*where, *event.labels), float(event.count))
        if self._runs % self._settings.metrics_detail_every == 0:
            self._measure_steps(ranking)

    def count_outcome(self, ranking: Ranking, outcome: TrackingOutcome) -> None:
        """Whether something that is to be placed found a host, and how it counts for commitments."""
        labels = (
            ("flavor_group", outcome.flavor_group),
            ("intent", ranking.run.request.intent.value),
            ("cr_slot", outcome.cr_slot),
        )
        (self._found if len(ranking.order) else self._not_found).add(labels)

    def _measure_steps(self, ranking: Ranking) -> None:
        """What each step did to the order of the hosts that it left."""
        weights = np.zeros(ranking.run.length)
        weights[ranking.start] = ranking.normalized
        at = np.sort(ranking.start)
        first = select_heaviest(at, weights)
        for trace in ranking.traces:
            if trace.kind == "filter" and not trace.removed:
                for rank in range(len(first)):  # it moves nobody
                    self._origin.observe((ranking.pipeline, trace.name, str(rank)), float(rank))
                continue
            after, moved = np.flatnonzero(trace.kept), weights
            if trace.kind == "weigher":
                change = np.zeros(len(weights))
                change[after] = trace.multiplier * squash(trace.get_activations())
                hosts = ranking.names_at(after) if self._settings.metrics_host_label else [""]
                amounts = change[after].tolist() if self._settings.metrics_host_label else [float(change.sum())]
                where = (("pipeline", ranking.pipeline), ("step", trace.name))
                for host, amount in zip(hosts, amounts, strict=True):
                    self._modified.add((*where, ("host", host)) if host else where, amount)
                moved = weights + change
            left = select_heaviest(after, moved)
            # Only the first hosts are looked up: the fleet may have thousands.
            was, statistic, impact = WeightOrder(at, weights, first), _statistic_of(trace), 0.0
            for rank, place in enumerate(left):
                origin = was.rank_of(int(place))
                self._origin.observe((ranking.pipeline, trace.name, str(rank)), float(origin))
                impact += abs(rank - origin) * abs(statistic(int(place)) - statistic(int(first[rank])))
            if trace.statistic:
                self._impact.observe((ranking.pipeline, trace.name, trace.statistic, ""), impact)
            at, weights, first = after, moved, left

    def collect(self) -> Iterator[Metric]:
        """Everything so far, without the prefix."""
        for one in (
            self._requests,
            self._run_seconds,
            self._hosts_in,
            self._hosts_out,
            self._step_seconds,
            self._removed,
            self._origin,
            self._impact,
            self._events,
            self._quota,
            self._found,
            self._not_found,
            self._modified,
        ):
            yield one.build_family()


def _statistic_of(trace: StepTrace) -> Callable[[int], float]:
    """The step's statistic by position; 0 for hosts that it did not score, and for steps without one."""
    if not trace.statistic:
        return lambda _: 0.0
    scored, values = np.flatnonzero(trace.kept), trace.get_activations()

    def read_statistic(at: int) -> float:
        index = int(np.searchsorted(scored, at))
        return float(values[index]) if index < len(scored) and scored[index] == at else 0.0

    return read_statistic


class WeightOrder(NamedTuple):
    """Hosts by falling weight, those of one weight by position; without sorting them."""

    at: Rows
    """Their positions, rising."""
    weights: FloatVector
    """Of every position."""
    first: Rows
    """The first few."""

    def rank_of(self, at: int) -> int:
        """How many come before the host at a position."""
        here, mine = self.weights[self.at], self.weights[at]
        before = np.searchsorted(self.at, at)
        return int(np.count_nonzero(here > mine)) + int(np.count_nonzero(here[:before] == mine))


def select_heaviest(at: Rows, weights: FloatVector) -> Rows:
    """The first few of these positions by falling weight, those of one weight by position."""
    here = weights[at]
    if len(at) > _FIRST_RANKS:
        least = np.partition(here, len(at) - _FIRST_RANKS)[len(at) - _FIRST_RANKS]
        heavier = np.flatnonzero(here > least)
        candidates = np.concatenate((heavier, np.flatnonzero(here == least)[: _FIRST_RANKS - len(heavier)]))
        at, here = at[candidates], here[candidates]
    return at[np.lexsort((at, -here))]

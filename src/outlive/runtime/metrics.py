"""Metrics for Prometheus, in a registry of their own, under one prefix, with a limit on their number.

A metric whose labels come from data (a host, a VM, a reason) can grow without bound and take the process and the
Prometheus server with it. So each has at most ``SERIES_LIMIT`` label combinations; what comes beyond is counted
under the label value ``overflow``, and ``metrics_overflow_total`` says how often
(docs/reference/metrics.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

SERIES_LIMIT: Final = 10_000
"""Label combinations of one metric."""
PART_SERIES: Final = 500
"""Samples that are written at once."""
OVERFLOW: Final = "overflow"
"""The label value of everything beyond the limit."""
SECONDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Buckets for durations, where a metric has no reason for others."""

M = TypeVar("M", bound=prometheus_client.metrics.MetricWrapperBase)
Collect = Callable[[], Iterable[Metric]]
"""Makes metrics at the moment of asking; their names are without the prefix."""


class Family(Generic[M]):
    """A metric with labels; one without is its own only series and is used through ``labels()`` as well."""

    def __init__(self, metric: M, labels: tuple[str, ...], overflowed: Callable[[], None], limit: int) -> None:
        self._metric: M = metric
        self.label_names = labels
        self._overflowed = overflowed
        self._limit = limit
        self._series: dict[tuple[str, ...], M] = {}

    def labels(self, *values: str, **named: str) -> M:
        """The series of these label values, all in order or all by name."""
        if not self.label_names:
            return self._metric
        key = values if not named else (*values, *(named[label] for label in self.label_names[len(values) :]))
        series = self._series.get(key)
        if series is not None:
            return series
        if len(self._series) >= self._limit:
            self._overflowed()
            key = (OVERFLOW,) * len(self.label_names)
        series = self._metric.labels(*key)
        self._series[key] = series
        return series

    def remove(self, *values: str) -> None:
        """Forget one series, for example that of a host that is gone."""
        if self._series.pop(values, None) is not None:
            self._metric.remove(*values)

    def clear(self) -> None:
        """Forget all series, before a gauge is filled anew."""
        for values in list(self._series):
            self.remove(*values)


class Counter(Family[prometheus_client.Counter]):
    """Counts up. Its name on the wire ends in ``_total``."""

    def inc(self, amount: float = 1.0) -> None:
        """Count, where there are no labels."""
        self.labels().inc(amount)


class Gauge(Family[prometheus_client.Gauge]):
    """A value that goes up and down."""

    def set(self, value: float) -> None:
        """Set it, where there are no labels."""
        self.labels().set(value)


class Histogram(Family[prometheus_client.Histogram]):
    """How often a value was how large."""

    def observe(self, value: float) -> None:
        """Add one value, where there are no labels."""
        self.labels().observe(value)


F = TypeVar("F", bound=Family[Any])


class Metrics:
    """All metrics of a process. Asked twice for one name, it gives the same metric."""

    def __init__(self, prefix: str = "outlive_", *, series_limit: int = SERIES_LIMIT) -> None:
        self._prefix = prefix
        self._limit = series_limit
        self._registry = CollectorRegistry(auto_describe=False)
        self._families: dict[str, Family[Any]] = {}
        self._overflow = prometheus_client.Counter(
            f"{prefix}metrics_overflow", "Observations counted under the label value overflow", registry=self._registry
        )

    def add_counter(self, name: str, doc: str, labels: Sequence[str] = ()) -> Counter:
        """A counter; ``_total`` is added where the name lacks it."""
        return self._add_family(Counter, prometheus_client.Counter, name, doc, labels)

    def add_gauge(self, name: str, doc: str, labels: Sequence[str] = ()) -> Gauge:
        """A gauge."""
        return self._add_family(Gauge, prometheus_client.Gauge, name, doc, labels)

    def add_histogram(
        self, name: str, doc: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = SECONDS
    ) -> Histogram:
        """A histogram with these upper limits of its buckets."""
        return self._add_family(Histogram, prometheus_client.Histogram, name, doc, labels, buckets=tuple(buckets))

    def register_collector(self, collect: Collect) -> None:
        """Ask ``collect`` at every ``render``, for values that are there anyway; the limit holds for it too."""
        self._registry.register(_Late(self._prefix, collect, self._limit, self._overflow.inc))

    def render(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return b"".join(self.iterate_parts())

    def iterate_parts(self) -> Iterator[bytes]:
        """The same in parts of at most ``PART_SERIES`` samples, for those who must do something else in between."""
        for metric in self._registry.collect():
            # without the creation times that the client library adds to every counter
            samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            for start in range(0, max(1, len(samples)), PART_SERIES):
                part = Metric(metric.name, metric.documentation, metric.type, metric.unit)
                part.samples = samples[start : start + PART_SERIES]
                text = generate_latest(_Only(part))
                yield text if start == 0 else text.split(b"\n", 2)[2]  # the lines HELP and TYPE only once

    def _add_family(
        self, family: type[F], kind: type[Any], name: str, doc: str, labels: Sequence[str], **options: Any
    ) -> F:
        known = self._families.get(name)
        if known is not None:
            if not isinstance(known, family) or known.label_names != tuple(labels):
                raise ValueError(f"metric {name} is declared twice, with another type or other labels")
            return known
        metric = kind(f"{self._prefix}{name}", doc, labelnames=tuple(labels), registry=self._registry, **options)
        made = family(metric, tuple(labels), self._overflow.inc, self._limit)
        self._families[name] = made
        return made


class _Late(Collector):
    """A collector function, with the prefix and the limit put on what it yields."""

    def __init__(self, prefix: str, collect: Collect, limit: int, overflowed: Callable[[], None]) -> None:
        self._prefix = prefix
        self._collect = collect
        self._limit = limit
        self._overflowed = overflowed

    def collect(self) -> Iterator[Metric]:
        for metric in self._collect():
            named = Metric(f"{self._prefix}{metric.name}", metric.documentation, metric.type, metric.unit)
            for sample in metric.samples[: self._limit]:
                named.samples.append(sample._replace(name=f"{self._prefix}{sample.name}"))
            for _ in metric.samples[self._limit :]:
                self._overflowed()
            yield named


class _Only:
    """One metric, as a registry."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric

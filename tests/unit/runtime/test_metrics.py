"""Metrics: one prefix, one registry, and no label that grows for ever."""

from __future__ import annotations

import pytest
from prometheus_client.core import GaugeMetricFamily

from outlive.runtime import Metrics


def _lines(metrics: Metrics) -> list[str]:
    return [line for line in metrics.render().decode().splitlines() if not line.startswith("#")]


def test_names_get_the_prefix():
    metrics = Metrics("cloud_")
    metrics.add_counter("things_total", "Things").inc()
    metrics.add_gauge("level", "Level", ("host",)).labels("h1").set(3)
    metrics.add_histogram("took_seconds", "Took", buckets=(1.0, 2.0)).observe(1.5)
    lines = _lines(metrics)
    assert "cloud_things_total 1.0" in lines
    assert 'cloud_level{host="h1"} 3.0' in lines
    assert 'cloud_took_seconds_bucket{le="2.0"} 1.0' in lines
    assert all(line.startswith("cloud_") for line in lines)
    assert not any("_created" in line for line in lines)


def test_a_name_asked_for_twice_is_one_metric_and_another_type_is_an_error():
    metrics = Metrics()
    assert metrics.add_counter("a_total", "A", ("x",)) is metrics.add_counter("a_total", "A", ("x",))
    with pytest.raises(ValueError, match="a_total"):
        metrics.add_gauge("a_total", "A", ("x",))
    with pytest.raises(ValueError, match="a_total"):
        metrics.add_counter("a_total", "A", ("y",))


def test_beyond_the_limit_everything_counts_as_overflow():
    metrics = Metrics(series_limit=3)
    counter = metrics.add_counter("vms_total", "VMs", ("vm",))
    for number in range(10):
        counter.labels(f"vm{number}").inc()
    lines = _lines(metrics)
    assert 'outlive_vms_total{vm="overflow"} 7.0' in lines
    assert len([line for line in lines if line.startswith("outlive_vms_total")]) == 4
    assert "outlive_metrics_overflow_total 7.0" in lines


def test_a_removed_series_makes_room():
    metrics = Metrics(series_limit=1)
    gauge = metrics.add_gauge("g", "G", ("host",))
    gauge.labels("a").set(1)
    gauge.remove("a")
    gauge.labels("b").set(2)
    gauge.remove("never there")
    assert [line for line in _lines(metrics) if line.startswith("outlive_g{")] == ['outlive_g{host="b"} 2.0']
    gauge.clear()
    assert [line for line in _lines(metrics) if line.startswith("outlive_g{")] == []


def test_labels_by_name_and_by_order_are_the_same_series():
    metrics = Metrics()
    counter = metrics.add_counter("c_total", "C", ("a", "b"))
    counter.labels("1", "2").inc()
    counter.labels(b="2", a="1").inc()
    counter.labels("1", b="2").inc()
    assert 'outlive_c_total{a="1",b="2"} 3.0' in _lines(metrics)


def test_collectors_are_asked_at_each_rendering_and_limited_too():
    metrics = Metrics(series_limit=2)
    asked: list[int] = []

    def collect():
        asked.append(1)
        family = GaugeMetricFamily("late", "Late", labels=["n"])
        for number in range(5):
            family.add_metric([str(number)], number)
        return [family]

    metrics.register_collector(collect)
    before = len(asked)
    lines = _lines(metrics)
    assert len(asked) == before + 1
    assert [line for line in lines if line.startswith("outlive_late{")] == [
        'outlive_late{n="0"} 0.0',
        'outlive_late{n="1"} 1.0',
    ]

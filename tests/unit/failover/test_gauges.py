from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.core import Metric
from tests.support.failover import EventList

from outlive.base import Unavailable
from outlive.failover.report import CycleSummary, Gauges, Reporter, host_labels, host_metrics, reservation_metrics
from outlive.resources import (
    Amounts,
    Capabilities,
    Condition,
    Hypervisor,
    HypervisorSpec,
    HypervisorStatus,
    ObjectMeta,
    Reservation,
    ReservationSpec,
    ReservationStatus,
)
from outlive.runtime import Metrics

GIB = 2**30


def reservation(
    name: str,
    kind: Any = "FailoverReservation",
    *,
    host: str = "h",
    ready: Any = "True",
    message: str = "",
    cpu: int = 1500,
) -> Reservation:
    conditions = (Condition(type="Ready", status=ready, reason="R", message=message),) if ready else ()
    return Reservation(
        metadata=ObjectMeta(name=name),
        spec=ReservationSpec(type=kind, resources=Amounts(cpu=cpu, memory=GIB), target_host=host),
        status=ReservationStatus(host=host, conditions=conditions),
    )


def host(name: str = "node1-bb012", **status: Any) -> Hypervisor:
    return Hypervisor(
        metadata=ObjectMeta(name=name, labels={"topology.kubernetes.io/zone": "z"}),
        spec=HypervisorSpec(custom_traits=("CUSTOM_HANA_EXCLUSIVE_HOST",), maintenance="manual"),
        status=HypervisorStatus(
            capacity=Amounts(cpu=8_000, memory=16 * GIB),
            allocation=Amounts(cpu=2_000, memory=4 * GIB),
            capabilities=Capabilities(cpu_arch="x86_64"),
            **status,
        ),
    )


def values(metric: Metric, *labels: str) -> dict[tuple[str, ...], float]:
    return {tuple(sample.labels[label] for label in labels): sample.value for sample in metric.samples}


def test_reservations_are_counted_by_readiness_and_what_they_hold():
    number, held, state = reservation_metrics(
        [
            reservation("a"),
            reservation("b", "CommittedResourceReservation"),
            reservation("c", ready="False", message="one, two"),
            reservation("d", ready=None),
        ]
    )
    assert values(number, "status_ready", "status_error") == {
        ("True", ""): 2,
        ("False", "one; two"): 1,
        ("Unknown", ""): 1,
    }
    assert values(held, "status_ready", "host", "resource")[("True", "h", "cpu")] == 3.0, "cores, fractions included"
    assert values(held, "status_ready", "host", "resource")[("True", "h", "memory")] == 2 * GIB
    assert values(state, "type", "state", "reason") == {
        ("failover", "ready", "R"): 1,
        ("committed-resource", "ready", "R"): 1,
        ("failover", "error", "R"): 1,
        ("failover", "unknown", ""): 1,
    }


def test_a_hosts_capacity_is_divided_among_its_uses():
    here = "node1-bb012"
    total, usage = host_metrics(
        [host(here)],
        [
            reservation("a", host=here),
            reservation("b", host=here, ready="False"),
            reservation("c", "CommittedResourceReservation", host=here),
            reservation("d", host="elsewhere"),
        ],
    )
    assert values(total, "resource") == {("cpu",): 8.0, ("ram",): 16 * GIB}
    found = values(usage, "resource", "type")
    assert [found[("cpu", kind)] for kind in ("utilized", "reserved", "failover", "available")] == [2, 1.5, 1.5, 3]


def test_available_capacity_is_never_negative():
    here = "node1-bb012"
    _, usage = host_metrics([host(here)], [reservation("a", host=here, cpu=20_000)])
    assert values(usage, "resource", "type")[("cpu", "available")] == 0


def test_host_labels_say_what_the_host_is():
    disabled = (Condition(type="HypervisorDisabled", status="True"),)
    assert host_labels(host(conditions=disabled)) == (
        "node1-bb012",
        "z",
        "bb012",
        "x86_64",
        "hana",
        "false",
        "false",
        "false",
        "manual",
        "",
    )


def test_what_cannot_be_read_yields_no_series():
    def away() -> list[Any]:
        raise Unavailable("not listed yet")

    assert list(Gauges(away, list).collect()) == []
    assert len(list(Gauges(list, list).collect())) == 5


def test_series_are_made_anew_at_every_scrape():
    metrics, reservations = Metrics(), [reservation("a")]
    gauges = Gauges(list, lambda: reservations)
    metrics.register_collector(gauges.collect)
    assert 'outlive_reservations{status_error="",status_ready="True"} 1.0' in metrics.render().decode()
    reservations.clear()
    assert "outlive_reservations{" not in metrics.render().decode()


CYCLE = (
    "runs_total", "duration_seconds", "total_vms", "total_reservations", "vms_missing_failover", "vms_processed_total",
    "reservations_needed_total", "reservations_reused_total", "reservations_created_total", "reservations_failed_total",
    "reservations_updated_total", "reservations_deleted_total",
)  # fmt: skip


@pytest.mark.parametrize("prefix", ["outlive_", "other_"])
def test_the_metrics_of_cycles_exist_from_the_start_over_all_zones(prefix: str):
    metrics = Metrics(prefix)
    Reporter(metrics, EventList())
    text = metrics.render().decode()
    for name in CYCLE:
        series = f"{prefix}failover_reconciliation_{name}"
        series += "_count" if name == "duration_seconds" else ""
        assert f'{series}{{availability_zone=""}} 0.0' in text
    assert f'{prefix}failover_reconciliation_aborted_total{{step="vms"}} 0.0' in text
    for bucket in ("0.1", "0.25", "0.5", "1.0", "2.5", "5.0", "10.0", "30.0", "60.0", "+Inf"):
        assert f'duration_seconds_bucket{{availability_zone="",le="{bucket}"}} 0.0' in text


def test_gauges_follow_the_last_cycle_and_counters_add_up():
    metrics = Metrics()
    reporter = Reporter(metrics, EventList())
    reporter.cycle_done(CycleSummary(total_vms=5, missing=2, processed=2, created=1), 0.3)
    reporter.cycle_done(CycleSummary(total_vms=4, missing=1, processed=1, created=1), 0.3)
    text = metrics.render().decode()
    assert 'reconciliation_total_vms{availability_zone=""} 4.0' in text
    assert 'vms_processed_total{availability_zone=""} 3.0' in text
    assert 'reservations_created_total{availability_zone=""} 2.0' in text
    assert 'duration_seconds_bucket{availability_zone="",le="0.5"} 2.0' in text

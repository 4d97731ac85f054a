"""The metrics of the storage agent: all series are there from the start, and each method moves its own."""

from __future__ import annotations

import re

from outlive.storage import AgentMetrics, CacheState


def samples(metrics: AgentMetrics) -> dict[str, float]:
    """Names with labels → values."""
    return {name: float(value) for name, value in re.findall(r"^([^#\s]\S*) (\S+)$", metrics.render().decode(), re.M)}


def test_an_agent_that_has_done_nothing_shows_every_series() -> None:
    found = samples(AgentMetrics(lambda: None))
    assert found.pop("storage_ha_drbd_snapshot_age_seconds") == float("inf")
    assert set(found.values()) == {0.0}
    assert {
        "storage_ha_ticks_total",
        "storage_ha_tick_seconds_count",
        'storage_ha_drbd_polls_total{result="timed-out"}',
        'storage_ha_resources{state="no-quorum"}',
        "storage_ha_pending_failovers",
        'storage_ha_actions_total{action="detach",result="failed"}',
        'storage_ha_skipped_pods_total{reason="unsafe"}',
        "storage_ha_failover_seconds_sum",
        "storage_ha_brake_engaged",
        "storage_ha_standby_total",
    } <= found.keys()


def test_each_method_moves_its_own_series() -> None:
    metrics = AgentMetrics(lambda: 2.5)
    before = samples(metrics)
    metrics.observe_tick(0.004)
    metrics.poll("ok")
    metrics.set_resources({"quorum": 3, "suspended": 1})
    metrics.set_pending(2)
    metrics.count_action("evict", "refused")
    metrics.count_skipped("annotation")
    metrics.observe_failover(7.0)
    metrics.set_brake(engaged=True)
    metrics.count_standby()
    metrics.count_lost_stream()
    metrics.count_clock_jump()
    metrics.caches = lambda: [CacheState("pods", True, 12.0, None, 2)]
    metrics.refusals = lambda: {("WATCH", "forbidden"): 3}
    after = samples(metrics)
    assert after['storage_ha_cache_stalled_seconds{kind="pods"}'] == 12
    assert after['storage_ha_malformed_objects{kind="pods"}'] == 2
    assert after['storage_ha_api_refusals_total{code="forbidden",verb="WATCH"}'] == 3
    metrics.caches, metrics.refusals = tuple, dict
    moved = {name: value for name, value in samples(metrics).items() if before[name] != value and "_bucket" not in name}
    assert moved == {
        "storage_ha_ticks_total": 1,
        "storage_ha_tick_seconds_count": 1,
        "storage_ha_tick_seconds_sum": 0.004,
        'storage_ha_drbd_polls_total{result="ok"}': 1,
        'storage_ha_resources{state="quorum"}': 3,
        'storage_ha_resources{state="suspended"}': 1,
        "storage_ha_pending_failovers": 2,
        'storage_ha_actions_total{action="evict",result="refused"}': 1,
        'storage_ha_skipped_pods_total{reason="annotation"}': 1,
        "storage_ha_failover_seconds_count": 1,
        "storage_ha_failover_seconds_sum": 7,
        "storage_ha_brake_engaged": 1,
        "storage_ha_standby_total": 1,
        "storage_ha_drbd_streams_lost_total": 1,
        "storage_ha_clock_jumps_total": 1,
    }
    metrics.set_resources({"quorum": 1})
    assert samples(metrics)['storage_ha_resources{state="suspended"}'] == 0

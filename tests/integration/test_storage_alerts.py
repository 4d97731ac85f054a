"""Alerts on the storage agent fire on what an agent counts: checked by the real promtool."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from outlive.storage import AgentMetrics, CacheState

pytestmark = pytest.mark.component("promtool")
RULES = Path(__file__).parents[2] / "deploy/prometheus/storage-alerts.yaml"
SCRAPED_S = 15
MINUTES = 20
ALERTS = {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}
Story = Callable[[AgentMetrics, int], bool]
"""What an agent counts before a scrape, by its number; false: nobody answers."""


def scraped(story: Story) -> dict[str, list[str]]:
    """Every series of one agent over the story."""
    now = [0]
    metrics = AgentMetrics(lambda: None if story is starting else 2.0 if story is not stale else 15.0 * now[0])
    series: dict[str, list[str]] = {}
    for number in range(MINUTES * 60 // SCRAPED_S):
        now[0] = number
        answers = story(metrics, number)
        text = metrics.render().decode()
        for name, labels, value in re.findall(r"^(storage_ha_\w+)(?:\{(.*)\})? (\S+)$", text, re.M):
            key = "".join([name, "{", *([labels, ","] if labels else []), 'instance="n1"}'])
            values = series.setdefault(key, [])
            values.append(value if answers else "stale" if values and values[-1] not in ("stale", "_") else "_")
    return series


def firing(tmp_path: Path, story: Story, expected: set[str]) -> None:
    """Exactly these alerts fire at the end of the story."""
    used = {name: values for name, values in scraped(story).items() if "_bucket{" not in name}
    document = {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{SCRAPED_S}s",
        "tests": [
            {
                "interval": f"{SCRAPED_S}s",
                "input_series": [{"series": name, "values": " ".join(values)} for name, values in used.items()],
                "promql_expr_test": [
                    {
                        "expr": 'group by (alertname) (ALERTS{alertstate="firing"})',
                        "eval_time": f"{MINUTES * 60 - SCRAPED_S}s",
                        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(expected)],
                    }
                ],
            }
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump(document, width=1_000_000))
    tested = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, timeout=60)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def well(metrics: AgentMetrics, _: int) -> bool:
    metrics.observe_tick(0.01)
    metrics.poll("ok")
    metrics.set_resources({"quorum": 5})
    return True


def away(metrics: AgentMetrics, number: int) -> bool:
    return well(metrics, number) and number < 20


def hanging(metrics: AgentMetrics, number: int) -> bool:
    return number >= 10 or well(metrics, number)


def brake(metrics: AgentMetrics, number: int) -> bool:
    metrics.set_brake(engaged=number > 40)
    return well(metrics, number)


def blocked(metrics: AgentMetrics, number: int) -> bool:
    metrics.set_pending(1)
    metrics.count_action("evict", "refused")
    return well(metrics, number)


def unsafe(metrics: AgentMetrics, number: int) -> bool:
    metrics.count_skipped("unsafe")
    metrics.count_skipped("read-only")
    return well(metrics, number)


def read_only(metrics: AgentMetrics, number: int) -> bool:
    metrics.count_skipped("read-only")
    return well(metrics, number)


def forbidden(metrics: AgentMetrics, number: int) -> bool:
    metrics.count_action("detach", "failed")
    return well(metrics, number)


def stale(metrics: AgentMetrics, number: int) -> bool:
    """Every poll fails."""
    metrics.observe_tick(0.01)
    metrics.poll("timed-out")
    return True


def starting(metrics: AgentMetrics, number: int) -> bool:
    """No poll has ended yet."""
    return stale(metrics, number)


def blind(metrics: AgentMetrics, number: int) -> bool:
    """Pods are not followed since the fifth minute."""
    metrics.caches = lambda: [CacheState("pods", True, max(0.0, 15.0 * (number - 20)), None, 0)]
    return well(metrics, number)


def frozen(metrics: AgentMetrics, number: int) -> bool:
    well(metrics, number)
    metrics.set_resources({"quorum": 3, "no-quorum": 1, "suspended": 1})
    return True


def repaired(metrics: AgentMetrics, number: int) -> bool:
    """A loss of a minute, and what is done about it."""
    metrics.set_pending(1 if 8 <= number < 12 else 0)
    if number == 12:
        for action in ("taint", "evict", "detach"):
            metrics.count_action(action, "ok")  # type: ignore[arg-type]
        metrics.observe_failover(60.0)
    return well(metrics, number)


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        (well, set()),
        (repaired, set()),
        (read_only, set()),
        (away, {"StorageAgentMissing"}),
        (hanging, {"StorageAgentHangs"}),
        (brake, {"StorageBrakeEngaged"}),
        (blocked, {"StorageFailoverPending", "StorageEvictionsRefused"}),
        (unsafe, {"StoragePodsSkipped"}),
        (forbidden, {"StorageActionsFail"}),
        (stale, {"StorageAgentStale"}),
        (blind, {"StorageAgentBlind"}),
        (starting, {"StorageAgentStale"}),
        (frozen, {"StorageVolumesWithoutQuorum", "StorageVolumesFrozen"}),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_alerts_fire_on_what_they_are_called_after_and_on_nothing_else(
    story: Story, expected: set[str], tmp_path: Path
) -> None:
    assert expected <= ALERTS
    firing(tmp_path, story, expected)

"""Alert rules fire on what a real server shows while something fails: checked by the real promtool."""

from __future__ import annotations

import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from tests.support.metrics_page import metric_names
from tests.support.scrapes import SCRAPED_S, Series, scrapes_of

RULES = sorted((Path(__file__).parents[2] / "deploy" / "prometheus").glob("*-alerts.yaml"))
OPERATION = next(path for path in RULES if path.name == "operation-alerts.yaml")
RUNS_S = 240.0
FROM_PROMETHEUS = {"up", "ALERTS"}
SUFFIXES = ("_bucket", "_count", "_sum", "_total")
promtool = pytest.mark.component("promtool")


def alert_rules(path: Path) -> list[dict[str, str]]:
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def metrics_in(expression: str) -> set[str]:
    return set(re.findall(r"\boutlive_[a-z0-9_]+", re.sub(r'"[^"]*"', '""', expression)))


def test_alerts_have_one_name_each_and_say_what_to_do() -> None:
    rules = [rule for path in RULES for rule in alert_rules(path)]
    names = [rule["alert"] for rule in rules]
    assert len(names) == len(set(names))
    assert all(rule["labels"]["severity"] in ("critical", "warning") for rule in rules)
    assert all("description" in rule["annotations"] for rule in alert_rules(OPERATION))


@promtool
def test_all_rules_are_rules_of_prometheus() -> None:
    checked = subprocess.run(["promtool", "check", "rules", *RULES], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stderr


def series_line(name: str, values: tuple[float | None, ...]) -> dict[str, str]:
    """A series that is missing in a scrape is stale at once, as Prometheus notes it."""
    words = ["stale" if one is None and before is not None else one for before, one in pairwise((None, *values))]
    return {"series": name, "values": " ".join("_" if one is None else str(one) for one in words)}


def check_firing(tmp_path: Path, series: Series, at_s: float, expected: set[str], never: set[str]) -> None:
    """Exactly of these alerts, and of ``never``, say whether they fire then."""
    mentioned = {name for rule in alert_rules(OPERATION) for name in metrics_in(rule["expr"])} | FROM_PROMETHEUS
    used = {name: values for name, values in series.items() if name.partition("{")[0] in mentioned}
    wanted = "|".join(sorted(expected | never))
    document = {
        "rule_files": [str(OPERATION)],
        "evaluation_interval": f"{SCRAPED_S}s",
        "tests": [
            {
                "interval": f"{SCRAPED_S}s",
                "input_series": [series_line(*one) for one in used.items()],
                "promql_expr_test": [
                    {
                        "expr": f'group by (alertname) (ALERTS{{alertstate="firing",alertname=~"{wanted}"}})',
                        "eval_time": f"{at_s:g}s",
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


@promtool
@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "at_s", "expected", "never"),
    [
        (
            "no-room-anywhere",
            210,
            {"OutliveHostDead", "OutliveVmsWaiting", "OutliveFaultCritical"},
            {"OutliveFenceUnproven", "OutliveServerDown", "OutliveNoCoordinator", "OutliveFiguresOld"},
        ),
        (
            "fencer-cannot-reach-power-controllers",
            105,
            {"OutliveFenceUnproven", "OutliveHostSilent", "OutliveVmsWaiting", "OutliveFaultCritical"},
            {"OutliveHostDead", "OutliveServerDown"},
        ),
        (
            "fencer-cannot-reach-power-controllers",
            225,
            {"OutliveHostDead"},
            {"OutliveFenceUnproven", "OutliveHostSilent", "OutliveVmsWaiting", "OutliveVmsUnknown"},
        ),
    ],
)
def test_a_dead_host_a_waiting_vm_and_an_unproven_fence_fire(
    scenario: str, at_s: float, expected: set[str], never: set[str], tmp_path: Path
) -> None:
    check_firing(tmp_path, scrapes_of(scenario, RUNS_S), at_s, expected, never)


@promtool
@pytest.mark.slow
@pytest.mark.parametrize("how", ["answers no more", "is not scraped any more"])
def test_a_dead_server_fires_within_a_minute(how: str, tmp_path: Path) -> None:
    series = scrapes_of("fencer-cannot-reach-power-controllers", RUNS_S)
    alive, lost = 8, (None,) * 32
    up = (0.0,) * 32 if how == "answers no more" else lost
    died = {name: values[:alive] + (up if name.startswith("up{") else lost) for name, values in series.items()}
    check_firing(tmp_path, died, SCRAPED_S * alive + 60.0, {"OutliveServerDown"}, {"OutliveFiguresOld"})


@pytest.mark.slow
def test_the_page_of_metrics_names_all_that_a_controller_shows() -> None:
    shown = {name.partition("{")[0] for name in scrapes_of("no-room-anywhere", RUNS_S)} - FROM_PROMETHEUS
    endings = {f"{name}{suffix}" for name in metric_names() for suffix in ("", *SUFFIXES)}
    assert shown <= endings | {"outlive_metrics_overflow_total"}

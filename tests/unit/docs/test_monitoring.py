"""Alert rules and dashboards ask for metrics that a running role has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.metrics_page import metric_names
from tests.support.sales import Market, asked, batch, host, in_cloud, project, vm
from tests.unit.commitments.test_sync_story import Listed

from outlive.roles import Limes
from outlive.storage import AgentMetrics

FOLDER = Path(__file__).parents[3] / "deploy"
ALERTS = sorted((FOLDER / "prometheus").glob("*.yaml"))
DASHBOARDS = sorted((FOLDER / "grafana").glob("*.json"))
NAME = re.compile(r"\b(?:outlive|storage_ha)_[a-z0-9_]+")
LABELLED = re.compile(r"\b((?:outlive|storage_ha)_[a-z0-9_]+)\{([^}]*)\}")
OF_PROMETHEUS = {"instance"}
"""Labels that Prometheus adds to what it is told."""


@pytest.fixture(scope="module")
def metrics() -> tuple[frozenset[str], dict[str, set[str]]]:
    """Names of samples that can be, and the labels of those that a small cloud has."""
    texts: list[str] = []
    running = vm("vm-1", "h1")

    async def story(market: Market) -> None:
        assert await market.change(batch(project("p1", asked("first-1", 2)))) == ""
        texts.append(market.role.metrics.render().decode())

    limes = Listed()
    in_cloud([host("h1", vms=[running]), host("h2"), running], story, limes=Limes(limes, limes))
    texts.append(AgentMetrics(lambda: None).render().decode())
    types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", "".join(texts), re.MULTILINE))
    names = set(types)
    for name, kind in types.items():
        if kind == "histogram":
            names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    labels: dict[str, set[str]] = {}
    for name, found in re.findall(r"^(\w+)\{(.*)\} ", "".join(texts), re.MULTILINE):
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', found))
    return frozenset(names), labels


def expressions(path: Path) -> list[str]:
    """Every expression of a file."""
    if path.suffix == ".yaml":
        groups = yaml.safe_load(path.read_text())["groups"]
        return [rule["expr"] for group in groups for rule in group["rules"]]
    document: dict[str, Any] = json.loads(path.read_text())
    variables = [one["query"]["query"] for one in document["templating"]["list"] if one["type"] == "query"]
    return [*variables, *(target["expr"] for panel in document["panels"] for target in panel["targets"])]


def test_there_are_alerts_and_a_dashboard() -> None:
    assert {path.name for path in ALERTS} >= {
        "failover-alerts.yaml",
        "placement-alerts.yaml",
        "commitments-alerts.yaml",
        "network-alerts.yaml",
        "storage-alerts.yaml",
    }
    assert DASHBOARDS


@pytest.mark.parametrize("path", [*ALERTS, *DASHBOARDS], ids=lambda path: path.name)
def test_every_metric_that_is_asked_for_exists(path: Path, metrics: tuple[frozenset[str], dict[str, set[str]]]) -> None:
    asked_for = {name for text in expressions(path) for name in NAME.findall(text)}
    assert asked_for
    assert asked_for - metrics[0] - metric_names() == set()


@pytest.mark.parametrize("path", [*ALERTS, *DASHBOARDS], ids=lambda path: path.name)
def test_metrics_have_the_labels_that_are_asked_for(
    path: Path, metrics: tuple[frozenset[str], dict[str, set[str]]]
) -> None:
    for text in expressions(path):
        for name, selector in LABELLED.findall(text):
            known = metrics[1].get(name)
            if known is not None:
                assert set(re.findall(r"(\w+)(?:=|!)", selector)) <= known | OF_PROMETHEUS, f"{name}{{{selector}}}"


def test_every_alert_says_what_is_the_matter() -> None:
    for path in ALERTS:
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                assert rule["annotations"]["summary"], rule["alert"]
                assert rule["labels"]["severity"] in ("warning", "critical")


def test_panels_of_a_dashboard_do_not_overlap() -> None:
    for path in DASHBOARDS:
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(path.read_text())["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert not cells & taken, panel["title"]
            taken |= cells

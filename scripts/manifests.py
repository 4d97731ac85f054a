"""Makes what is derived from the manifests of ``deploy/kubernetes``, so that each of them is written once.

``python -m scripts.manifests`` writes the rules and dashboards for the Prometheus operator (``monitoring/rules.yaml``,
``monitoring/dashboards.yaml``), and the Helm chart (``deploy/helm/outlive``): each file of ``kustomization.yaml``
becomes a template, in which ``VALUES`` of it are taken from ``values.yaml``. A test compares what is there with what
this makes, and the objects of both (tests/unit/docs/test_manifests.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml  # type: ignore[import-untyped]

from outlive import __version__

ROOT: Final = Path(__file__).parents[1]
DEPLOY: Final = ROOT / "deploy"
MANIFESTS: Final = DEPLOY / "kubernetes"
CHART: Final = DEPLOY / "helm/outlive"
GENERATED: Final = "# Made by python -m scripts.manifests; do not edit.\n"
APART: Final = frozenset({"namespace.yaml", "crds.yaml"})
"""Helm makes the namespace itself; the kinds are in ``crds``, a link to this file."""


class Value(NamedTuple):
    """A piece of the manifests that ``values.yaml`` says in the chart."""

    pattern: str
    template: str


VALUES: Final = (
    Value(r"(?m)^( *)replicas: \d+$", r"\1replicas: {{ .Values.replicas }}"),
    Value(r"(?m)^( *)image: outlive$", r'\1image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"'),
    Value(
        r"(?m)^( *)resources:\n\1  requests:.*\n(?:\1  .*\n)*",
        "\\1resources:\n\\1  {{- toYaml .Values.resources | nindent 12 }}\n",
    ),
    Value(r"(?m)^( *)namespace: outlive$", r"\1namespace: {{ .Release.Namespace }}"),
    Value(
        r"(?m)^(  template:\n    metadata:\n)",
        r"\1      annotations:" + "\n" + r"        checksum/settings: {{ toYaml .Values.settings | sha256sum }}" + "\n",
    ),
)
SETTINGS: Final = """apiVersion: v1
kind: ConfigMap
metadata:
  name: outlive-settings
data:
  outlive.yaml: |
    {{- toYaml .Values.settings | nindent 4 }}
"""


def documents(path: Path) -> list[dict[str, Any]]:
    """The objects of a manifest."""
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def listed(folder: Path) -> list[str]:
    """The files of a kustomization."""
    (kustomization,) = documents(folder / "kustomization.yaml")
    return list(kustomization["resources"])


def rules() -> str:
    """The alerts of ``deploy/prometheus`` for the Prometheus operator."""
    found = []
    for path in sorted((DEPLOY / "prometheus").glob("*-alerts.yaml")):
        (document,) = documents(path)
        metadata = {"name": f"outlive-{path.stem}", "labels": {"app.kubernetes.io/name": "outlive"}}
        kind = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule"}
        found.append({**kind, "metadata": metadata, "spec": document})
    return GENERATED + _text(*found)


def dashboards() -> str:
    """The dashboards of ``deploy/grafana``, where Grafana's sidecar looks for them."""
    data = {path.name: path.read_text() for path in sorted((DEPLOY / "grafana").glob("*.json"))}
    for text in data.values():
        json.loads(text)
    metadata = {"name": "outlive-dashboards", "labels": {"grafana_dashboard": "1"}}
    return GENERATED + _text({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def values() -> str:
    """Of the chart: what the manifests say."""
    deployment = next(one for one in documents(MANIFESTS / "controller.yaml") if one["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (image,) = documents(MANIFESTS / "kustomization.yaml")[0]["images"]
    (settings,) = documents(MANIFESTS / "outlive.yaml")
    return GENERATED + _text(
        {
            "image": {"repository": image["newName"], "tag": image["newTag"]},
            "replicas": deployment["spec"]["replicas"],
            "resources": container["resources"],
            "settings": settings,
            "monitoring": {"enabled": False},
        }
    )


def template(text: str) -> str:
    """A manifest as a template of Helm."""
    text = re.sub(r"\{\{|\}\}", lambda found: '{{ "' + found[0] + '" }}', text)
    for value in VALUES:
        text = re.sub(value.pattern, value.template, text)
    return text


def made() -> Mapping[Path, str]:
    """Every file that is made, and its text."""
    monitoring = MANIFESTS / "monitoring"
    files = {monitoring / "rules.yaml": rules(), monitoring / "dashboards.yaml": dashboards()}
    chart = {
        "apiVersion": "v2",
        "name": "outlive",
        "description": "Failover reservations, fencing and recovery for private clouds: the controllers.",
        "type": "application",
        "version": __version__.partition("+")[0],
        "appVersion": __version__,
        "kubeVersion": ">=1.21.0-0",
    }
    files |= {CHART / "Chart.yaml": GENERATED + _text(chart), CHART / "values.yaml": values()}
    for name in listed(MANIFESTS):
        if name not in APART:
            files[CHART / "templates" / name] = GENERATED + template((MANIFESTS / name).read_text())
    files[CHART / "templates/settings.yaml"] = GENERATED + SETTINGS
    for name in listed(monitoring):
        text = files.get(monitoring / name) or (monitoring / name).read_text()
        whole = "{{- if .Values.monitoring.enabled }}\n" + template(text.removeprefix(GENERATED)) + "{{- end }}\n"
        files[CHART / "templates" / f"monitoring-{name}"] = GENERATED + whole
    return files


def main() -> None:
    """Write all of it, and delete templates whose manifest is gone."""
    files = made()
    for path in CHART.glob("templates/*.yaml"):
        if path not in files:
            path.unlink()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _text(*objects: object) -> str:
    text: str = yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True, width=1000)
    return text


if __name__ == "__main__":
    main()

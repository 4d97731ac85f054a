"""Makes what is derived from the manifests of ``deploy/kubernetes``, so that each of them is written once.

``python -m scripts.manifests`` writes, for each of the ``INSTALLATIONS``, the rules and dashboards for the Prometheus
operator (``monitoring/rules.yaml``, ``monitoring/dashboards.yaml``), and the Helm chart: each file of
``kustomization.yaml`` becomes a template, in which ``VALUES`` of it are taken from ``values.yaml``. A test compares
what is there with what this makes, and the objects of both (tests/unit/docs/test_manifests.py).
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
GENERATED: Final = "# Made by python -m scripts.manifests; do not edit.\n"
APART: Final = frozenset({"namespace.yaml", "crds.yaml"})
"""Helm makes the namespace itself; the kinds are in ``crds``, a link to this file."""


class Installation(NamedTuple):
    """What is installed by itself: its manifests, and the chart that is made from them."""

    manifests: Path
    chart: Path
    description: str
    workload: str
    """The manifest whose only container the values are about."""
    optional: tuple[str, ...]
    """Manifests that ``kustomization.yaml`` does not list, each by its name without ending a value of the chart."""
    figures: str
    """What alert rules and dashboards of it are called: a pattern."""

    @property
    def settings(self) -> tuple[str, str]:
        """Name of the ConfigMap with its settings, and of their file."""
        (made,) = documents(self.manifests / "kustomization.yaml")[0]["configMapGenerator"]
        (file,) = made["files"]
        return made["name"], file


CONTROLLER: Final = Installation(
    manifests=DEPLOY / "kubernetes",
    chart=DEPLOY / "helm/outlive",
    description="Failover reservations, fencing and recovery for private clouds: the controllers.",
    workload="controller.yaml",
    optional=(),
    figures=r"(?!storage-)",
)
STORAGE_AGENT: Final = Installation(
    manifests=DEPLOY / "kubernetes/storage-agent",
    chart=DEPLOY / "helm/outlive-storage-agent",
    description="Pods leave a Kubernetes node whose DRBD volumes lost quorum: an agent on each node.",
    workload="daemonset.yaml",
    optional=("memberships.yaml", "openshift.yaml"),
    figures=r"storage-",
)
INSTALLATIONS: Final = (CONTROLLER, STORAGE_AGENT)


class Value(NamedTuple):
    """A piece of the manifests that ``values.yaml`` says in the chart."""

    pattern: str
    template: str


VALUES: Final = (
    Value(r"(?m)^( *)replicas: \d+$", r"\1replicas: {{ .Values.replicas }}"),
    Value(
        r"(?m)^( *)image: outlive(?:-storage-agent)?$",
        r'\1image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"',
    ),
    Value(
        r"(?m)^( *)resources:\n\1  requests:.*\n(?:\1  .*\n)*",
        "\\1resources:\n\\1  {{- toYaml .Values.resources | nindent 12 }}\n",
    ),
    Value(r"(?m)^( *)namespace: outlive(?:-storage-agent)?$", r"\1namespace: {{ .Release.Namespace }}"),
    Value(
        r"(?m)^(  template:\n    metadata:\n)(?:      annotations:\n)?",
        r"\1      annotations:" + "\n" + r"        checksum/settings: {{ toYaml .Values.settings | sha256sum }}" + "\n",
    ),
)
SETTINGS: Final = """apiVersion: v1
kind: ConfigMap
metadata:
  name: NAME
data:
  FILE: |
    {{- toYaml .Values.settings | nindent 4 }}
"""


def documents(path: Path) -> list[dict[str, Any]]:
    """The objects of a manifest."""
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def listed(folder: Path) -> list[str]:
    """The files of a kustomization."""
    (kustomization,) = documents(folder / "kustomization.yaml")
    return list(kustomization["resources"])


def rules(one: Installation) -> str:
    """Its alerts in ``deploy/prometheus``, for the Prometheus operator."""
    found = []
    for path in _figures(one, "prometheus/*-alerts.yaml"):
        (document,) = documents(path)
        metadata = {"name": f"outlive-{path.stem}", "labels": {"app.kubernetes.io/name": one.chart.name}}
        kind = {"apiVersion": "monitoring.coreos.com/v1", "kind": "PrometheusRule"}
        found.append({**kind, "metadata": metadata, "spec": document})
    return GENERATED + _text(*found)


def dashboards(one: Installation) -> str:
    """Its dashboards in ``deploy/grafana``, where Grafana's sidecar looks for them."""
    data = {path.name: path.read_text() for path in _figures(one, "grafana/*.json")}
    for text in data.values():
        json.loads(text)
    metadata = {"name": f"{one.chart.name}-dashboards", "labels": {"grafana_dashboard": "1"}}
    return GENERATED + _text({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def _figures(one: Installation, pattern: str) -> list[Path]:
    return [path for path in sorted(DEPLOY.glob(pattern)) if re.match(one.figures, path.name)]


def values(one: Installation) -> str:
    """Of the chart: what the manifests say."""
    workload = next(each for each in documents(one.manifests / one.workload) if "template" in each.get("spec", {}))
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    (image,) = documents(one.manifests / "kustomization.yaml")[0]["images"]
    (settings,) = documents(one.manifests / one.settings[1])
    said = {"image": {"repository": image["newName"], "tag": image["newTag"]}}
    if "replicas" in workload["spec"]:
        said["replicas"] = workload["spec"]["replicas"]
    said |= {"resources": container["resources"], "settings": settings}
    said |= {Path(name).stem: {"enabled": False} for name in (*one.optional, "monitoring")}
    return GENERATED + _text(said)


def template(text: str) -> str:
    """A manifest as a template of Helm."""
    text = re.sub(r"\{\{|\}\}", lambda found: '{{ "' + found[0] + '" }}', text)
    for value in VALUES:
        text = re.sub(value.pattern, value.template, text)
    return text


def made() -> Mapping[Path, str]:
    """Every file that is made, and its text."""
    return {path: text for one in INSTALLATIONS for path, text in _made_of(one).items()}


def _made_of(one: Installation) -> dict[Path, str]:
    monitoring = one.manifests / "monitoring"
    files = {monitoring / "rules.yaml": rules(one), monitoring / "dashboards.yaml": dashboards(one)}
    chart = {
        "apiVersion": "v2",
        "name": one.chart.name,
        "description": one.description,
        "type": "application",
        "version": __version__.partition("+")[0],
        "appVersion": __version__,
        "kubeVersion": ">=1.21.0-0",
    }
    files |= {one.chart / "Chart.yaml": GENERATED + _text(chart), one.chart / "values.yaml": values(one)}
    templates = one.chart / "templates"
    for name in listed(one.manifests):
        if name not in APART:
            files[templates / name] = GENERATED + template((one.manifests / name).read_text())
    for name in one.optional:
        files[templates / name] = GENERATED + _if_enabled(Path(name).stem, (one.manifests / name).read_text())
    called, file = one.settings
    files[templates / "settings.yaml"] = GENERATED + SETTINGS.replace("NAME", called).replace("FILE", file)
    for name in listed(monitoring):
        text = files.get(monitoring / name) or (monitoring / name).read_text()
        files[templates / f"monitoring-{name}"] = GENERATED + _if_enabled("monitoring", text.removeprefix(GENERATED))
    return files


def _if_enabled(value: str, text: str) -> str:
    return f"{{{{- if .Values.{value}.enabled }}}}\n" + template(text) + "{{- end }}\n"


def main() -> None:
    """Write all of it, and delete templates whose manifest is gone."""
    files = made()
    for one in INSTALLATIONS:
        for path in one.chart.glob("templates/*.yaml"):
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

"""Kustomize, Helm and the monitoring of one deployment say the same, and are written once."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts import manifests

from outlive.base.errors import OutliveError
from outlive.cli.settings import load
from outlive.roles.settings import role_settings

CLUSTER_WIDE = {"Namespace", "ClusterRole", "ClusterRoleBinding"}
REMEDY = "python -m scripts.manifests"
Objects = dict[tuple[str, str], dict[str, Any]]


def by_name(objects: list[dict[str, Any]]) -> Objects:
    """Kind and name → object, without the namespace, which a release has of its own."""
    for one in objects:
        one["metadata"].pop("namespace", None)
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def kustomized() -> Objects:
    """What ``kubectl apply -k`` applies, but for the namespace and the kinds."""
    folder = manifests.MANIFESTS
    (kustomization,) = manifests.documents(folder / "kustomization.yaml")
    objects = [
        one
        for name in manifests.listed(folder)
        if name not in manifests.APART
        for one in manifests.documents(folder / name)
    ]
    for made in kustomization.get("configMapGenerator", ()):
        data = {name: (folder / name).read_text() for name in made["files"]}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": made["name"]}, "data": data})
    return by_name(objects)


def rendered(text: str, values: dict[str, Any]) -> str:
    """What Helm makes of a template, as far as ours go."""

    def value_of(path: str) -> Any:
        found: Any = {"Values": values, "Release": {"Namespace": "outlive"}}
        for part in path.strip(".").split("."):
            found = found[part]
        return found

    def action(match: re.Match[str]) -> str:
        first, *pipes = (part.strip() for part in match["inner"].split("|"))
        words = first.split()
        if first.startswith('"'):
            return first.strip('"')
        result = yaml.safe_dump(value_of(words[1])).rstrip("\n") if words[0] == "toYaml" else str(value_of(words[0]))
        for pipe in pipes:
            match pipe.split():
                case ["nindent", width]:
                    result = "".join(f"\n{' ' * int(width)}{line}" for line in result.split("\n"))
                case ["sha256sum"]:
                    result = hashlib.sha256(result.encode()).hexdigest()
                case _:
                    raise AssertionError(f"no {pipe} here")
        return result

    condition = re.search(r"\{\{- if (\.[\w.]+) \}\}\n(.*)\{\{- end \}\}\n", text, re.S)
    if condition is not None:
        text = text.replace(condition[0], condition[2] if value_of(condition[1]) else "")
    text = re.sub(r"\s*\{\{- (?P<inner>[^{}]+) \}\}", action, text)
    return re.sub(r'\{\{ (?P<inner>"[{}]{2}"|[^{}]+?) \}\}', action, text)


def chart(**changes: Any) -> Objects:
    (values,) = manifests.documents(manifests.CHART / "values.yaml")
    objects = []
    for path in sorted((manifests.CHART / "templates").iterdir()):
        objects += [one for one in yaml.safe_load_all(rendered(path.read_text(), values | changes)) if one]
    return by_name(objects)


@pytest.mark.parametrize("path", sorted(manifests.made()), ids=lambda path: str(path.relative_to(manifests.DEPLOY)))
def test_what_is_made_from_the_manifests_is_up_to_date(path: Path) -> None:
    assert path.read_text() == manifests.made()[path], REMEDY


def test_no_template_is_left_of_a_manifest_that_is_gone() -> None:
    there = set((manifests.CHART / "templates").iterdir())
    assert there == {path for path in manifests.made() if path.parent.name == "templates"}, REMEDY
    kinds = manifests.CHART / "crds/crds.yaml"
    assert kinds.resolve() == (manifests.MANIFESTS / "crds.yaml").resolve()


def test_the_chart_makes_the_same_objects_as_kustomize() -> None:
    ours, theirs = kustomized(), chart()
    settings = ("ConfigMap", "outlive-settings")
    said, wanted = (yaml.safe_load(one.pop(settings)["data"]["outlive.yaml"]) for one in (theirs, ours))
    assert said == wanted
    (deployed,) = [one for (kind, _), one in theirs.items() if kind == "Deployment"]
    assert deployed["spec"]["template"]["metadata"].pop("annotations").keys() == {"checksum/settings"}
    (container,) = deployed["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "outlive:latest"
    container["image"] = "outlive"
    assert theirs == ours


def test_the_values_of_the_chart_are_used() -> None:
    made = chart(replicas=3, image={"repository": "registry/outlive", "tag": "1"}, monitoring={"enabled": True})
    deployed = made["Deployment", "outlive-controller"]["spec"]
    assert deployed["replicas"] == 3
    assert deployed["template"]["spec"]["containers"][0]["image"] == "registry/outlive:1"
    monitored = by_name(
        [
            one
            for name in manifests.listed(manifests.MANIFESTS / "monitoring")
            for one in manifests.documents(manifests.MANIFESTS / "monitoring" / name)
        ]
    )
    assert {key: made[key] for key in monitored} == monitored


def test_the_settings_of_the_manifests_are_settings() -> None:
    try:
        role_settings(load(manifests.MANIFESTS / "outlive.yaml"))
    except OutliveError as error:
        pytest.fail(str(error))


def test_the_pods_are_as_little_as_they_can_be_and_two_never_share_a_machine_or_go_together() -> None:
    made = kustomized()
    deployed = made["Deployment", "outlive-controller"]["spec"]
    pod = deployed["template"]["spec"]
    (container,) = pod["containers"]
    assert deployed["replicas"] == 2
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= container.keys()
    assert "requiredDuringSchedulingIgnoredDuringExecution" in pod["affinity"]["podAntiAffinity"]
    labels = deployed["template"]["metadata"]["labels"]
    for kind, field in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        assert made[kind, "outlive-controller"]["spec"][field]["matchLabels"].items() <= labels.items()
    assert made["Service", "outlive"]["spec"]["selector"].items() <= labels.items()


def test_the_image_runs_as_the_user_of_the_pods_and_starts_what_its_layer_has() -> None:
    folder = manifests.DEPLOY / "container"
    lines = (folder / "Containerfile").read_text().splitlines()
    pod = kustomized()["Deployment", "outlive-controller"]["spec"]["template"]["spec"]["securityContext"]
    assert f"USER {pod['runAsUser']}:{pod['runAsGroup']}" in lines
    assert 'ENTRYPOINT ["/opt/outlive/bin/outlive"]' in lines
    assert "opt/outlive/bin/outlive" in (folder / "layer").read_text()
    for script in (folder / "layer", manifests.ROOT / "scripts/check-image"):
        subprocess.run(["sh", "-n", str(script)], check=True)

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
from scripts.manifests import CONTROLLER, INSTALLATIONS, STORAGE_AGENT, Installation

from outlive.base import OutliveError
from outlive.cli import load
from outlive.roles import role_settings
from outlive.storage import AgentOptions, health_address, read_options

CLUSTER_WIDE = {"Namespace", "ClusterRole", "ClusterRoleBinding"}
REMEDY = "python -m scripts.manifests"
both = pytest.mark.parametrize("one", INSTALLATIONS, ids=lambda one: one.chart.name)
Objects = dict[tuple[str, str], dict[str, Any]]


def by_name(objects: list[dict[str, Any]]) -> Objects:
    """Kind and name → object, without the namespace, which a release has of its own."""
    for one in objects:
        one["metadata"].pop("namespace", None)
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


def kustomized(one: Installation = CONTROLLER) -> Objects:
    """What ``kubectl apply -k`` applies, but for the namespace and the kinds."""
    folder = one.manifests
    (kustomization,) = manifests.documents(folder / "kustomization.yaml")
    objects = [
        each
        for name in manifests.listed(folder)
        if name not in manifests.APART
        for each in manifests.documents(folder / name)
    ]
    for made in kustomization.get("configMapGenerator", ()):
        data = {name: (folder / name).read_text() for name in made["files"]}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": made["name"]}, "data": data})
    return by_name(objects)


def rendered(text: str, values: dict[str, Any]) -> str:
    """What Helm makes of a template, as far as ours go."""

    def value_of(path: str) -> Any:
        found: Any = {"Values": values, "Release": {"Namespace": "here"}}
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


def chart(one: Installation = CONTROLLER, **changes: Any) -> Objects:
    """What Helm makes in the namespace ``here``."""
    (values,) = manifests.documents(one.chart / "values.yaml")
    objects = []
    for path in sorted((one.chart / "templates").iterdir()):
        objects += [each for each in yaml.safe_load_all(rendered(path.read_text(), values | changes)) if each]
    return by_name(objects)


@pytest.mark.parametrize("path", sorted(manifests.made()), ids=lambda path: str(path.relative_to(manifests.DEPLOY)))
def test_what_is_made_from_the_manifests_is_up_to_date(path: Path) -> None:
    assert path.read_text() == manifests.made()[path], REMEDY


@both
def test_no_template_is_left_of_a_manifest_that_is_gone(one: Installation) -> None:
    there = set((one.chart / "templates").iterdir())
    assert there == {path for path in manifests.made() if path.parent == one.chart / "templates"}, REMEDY


def test_the_chart_has_the_kinds_of_the_manifests() -> None:
    kinds = CONTROLLER.chart / "crds/crds.yaml"
    assert kinds.resolve() == (CONTROLLER.manifests / "crds.yaml").resolve()


@both
def test_the_chart_makes_the_same_objects_as_kustomize(one: Installation) -> None:
    ours, theirs = kustomized(one), chart(one)
    name, file = one.settings
    said, wanted = (yaml.safe_load(objects.pop(("ConfigMap", name))["data"][file]) for objects in (theirs, ours))
    assert said == wanted
    (theirs_deployed, ours_deployed) = (
        next(each for (kind, _), each in objects.items() if kind in ("Deployment", "DaemonSet"))["spec"]["template"]
        for objects in (theirs, ours)
    )
    annotations = theirs_deployed["metadata"].pop("annotations")
    assert annotations.pop("checksum/settings")
    assert annotations == ours_deployed["metadata"].pop("annotations", {})
    (container,) = theirs_deployed["spec"]["containers"]
    (wanted_container,) = ours_deployed["spec"]["containers"]
    assert container["image"] == f"{wanted_container['image']}:latest"
    container["image"] = wanted_container["image"]
    assert [
        text.replace("namespace: here", f"namespace: {one.chart.name}") for text in map(yaml.safe_dump, theirs.values())
    ] == [yaml.safe_dump(ours[key]) for key in theirs]
    assert theirs.keys() == ours.keys()


def test_the_values_of_the_chart_are_used() -> None:
    made = chart(replicas=3, image={"repository": "registry/outlive", "tag": "1"})
    deployed = made["Deployment", "outlive-controller"]["spec"]
    assert deployed["replicas"] == 3
    assert deployed["template"]["spec"]["containers"][0]["image"] == "registry/outlive:1"


@both
def test_parts_that_are_switched_on_are_those_of_the_manifests(one: Installation) -> None:
    files = [one.manifests / name for name in one.optional]
    files += [one.manifests / "monitoring" / name for name in manifests.listed(one.manifests / "monitoring")]
    wanted = by_name([each for path in files for each in manifests.documents(path)])
    switches = {name.removesuffix(".yaml"): {"enabled": True} for name in (*one.optional, "monitoring.yaml")}
    assert {key[1] for key in chart(one, **switches).keys() - chart(one).keys()} == {name for _, name in wanted}
    made = chart(one, **switches)
    for key, each in wanted.items():
        assert (
            yaml.safe_load(yaml.safe_dump(made[key]).replace("namespace: here", f"namespace: {one.chart.name}")) == each
        )


def test_the_settings_of_the_manifests_are_settings() -> None:
    try:
        role_settings(load(CONTROLLER.manifests / "outlive.yaml"))
    except OutliveError as error:
        pytest.fail(str(error))


def agent_pod() -> dict[str, Any]:
    pod: dict[str, Any] = kustomized(STORAGE_AGENT)["DaemonSet", "outlive-storage-agent"]["spec"]["template"]["spec"]
    return pod


def test_the_agent_can_start_with_its_arguments_and_its_file() -> None:
    (container,) = agent_pod()["containers"]
    command, *words = container["args"]
    assert command == "storage-agent"
    (config,) = [word for word in words if word.startswith("--config=")]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "options"]
    name, file = STORAGE_AGENT.settings
    assert config == f"--config={mount['mountPath']}/{file}"
    assert {"name": "options", "configMap": {"name": name}} in agent_pod()["volumes"]
    here = [word.replace(mount["mountPath"], str(STORAGE_AGENT.manifests)) for word in words]
    flags = read_options(here, {each["name"]: "n1" for each in container["env"]})
    assert flags.options == AgentOptions(node_name="n1")
    assert health_address(flags) == ("", container["ports"][0]["containerPort"])


def test_the_agent_runs_where_storage_is_lost_and_is_given_time_to_start() -> None:
    pod = agent_pod()
    (container,) = pod["containers"]
    tolerated = {
        each["key"] for each in pod["tolerations"] if (each["operator"], each["effect"]) == ("Exists", "NoSchedule")
    }
    assert tolerated == {
        "node-role.kubernetes.io/master",
        "node-role.kubernetes.io/control-plane",
        "drbd.linbit.com/lost-quorum",
        "drbd.linbit.com/force-io-error",
    }
    assert container["startupProbe"]["failureThreshold"] == 30
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": container["ports"][0]["name"]}
    assert container["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True, "runAsUser": 0}
    assert container["resources"]["requests"] == {"cpu": "50m", "memory": "100Mi"}
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert {volume["name"] for volume in pod["volumes"]} == {mount["name"] for mount in container["volumeMounts"]}
    (namespace,) = manifests.documents(STORAGE_AGENT.manifests / "namespace.yaml")
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "privileged"}


def test_the_agent_may_do_what_the_manual_says_and_nothing_else() -> None:
    role = kustomized(STORAGE_AGENT)["ClusterRole", "outlive-storage-agent"]
    assert {
        (group, resource): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    } == {
        ("", "pods"): {"get", "list", "watch", "delete"},
        ("", "pods/eviction"): {"create"},
        ("", "nodes"): {"get", "list", "watch", "patch", "update"},
        ("", "persistentvolumes"): {"get", "list", "watch"},
        ("storage.k8s.io", "volumeattachments"): {"get", "list", "watch", "delete"},
        ("events.k8s.io", "events"): {"create", "patch"},
    }


def test_files_that_the_kustomization_leaves_to_the_user_are_named_in_it() -> None:
    text = (STORAGE_AGENT.manifests / "kustomization.yaml").read_text()
    assert tuple(re.findall(r"(?m)^#  - (\S+)", text)) == STORAGE_AGENT.optional


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


def test_the_image_of_the_agent_is_that_of_the_controllers_with_the_tools_of_drbd() -> None:
    folder = manifests.DEPLOY / "container"
    theirs, ours = (
        (folder / name).read_text().splitlines() for name in ("Containerfile", "storage-agent.Containerfile")
    )
    assert "ARG BASE=outlive" in ours
    assert "FROM ${BASE}" in ours
    assert any("drbd-utils" in line for line in ours if not line.startswith("#"))
    assert "USER 0:0" in ours
    assert theirs[-1] == ours[-1]
    (container,) = agent_pod()["containers"]
    made = " ".join(ours)
    assert all(mount["mountPath"] in made for mount in container["volumeMounts"] if mount["mountPath"] != "/tmp")

"""The manifests of ``deploy/kubernetes`` on a real API server: the controllers' account may do what they do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.integration.test_controller import HOSTS, NAMESPACE, START_S, VMS, Controller, age_token, covered, until
from tests.integration.test_controller import server as server
from tests.support.api_server import CONTROLLER, ApiRefusal, ApiServer
from tests.support.command import environment, spawned

from outlive.resources import build_crds

pytestmark = pytest.mark.component("kubernetes")
FOLDER = Path(__file__).parents[2] / "deploy/kubernetes"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
PATHS = {
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{NAMESPACE}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{NAMESPACE}/rolebindings",
}
UNUSED = {("outlive.dev", "patch"): "the API patches labels and annotations for its users"}
"""What the role allows and the path below does not use, and why it is allowed."""


def manifests(name: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((FOLDER / name).read_text()) if one]


def apply(server: ApiServer, document: dict[str, Any]) -> None:
    path = PATHS[document["kind"]]
    try:
        server.call("POST", path, document)
    except ApiRefusal as error:
        if error.code != 409:
            raise
        server.call("PUT", f"{path}/{document['metadata']['name']}", document)


class OfAccount:
    """The server as the pod's service account reaches it."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        asks = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["lab"]}}
        answer = server.call("POST", f"{PATHS['ServiceAccount']}/outlive-controller/token", asks)
        document = json.loads(server.kubeconfig().read_text())
        document["users"][0]["user"]["token"] = answer["status"]["token"]
        self.path = folder / "account-kubeconfig"
        self.path.write_text(json.dumps(document))

    def kubeconfig(self) -> Path:
        return self.path


@pytest.fixture
def controller(server: ApiServer, tmp_path: Path) -> Iterator[Controller]:
    for one in manifests("account.yaml"):
        apply(server, one)
    process = Controller(OfAccount(server, tmp_path), tmp_path / "a")  # type: ignore[arg-type]
    process.start()
    try:
        process.wait_ready()
        yield process
    finally:
        process.kill()


def controller_environment(controller: Controller) -> dict[str, str]:
    return environment(OUTLIVE_SERVER=controller.url, OUTLIVE_TOKEN=f"@{controller.directory / 'token'}")


def allowed() -> set[tuple[str, str]]:
    """API group and verb."""
    rules = [rule for one in manifests("account.yaml") for rule in one.get("rules", ())]
    return {(group, verb) for rule in rules for group in rule["apiGroups"] for verb in rule["verbs"]}


def asked(server: ApiServer) -> list[dict[str, Any]]:
    """What the account has asked for, by the server's own log."""
    whole = (server.folder / "audit.log").read_text().rpartition("\n")[0]  # it may be about to write the next line
    found = [json.loads(line) for line in whole.splitlines()]
    return [one for one in found if one["user"]["username"] == CONTROLLER]


def test_the_account_of_the_controllers_may_do_what_they_do_and_nothing_without_a_reason(
    server: ApiServer, controller: Controller, tmp_path: Path
) -> None:
    (tmp_path / "hosts.csv").write_text(HOSTS)
    (tmp_path / "vms.csv").write_text(VMS)
    controller.outlive("import", "csv", "--hosts", str(tmp_path / "hosts.csv"), "--vms", str(tmp_path / "vms.csv"))
    until(lambda: len(covered(server)) == 8, "every VM is covered", START_S)
    rotated = spawned("tls", "rotate", "--yes", env=controller_environment(controller))
    assert (rotated.code, "none of them replaces it alone" in rotated.err) == (1, True), rotated.err
    for number in range(4):
        controller.outlive("delete", "vms", f"v{number}", "--yes")
    until(lambda: {one["verb"] for one in asked(server)} >= {"delete", "update"}, "slots change", START_S)
    controller.kill()  # a watch is written down when it ends
    age_token(server)
    controller.start()
    controller.wait_ready()
    controller.kill()
    until(lambda: "watch" in {one["verb"] for one in asked(server)}, "watches have ended", START_S)
    used = [one for one in asked(server) if "objectRef" in one]
    refused = {(one["verb"], one["objectRef"]["resource"]) for one in used if one["responseStatus"]["code"] == 403}
    assert refused == set(), "deploy/kubernetes/account.yaml lacks it"
    of = {(one["objectRef"].get("apiGroup", ""), one["verb"]) for one in used}
    assert of | set(UNUSED) == allowed()
    core = [one["objectRef"] for one in used if not one["objectRef"].get("apiGroup")]
    own = {("secrets", "outlive-keys"), ("secrets", "outlive-admission")}
    assert {(one["resource"], one.get("name", "outlive-keys")) for one in core} == own


PLURALS = {
    "Namespace": "/api/v1/namespaces",
    "Service": f"/api/v1/namespaces/{NAMESPACE}/services",
    "Deployment": f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
    "NetworkPolicy": f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies",
    "PodDisruptionBudget": f"/apis/policy/v1beta1/namespaces/{NAMESPACE}/poddisruptionbudgets",
    **PATHS,
}


def test_every_manifest_is_taken_by_an_api_server(server: ApiServer) -> None:
    (kustomization,) = manifests("kustomization.yaml")
    kinds = {"crds.yaml"}  # which every server of these tests has
    found = [one for name in kustomization["resources"] if name not in kinds for one in manifests(name)]
    found += manifests("roles.yaml")
    for one in found:
        document = {**one, "metadata": {**one["metadata"], "name": f"{one['metadata']['name']}-tried"}}
        if one["kind"] == "PodDisruptionBudget":
            document["apiVersion"] = "policy/v1beta1"  # that of 1.20; later servers have policy/v1
        made = server.call("POST", f"{PLURALS[one['kind']]}?dryRun=All&fieldValidation=Strict", document)
        assert made["metadata"]["name"] == document["metadata"]["name"]
    assert {one["kind"] for one in found} == set(PLURALS)


def test_the_account_may_read_the_definitions_of_all_kinds() -> None:
    (rule,) = [
        rule
        for one in manifests("account.yaml")
        for rule in one.get("rules", ())
        if rule["apiGroups"] == ["apiextensions.k8s.io"]
    ]
    assert rule["resourceNames"] == [one["metadata"]["name"] for one in build_crds()]

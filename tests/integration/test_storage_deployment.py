"""The storage agent is installed alone, by kubectl from its manifests, and its account may do what it does."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from ssl import create_default_context
from typing import Any

import pytest
import yaml
from tests.support.api_server import STORAGE_AGENT, ApiRefusal, ApiServer, shared_server
from tests.support.command import COMMAND, environment, spawned

pytestmark = pytest.mark.component("kubernetes")
FOLDER = Path(__file__).parents[2] / "deploy/kubernetes/storage-agent"
NAME = "outlive-storage-agent"
APPS = "storage-agent-apps"
PODS = f"/api/v1/namespaces/{APPS}/pods"
NODES = "/api/v1/nodes"
VOLUMES = "/api/v1/persistentvolumes"
ATTACHMENTS = "/apis/storage.k8s.io/v1/volumeattachments"
OWN, LOST, THIRD = "agent-a", "agent-b", "agent-c"
ENDS_S = 60.0
READS = ("get", "list", "watch")
UNUSED = {
    ("", "pods", "get"): "lists and watches say it all",
    ("", "persistentvolumes", "get"): "lists and watches say it all",
    ("storage.k8s.io", "volumeattachments", "get"): "lists and watches say it all",
    ("", "nodes", "get"): "only after a conflict",
    ("", "nodes", "update"): "as in the role of the controller that came before; taints are patched",
    ("events.k8s.io", "events", "patch"): "only of an event that is repeated",
}
"""What the role allows and the story below need not use, and why it is allowed."""


def manifests(name: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((FOLDER / name).read_text()) if one]


def apply(server: ApiServer, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("kubectl")
    assert program is not None
    command = [program, "--kubeconfig", server.kubeconfig(), "apply", "--server-side", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    one = shared_server()
    with suppress(ApiRefusal):  # an earlier test file of this process made it
        one.call("POST", "/api/v1/namespaces", {"metadata": {"name": APPS}})
    yield one
    for path in (
        *(f"{NODES}/{name}" for name in (OWN, LOST, THIRD)),
        f"{PODS}/db-0",
        f"{VOLUMES}/pvc-1",
        f"{ATTACHMENTS}/va-1",
    ):
        with suppress(ApiRefusal):
            one.call("DELETE", path, {"gracePeriodSeconds": 0})


@pytest.fixture(scope="module")
def installed(server: ApiServer) -> ApiServer:
    """The server after ``kubectl apply -k``, as the page says."""
    done = apply(server, "-k", FOLDER)
    assert done.returncode == 0, done.stderr
    return server


class Account:
    """The server as the pod's service account reaches it."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self._server = server
        self.kubeconfig = folder / "account-kubeconfig"
        server.account_kubeconfig(NAME, NAME, self.kubeconfig)
        self._token = yaml.safe_load(self.kubeconfig.read_text())["users"][0]["user"]["token"]

    def status(self, method: str, path: str, document: object = None) -> int:
        """Which status the server answers."""
        request = urllib.request.Request(f"{self._server.url}{path}", method=method)
        request.add_header("Authorization", f"Bearer {self._token}")
        if document is not None:
            request.data = json.dumps(document).encode()
            request.add_header(
                "Content-Type", "application/json" if method != "PATCH" else "application/merge-patch+json"
            )
        trusted = create_default_context(cadata=self._server.authority.decode())
        try:
            with urllib.request.urlopen(request, context=trusted, timeout=30) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def call(self, path: str, document: object) -> Any:
        request = urllib.request.Request(f"{self._server.url}{path}", data=json.dumps(document).encode())
        request.add_header("Authorization", f"Bearer {self._token}")
        request.add_header("Content-Type", "application/json")
        trusted = create_default_context(cadata=self._server.authority.decode())
        with urllib.request.urlopen(request, context=trusted, timeout=30) as answer:
            return json.loads(answer.read())


@pytest.fixture
def account(installed: ApiServer, tmp_path: Path) -> Account:
    return Account(installed, tmp_path)


def allowed(*files: str) -> set[tuple[str, str, str]]:
    """API group, resource and verb, by the manifests."""
    rules = [rule for name in files for one in manifests(name) for rule in one.get("rules", ())]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.component("kubectl")
def test_an_api_server_takes_every_manifest_and_a_second_time_too(installed: ApiServer) -> None:
    again = apply(installed, "-k", FOLDER)
    assert again.returncode == 0, again.stderr
    kinds = {line.partition("/")[0].partition(".")[0] for line in again.stdout.splitlines()}
    assert kinds == {"namespace", "serviceaccount", "clusterrole", "clusterrolebinding", "configmap", "daemonset"}
    for name in ("memberships.yaml", "openshift.yaml"):
        tried = apply(installed, "--dry-run=server", "-f", FOLDER / name)
        assert tried.returncode == 0, tried.stderr
        assert len(tried.stdout.splitlines()) == 2
    daemons = installed.call("GET", f"/apis/apps/v1/namespaces/{NAME}/daemonsets/{NAME}")
    pod = daemons["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == NAME
    settings = installed.call("GET", f"/api/v1/namespaces/{NAME}/configmaps")["items"]
    assert {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume} <= {
        one["metadata"]["name"] for one in settings
    }


def test_the_account_has_the_rights_of_the_role_and_no_other(account: Account) -> None:
    def rights() -> set[tuple[str, str, str]]:
        """Of the account, but for those by which everybody asks what one may do."""
        reviews, asked = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", {"namespace": "kube-system"}
        review = account.call(reviews, {"spec": asked})
        assert not review["status"]["incomplete"]
        return {
            (group, resource, verb)
            for rule in review["status"]["resourceRules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            if group != "authorization.k8s.io"
        }

    until(lambda: rights() >= allowed("account.yaml"), "the server knows of the role")
    assert rights() == allowed("account.yaml")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/secrets"),
        ("GET", f"/api/v1/namespaces/{NAME}/secrets"),
        ("GET", "/api/v1/configmaps"),
        ("GET", "/api/v1/persistentvolumeclaims"),
        ("GET", "/apis/storage.k8s.io/v1/storageclasses"),
        ("GET", "/apis/events.k8s.io/v1/events"),
        ("POST", PODS),
        ("PATCH", f"{PODS}/db-0"),
        ("POST", f"{PODS}/db-0/exec"),
        ("DELETE", f"{NODES}/{OWN}"),
        ("PATCH", f"{NODES}/{OWN}/status"),
        ("DELETE", f"{VOLUMES}/pvc-1"),
        ("POST", ATTACHMENTS),
        ("PATCH", f"{ATTACHMENTS}/va-1"),
        ("GET", "/apis/outlive.dev/v1alpha1/memberships"),
        ("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
    ],
)
def test_the_account_may_not(account: Account, method: str, path: str) -> None:
    assert account.status(method, path, None if method in ("GET", "DELETE") else {}) == 403


def make_node(server: ApiServer, name: str) -> None:
    server.call("POST", NODES, {"metadata": {"name": name}})
    set_ready(server, name, "True")


def set_ready(server: ApiServer, name: str, ready: str) -> None:
    status = {"status": {"conditions": [{"type": "Ready", "status": ready}]}}
    server.call("PATCH", f"{NODES}/{name}/status", status, "application/merge-patch+json")


def make_lost_volume(server: ApiServer) -> None:
    """A database on a node that DRBD has lost and Kubernetes believes in."""
    for name in (OWN, LOST, THIRD):
        make_node(server, name)
    claim = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": APPS, "name": "data-db-0"}
    driver = "linstor.csi.linbit.com"
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "claimRef": claim,
        "csi": {"driver": driver, "volumeHandle": "pvc-1"},
    }
    server.call("POST", VOLUMES, {"metadata": {"name": "pvc-1"}, "spec": spec})
    attached = {"attacher": driver, "nodeName": LOST, "source": {"persistentVolumeName": "pvc-1"}}
    server.call("POST", ATTACHMENTS, {"metadata": {"name": "va-1"}, "spec": attached})
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "1-2-3", "controller": True}
    pod = {
        "nodeName": LOST,
        "containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-db-0"}}],
    }
    server.call("POST", PODS, {"metadata": {"name": "db-0", "ownerReferences": [owner]}, "spec": pod})
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    server.call("PATCH", f"{PODS}/db-0/status", running, "application/merge-patch+json")


def connection(node_id: int, name: str, state: str, role: str) -> dict[str, Any]:
    disk = "UpToDate" if state == "Connected" else "DUnknown"
    devices = [{"volume": 0, "replication-state": "Established", "peer-disk-state": disk}]
    return {
        "peer-node-id": node_id,
        "name": name,
        "connection-state": state,
        "peer-role": role,
        "peer_devices": devices,
    }


def write_drbdsetup(folder: Path) -> tuple[Path, Path]:
    """A ``drbdsetup`` of a survivor, and a file that stands for ``/proc/drbd``."""
    status = [
        {
            "name": "pvc-1",
            "node-id": 0,
            "role": "Secondary",
            "suspended": False,
            "devices": [{"volume": 0, "minor": 1000, "disk-state": "UpToDate", "quorum": True}],
            "connections": [
                connection(1, LOST, "Connecting", "Unknown"),
                connection(2, THIRD, "Connected", "Secondary"),
            ],
        }
    ]
    for name, document in (("status", status), ("show", [{"resource": "pvc-1", "options": {"quorum": "majority"}}])):
        (folder / name).write_text(json.dumps(document))
    (folder / "drbd").write_text("version: 9.2.0\n")
    program = folder / "drbdsetup"
    program.write_text(f'#!/bin/sh\n[ "$1" = events2 ] && exec sleep 1000\nexec cat {folder}/"$1"\n')
    program.chmod(0o755)
    return program, folder / "drbd"


def until(check: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + ENDS_S
    while not check():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def exists(server: ApiServer, path: str) -> bool:
    try:
        server.call("GET", path)
    except ApiRefusal as error:
        if error.code != 404:
            raise
        return False
    return True


def calls_of_the_agent(server: ApiServer) -> list[dict[str, Any]]:
    """What the account has asked for, by the server's own log."""
    raw = (server.folder / "audit.log").read_text().splitlines(keepends=True)
    lines = [json.loads(line) for line in raw if line.endswith("\n")]  # the last one may be on its way
    return [one for one in lines if one["user"]["username"] == STORAGE_AGENT and one["userAgent"].startswith("outlive")]


@contextmanager
def agent(account: Account, folder: Path, *further: str) -> Iterator[str]:
    """The agent as the DaemonSet starts it, but for its port, DRBD and pace; gives its address, and ends it well."""
    program, loaded = write_drbdsetup(folder)
    (container,) = manifests("daemonset.yaml")[0]["spec"]["template"]["spec"]["containers"]
    command, *words = container["args"]
    words = [word.replace("/etc/outlive", str(FOLDER)).replace(":8040", "127.0.0.1:0") for word in words]
    words += [f"--kubeconfig={account.kubeconfig}", f"--drbdsetup={program}", f"--drbd-proc-file={loaded}"]
    words += ["--drbd-status-interval=200ms", "--reconcile-interval=500ms", "--fail-over-timeout=500ms", *further]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*COMMAND, command, *words],
            env=environment(NODE_NAME=OWN),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        with process.stdout:
            address = process.stdout.readline().rpartition("health on ")[2].strip()
            assert address.startswith("http://"), (folder / "log").read_text()
            yield address
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    assert process.returncode == 0, (folder / "log").read_text()


@pytest.fixture(scope="module")
def lost_volume(server: ApiServer) -> None:
    make_lost_volume(server)


def answered(address: str) -> str:
    try:
        with urllib.request.urlopen(address, timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode()


@pytest.mark.usefixtures("lost_volume")
def test_a_dry_run_counts_what_it_would_do_and_does_nothing(
    account: Account, server: ApiServer, tmp_path: Path
) -> None:
    before = len(calls_of_the_agent(server))
    would = 'storage_ha_actions_total{action="detach",result="dry-run"} '
    with agent(account, tmp_path, "--dry-run") as address:
        until(lambda: bool(re.search(re.escape(would) + "[1-9]", answered(f"{address}/metrics"))), "it has decided")
        until(lambda: answered(f"{address}/healthz") == "ok", "it is well")
        explained = spawned("storage-agent", "explain", f"{APPS}/db-0", "--agent", address)
        assert (explained.code, "pvc-1" in explained.out) == (0, True), explained.err
    writes = {one["objectRef"]["resource"] for one in calls_of_the_agent(server)[before:] if one["verb"] not in READS}
    assert writes <= {"events"}
    pod, node = server.call("GET", f"{PODS}/db-0"), server.call("GET", f"{NODES}/{LOST}")
    assert "deletionTimestamp" not in pod["metadata"]
    assert "drbd.linbit.com/lost-quorum" not in str(node["spec"])
    assert exists(server, f"{ATTACHMENTS}/va-1")


@pytest.mark.usefixtures("lost_volume")
def test_the_account_of_the_agent_may_do_what_it_does_and_nothing_without_a_reason(
    account: Account, server: ApiServer, tmp_path: Path
) -> None:
    with agent(account, tmp_path):
        until(lambda: not exists(server, f"{ATTACHMENTS}/va-1"), "the attachment is removed")
        pod = server.call("GET", f"{PODS}/db-0")
        assert "deletionTimestamp" in pod["metadata"], "it was evicted, and no kubelet ends it"
        taints = {one["key"]: one["effect"] for one in server.call("GET", f"{NODES}/{LOST}")["spec"]["taints"]}
        assert taints["drbd.linbit.com/lost-quorum"] == "NoSchedule"
        set_ready(server, LOST, "Unknown")
        until(lambda: not exists(server, f"{PODS}/db-0"), "the pod of a node that is not ready is deleted")
        done = {"TaintedNode", "EvictedPod", "VolumeAttachmentDeleted"}
        until(lambda: done <= actions_reported(server), "events say what was done")

    def used() -> set[tuple[str, str, str]]:
        calls = [one for one in calls_of_the_agent(server) if "objectRef" in one]
        refused = {(one["verb"], one["objectRef"]["resource"]) for one in calls if one["responseStatus"]["code"] == 403}
        assert refused == set(), "account.yaml lacks it"
        return {(*resource_of(one["objectRef"]), one["verb"]) for one in calls}

    until(lambda: used() | set(UNUSED) >= allowed("account.yaml"), "it has used all, and its watches have ended")
    assert used() | set(UNUSED) == allowed("account.yaml")


def actions_reported(server: ApiServer) -> set[str]:
    """Actions of events that are no dry run's."""
    events = server.call("GET", "/apis/events.k8s.io/v1/events")["items"]
    return {one.get("action", "") for one in events if "dry run" not in one.get("note", "")}


def resource_of(reference: dict[str, Any]) -> tuple[str, str]:
    """API group and resource of a call, as a role names them; the server logs an eviction by the group of its body."""
    resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
    return ("" if resource == "pods/eviction" else reference.get("apiGroup", "")), resource

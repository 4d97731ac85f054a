"""The storage agent on a real API server with the real controllers of Kubernetes: a StatefulSet outlives its node.

DRBD is the model of the simulation behind executables; kubelets, scheduler and CSI driver are played.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.drbd import DrbdLab
from tests.support.api_server import ApiRefusal, ApiServer, shared_server
from tests.support.kubelets import ControllerManager, Kubelets
from tests.support.storage_agents import AgentProcess

pytestmark = pytest.mark.component("kubernetes")
NODES = ("k1", "k2", "k3")
QUICK = ("--drbd-status-interval=300ms", "--reconcile-interval=500ms", "--fail-over-timeout=1s", "--api-burst=100")
PROFILES = pytest.mark.parametrize("profile", ["hardened", "compat"])
GRACE_S, SYNC_S = 6.0, 2.0
LIMIT_S = 60.0
LOOK_S = 0.1
LOST = "drbd.linbit.com/lost-quorum"


def until(holds: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> None:
    """Return once it holds."""
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, f"within {limit_s:g} s it never happened that {what}"
        time.sleep(LOOK_S)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    one = shared_server()
    yield one
    for path in ("/apis/apps/v1/namespaces/default/statefulsets", "/api/v1/namespaces/default/persistentvolumeclaims"):
        for found in one.call("GET", path)["items"]:
            one.call("DELETE", f"{path}/{found['metadata']['name']}", {"propagationPolicy": "Orphan"})
    for path in (
        "/api/v1/namespaces/default/pods",
        "/api/v1/persistentvolumes",
        "/apis/storage.k8s.io/v1/volumeattachments",
    ):
        for found in one.call("GET", path)["items"]:
            with contextlib.suppress(ApiRefusal):
                document = f"{path}/{found['metadata']['name']}"
                one.call("PATCH", document, {"metadata": {"finalizers": None}}, "application/merge-patch+json")
                one.call("DELETE", document, {"gracePeriodSeconds": 0})


@pytest.fixture
def drbd(tmp_path: Path) -> Iterator[DrbdLab]:
    with DrbdLab(tmp_path / "drbd", NODES) as lab:
        yield lab


@pytest.fixture
def cluster(server: ApiServer, drbd: DrbdLab) -> Iterator[Kubelets]:
    """Three nodes, and a StatefulSet whose one pod runs on ``k1`` with a volume of three replicas."""
    drbd.create("pvc-1", NODES)
    with ControllerManager(server, grace_s=GRACE_S, sync_s=SYNC_S), Kubelets(server, NODES, drbd) as kubelets:
        kubelets.create_volume("pvc-1", "data-db-0")
        kubelets.create_stateful_set("db")
        until(lambda: runs_on(kubelets, "k1"), "the pod runs on k1")
        yield kubelets
        assert kubelets.errors == []


def runs_on(kubelets: Kubelets, node: str) -> bool:
    pod = kubelets.pods().get("db-0", {})
    return pod.get("spec", {}).get("nodeName") == node and pod.get("status", {}).get("phase") == "Running"


def events(server: ApiServer) -> set[tuple[str, str]]:
    found = server.call("GET", "/apis/events.k8s.io/v1/events")["items"]
    return {(one["reason"], one["action"]) for one in found if "HighAvailability" in one.get("reportingController", "")}


def writers(drbd: DrbdLab) -> list[str]:
    return sorted(drbd.call("writers", "pvc-1"))


@contextlib.contextmanager
def agents(server: ApiServer, drbd: DrbdLab, *options: str) -> Iterator[dict[str, AgentProcess]]:
    """The agents of all nodes, once they are healthy."""
    with contextlib.ExitStack() as stack:
        made = {node: AgentProcess(server, drbd, node, *QUICK, *options) for node in NODES}
        for one in made.values():
            stack.enter_context(one)
        for one in made.values():
            until(lambda one=one: one.get("/healthz") == (200, "ok"), f"the agent of {one.node} is healthy")
        yield made


@PROFILES
def test_a_stateful_set_outlives_the_power_of_its_node(
    server: ApiServer, drbd: DrbdLab, cluster: Kubelets, profile: str
) -> None:
    with agents(server, drbd, f"--profile={profile}") as made:
        made["k1"].kill()
        cluster.dead.add("k1")
        drbd.crash("k1")
        until(lambda: runs_on(cluster, "k2") or runs_on(cluster, "k3"), "the pod runs elsewhere")
        where = cluster.pods()["db-0"]["spec"]["nodeName"]
        assert cluster.attachments() == [("pvc-1", where)]
        assert writers(drbd) == [where]
        assert LOST in cluster.taints("k1")
        said = events(server)
        assert ("VolumeWithoutQuorum", "EvictedPod") in said
        assert ("NodeStorageQuorumLost", "TaintedNode") in said
        assert made[where].terminate() == 0


@PROFILES
def test_a_node_that_lost_only_its_storage_network_is_left_freed_and_untainted_when_it_is_back(
    server: ApiServer, drbd: DrbdLab, cluster: Kubelets, profile: str
) -> None:
    with agents(server, drbd, f"--profile={profile}") as made:
        drbd.isolate("k1")
        until(lambda: runs_on(cluster, "k2") or runs_on(cluster, "k3"), "the pod runs elsewhere")
        where = cluster.pods()["db-0"]["spec"]["nodeName"]
        assert writers(drbd) == [where]
        assert cluster.is_ready("k1")
        assert LOST in cluster.taints("k1")
        assert ("VolumeWithoutQuorum", "ForcedVolumeDemotion") in events(server), "its process hung in frozen I/O"
        drbd.rejoin("k1")
        until(lambda: LOST not in cluster.taints("k1"), "k1 takes pods again")
        done = made["k2"].explain("default/db-0")
        assert done.returncode == 0, done.stderr
        assert "volume pvc-1" in done.stdout


def test_a_volume_is_failed_over_before_its_node_is_not_ready_by_the_events_stream(
    server: ApiServer, drbd: DrbdLab, cluster: Kubelets
) -> None:
    before = cluster.pods()["db-0"]["metadata"]["uid"]
    options = ("--promotion-source=events2", "--reconcile-interval=60s", "--drbd-status-interval=20s")
    with agents(server, drbd, *options) as made:
        drbd.isolate("k1")

        def is_evicted() -> bool:
            pod = cluster.pods().get("db-0", {"metadata": {"uid": "", "deletionTimestamp": "now"}})
            return pod["metadata"]["uid"] != before or "deletionTimestamp" in pod["metadata"]

        until(is_evicted, "the pod is evicted", 15.0)
        (line, *_) = made["k2"].get("/decisions")[1].splitlines() or made["k3"].get("/decisions")[1].splitlines()
        kept = json.loads(line)
        assert kept["name"] == "storage.failover"
        assert kept["output"]["plans"]


def test_health_is_red_while_drbdsetup_hangs_and_nothing_is_done(
    server: ApiServer, drbd: DrbdLab, cluster: Kubelets
) -> None:
    options = ("--drbd-command-timeout=500ms", "--drbd-stale-after=1s")
    with AgentProcess(server, drbd, "k2", *QUICK, *options) as agent:
        until(lambda: agent.get("/healthz")[0] == 200, "it is healthy")
        drbd.hang("k2")
        until(lambda: agent.get("/healthz")[0] == 500, "its health is red")
        assert "recent state" in agent.get("/healthz")[1]
        drbd.isolate("k1")
        assert "drbd_polls_total" in agent.get("/metrics")[1]
        explained = agent.explain("pvc-1")
        assert "nothing is done" in explained.stdout
        drbd.garble("k2", '[{"name": ', times=3)
        drbd.hang("k2", False)
        until(lambda: agent.get("/healthz")[0] == 200, "it recovers by itself")
        until(lambda: LOST in cluster.taints("k1"), "and acts")


def test_a_dry_run_tells_and_touches_nothing(server: ApiServer, drbd: DrbdLab, cluster: Kubelets) -> None:
    with AgentProcess(server, drbd, "k2", *QUICK, "--dry-run") as agent:
        until(lambda: agent.get("/healthz")[0] == 200, "it is healthy")
        drbd.isolate("k1")
        until(lambda: 'result="dry-run"} 0.0' not in agent.get("/metrics")[1].partition("evict")[2][:60], "it tells")
        until(lambda: ("VolumeWithoutQuorum", "VolumeAttachmentDeleted") in events(server), "events say so")
        assert LOST not in cluster.taints("k1")
        assert "deletionTimestamp" not in cluster.pods()["db-0"]["metadata"]

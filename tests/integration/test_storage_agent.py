"""The storage agent on a real API server with the real controllers of Kubernetes: a StatefulSet outlives its node.

DRBD is the model of the simulation behind executables; kubelets, scheduler and CSI driver are played.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from lab.drbd import DrbdLab
from tests.support.api_server import ApiRefusal, ApiServer, shared_server
from tests.support.kubelets import ControllerManager, Kubelets
from tests.support.storage_agents import AgentProcess

from outlive.cli import decision_table

pytestmark = pytest.mark.component("kubernetes")
NUMBERS = itertools.count(1)
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


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """The server, with the controllers of Kubernetes."""
    one = shared_server()
    with ControllerManager(one, grace_s=GRACE_S, sync_s=SYNC_S):
        yield one


class Story(NamedTuple):
    """Three nodes, and a StatefulSet whose one pod runs on the first, with a volume of three replicas."""

    server: ApiServer
    drbd: DrbdLab
    kubelets: Kubelets
    name: str
    nodes: tuple[str, str, str]

    @property
    def pod(self) -> dict[str, Any]:
        return self.kubelets.pods().get(f"{self.name}-0", {})

    @property
    def volume(self) -> str:
        return f"pvc-{self.name}"

    def runs_on(self, *nodes: str) -> bool:
        pod = self.pod
        return pod.get("spec", {}).get("nodeName") in nodes and pod.get("status", {}).get("phase") == "Running"

    def moves(self) -> str:
        """The node on which the pod runs again."""
        _, *others = self.nodes
        until(lambda: self.runs_on(*others), "the pod runs elsewhere")
        return str(self.pod["spec"]["nodeName"])

    def attachments(self) -> list[str]:
        return [node for volume, node in self.kubelets.attachments() if volume == self.volume]

    def writers(self) -> list[str]:
        return sorted(self.drbd.call("find_writers", self.volume))

    def events(self) -> set[tuple[str, str]]:
        found = self.server.call("GET", "/apis/events.k8s.io/v1/events")["items"]
        mine = (self.name, *self.nodes)
        return {
            (one["reason"], one["action"])
            for one in found
            if "HighAvailability" in one.get("reportingController", "")
            and any(name in json.dumps([one["regarding"], one["note"]]) for name in mine)
        }


@pytest.fixture
def story(server: ApiServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Story]:
    name = f"db{next(NUMBERS)}"
    nodes = (f"{name}-k1", f"{name}-k2", f"{name}-k3")
    with DrbdLab(tmp_path / "drbd", nodes) as drbd, Kubelets(server, nodes, drbd) as kubelets:
        drbd.create(f"pvc-{name}", nodes)
        kubelets.create_volume(f"pvc-{name}", f"data-{name}-0")
        kubelets.create_stateful_set(name)
        made = Story(server, drbd, kubelets, name, nodes)
        until(lambda: made.runs_on(nodes[0]), "the pod runs on the first node")
        yield made
        assert kubelets.errors == []
        server.call("DELETE", f"/apis/apps/v1/namespaces/default/statefulsets/{name}")
        with contextlib.suppress(ApiRefusal):
            server.call("DELETE", f"/api/v1/namespaces/default/pods/{name}-0", {"gracePeriodSeconds": 0})


@contextlib.contextmanager
def agents(story: Story, *options: str) -> Iterator[dict[str, AgentProcess]]:
    """The agents of all nodes, once they are healthy."""
    with contextlib.ExitStack() as stack:
        made = {node: AgentProcess(story.server, story.drbd, node, *QUICK, *options) for node in story.nodes}
        for one in made.values():
            stack.enter_context(one)
        for one in made.values():
            until(lambda one=one: one.get("/healthz") == (200, "ok"), f"the agent of {one.node} is healthy")  # type: ignore[misc]
        yield made


@PROFILES
def test_a_stateful_set_outlives_the_power_of_its_node(story: Story, profile: str) -> None:
    lost = story.nodes[0]
    with agents(story, f"--profile={profile}") as made:
        made[lost].kill()
        story.kubelets.dead.add(lost)
        story.drbd.crash(lost)
        where = story.moves()
        assert story.attachments() == [where]
        assert story.writers() == [where]
        assert LOST in story.kubelets.taints(lost)
        done = {("VolumeWithoutQuorum", "EvictedPod"), ("NodeStorageQuorumLost", "TaintedNode")}
        until(lambda: done <= story.events(), "events say so")
        assert made[where].terminate() == 0


@PROFILES
def test_a_node_that_lost_only_its_storage_network_is_freed_and_takes_pods_again_when_it_is_back(
    story: Story, profile: str
) -> None:
    lost, other, _ = story.nodes
    with agents(story, f"--profile={profile}") as made:
        story.drbd.isolate(lost)
        where = story.moves()
        assert story.writers() == [where]
        assert story.kubelets.is_ready(lost)
        assert LOST in story.kubelets.taints(lost)
        demoted = ("VolumeWithoutQuorum", "ForcedVolumeDemotion")
        until(lambda: demoted in story.events(), "it is told that its process hung in frozen I/O")
        story.drbd.rejoin(lost)
        until(lambda: LOST not in story.kubelets.taints(lost), "the node takes pods again")
        done = made[other].explain(f"default/{story.name}-0")
        assert done.returncode == 0, done.stderr
        assert f"volume {story.volume}" in done.stdout


def test_the_events_stream_has_pods_evicted_without_waiting_for_a_tick(story: Story) -> None:
    before = story.pod["metadata"]["uid"]
    options = ("--promotion-source=events2", "--reconcile-interval=60s", "--drbd-status-interval=20s")
    with agents(story, *options) as made:
        story.drbd.isolate(story.nodes[0])

        def is_evicted() -> bool:
            meta = story.pod.get("metadata", {"uid": ""})
            return meta["uid"] != before or "deletionTimestamp" in meta

        until(is_evicted, "the pod is evicted", 15.0)
        until(lambda: any(kept_decisions(one) for one in made.values()), "the decision is kept")
        kept = next(found for one in made.values() if (found := kept_decisions(one)))
        assert kept[0]["name"] == "storage.failover"
        replayed = decision_table().decide_json("storage.failover", json.dumps(kept[0]["input"]).encode())
        assert json.loads(replayed) == kept[0]["output"], "replayed from what was kept"


def kept_decisions(agent: AgentProcess) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in agent.get("/decisions")[1].splitlines()]
    return [one for one in lines if one["name"] == "storage.failover"]


def test_health_is_red_while_drbdsetup_hangs_and_nothing_is_done(story: Story) -> None:
    lost, here, _ = story.nodes
    options = ("--drbd-command-timeout=500ms", "--drbd-stale-after=1s", "--standby-delay=0s")
    with AgentProcess(story.server, story.drbd, here, *QUICK, *options) as agent:
        until(lambda: agent.get("/healthz")[0] == 200, "it is healthy")
        story.drbd.hang(here)
        until(lambda: (asked := agent.get("/healthz"))[0] == 500 and "recent state" in asked[1], "its health is red")
        story.drbd.isolate(lost)
        counted = 'storage_ha_drbd_polls_total{result="timed-out"}'
        until(lambda: counted in agent.get("/metrics")[1], "polls that took too long are counted")
        assert "nothing is done" in agent.explain(story.volume).stdout
        assert LOST not in story.kubelets.taints(lost)
        story.drbd.garble(here, '[{"name": ', times=3)
        story.drbd.hang(here, False)
        until(lambda: agent.get("/healthz")[0] == 200, "it recovers by itself")
        until(lambda: LOST in story.kubelets.taints(lost), "and acts")


def test_a_dry_run_tells_and_touches_nothing(story: Story) -> None:
    with AgentProcess(story.server, story.drbd, story.nodes[1], *QUICK, "--dry-run", "--standby-delay=0s") as agent:
        until(lambda: agent.get("/healthz")[0] == 200, "it is healthy")
        story.drbd.isolate(story.nodes[0])
        until(lambda: ("VolumeWithoutQuorum", "VolumeAttachmentDeleted") in story.events(), "events say so")
        assert LOST not in story.kubelets.taints(story.nodes[0])
        assert "deletionTimestamp" not in story.pod["metadata"]
        assert story.attachments() == [story.nodes[0]]

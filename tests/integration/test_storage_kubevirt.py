"""VMs of KubeVirt on a real API server with the controllers of Kubernetes: they run elsewhere when their disk is lost.

KubeVirt's webhook and controller are a stand-in (``tests.support.kubevirt``); nothing here shows what a real one does.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from lab.drbd import DrbdLab
from lab.processes import until
from tests.support.api_server import ApiServer, shared_server
from tests.support.kubelets import ControllerManager, Kubelets
from tests.support.kubevirt import Kubevirt
from tests.support.storage_agents import AgentProcess

pytestmark = pytest.mark.component("kubernetes")
NODES = ("kv-1", "kv-2", "kv-3", "kv-4", "kv-5")
"""The first two have no disks: a VM on each can be lost without the quorum of its volume."""
FIRST, SECOND, SURVIVOR = NODES[:3]
DISKS = ("web-root", "db-root", "db-extra", "pinned-root", "shop-root", "solo-root", "half-root", "both-root")
TIMES = ("--drbd-status-interval=300ms", "--reconcile-interval=500ms", "--fail-over-timeout=1s", "--api-burst=100")
OPTIONS = (*TIMES, "--standby-delay=0s", "--brake-window=0s", "--vm-evacuation-timeout=2s")
GRACE_S, SYNC_S = 5.0, 2.0
LIMIT_S = 45.0
OWN_TAINTS = {"drbd.linbit.com/lost-quorum", "drbd.linbit.com/force-io-error"}


class World(NamedTuple):
    """Five nodes, with agents on the first and on a survivor."""

    server: ApiServer
    drbd: DrbdLab
    kubelets: Kubelets
    kubevirt: Kubevirt
    agents: dict[str, AgentProcess]

    def start(self, *names: str, **spec: Any) -> dict[str, str]:
        """VMs on the first node; the uids of their instances."""
        for name in names:
            self.kubevirt.start(name, f"{name}-root", FIRST, **spec)
        for name in names:
            self.runs(name, FIRST)
        return {name: self.uid(name) for name in names}

    def runs(self, name: str, *nodes: str) -> str:
        until(lambda: self.kubevirt.runs_on(name) in nodes, f"{name} runs on {nodes}", LIMIT_S, 0.1)
        return self.kubevirt.runs_on(name)

    def uid(self, name: str) -> str:
        instance = self.kubevirt.instance(name)
        return "" if instance is None else str(instance["metadata"]["uid"])

    def takes_pods(self) -> None:
        """Return once the first node has no taint of the agents."""
        until(lambda: not OWN_TAINTS & self.kubelets.taints(FIRST), "the node takes pods", LIMIT_S)

    def notes(self, action: str, pod: str) -> list[str]:
        found = self.server.call("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
        return [one["note"] for one in found if one.get("action") == action and one["regarding"]["name"] == pod]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("kubevirt")
    server = shared_server()
    with contextlib.ExitStack() as stack:
        drbd = stack.enter_context(DrbdLab(folder / "drbd", NODES))
        kubelets = stack.enter_context(Kubelets(server, NODES, drbd))
        for name in DISKS:  # before there are pods: attach-detach waits long for a claim that it does not know yet
            drbd.create(f"pvc-{name}", NODES[2:], NODES[:2])
            kubelets.create_volume(f"pvc-{name}", name, mode="ReadWriteMany")
        stack.enter_context(ControllerManager(server, grace_s=GRACE_S, sync_s=SYNC_S))
        kubevirt = stack.enter_context(Kubevirt(server, folder))
        agents = {one: AgentProcess(server, drbd, one, *OPTIONS) for one in (FIRST, SURVIVOR)}
        for one in agents.values():
            stack.enter_context(one)
        for one in agents.values():
            until(lambda one=one: one.get("/healthz")[0] == 200, "it is healthy", LIMIT_S)  # type: ignore[misc]
        yield World(server, drbd, kubelets, kubevirt, agents)
        assert (kubelets.errors, kubevirt.errors) == ([], [])
        assert not [one.node for one in agents.values() if "Traceback" in one.log.read_text()]


def test_vms_leave_a_ready_node_that_lost_its_storage_network_without_any_eviction(world: World) -> None:
    kubevirt = world.kubevirt
    before = world.start("web", "db") | world.start(
        "pinned", volumes=[{"name": "scratch", "hostPath": {"path": "/data/vm"}}]
    )
    kubevirt.plug("db", "db-extra")
    until(lambda: world.drbd.call("find_writers", "pvc-db-extra") == [FIRST], "the disk is plugged", LIMIT_S)
    (plugged,) = kubevirt.parts("db", "hotplug-disk")
    (pinned,) = kubevirt.parts("pinned")
    world.drbd.isolate(FIRST)
    for name in ("web", "db"):
        world.runs(name, *NODES[1:])
        assert world.uid(name) != before[name]
    until(lambda: kubevirt.parts("db", "hotplug-disk"), "the disk is plugged again", LIMIT_S)
    assert kubevirt.refusals == [], "they are deleted"
    until(lambda: world.notes("EvictedPod", plugged), "it is told", LIMIT_S)
    assert world.uid("pinned") == before["pinned"]
    assert ("pvc-pinned-root", FIRST) in world.kubelets.attachments(), "it keeps its disk"
    until(lambda: "host disk /data/vm" in "".join(world.notes("LeftAlone", pinned)), "it is told why", LIMIT_S)
    assert "host disk /data/vm" in world.agents[SURVIVOR].explain(f"default/{pinned}").stdout
    world.drbd.rejoin(FIRST)
    world.takes_pods()
    for name in before:
        kubevirt.stop(name)


def test_an_evicted_vm_may_migrate_for_a_while_and_is_deleted_then(world: World) -> None:
    before = world.start("shop")
    (launcher,) = world.kubevirt.parts("shop")
    world.drbd.call("force_secondary", FIRST, "pvc-shop-root")
    until(lambda: world.kubevirt.refusals, "KubeVirt refuses", LIMIT_S)
    assert set(world.kubevirt.refusals) == {launcher}
    assert world.kubevirt.evacuated == {"shop": FIRST}
    until(lambda: world.notes("EvacuationAwaited", launcher), "it is told", LIMIT_S)
    until(lambda: world.uid("shop") not in ("", before["shop"]), "its launcher is gone", LIMIT_S, 0.1)
    where = world.runs("shop", *NODES)
    assert sorted(world.drbd.call("find_writers", "pvc-shop-root")) == [where]
    said = "not migrated within 2 s"
    until(lambda: any(said in note for note in world.notes("EvictedPod", launcher)), "it is told why", LIMIT_S)
    lines = world.agents[FIRST].log.read_text().splitlines(keepends=True)
    log = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
    mine = [one["event"] for one in log if one.get("resource") == "pvc-shop-root"]
    assert "storage.call" in mine
    assert "storage.plan_failed" not in mine, "no plan has an error by it"
    world.kubevirt.stop("shop")


def test_vms_of_dead_nodes_and_both_ends_of_a_migration_run_again_elsewhere(world: World) -> None:
    world.takes_pods()
    before = world.start("solo", "half", "both")
    half, both = world.kubevirt.migrate("half", NODES[3]), world.kubevirt.migrate("both", SECOND)
    (source,) = set(world.kubevirt.parts("both")) - {both}
    world.agents[FIRST].kill()
    for node in (FIRST, SECOND):
        world.kubelets.dead.add(node)
        world.drbd.crash(node)
    for name in before:
        where = world.runs(name, *NODES[2:])
        assert world.uid(name) != before[name]
        assert sorted(world.drbd.call("find_writers", f"pvc-{name}-root")) == [where]
        gone = {(f"pvc-{name}-root", node) for node in (FIRST, SECOND)}
        until(lambda gone=gone: not gone & set(world.kubelets.attachments()), "they are detached", LIMIT_S)  # type: ignore[misc]
    for pod in (source, both):
        until(lambda pod=pod: world.notes("EvictedPod", pod), "it is told", LIMIT_S)  # type: ignore[misc]
    assert not world.notes("EvictedPod", half), "an end on a living node is KubeVirt's"
    for name in before:
        world.kubevirt.stop(name)

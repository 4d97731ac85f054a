"""The virtual API server holds to the rules that a real one has for foreign objects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.support.loops import run, run_by

from outlive.base import (
    AlreadyExists,
    BadInput,
    Conflict,
    LoopClock,
    NotFound,
    Random,
    SeededIds,
    Throttled,
    Unavailable,
    Unknown,
)
from outlive.resources.foreign import KubernetesNode, KubernetesPod, PodDisruptionBudget, VolumeAttachment
from outlive.runtime import Informer, PatchOperation
from outlive.simulation import Process, go
from outlive.simulation.kubernetes import GIVEN_UP_S, LATENCY_S, ApiConnection, ApiServer, is_terminating
from outlive.store import FaultRates

POD = "default/db-0"


def pod(name: str = "db-0", *, node: str = "n1", phase: str = "Running", ready: str = "True") -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": name, "labels": {"app": "db"}},
        "spec": {"nodeName": node} if node else {},
        "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
    }


def budget(allowed: int, *, healthy: int = 1, name: str = "db") -> dict[str, Any]:
    return {
        "metadata": {"namespace": "default", "name": name},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "db"}}},
        "status": {"disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": 1},
    }


def with_server(claim: Callable[[ApiServer], Awaitable[None]]) -> None:
    async def body() -> None:
        await claim(ApiServer(LoopClock(), SeededIds(Random(1))))

    run(body())


@run_by(with_server)
async def test_pod_gets_its_time_and_is_removed_by_the_kubelet(server: ApiServer) -> None:
    uid = server.add(KubernetesPod, pod())["metadata"]["uid"]
    await server.evict(POD, uid=uid, grace_s=10)
    found = server.find(KubernetesPod, POD)
    assert found is not None
    assert is_terminating(found)
    assert found["metadata"]["deletionGracePeriodSeconds"] == 10
    server.remove(KubernetesPod, POD, grace_s=30)
    again = server.find(KubernetesPod, POD)
    assert again == found, "a longer time than before is not given"
    server.remove(KubernetesPod, POD, uid=uid, grace_s=0)
    assert server.find(KubernetesPod, POD) is None


@pytest.mark.parametrize(("node", "phase"), [("", "Pending"), ("n1", "Succeeded"), ("n1", "Failed")])
@run_by(with_server)
async def test_pod_that_no_kubelet_runs_goes_at_once(server: ApiServer, *, node: str, phase: str) -> None:
    server.add(KubernetesPod, pod(node=node, phase=phase))
    server.remove(KubernetesPod, POD)
    assert server.find(KubernetesPod, POD) is None


@run_by(with_server)
async def test_what_has_finalizers_is_marked_and_goes_with_the_last(server: ApiServer) -> None:
    server.add(VolumeAttachment, {"metadata": {"name": "a", "finalizers": ["x"]}, "spec": _ATTACHMENT})
    await server.delete_object(VolumeAttachment, "a")
    found = server.find(VolumeAttachment, "a")
    assert found is not None
    assert is_terminating(found)
    server.release(VolumeAttachment, "a", "x")
    assert server.find(VolumeAttachment, "a") is None


_ATTACHMENT = {"attacher": "d", "nodeName": "n1", "source": {"persistentVolumeName": "v"}}


@run_by(with_server)
async def test_another_uid_or_version_is_a_conflict_and_changes_nothing(server: ApiServer) -> None:
    made = server.add(KubernetesPod, pod())
    for wrong in ({"uid": "other"}, {"version": "0"}):
        with pytest.raises(Conflict):
            await server.delete_object(KubernetesPod, POD, **wrong)  # type: ignore[arg-type]
    with pytest.raises(Conflict):
        await server.evict(POD, uid="other")
    assert server.find(KubernetesPod, POD) is made
    with pytest.raises(AlreadyExists):
        server.add(KubernetesPod, pod())
    with pytest.raises(NotFound):
        await server.evict("default/nobody")


@run_by(with_server)
async def test_patch_is_tested_and_halves_are_kept_apart(server: ApiServer) -> None:
    node = server.add(KubernetesNode, {"metadata": {"name": "n1"}, "spec": {"taints": []}, "status": {"a": 1}})
    version = node["metadata"]["resourceVersion"]
    taints = [{"key": "k", "effect": "NoSchedule"}]
    change = [PatchOperation("add", "/spec/taints", taints), PatchOperation("add", "/status/a", 2)]
    with pytest.raises(Conflict):
        await server.patch(KubernetesNode, "n1", change, version="0")
    with pytest.raises(Conflict):
        await server.patch(KubernetesNode, "n1", [PatchOperation("test", "/spec/taints", taints), *change])
    answer = await server.patch(KubernetesNode, "n1", change, version=version)
    assert answer.document["spec"]["taints"] == taints
    assert answer.document["status"] == {"a": 1}, "the status is another subresource"
    answer = await server.patch(KubernetesNode, "n1", change, subresource="status")
    assert answer.document["status"] == {"a": 2}
    before = answer.metadata.resource_version
    answer = await server.patch(KubernetesNode, "n1", change[:1])
    assert answer.metadata.resource_version == before, "what changes nothing has no new version"


@run_by(with_server)
async def test_disruption_budget_and_webhook_answer_429(server: ApiServer) -> None:
    server.add(KubernetesPod, pod())
    server.add(PodDisruptionBudget, budget(0))
    with pytest.raises(Throttled):
        await server.evict(POD)
    server.edit(PodDisruptionBudget, "default/db", lambda one: one["status"].update(disruptionsAllowed=1))
    server.webhooks.append(lambda one: "its VM is to be evacuated")
    with pytest.raises(Throttled, match="evacuated"):
        await server.evict(POD)
    server.webhooks.clear()
    await server.evict(POD)
    spent = server.find(PodDisruptionBudget, "default/db")
    assert spent is not None
    assert spent["status"]["disruptionsAllowed"] == 0


@run_by(with_server)
async def test_budget_lets_a_pod_go_that_is_not_ready_and_two_budgets_let_none(server: ApiServer) -> None:
    server.add(KubernetesPod, pod(ready="False"))
    server.add(PodDisruptionBudget, budget(0))
    server.add(PodDisruptionBudget, budget(0, name="other"))
    with pytest.raises(Unavailable):
        await server.evict(POD)
    server.remove(PodDisruptionBudget, "default/other")
    await server.evict(POD)


@run_by(with_server)
async def test_nothing_is_written_whole(server: ApiServer) -> None:
    server.add(KubernetesNode, {"metadata": {"name": "n1"}})
    with pytest.raises(BadInput, match="verbs"):
        await server.replace(server.get_object(KubernetesNode, "n1"))


def connected(server: ApiServer) -> tuple[ApiConnection, Process]:
    process = Process("agent")
    process.alive = True
    return ApiConnection(server, "agent", process, clock=LoopClock(), random=Random(1)), process


@run_by(with_server)
async def test_calls_are_counted_and_a_cut_shows_as_silence(server: ApiServer) -> None:
    server.add(KubernetesPod, pod())
    connection, _ = connected(server)
    clock = LoopClock()
    connection.set(reachable=False, latency_s=LATENCY_S, rates=FaultRates())
    with pytest.raises(Unavailable):
        await connection.verbs.evict(POD)
    assert clock.monotonic() >= GIVEN_UP_S
    connection.set(reachable=True, latency_s=LATENCY_S, rates=FaultRates())
    await connection.verbs.evict(POD)
    await connection.store.get(KubernetesPod, POD)
    assert connection.calls == {"evict pods": 2, "read": 1}
    assert any(one.name == "pods/eviction" for one in await connection.verbs.list_served("v1"))


@run_by(with_server)
async def test_a_lost_answer_is_unknown_and_the_call_has_counted(server: ApiServer) -> None:
    server.add(KubernetesPod, pod())
    connection, _ = connected(server)
    connection.set(reachable=True, latency_s=LATENCY_S, rates=FaultRates(lose_applied=1.0))
    with pytest.raises(Unknown):
        await connection.verbs.delete(KubernetesPod, POD, grace_s=0)
    assert server.find(KubernetesPod, POD) is None


@run_by(with_server)
async def test_what_was_sent_takes_effect_though_its_sender_was_killed(server: ApiServer) -> None:
    server.add(KubernetesPod, pod())
    connection, process = connected(server)
    sending = go(connection.verbs.delete(KubernetesPod, POD, grace_s=0), name="sending")
    await LoopClock().sleep(LATENCY_S / 2)
    sending.cancel()
    process.kill()
    await LoopClock().sleep(LATENCY_S)
    assert server.find(KubernetesPod, POD) is None


@run_by(with_server)
async def test_an_informer_follows_over_a_connection_that_was_cut(server: ApiServer) -> None:
    connection, _ = connected(server)
    clock = LoopClock()
    informer = Informer(connection.store, KubernetesPod, clock=clock, random=Random(2))
    following = go(informer.run(), name="informer")
    await informer.wait_synced()
    connection.set(reachable=False, latency_s=LATENCY_S, rates=FaultRates())
    server.add(KubernetesPod, pod())
    await clock.sleep(60.0)
    assert informer.items() == []
    connection.set(reachable=True, latency_s=LATENCY_S, rates=FaultRates())
    await clock.sleep(40.0)
    assert [one.metadata.key for one in informer.items()] == [POD]
    following.cancel()

"""Verbs on objects of others, on a real API server: each is applied, or says in its error why not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.conformance.backends import GOODBYE_S
from tests.support.api_server import ApiRefusal, ApiServer, shared_server
from tests.support.lost_answers import LostAnswers

from outlive.base import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    OutliveError,
    Random,
    SystemClock,
    SystemIds,
    Throttled,
    Unknown,
)
from outlive.drivers.kubernetes import KubernetesEvents, KubernetesVerbs
from outlive.resources import ObjectRef
from outlive.resources.foreign import KubernetesNode, KubernetesPod, VolumeAttachment
from outlive.runtime import PatchOperation
from outlive.store.kubernetes import ClusterAccess, KubernetesStore

pytestmark = pytest.mark.component("kubernetes")
NAMESPACE = "verbs"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CLOCK = SystemClock()


@pytest.fixture(scope="module")
def server() -> ApiServer:
    one = shared_server()
    for path, name in (("/api/v1/namespaces", NAMESPACE), (f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", "poor")):
        with suppress(ApiRefusal):  # an earlier test file of this process made it
            one.call("POST", path, {"metadata": {"name": name}})
    return one


@asynccontextmanager
async def opened(
    server: ApiServer, access: ClusterAccess | None = None
) -> AsyncIterator[tuple[KubernetesStore, LostAnswers]]:
    access = access or server.access()
    calls = LostAnswers(access.server)
    store = KubernetesStore(access, clock=CLOCK, random=Random(1), calls=calls)
    try:
        yield store, calls
    finally:
        await store.close()
        await asyncio.sleep(GOODBYE_S)


async def failure(call: Any) -> OutliveError:
    with pytest.raises(OutliveError) as found:
        await call
    return found.value


def make_pod(server: ApiServer, name: str, **spec: Any) -> dict[str, Any]:
    """A pod that no node has yet, as the server has it."""
    spec |= {"containers": [{"name": "c", "image": "i"}], "terminationGracePeriodSeconds": 1}
    found: dict[str, Any] = server.call(
        "POST", PODS, {"metadata": {"name": name, "labels": {"app": name}}, "spec": spec}
    )
    return found


def make_budget(server: ApiServer, name: str, allowed: int) -> None:
    """A budget of the pod of that name, which has no more than so many disruptions left."""
    path = f"/apis/policy/v1beta1/namespaces/{NAMESPACE}/poddisruptionbudgets"
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": name}}}
    made = server.call("POST", path, {"metadata": {"name": name}, "spec": spec})
    made["status"] = {
        "disruptionsAllowed": allowed,
        "observedGeneration": made["metadata"]["generation"],
        "currentHealthy": 1,
        "desiredHealthy": 1,
        "expectedPods": 1,
    }
    server.call("PUT", f"{path}/{name}/status", made)


async def test_an_eviction_is_refused_by_a_budget_named_by_its_reason_and_carried_out_without_one(
    server: ApiServer,
) -> None:
    kept, free = make_pod(server, "kept", nodeName="n1"), make_pod(server, "free")
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    for name in ("kept", "free"):  # of a pod that does not run, the server tries a wrong uid for 10 s
        server.call("PATCH", f"{PODS}/{name}/status", {"status": status}, "application/merge-patch+json")
    make_budget(server, "kept", 0)

    async with opened(server) as (store, calls):
        verbs = KubernetesVerbs(store)
        refused = await failure(verbs.evict(f"{NAMESPACE}/kept", uid=kept["metadata"]["uid"]))
        assert type(refused) is Throttled
        assert refused.message.startswith("evict pod verbs/kept: ")
        assert "disruption budget" in refused.message
        assert refused.retry_after_s is None  # nobody knows when the budget allows it
        assert type(await failure(verbs.evict(f"{NAMESPACE}/free", uid="another"))) is Conflict
        assert (await store.get(KubernetesPod, f"{NAMESPACE}/free")).metadata.uid == free["metadata"]["uid"]
        calls.losing = 1
        assert type(await failure(verbs.evict(f"{NAMESPACE}/free", uid=free["metadata"]["uid"]))) is Unknown
        missing = await failure(verbs.evict(f"{NAMESPACE}/free", uid=free["metadata"]["uid"]))
        assert type(missing) is NotFound  # the eviction whose answer was lost was applied
        assert missing.message.startswith("evict pod verbs/free: ")


async def test_a_deletion_meets_the_uid_and_the_grace_that_it_names(server: ApiServer) -> None:
    pod = make_pod(server, "bound", nodeName="n1")
    async with opened(server) as (store, _):
        verbs, key = KubernetesVerbs(store), f"{NAMESPACE}/bound"
        wrong = await failure(verbs.delete(KubernetesPod, key, uid="another", grace_s=0))
        assert type(wrong) is Conflict
        assert wrong.message.startswith("delete pod verbs/bound: ")
        await verbs.delete(KubernetesPod, key, uid=pod["metadata"]["uid"], grace_s=30)
        assert (await store.get(KubernetesPod, key)).metadata.deletion_timestamp is not None  # its node is waited for
        await verbs.delete(KubernetesPod, key, uid=pod["metadata"]["uid"], grace_s=0)
        assert type(await failure(store.get(KubernetesPod, key))) is NotFound
        assert type(await failure(verbs.delete(VolumeAttachment, "none"))) is NotFound


async def test_an_account_without_rights_is_told_which_verb_on_which_object_it_lacks(server: ApiServer) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/poor/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["lab"]}}
    token = server.call("POST", path, request)["status"]["token"]
    async with opened(server, ClusterAccess(server.url, authority=server.authority, token=token)) as (store, _):
        refused = await failure(KubernetesVerbs(store).delete(KubernetesPod, f"{NAMESPACE}/any"))
        assert type(refused) is Forbidden
        assert refused.message.startswith("delete pod verbs/any: ")
        assert "serviceaccount:verbs:poor" in refused.message


async def test_a_patch_keeps_what_it_does_not_name_and_conflicts_where_it_meets_another_state(
    server: ApiServer,
) -> None:
    taints = [
        {"key": "a", "effect": "NoSchedule"},
        {"key": "b", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
    ]
    async with opened(server) as (store, _):
        verbs = KubernetesVerbs(store)
        made = await verbs.create(KubernetesNode, {"metadata": {"name": "n7"}, "spec": {"taints": taints}})
        assert type(await failure(verbs.create(KubernetesNode, {"metadata": {"name": "n7"}}))) is AlreadyExists
        cordon = PatchOperation("replace", "/spec/taints/0/effect", "NoExecute")
        stale = [PatchOperation("test", "/spec/taints/0/key", "z"), cordon]
        failed = await failure(verbs.patch(KubernetesNode, "n7", stale))
        assert type(failed) is Conflict
        assert failed.message.startswith("patch node n7: ")
        right = [PatchOperation("test", "/spec/taints/0/key", "a"), cordon]
        changed = await verbs.patch(KubernetesNode, "n7", right, version=made.metadata.resource_version)
        assert changed.document["spec"]["taints"][0] == {"key": "a", "effect": "NoExecute"}
        assert changed.document["spec"]["taints"][1] == taints[1]  # a field that no view of ours has
        late = await failure(verbs.patch(KubernetesNode, "n7", right, version=made.metadata.resource_version))
        assert type(late) is Conflict
        wrong = [PatchOperation("replace", "/spec/taints/0/effect", "Nonsense")]
        assert type(await failure(verbs.patch(KubernetesNode, "n7", wrong))) is Invalid
        await verbs.delete(KubernetesNode, "n7", uid=changed.metadata.uid)


async def test_a_binding_is_posted_to_its_pod_and_a_second_one_conflicts(server: ApiServer) -> None:
    make_pod(server, "homeless")
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "homeless"},
        "target": {"kind": "Node", "name": "n1"},
    }
    async with opened(server) as (store, _):
        verbs, key = KubernetesVerbs(store), f"{NAMESPACE}/homeless"
        await verbs.post(KubernetesPod, key, "binding", binding)
        assert (await store.get(KubernetesPod, key)).document["spec"]["nodeName"] == "n1"
        assert type(await failure(verbs.post(KubernetesPod, key, "binding", binding))) is Conflict
        await verbs.delete(KubernetesPod, key, grace_s=0)


async def test_discovery_names_what_the_server_has(server: ApiServer) -> None:
    async with opened(server) as (store, _):
        verbs = KubernetesVerbs(store)
        found = {one.name: one for one in await verbs.list_served("v1")}
        assert (found["pods/eviction"].group, found["pods/eviction"].kind) == ("policy", "Eviction")
        assert type(await failure(verbs.list_served("no.such.group/v1"))) is NotFound


async def test_a_repeated_event_is_counted_on_and_a_lost_answer_writes_no_second_one(server: ApiServer) -> None:
    about = ObjectRef(kind="Pod", name="kept", namespace=NAMESPACE, api_version="v1")
    path = f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events"

    def seen() -> list[tuple[str, int]]:
        found = [one for one in server.call("GET", path)["items"] if one["regarding"]["name"] == "kept"]
        return sorted((one["note"], (one.get("series") or {}).get("count", 1)) for one in found)

    async with opened(server) as (store, calls):
        events = KubernetesEvents(store, clock=CLOCK, ids=SystemIds(), controller="outlive.dev/test", instance="test-1")
        events.emit(about, "Moved", "it moved", type="Warning")
        calls.losing = 1
        await events.flush()
        assert seen() == [("it moved", 1)]
        for _ in range(3):
            events.emit(about, "Moved", "it moved", type="Warning")
        events.emit(about, "Moved", "it moved back")
        calls.losing = 1
        await events.flush()
        assert seen() == [("it moved", 4), ("it moved back", 1)]
        for one in server.call("GET", path)["items"]:
            server.call("DELETE", f"{path}/{one['metadata']['name']}")
        events.emit(about, "Moved", "it moved", type="Warning")  # the server has forgotten it meanwhile
        await events.flush()
        assert seen() == [("it moved", 1)]


async def test_events_that_are_not_remembered_any_more_are_written_anew(
    server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlive.drivers.kubernetes.events.SERIES_LIMIT", 1)
    about = ObjectRef(kind="Node", name="forgotten", api_version="v1")
    path = "/apis/events.k8s.io/v1/namespaces/kube-system/events"
    async with opened(server) as (store, _):
        events = KubernetesEvents(store, clock=CLOCK, ids=SystemIds(), controller="outlive.dev/test", instance="test-1")
        for note in ("a", "b", "a"):
            events.emit(about, "Seen", note)
            await events.flush()
        found = [one for one in server.call("GET", path)["items"] if one["regarding"]["name"] == "forgotten"]
        assert sorted(one["note"] for one in found) == ["a", "a", "b"]

"""Kinds of others on a real API server: read, listed and followed beside kinds of Outlive that have the same names."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.backends import GOODBYE_S
from tests.conformance.claims import Subject, claims_of
from tests.support.api_server import ApiRefusal, ApiServer, shared_server

from outlive.base import Conflict, Invalid, NotFound, Random, SystemClock, Unavailable
from outlive.resources import ObjectMeta, ObjectRef, VirtualMachine
from outlive.resources.foreign import (
    InstanceMigration,
    KubernetesNode,
    KubernetesSecret,
    KubevirtVirtualMachine,
    VirtualMachineInstance,
)
from outlive.runtime import Informer
from outlive.store import Malformed, list_all
from outlive.store.kubernetes import KubernetesStore

NAMESPACES = ("blue", "green")
WAIT_S = 20.0


def _make(server: ApiServer, path: str, document: dict[str, Any]) -> None:
    try:
        server.call("POST", path, document)
    except ApiRefusal as error:
        if error.code != 409:
            raise


def _wait_served(server: ApiServer, path: str) -> None:
    end = time.monotonic() + WAIT_S
    while True:
        try:
            server.call("GET", path)
        except ApiRefusal:
            assert time.monotonic() < end
            time.sleep(0.1)
        else:
            return


def virtual_machine(namespace: str, name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    }


@lru_cache
def prepared() -> ApiServer:
    """The server of this process, with two namespaces and two kinds of KubeVirt that take anything."""
    server = shared_server()
    server.empty()
    for name in NAMESPACES:
        _make(server, "/api/v1/namespaces", {"metadata": {"name": name}})
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    for kind in ("VirtualMachine", "VirtualMachineInstance"):
        singular = kind.lower()
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
        names = {"kind": kind, "plural": f"{singular}s", "singular": singular}
        document = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{singular}s.kubevirt.io"},
            "spec": {"group": "kubevirt.io", "names": names, "scope": "Namespaced", "versions": [version]},
        }
        _make(server, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", document)
        _wait_served(server, f"/apis/kubevirt.io/v1/{singular}s")
    return server


@asynccontextmanager
async def kubevirt(_: Path) -> AsyncIterator[KubernetesStore]:
    server = prepared()
    store = KubernetesStore(server.access(), clock=SystemClock(), random=Random(1))
    yield store
    await store.close()
    await asyncio.sleep(GOODBYE_S)
    for namespace in NAMESPACES:
        for plural in ("virtualmachines", "virtualmachineinstances"):
            server.call("DELETE", f"/apis/kubevirt.io/v1/namespaces/{namespace}/{plural}")


claim = claims_of((Subject("kubernetes", kubevirt, component="kubernetes"),))


@claim
async def test_one_name_in_two_namespaces_and_in_two_groups_is_three_objects(store: KubernetesStore) -> None:
    server = prepared()
    for namespace in NAMESPACES:
        path = f"/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachines"
        server.call("POST", path, virtual_machine(namespace, "web", color=namespace))
    ours = await store.create(VirtualMachine(metadata=ObjectMeta(name="web")))
    foreign = [one async for one in list_all(store, KubevirtVirtualMachine)]
    assert [one.metadata.key for one in foreign] == ["blue/web", "green/web"]
    assert [one.document["spec"]["color"] for one in foreign] == ["blue", "green"]
    assert len({ours.ref, *(one.ref for one in foreign)}) == 3
    await store.delete(foreign[0].ref)
    with pytest.raises(NotFound):
        await store.get(KubevirtVirtualMachine, "blue/web")
    assert (await store.get(KubevirtVirtualMachine, "green/web")).metadata.uid == foreign[1].metadata.uid
    assert (await store.get(VirtualMachine, "web")).metadata.uid == ours.metadata.uid
    with pytest.raises(Conflict):
        await store.delete(ObjectRef(kind="VirtualMachine", name="web", uid=foreign[1].metadata.uid))
    await store.delete(ours.ref)


@claim
async def test_a_cache_keeps_objects_of_one_name_apart(store: KubernetesStore) -> None:
    server = prepared()
    informer = Informer(
        store,
        KubevirtVirtualMachine,
        clock=SystemClock(),
        random=Random(2),
        indexes={"by name": lambda one: (one.name,)},
    )
    running = asyncio.create_task(informer.run())
    changed = asyncio.Event()
    informer.subscribe(lambda _old, _new: changed.set())
    await asyncio.wait_for(informer.wait_synced(), WAIT_S)
    for namespace in NAMESPACES:
        path = f"/apis/kubevirt.io/v1/namespaces/{namespace}/virtualmachines"
        server.call("POST", path, virtual_machine(namespace, "db"))
    await _until(lambda: len(informer) == 2, changed)
    assert [one.metadata.key for one in informer.list_by_index("by name", "db")] == ["blue/db", "green/db"]
    server.call("DELETE", "/apis/kubevirt.io/v1/namespaces/blue/virtualmachines/db")
    await _until(lambda: len(informer) == 1, changed)
    assert informer.get("blue/db") is None
    assert informer.get("green/db") is not None
    running.cancel()
    await asyncio.wait([running])


async def _until(reached: Any, changed: asyncio.Event) -> None:
    async with asyncio.timeout(WAIT_S):
        while not reached():
            await changed.wait()
            changed.clear()


@claim
async def test_one_that_is_not_understood_is_named_with_its_namespace(store: KubernetesStore) -> None:
    server = prepared()
    path = "/apis/kubevirt.io/v1/namespaces/green/virtualmachineinstances"
    document = {**virtual_machine("green", "odd"), "kind": "VirtualMachineInstance", "status": {"phase": 7}}
    server.call("POST", path, document)
    page = await store.list(VirtualMachineInstance)
    assert (page.items, [one.ref.key for one in page.malformed]) == ((), ["green/odd"])
    stream = store.observe(VirtualMachineInstance)
    first = await asyncio.wait_for(anext(stream), WAIT_S)
    await stream.aclose()
    assert isinstance(first, Malformed)
    assert first.ref.api_version == "kubevirt.io/v1"


@claim
async def test_kinds_of_kubernetes_itself_are_read_as_others_are(store: KubernetesStore) -> None:
    server = prepared()
    taint = {"key": "outlive.dev/test", "effect": "NoSchedule", "value": None}
    _make(server, "/api/v1/nodes", {"metadata": {"name": "n1"}, "spec": {"taints": [taint]}})
    node = next(one for one in (await store.list(KubernetesNode)).items if one.name == "n1")
    assert node.api_version == "v1"
    assert node.metadata.uid == (await store.get(KubernetesNode, "n1")).metadata.uid
    _make(server, "/api/v1/namespaces/blue/secrets", {"metadata": {"name": "s"}, "data": {"a": "YQ=="}})
    assert (await store.get(KubernetesSecret, "blue/s")).data == {"a": "YQ=="}


@claim
async def test_labels_of_a_foreign_object_change_and_nothing_else_of_it(store: KubernetesStore) -> None:
    server = prepared()
    path = "/apis/kubevirt.io/v1/namespaces/green/virtualmachines"
    server.call("POST", path, virtual_machine("green", "web", unknown=[{"a": None}, 1]))
    found = await store.get(KubevirtVirtualMachine, "green/web")
    after = await store.patch_metadata(found.ref, labels={"outlive.dev/host": "h1"})
    assert isinstance(after, KubevirtVirtualMachine)
    assert after.metadata.labels == {"outlive.dev/host": "h1"}
    assert after.document["spec"] == {"unknown": [{"a": None}, 1]}


@claim
async def test_foreign_objects_are_never_written_whole(store: KubernetesStore) -> None:
    server = prepared()
    path = "/apis/kubevirt.io/v1/namespaces/green/virtualmachines"
    server.call("POST", path, virtual_machine("green", "web"))
    found = await store.get(KubevirtVirtualMachine, "green/web")
    with pytest.raises(Invalid, match="is not written whole"):
        await store.replace(found)
    with pytest.raises(Invalid, match="is not written whole"):
        await store.create(KubevirtVirtualMachine(metadata=ObjectMeta(name="new", namespace="green")))


@claim
async def test_a_key_without_its_namespace_names_no_object(store: KubernetesStore) -> None:
    for kind, key in ((KubevirtVirtualMachine, "web"), (KubevirtVirtualMachine, "/web"), (VirtualMachine, "blue/web")):
        with pytest.raises(NotFound):
            await store.get(kind, key)


@claim
async def test_a_kind_that_the_server_does_not_serve_is_no_absence(store: KubernetesStore) -> None:
    with pytest.raises(Unavailable):
        await store.list(InstanceMigration)

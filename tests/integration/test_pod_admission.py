"""A real API server asks before the network annotation of a pod changes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.api import api
from tests.support.api_server import ApiRefusal, shared_server
from tests.support.pod_worlds import NETWORKS, NODES, node_document, pod_document
from tests.support.webhook import KEY, NAMESPACE, RBAC, WEBHOOKS, Send, sending

from outlive.api import AdmissionEndpoint, AdmissionReviews, PodReviews, ServerTls, names_of, pods_webhook_manifest
from outlive.base import Random, SystemClock
from outlive.network import DEFAULT_IDENTITIES, MIGRATABLE_ANNOTATION, PodCache
from outlive.runtime import DecisionLog, OrderedTaskGroup
from outlive.store.kubernetes import KubernetesStore

pytestmark = [pytest.mark.component("kubernetes"), pytest.mark.slow]
NODE_A, NODE_B = (f"system:ovn-node:{name}" for name in NODES[:2])
NODE_GROUP = "system:ovn-nodes"
PODS = "/api/v1/namespaces/shop/pods"
MERGE = "application/merge-patch+json"


def entry(*cidrs: str) -> str:
    return json.dumps({"default": {"ip_addresses": list(cidrs), "mac_address": "0a:58:0a:2c:07:17"}})


def make(send: Any, *documents: tuple[str, dict[str, Any]]) -> None:
    for path, document in documents:
        with contextlib.suppress(ApiRefusal):
            shared_server().call("POST", path, document)


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[Send]:
    """An API server that asks, with a migratable pod ``vm-1`` on hv-a that has an address, and ``vm-2`` on hv-b."""
    server = shared_server()
    rules = [{"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get", "patch", "update"]}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "pods-of-nodes"}
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": NODE_GROUP}]
    make(
        None,
        ("/api/v1/namespaces", {"metadata": {"name": "shop"}}),
        ("/api/v1/namespaces/shop/serviceaccounts", {"metadata": {"name": "default"}}),
        (f"{RBAC}/clusterroles", {"metadata": {"name": "pods-of-nodes"}, "rules": rules}),
        (f"{RBAC}/clusterrolebindings", {"metadata": {"name": "pods-of-nodes"}, "roleRef": role, "subjects": subjects}),
        *(("/api/v1/nodes", node_document(name, number)) for number, name in enumerate(NODES, 7)),
    )
    for name, node, given in (
        ("vm-1", "hv-a", {MIGRATABLE_ANNOTATION: "", NETWORKS: entry("10.44.7.23/24")}),
        ("vm-2", "hv-b", {MIGRATABLE_ANNOTATION: ""}),
        ("plain", "hv-b", {}),
    ):
        document = pod_document("shop", name, "cart" if name != "plain" else "other", node, given)
        document["spec"] |= {"containers": [{"name": "compute", "image": "none"}]}
        server.call("POST", PODS, {part: document[part] for part in ("metadata", "spec")})
    clock = SystemClock()
    async with contextlib.AsyncExitStack() as stack:
        send = await stack.enter_async_context(sending(server))
        store = KubernetesStore(server.access(), clock=clock, random=Random(1))
        stack.push_async_callback(store.close)
        cache = PodCache(store, clock, Random(2))
        group = await stack.enter_async_context(OrderedTaskGroup())
        tasks = [group.create_task(one.run()) for one in (cache.pods, cache.nodes)]
        stack.callback(lambda: [one.cancel() for one in tasks])
        await cache.pods.wait_synced()
        await cache.nodes.wait_synced()
        tls = ServerTls(folder, names_of("127.0.0.1"), clock)
        reviews = PodReviews(cache, lambda: DEFAULT_IDENTITIES, DecisionLog(clock))
        endpoint = AdmissionEndpoint(AdmissionReviews(store, clock, NAMESPACE).review, KEY, reviews.review)
        served = await stack.enter_async_context(api(store, tls=tls, admission=endpoint))
        made = pods_webhook_manifest(
            tls.authority.encode(), KEY, DEFAULT_IDENTITIES, namespace=NAMESPACE, url=served.url
        )
        try:
            assert (await send("POST", WEBHOOKS, made))[0] == 201
            for _ in range(200):
                answer = await annotate(send, "plain", entry("10.44.9.9/24"), user=NODE_A)
                if answer[0] == 403 and "admission" in answer[1]["message"]:
                    break
                await clock.sleep(0.1)
            yield send
        finally:
            await send("DELETE", f"{WEBHOOKS}/outlive-pods")
            for name in ("vm-1", "vm-2", "plain"):
                for _ in range(100):
                    if (await send("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0}))[0] in (200, 404):
                        break
                    await clock.sleep(0.1)
            for name in NODES:
                server.call("DELETE", f"/api/v1/nodes/{name}")


async def annotate(send: Send, pod: str, value: str | None, *, user: str, key: str = NETWORKS) -> tuple[int, Any]:
    patch = {"metadata": {"annotations": {key: value}}}
    return await send("PATCH", f"{PODS}/{pod}/status", patch, MERGE, user=(user, NODE_GROUP))


async def test_a_node_writes_annotations_of_its_own_pods_and_a_vm_keeps_its_address(tmp_path: Path) -> None:
    async with guarded(tmp_path) as send:

        async def answer(pod: str, value: str | None, user: str, key: str = NETWORKS) -> int:
            return (await annotate(send, pod, value, user=user, key=key))[0]

        assert await answer("plain", entry("10.44.8.5/24"), NODE_A) == 403, "the pod is another node's"
        assert await answer("plain", entry("10.44.9.5/24"), NODE_B) == 403, "the address is another node's"
        assert await answer("plain", "x", NODE_B, "team") == 403, "a node changes nothing else"
        assert await answer("plain", entry("10.44.8.5/24"), NODE_B) == 200
        assert await answer("vm-2", entry("10.44.7.99/24"), NODE_B) == 403, "nobody of the VM has the address"
        assert await answer("vm-2", entry("10.44.7.23/24"), NODE_B) == 200, "its sibling has it"
        assert await answer("plain", None, "mallory") == 403
        assert await answer("plain", "x", "mallory", "team") == 200

"""VMs that are pods of a real API server, followed into a real northbound database."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lab.ovn import Ovn
from tests.conformance.ovn.worlds import programs
from tests.support.api_server import ApiRefusal, ApiServer, shared_server
from tests.support.pod_worlds import NETWORKS, NODES, V4, V6, entry_of, node_document, pod_document

from outlive.base import Random, SystemClock, SystemIds
from outlive.drivers.kubernetes import KubernetesEvents, KubernetesVerbs
from outlive.drivers.ovn import OvnNorthbound, OvnSouthbound
from outlive.network import (
    ANNOUNCEMENTS,
    CLUSTER_ROUTER,
    DHCP,
    MIGRATABLE_ANNOTATION,
    POLICIES,
    PORTS,
    READY_ANNOTATION,
    ROUTER_PORTS,
    ROUTERS,
    ROUTES,
    RUNS_ON_LABEL,
    SWITCHES,
    ClusterSubnet,
    Columns,
    NetworkSettings,
    PodCache,
    PodFollower,
    PodNetworkSettings,
    Scope,
    upsert,
)
from outlive.resources import ObjectMeta, Subnet, VirtualNetwork, VirtualNetworkSpec
from outlive.runtime import DecisionLog, Informer, Manager, Metrics
from outlive.store import MemoryStore
from outlive.store.kubernetes import KubernetesStore, cluster_access

pytestmark = [pytest.mark.component("kubernetes", "ovn"), pytest.mark.slow]
WAIT_S = 60.0
DEPLOY = Path(__file__).parents[2] / "deploy/kubernetes/network"
ACCOUNT = "follower-of-tests"
"""Not that of the controllers: what that asks for is counted by other tests."""
PODS = "/api/v1/namespaces/shop/pods"


class Cluster:
    """The API server's objects of these tests, as people and KubeVirt write them."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server

    def prepare(self) -> None:
        for name in ("shop", "kube-system", "outlive"):
            self._make("/api/v1/namespaces", {"metadata": {"name": name}})
        self._make("/api/v1/namespaces/shop/serviceaccounts", {"metadata": {"name": "default"}})
        for number, name in enumerate(NODES, 7):
            self._make("/api/v1/nodes", node_document(name, number))
        service = {"metadata": {"name": "kube-dns"}, "spec": {"ports": [{"port": 53}]}}
        self._make("/api/v1/namespaces/kube-system/services", service)
        for name in ("account.yaml", "announcer.yaml"):
            self.server.apply(DEPLOY / name, "outlive")
        bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        bound = self.server.call("GET", f"{bindings}/outlive-network-pods")
        subject = {**bound["subjects"][0], "name": ACCOUNT}
        self._make(bindings, {"metadata": {"name": ACCOUNT}, "roleRef": bound["roleRef"], "subjects": [subject]})

    def clean(self) -> None:
        for pod in self.server.call("GET", PODS)["items"]:
            self.remove(pod["metadata"]["name"])
        for name in NODES:
            self.server.call("DELETE", f"/api/v1/nodes/{name}")

    def run(self, pod: str, vm: str, node: str, *, up: bool = True, routed: bool = True, entries: Any = None) -> None:
        annotations = {MIGRATABLE_ANNOTATION: ""} if routed else {}
        if entries is not None:
            annotations[NETWORKS] = json.dumps(entries)
        document = pod_document("shop", pod, vm, node, annotations, **({RUNS_ON_LABEL: node} if up else {}))
        document["spec"] |= {"containers": [{"name": "compute", "image": "none"}]}
        self.server.call("POST", PODS, {name: document[name] for name in ("metadata", "spec")})

    def annotate(self, pod: str, **annotations: str) -> None:
        patch = {"metadata": {"annotations": annotations}}
        self.server.call("PATCH", f"{PODS}/{pod}", patch, "application/merge-patch+json")

    def ready(self, pod: str) -> None:
        self.annotate(pod, **{READY_ANNOTATION: "2030-01-01T00:00:00Z"})

    def complete(self, pod: str) -> None:
        patch = {"status": {"phase": "Succeeded"}}
        self.server.call("PATCH", f"{PODS}/{pod}/status", patch, "application/merge-patch+json")

    def remove(self, pod: str) -> None:
        self.server.call("DELETE", f"{PODS}/{pod}", {"gracePeriodSeconds": 0})

    def annotation(self, pod: str, key: str = NETWORKS) -> Any:
        text = self.server.call("GET", f"{PODS}/{pod}")["metadata"].get("annotations", {}).get(key)
        return None if text is None else json.loads(text)

    def events(self, pod: str) -> set[str]:
        found = self.server.call("GET", "/apis/events.k8s.io/v1/namespaces/shop/events")["items"]
        return {one["reason"] for one in found if one["regarding"]["name"] == pod}

    def _make(self, path: str, document: dict[str, Any]) -> None:
        try:
            self.server.call("POST", path, document)
        except ApiRefusal as error:
            if error.code != 409:
                raise


class Followed:
    """One zone: the real database, and what follows for it, with the rights that the manifest gives."""

    def __init__(self, cluster: Cluster, nb: OvnNorthbound, networks: MemoryStore, folder: Path) -> None:
        self.cluster = cluster
        self.nb = nb
        self.networks = networks
        self._account = cluster.server.account_kubeconfig("outlive", ACCOUNT, folder / "account")
        self._tasks: list[asyncio.Task[None]] = []
        self._stores: list[KubernetesStore] = []

    async def start(self) -> None:
        clock, random = SystemClock(), Random(5)
        store = KubernetesStore(cluster_access(str(self._account)), clock=clock, random=random)
        events = KubernetesEvents(store, clock=clock, ids=SystemIds(), controller="outlive.dev/network", instance="t")
        pods = PodNetworkSettings(follow=True, cluster_subnets=(ClusterSubnet(cidr=V4), ClusterSubnet(cidr=V6)))
        metrics = Metrics()
        follower = PodFollower(
            store,
            KubernetesVerbs(store),
            events,
            Informer(self.networks, VirtualNetwork, clock=clock, random=random),
            self.nb,
            NetworkSettings(northbound="x", southbound="x", pods=pods),
            cache=PodCache(store, clock, random),
            metrics=metrics,
            decisions=DecisionLog(clock),
            clock=clock,
        )
        manager = Manager(clock, random, metrics, SystemIds())
        follower.attach(manager, None)
        manager.add_task("events", events.run)
        self._stores.append(store)
        self._tasks.append(asyncio.create_task(manager.run()))

    async def kill(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for store in self._stores:
            await store.close()
        self._tasks.clear()
        self._stores.clear()

    async def table(self, name: str) -> list[Columns]:
        return (await self.nb.read_rows()).get(name, [])

    async def ports(self) -> dict[str, str]:
        found = {}
        for row in await self.table(PORTS):
            if row.get("external_ids", {}).get("pod") == "true":
                found[row["name"]] = "on" if row.get("enabled", True) and row.get("addresses") else "off"
        return found

    async def until(self, what: Any, expected: Any) -> None:
        """Return once the answer is the expected one."""
        found: Any = None
        try:
            async with asyncio.timeout(WAIT_S):
                while (found := await what()) != expected:
                    await SystemClock().sleep(0.05)
        except TimeoutError:
            assert found == expected


@asynccontextmanager
async def followed(tmp_path: Path) -> AsyncIterator[Followed]:
    cluster = Cluster(shared_server())
    async with AsyncExitStack() as stack:
        ovn = Ovn(tmp_path / "ovn", 0, bin=programs())
        stack.callback(shutil.rmtree, tmp_path / "ovn", ignore_errors=True)
        stack.enter_context(ovn)
        south = OvnSouthbound(ovn.sb_remote, limit_s=10)
        stack.push_async_callback(south.aclose)
        await south.start()
        nb = OvnNorthbound(ovn.nb_remote, south, limit_s=10)
        stack.push_async_callback(nb.aclose)
        await nb.start()
        await nb.transact(Scope(), lambda _rows, _features: base_rows(), comment="what the cluster's network makes")
        cluster.prepare()
        stack.callback(cluster.clean)
        networks = MemoryStore(SystemClock(), SystemIds())
        spec = VirtualNetworkSpec(type="layer2", subnets=(Subnet(cidr="192.168.40.0/24"),))
        await networks.create(VirtualNetwork(metadata=ObjectMeta(name="shop.green"), spec=spec))
        zone = Followed(cluster, nb, networks, tmp_path)
        await zone.start()
        stack.push_async_callback(zone.kill)
        yield zone


def base_rows() -> list[Any]:
    ops = [upsert(ROUTERS, {"name": CLUSTER_ROUTER}, {"name": CLUSTER_ROUTER})]
    for switch in (*NODES, "shop.green_ovn_layer2_switch"):
        ops.append(upsert(SWITCHES, {"name": switch}, {"name": switch}))
    for number, name in enumerate(NODES, 7):
        port = {"name": f"rtos-{name}", "mac": f"0a:58:0a:2c:{number:02x}:01", "networks": [f"10.44.{number}.1/24"]}
        ops.append(upsert(ROUTER_PORTS, {"name": port["name"]}, port))
        peer = {
            "name": f"stor-{name}",
            "switch": name,
            "type": "router",
            "addresses": ["router"],
            "options": {"router-port": f"rtos-{name}"},
        }
        ops.append(upsert(PORTS, {"name": peer["name"]}, peer))
    return ops


async def default_entry(cluster: Cluster, pod: str) -> dict[str, Any]:
    """What the pod's annotation says of the network of all pods."""
    found: dict[str, Any] = (cluster.annotation(pod) or {}).get("default", {"ip_addresses": [""]})
    return found


async def test_a_vm_is_born_moves_fails_to_move_and_ends(tmp_path: Path) -> None:
    async with followed(tmp_path) as zone:
        cluster = zone.cluster
        cluster.run("cart-1", "cart", "hv-a", entries=entry_of("shop/green", 9))
        await zone.until(zone.ports, {"shop_cart-1": "on", "shop.green_shop_cart-1": "on"})
        await asyncio.sleep(1.1)  # times of pods have a resolution of a second
        entry = cluster.annotation("cart-1")["default"]
        assert entry["ip_addresses"] == ["10.44.7.3/24", "fd44:0:0:7::3/64"]
        assert cluster.annotation("cart-1")["shop/green"], "it stays beside it"

        cluster.run("cart-2", "cart", "hv-b", up=False, entries=entry_of("shop/green", 9))
        both = {"shop_cart-1": "on", "shop.green_shop_cart-1": "on"}
        targets = {"shop_cart-2": "on", "shop.green_shop_cart-2": "off"}
        await zone.until(zone.ports, both | targets)
        await zone.until(partial(default_entry, cluster, "cart-2"), entry)
        await asyncio.sleep(1.1)  # times of pods have a resolution of a second

        cluster.ready("cart-2")
        moved = {
            "shop_cart-1": "off",
            "shop.green_shop_cart-1": "off",
            "shop_cart-2": "on",
            "shop.green_shop_cart-2": "on",
        }
        await zone.until(zone.ports, moved)

        async def routes() -> dict[str, str]:
            return {row["ip_prefix"]: row["output_port"] for row in await zone.table(ROUTES)}

        async def announced() -> set[str]:
            return {one["hypervisor"] for one in cluster.annotation("cart-2", ANNOUNCEMENTS) or ()}

        await zone.until(routes, {"10.44.7.3": "rtos-hv-b", "fd44:0:0:7::3": "rtos-hv-b"})
        assert len(await zone.table(POLICIES)) == 2
        await zone.until(announced, {"hv-a"})

        await zone.kill()
        cluster.complete("cart-1")
        await zone.start()
        left = {"shop_cart-2": "on", "shop.green_shop_cart-2": "on"}
        await zone.until(zone.ports, left)
        cluster.remove("cart-1")

        cluster.run("cart-3", "cart", "hv-c", up=False, entries=entry_of("shop/green", 9))
        await zone.until(zone.ports, left | {"shop_cart-3": "on", "shop.green_shop_cart-3": "off"})
        cluster.complete("cart-3")
        await zone.until(zone.ports, left)
        for pod in ("cart-3", "cart-2"):
            cluster.remove(pod)
        await zone.until(zone.ports, {})
        for table in (ROUTES, POLICIES, DHCP):
            await zone.until(partial(zone.table, table), [])

        cluster.run("next-1", "next", "hv-a")
        await zone.until(zone.ports, {"shop_next-1": "on"})

        async def address() -> str:
            return str((await default_entry(cluster, "next-1"))["ip_addresses"][0])

        await zone.until(address, "10.44.7.3/24")


async def test_a_pod_with_an_annotation_that_is_no_json_is_told_by_an_event(tmp_path: Path) -> None:
    async with followed(tmp_path) as zone:
        cluster = zone.cluster
        cluster.run("bad-1", "bad", "hv-a")
        cluster.annotate("bad-1", **{NETWORKS: "{no JSON"})
        cluster.run("good-1", "good", "hv-a")

        async def events() -> bool:
            return "NetworkAnnotationUnreadable" in cluster.events("bad-1")

        await zone.until(events, True)

        async def good() -> str | None:
            return (await zone.ports()).get("shop_good-1")

        await zone.until(good, "on")

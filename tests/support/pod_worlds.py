"""VMs that are pods of a virtual Kubernetes, followed by one follower for each zone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from outlive.base import LoopClock, Random, SeededIds
from outlive.network import (
    DOMAIN_ANNOTATION,
    LAUNCHER,
    LAUNCHER_LABEL,
    MIGRATABLE_ANNOTATION,
    NODE_CHASSIS,
    NODE_NUMBER,
    NODE_SUBNETS,
    NODE_TRANSIT,
    PREFIX,
    READY_ANNOTATION,
    RUNS_ON_LABEL,
    ClusterSubnet,
    NeighbourTable,
    NetworkSettings,
    PodCache,
    PodFollower,
    PodNetworkSettings,
    switch_name,
)
from outlive.resources import ObjectMeta, Subnet, VirtualNetwork, VirtualNetworkSpec
from outlive.resources.foreign import KubernetesNode, KubernetesPod, KubernetesService
from outlive.runtime import DecisionLog, Informer, Manager, Metrics
from outlive.simulation.kubernetes import ApiServer
from outlive.store import MemoryStore, Store
from tests.support.northbound import NEW, WatchedNorthbound

NETWORKS = f"{PREFIX}/pod-networks"
NODES = ("hv-a", "hv-b", "hv-c")
V4, V6 = "10.44.0.0/16", "fd44::/48"
SETTLE_S = 2.0


def node_document(name: str, number: int, families: Iterable[int] = (4, 6)) -> dict[str, Any]:
    """A node with subnets, transit addresses and a chassis."""
    subnets = {4: f"10.44.{number}.0/24", 6: f"fd44:0:0:{number:x}::/64"}
    transit = {4: ("ipv4", f"100.88.0.{number}/16"), 6: ("ipv6", f"fd97::{number:x}/64")}
    annotations = {
        NODE_SUBNETS: json.dumps({"default": [subnets[one] for one in families]}),
        NODE_TRANSIT: json.dumps(dict(transit[one] for one in families)),
        NODE_NUMBER: str(number),
        NODE_CHASSIS: f"c-{name}",
    }
    return {"metadata": {"name": name, "annotations": annotations}, "spec": {}}


def pod_document(
    namespace: str, name: str, vm: str, node: str, annotations: Mapping[str, str] = {}, **labels: str
) -> dict[str, Any]:
    """A launcher of a VM; ``routed=""`` is the bridge annotation's place."""
    return {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "labels": {LAUNCHER_LABEL: LAUNCHER, **labels},
            "annotations": {DOMAIN_ANNOTATION: vm, **annotations},
        },
        "spec": {"nodeName": node},
        "status": {"phase": "Running"},
    }


def entry_of(nad: str, number: int, *, tunnel: int = 0, role: str = "primary", mac: str = "") -> dict[str, Any]:
    """The entry of a claim's address on a layer2 or localnet network."""
    address = f"192.168.40.{number}"
    found = {
        "ip_addresses": [f"{address}/24"],
        "mac_address": mac or f"0a:58:c0:a8:28:{number:02x}",
        "gateway_ips": ["192.168.40.1"],
        "role": role,
    }
    return {nad: {**found, **({"tunnel_id": tunnel} if tunnel else {})}}


class RecordedEvents:
    """``ClusterEvents`` that keeps what was emitted."""

    def __init__(self) -> None:
        self.emitted: list[tuple[str, str, str]] = []

    def emit(self, regarding: Any, reason: str, note: str, **_: Any) -> None:
        self.emitted.append((regarding.name, reason, note))

    def reasons(self, pod: str) -> list[str]:
        return [reason for name, reason, _ in self.emitted if name == pod]


class ServerVerbs:
    """``ClusterVerbs`` of the virtual server. ``before`` and ``after`` are called around each patch, and may raise."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self.before: Any = lambda _key: None
        self.after: Any = lambda _key: None

    async def patch(self, kind: Any, key: str, operations: Any, *, version: str = "", subresource: str = "") -> Any:
        self.before(key)
        found = await self._server.patch(kind, key, operations, version=version, subresource=subresource)
        self.after(key)
        return found


class Zone:
    """A database and the process that follows for it."""

    def __init__(self, world: PodWorld, local: tuple[str, ...], version: str, settings: NetworkSettings) -> None:
        self.nb = WatchedNorthbound(world.clock, Random(11), version)
        self.events = RecordedEvents()
        self.verbs = ServerVerbs(world.server)
        self.settings = msgspec.structs.replace(settings, local_hypervisors=local)
        self.neighbours: NeighbourTable | None = None
        self.store: Store = world.server
        self._world = world
        self._tasks: list[asyncio.Task[None]] = []
        self.followers: list[PodFollower] = []
        self.metrics = Metrics()

    def start(self) -> PodFollower:
        """A process of its own; several may run at once."""
        world = self._world
        clock, random, ids = world.clock, Random(len(world.processes) + 7), world.ids
        world.processes.append(self)
        self.metrics = Metrics()
        cache = PodCache(self.store, clock, random.fork("cache"))
        follower = PodFollower(
            self.store,
            self.verbs,  # type: ignore[arg-type]
            self.events,
            Informer(world.store, VirtualNetwork, clock=clock, random=random.fork("networks")),
            self.nb,
            self.settings,
            cache=cache,
            metrics=self.metrics,
            decisions=DecisionLog(clock),
            clock=clock,
            neighbours=self.neighbours,
        )
        manager = Manager(clock, random, self.metrics, ids)
        follower.attach(manager, None)
        self._tasks.append(asyncio.get_running_loop().create_task(manager.run()))
        self.followers.append(follower)
        return follower

    async def kill(self) -> None:
        """End all its processes where they are."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self.followers.clear()


class PodWorld:
    """A virtual API server with three nodes and the DNS service, Outlive's store, and zones."""

    def __init__(self, *, families: Iterable[int] = (4, 6), **settings: Any) -> None:
        self.clock = LoopClock()
        self.ids = SeededIds(Random(1))
        self.server = ApiServer(self.clock, SeededIds(Random(2)))
        self.store = MemoryStore(self.clock, self.ids)
        self.processes: list[Zone] = []
        self.zones: list[Zone] = []
        self.families = tuple(families)
        pods = PodNetworkSettings(
            follow=True,
            cluster_subnets=tuple(ClusterSubnet(cidr={4: V4, 6: V6}[one]) for one in self.families),
            **settings,
        )
        self.settings = NetworkSettings(northbound="memory", southbound="memory", pods=pods)
        for number, name in enumerate(NODES, 7):
            self.server.add(KubernetesNode, node_document(name, number, self.families))
        addresses = {4: "10.45.0.10", 6: "fd45::a"}
        self.server.add(
            KubernetesService,
            {
                "metadata": {"namespace": "kube-system", "name": "kube-dns"},
                "spec": {"clusterIPs": [addresses[one] for one in self.families]},
            },
        )

    def zone(self, *local: str, version: str = NEW) -> Zone:
        """The only zone, or in mode ``interconnect`` that of these nodes."""
        settings = msgspec.structs.replace(self.settings, zone_mode="interconnect") if local else self.settings
        zone = Zone(self, local, version, settings)
        for name in local or NODES:
            zone.nb.add_node(name)
        self.zones.append(zone)
        return zone

    async def settle(self, seconds: float = SETTLE_S) -> None:
        """Let everything come to rest."""
        await self.clock.sleep(seconds)

    async def network(self, name: str, kind: Any = "layer2", annotations: Mapping[str, str] = {}, **spec: Any) -> None:
        """A ``VirtualNetwork``."""
        given = VirtualNetworkSpec(type=kind, subnets=(Subnet(cidr="192.168.40.0/24"),), **spec)
        metadata = ObjectMeta(name=name, annotations=dict(annotations))
        await self.store.create(VirtualNetwork(metadata=metadata, spec=given))
        for zone in self.zones:
            zone.nb.add_switch(switch_name(name, kind))

    def run(
        self,
        pod: str,
        vm: str,
        node: str,
        *,
        routed: bool = True,
        up: bool = True,
        entries: Mapping[str, Any] | None = None,
        annotations: Mapping[str, str] = {},
        labels: Mapping[str, str] = {},
    ) -> str:
        """Start a launcher; its uid. ``up``: KubeVirt says that the VM runs there."""
        given = dict(annotations)
        if routed:
            given[MIGRATABLE_ANNOTATION] = ""
        if entries is not None:
            given[NETWORKS] = json.dumps(entries)
        place = {RUNS_ON_LABEL: node} if up else {}
        made = self.server.add(KubernetesPod, pod_document("shop", pod, vm, node, given, **place, **labels))
        return str(made["metadata"]["uid"])

    def uid(self, pod: str) -> str:
        """The pod's uid."""
        document = self.server.find(KubernetesPod, f"shop/{pod}")
        assert document is not None
        return str(document["metadata"]["uid"])

    def annotate(self, pod: str, **annotations: str) -> None:
        """Change annotations of a pod, by keys of which dots and slashes are written as such."""
        self.server.edit(KubernetesPod, f"shop/{pod}", lambda one: one["metadata"]["annotations"].update(annotations))

    def ready(self, pod: str) -> None:
        """The VM is active in the target."""
        self.annotate(pod, **{READY_ANNOTATION: self.server.format_now()})

    def arrived(self, pod: str) -> None:
        """KubeVirt says that the VM runs where the pod is."""

        def change(document: dict[str, Any]) -> None:
            document["metadata"]["labels"][RUNS_ON_LABEL] = document["spec"]["nodeName"]

        self.server.edit(KubernetesPod, f"shop/{pod}", change)

    def complete(self, pod: str, phase: str = "Succeeded") -> None:
        """The pod ended."""
        self.server.edit(KubernetesPod, f"shop/{pod}", lambda one: one.update(status={"phase": phase}))

    def remove(self, pod: str) -> None:
        """The pod is gone from the API."""
        self.server.remove(KubernetesPod, f"shop/{pod}", grace_s=0)

    def annotation(self, pod: str, key: str = NETWORKS) -> Any:
        """A JSON annotation, read; ``None`` where it is not there."""
        document = self.server.find(KubernetesPod, f"shop/{pod}")
        text = (document or {}).get("metadata", {}).get("annotations", {}).get(key)
        return None if text is None else json.loads(text)

    def entry(self, pod: str, nad: str = "default") -> Any:
        """The pod's entry for a network."""
        return (self.annotation(pod) or {}).get(nad)

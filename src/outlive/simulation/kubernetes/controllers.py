"""The controllers of a virtual Kubernetes, as far as stories about storage need them, with the times of real ones.

Each is a rule over the documents of the API server, applied shortly after something changed and once in a while. While
the API server is away none of them does anything. Volumes are attached and detached in
``simulation.kubernetes.attach_detach``.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from outlive.base import Clock, Random, stable_hash
from outlive.resources.foreign import (
    ForeignResource,
    KubernetesEvent,
    KubernetesNode,
    KubernetesPod,
    Lease,
    PodDisruptionBudget,
)
from outlive.simulation.kubernetes.documents import (
    LEASES,
    NO_EXECUTE,
    NO_SCHEDULE,
    NOT_READY,
    OUT_OF_SERVICE,
    UNREACHABLE,
    event_subject,
    has_taint,
    is_active,
    make_taint,
    node_of,
    phase_of,
    pod_document,
    set_condition,
    taints_of,
    tolerated_seconds,
    workload_of,
)
from outlive.simulation.kubernetes.server import (
    ENDED,
    ApiServer,
    Document,
    condition_of,
    is_ready,
    is_selected,
    is_terminating,
    key_of,
)
from outlive.simulation.kubernetes.spec import NAMESPACE, StorageSpec, pods_of, volumes_of

REACTS_S: Final = (0.02, 0.3)
"""How soon a controller acts on a change, from and to."""
NODE_MONITOR_S: Final = 5.0
"""--node-monitor-period."""
NODE_EVICTION_S: Final = 10.0
"""At most one node in so long gets the taint that evicts its pods (--node-eviction-rate 0.1)."""
COLLECTS_S: Final = 20.0
"""How often pods are garbage-collected."""
RESYNC_S: Final = 30.0
"""How often a controller applies its rule though nothing changed."""
QUIET_KINDS: Final = (Lease, KubernetesEvent)
"""Kinds whose changes no controller waits for."""


class ControlLoop(abc.ABC):
    """One controller; ``reconcile`` applies its rule once, to all objects."""

    every_s: float = RESYNC_S

    def __init__(self, server: ApiServer, clock: Clock, random: Random, spec: StorageSpec) -> None:
        self.server = server
        self.clock = clock
        self.random = random
        self.spec = spec
        self.wake = asyncio.Event()

    @abc.abstractmethod
    def reconcile(self) -> None:
        """Apply the rule."""

    async def run(self, is_away: Callable[[], bool]) -> None:
        """Apply it again and again, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.every_s):
                    await self.wake.wait()
            self.wake.clear()
            await self.clock.sleep(self.random.uniform(*REACTS_S))
            if not is_away():
                self.reconcile()

    def warn(self, kind: str, document: Document, reason: str, note: str) -> None:
        """Write an event about an object, once for each reason and text."""
        about = event_subject(kind, document)
        name = f"{about['name']}.{stable_hash(about['uid'], reason, note):016x}"
        namespace = about["namespace"] or "default"
        if self.server.find(KubernetesEvent, f"{namespace}/{name}") is None:
            event = {"metadata": {"name": name, "namespace": namespace}, "type": "Warning", "reason": reason}
            event |= {"note": note, "regarding": about, "eventTime": self.server.format_now()}
            self.server.add(KubernetesEvent, event)


class NodeLifecycle(ControlLoop):
    """Judges nodes by the leases of their kubelets, and taints those that fell silent."""

    every_s = NODE_MONITOR_S

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._renewed: dict[str, tuple[str, float]] = {}
        """Node → its lease, and when that was seen to change."""
        self._next_eviction_s = 0.0

    def reconcile(self) -> None:
        """Not ready after the silence; its taints as its condition says."""
        now_s = self.clock.monotonic()
        nodes = self.server.list_all(KubernetesNode)
        for node in nodes:
            name = node["metadata"]["name"]
            lease = self.server.find(Lease, f"{LEASES}/{name}")
            renewed = lease["spec"].get("renewTime", "") if lease is not None else ""
            if self._renewed.get(name, (None, 0.0))[0] != renewed:
                self._renewed[name] = (renewed, now_s)
            silent_s = now_s - self._renewed[name][1]
            if silent_s > self.spec.not_ready_after and condition_of(node, "Ready") not in ("", "Unknown"):
                self.server.edit(KubernetesNode, name, self._mark_unknown)
                self.warn("Node", node, "NodeNotReady", "its kubelet stopped posting its status")
        nodes = self.server.list_all(KubernetesNode)
        disrupted = all(condition_of(node, "Ready") == "Unknown" for node in nodes)
        for node in nodes:
            self._taint(node, disrupted=disrupted)
            if is_ready(node):
                continue
            for pod in self.server.list_all(KubernetesPod):
                if node_of(pod) == node["metadata"]["name"] and is_ready(pod):
                    now = self.server.format_now()
                    self.server.edit(
                        KubernetesPod,
                        key_of(pod),
                        lambda one, now=now: set_condition(one, "Ready", "False", "NodeNotReady", now),  # type: ignore[misc]
                    )

    def _mark_unknown(self, node: Document) -> None:
        set_condition(node, "Ready", "Unknown", "NodeStatusUnknown", self.server.format_now())

    def _taint(self, node: Document, *, disrupted: bool) -> None:
        key = {"Unknown": UNREACHABLE, "True": ""}.get(condition_of(node, "Ready"), NOT_READY)
        wanted = [(key, NO_SCHEDULE)] if key else []
        now_s = self.clock.monotonic()
        if key and not disrupted:
            if has_taint(node, key, NO_EXECUTE):
                wanted.append((key, NO_EXECUTE))
            elif now_s >= self._next_eviction_s:
                self._next_eviction_s = now_s + NODE_EVICTION_S
                wanted.append((key, NO_EXECUTE))
        kept = [one for one in taints_of(node) if one["key"] not in (NOT_READY, UNREACHABLE)]
        mine = [one for one in taints_of(node) if (one["key"], one["effect"]) in wanted]
        have = [(one["key"], one["effect"]) for one in mine]
        mine += [make_taint(*one, self.server.format_now()) for one in wanted if one not in have]
        if [*kept, *mine] != taints_of(node):
            name = node["metadata"]["name"]
            self.server.edit(KubernetesNode, name, lambda one: one["spec"].update(taints=[*kept, *mine]))


class TaintEviction(ControlLoop):
    """Deletes pods from nodes whose NoExecute taints they tolerate no longer."""

    every_s = NODE_MONITOR_S

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._since: dict[tuple[str, str], float] = {}
        """Pod and taint → when that was first seen."""

    def reconcile(self) -> None:
        """One pass over all pods of tainted nodes."""
        now_s = self.clock.monotonic()
        found: dict[tuple[str, str], float] = {}
        for node in self.server.list_all(KubernetesNode):
            evicting = [one for one in taints_of(node) if one["effect"] == NO_EXECUTE]
            if not evicting:
                continue
            for pod in self.server.list_all(KubernetesPod):
                if node_of(pod) != node["metadata"]["name"] or is_terminating(pod):
                    continue
                for one in evicting:
                    place = (pod["metadata"]["uid"], one["key"])
                    found[place] = self._since.get(place, now_s)
                    tolerated_s = tolerated_seconds(pod, one)
                    if tolerated_s is None or now_s - found[place] >= tolerated_s:
                        self.warn("Pod", pod, "TaintManagerEviction", "deleted because of a taint of its node")
                        self.server.remove(KubernetesPod, key_of(pod))
                        break
        self._since = found


class PodCollector(ControlLoop):
    """Removes pods that no kubelet will ever remove."""

    every_s = COLLECTS_S

    def reconcile(self) -> None:
        """Pods of nodes that are no more, and terminating ones of nodes that are out of service."""
        for pod in self.server.list_all(KubernetesPod):
            if not node_of(pod):
                continue
            node = self.server.find(KubernetesNode, node_of(pod))
            out = node is not None and has_taint(node, OUT_OF_SERVICE, NO_EXECUTE) and not is_ready(node)
            if node is None or (out and is_terminating(pod)):
                self.server.remove(KubernetesPod, key_of(pod), grace_s=0)


class Workloads(ControlLoop):
    """StatefulSets and ReplicaSets: a pod for each ordinal, one after the other, or as many as wanted."""

    def reconcile(self) -> None:
        """Create what is missing."""
        for workload in self.spec.workloads:
            if workload.kind != "statefulset":
                pods = [one for one in self.server.list_all(KubernetesPod) if workload_of(one) == workload.name]
                (claim,) = volumes_of(workload)
                for _ in range(workload.replicas - sum(map(is_active, pods))):
                    self.server.add(KubernetesPod, pod_document(workload, f"{workload.name}-", claim, self.spec))
                continue
            # a replacement only once the old object is gone; in order only behind pods that are ready
            for name, claim in zip(pods_of(workload), volumes_of(workload), strict=True):
                key = f"{NAMESPACE}/{name}"
                pod = self.server.find(KubernetesPod, key)
                if pod is not None and phase_of(pod) in ENDED:
                    self.server.remove(KubernetesPod, key, grace_s=0)
                    pod = None
                if pod is None:
                    pod = self.server.add(KubernetesPod, pod_document(workload, name, claim, self.spec))
                if not workload.parallel and (is_terminating(pod) or not is_ready(pod)):
                    break


class PodScheduler(ControlLoop):
    """Binds pods to nodes that have their volume: where a replica is if possible, else with the fewest pods."""

    def reconcile(self) -> None:
        """Every pod that has no node."""
        pods = self.server.list_all(KubernetesPod)
        load = dict.fromkeys((one["metadata"]["name"] for one in self.server.list_all(KubernetesNode)), 0)
        for pod in pods:
            if node_of(pod) in load:
                load[node_of(pod)] += 1
        for pod in pods:
            if node_of(pod) or is_terminating(pod):
                continue
            workload = next(one for one in self.spec.workloads if one.name == workload_of(pod))
            fitting = [
                name
                for name in (*workload.disks, *workload.diskless)
                if (node := self.server.find(KubernetesNode, name)) is not None and self._fits(pod, node)
            ]
            if not fitting:
                self.warn("Pod", pod, "FailedScheduling", "no node with its volume is ready and free of taints")
                continue
            chosen = min(fitting, key=lambda name: (name not in workload.disks, load[name], name))
            self.server.bind(key_of(pod), chosen)
            load[chosen] += 1

    def _fits(self, pod: Document, node: Document) -> bool:
        if node["spec"].get("unschedulable"):
            return False
        return all(
            tolerated_seconds(pod, one) is not None for one in taints_of(node) if one["effect"] != "PreferNoSchedule"
        )


class Disruptions(ControlLoop):
    """Says of each disruption budget how many pods may be evicted now."""

    def reconcile(self) -> None:
        """The status of every budget."""
        for budget in self.server.list_all(PodDisruptionBudget):
            pods = [one for one in self.server.list_all(KubernetesPod) if is_selected(budget, one)]
            healthy = sum(is_ready(one) and not is_terminating(one) for one in pods)
            wanted = budget["spec"]["minAvailable"]
            status = {
                "currentHealthy": healthy,
                "desiredHealthy": wanted,
                "expectedPods": len(pods),
                "disruptionsAllowed": max(0, healthy - wanted),
            }
            self.server.edit(PodDisruptionBudget, key_of(budget), lambda one, s=status: one.update(status=s))  # type: ignore[misc]


def wake_on_change(server: ApiServer, loops: Sequence[ControlLoop]) -> None:
    """Have these controllers act on changes."""

    def on_change(kind: type[ForeignResource], key: str, document: Document | None) -> None:
        if kind not in QUIET_KINDS:
            for loop in loops:
                loop.wake.set()

    server.changed.append(on_change)


CONTROLLERS: Final[tuple[type[ControlLoop], ...]] = (
    NodeLifecycle,
    TaintEviction,
    PodCollector,
    Workloads,
    PodScheduler,
    Disruptions,
)

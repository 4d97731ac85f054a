"""What must never happen in a storage world, whatever breaks: judged on what processes and devices really do.

* **two-writers**: once a write of one node was acknowledged, none of an opener that is older is on another node; and
  no acknowledged write is missing in the surviving data. Pods of one node may share a volume.
* **healthy-pod**: an agent evicts or deletes no pod whose writes have been completing for longer than what the agent
  knows may be old.
* **detached-writer**: an agent deletes no attachment below such a pod.
* **silence**: a pod that cannot run for long is shown: by an event about it, its volume or its node since it went
  down, or by an agent that explains it.
* **recovered**: once everything is healed, every pod writes again, and no taint or attachment is left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from outlive.base import LoopClock
from outlive.resources.foreign import (
    ForeignResource,
    KubernetesEvent,
    KubernetesNode,
    KubernetesPod,
    VolumeAttachment,
)
from outlive.simulation.history import History
from outlive.simulation.judges.truth import VIOLATIONS_LIMIT, InvariantViolation
from outlive.simulation.kubernetes.documents import node_of, resource_of, resources_used, taints_of
from outlive.simulation.kubernetes.kubelet import WRITES_S, PodProcess
from outlive.simulation.kubernetes.server import ApiServer, Document, is_ready, key_of
from outlive.simulation.kubernetes.spec import NAMESPACE, StorageSpec, pods_of, volumes_of
from outlive.simulation.kubernetes.volumes import Volumes

LOOKS_S: Final = 1.0
"""How often it is seen who is down."""
OWN_TAINTS: Final = "drbd.linbit.com/"
"""How the keys of the agent's taints begin."""


class WantedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that is to run: its name (of a Deployment the beginning of it), and its DRBD resource."""

    pod: str
    resource: str
    quorum: bool
    """Whether DRBD sees to it that there is one writer; without that nobody does."""

    @classmethod
    def from_spec(cls, spec: StorageSpec) -> tuple[WantedPod, ...]:
        """All of a cluster."""
        return tuple(
            cls(pod=pod, resource=resource_of(claim), quorum=workload.quorum != "off")
            for workload in spec.workloads
            if workload.replicas
            for pod, claim in zip(pods_of(workload), volumes_of(workload), strict=True)
        )


class StorageJudge:
    """See the module. ``processes`` are those of all nodes that have power; ``explained`` asks agents about a pod;
    ``lag_s`` says how old what a client knows may be."""

    def __init__(
        self,
        spec: StorageSpec,
        server: ApiServer,
        volumes: Volumes,
        history: History,
        *,
        processes: Callable[[], Iterable[PodProcess]],
        explained: Callable[[str], bool],
        lag_s: Callable[[str], float],
        seed: int,
        replay: str,
    ) -> None:
        self.violations: list[InvariantViolation] = []
        self.wanted = WantedPod.from_spec(spec)
        self._with_quorum = {one.resource for one in self.wanted if one.quorum}
        self.down_s: dict[str, float] = {}
        """Resource → since when no process of its pod writes."""
        self.outages: list[tuple[str, float]] = []
        """Pods that were down and are back, with how long that took."""
        self._spec = spec
        self._server = server
        self._volumes = volumes
        self._history = history
        self._processes = processes
        self._explained = explained
        self._lag_s = lag_s
        self._clock = LoopClock()
        self._seed = seed
        self.replay = replay
        self._openers = 0
        self._opener_of: dict[tuple[int, str], int] = {}
        """Process and resource → number of its opener."""
        self._opened_s: dict[tuple[int, str], float] = {}
        self._writer: dict[str, tuple[int, str]] = {}
        """Resource → number of the newest opener that wrote, and the node that wrote last."""
        self._silent: dict[str, None] = {}
        """Resources that were down in silence, each reported once."""
        self._ran: dict[str, None] = {}
        """Resources whose pod has been up."""
        server.removing.append(self.note_removal)

    # PodWatcher

    def note_opened(self, process: PodProcess, resource: str) -> None:
        """A device was opened: another opener than all before."""
        self._openers += 1
        self._opener_of[(id(process), resource)] = self._openers
        self._opened_s[(id(process), resource)] = self._clock.monotonic()

    def note_acknowledged(self, process: PodProcess, resource: str, began_s: float) -> None:
        """A write counts."""
        opener = self._opener_of[(id(process), resource)]
        newest, node = self._writer.get(resource, (opener, process.node))
        if resource in self._with_quorum and process.node != node and opener < newest:
            text = f"{process.node} writes (since {began_s:.1f} s) though {node} has opened it later and written"
            self.violate("two-writers", process.key, text, resource, process.node, node)
        self._writer[resource] = (max(opener, newest), process.node)

    def note_changed(self, process: PodProcess, text: str) -> None:
        """A process began, failed or ended."""
        self._history.add(
            "pod", process.key, f"{process.key} on {process.node} {text}", also=(process.node,), loud=True
        )

    # What agents do

    def note_removal(self, kind: type[ForeignResource], document: Document, client: str, evicted: bool) -> None:
        """A client evicts or deletes something, which takes effect now."""
        key = key_of(document)
        word = "evicts" if evicted else "deletes"
        if kind is KubernetesPod:
            node = node_of(document)
            text = f"{client} {word} pod {key} on {node or 'no node'}"
            self._history.add("agent", key, text, also=(client, node), loud=True)
            for process in self._processes():
                if process.uid == document["metadata"]["uid"] and self.healthy_s(process) >= self._lag_s(client):
                    text = f"{client} {word} it on {node}, where its writes complete"
                    self.violate("healthy-pod", key, text, node, client, *process.resources)
        elif kind is VolumeAttachment:
            resource, node = document["spec"]["source"]["persistentVolumeName"], document["spec"]["nodeName"]
            text = f"{client} deletes the attachment of {resource} to {node}"
            self._history.add("agent", key, text, also=(client, node, resource), loud=True)
            for process in self._processes():
                writes = process.node == node and resource in process.resources
                if writes and self.healthy_s(process) >= self._lag_s(client):
                    text = f"{client} detaches {resource} from {node}, where {process.key} writes"
                    self.violate("detached-writer", process.key, text, node, client, resource)

    def healthy_s(self, process: PodProcess) -> float:
        """For how many seconds all its writes have completed in time; 0 where its node has lost quorum, though its
        last write may not be late yet."""
        now_s = self._clock.monotonic()
        if any(process.node not in self._volumes.find_quorate(one) for one in process.resources):
            return 0.0
        if not process.running or (process.pending_s is not None and now_s - process.pending_s > WRITES_S):
            return 0.0
        opened_s = max((self._opened_s.get((id(process), one), now_s) for one in process.resources), default=now_s)
        return now_s - max(opened_s, process.failed_s or opened_s)

    # What is looked at once in a while

    async def watch(self) -> None:
        """See who is down, and whether that is shown, until cancelled."""
        while True:
            await self._clock.sleep(LOOKS_S)
            now_s, writing = self._clock.monotonic(), self.find_writing()
            for one in self.wanted:
                if one.resource in writing:
                    since_s = self.down_s.pop(one.resource, None)
                    if since_s is not None and one.resource in self._ran:
                        self.outages.append((one.pod, now_s - since_s))
                    self._ran[one.resource] = None
                    continue
                since_s = self.down_s.setdefault(one.resource, now_s)
                if now_s - since_s >= self._spec.down_in_silence and one.resource not in self._silent:
                    self._silent[one.resource] = None
                    if not self.is_shown(one, since_s):
                        text = f"it has not written for {now_s - since_s:.0f} s, and nothing shows that"
                        self.violate("silence", one.pod, text, one.resource)

    def find_writing(self) -> Mapping[str, str]:
        """Resource → node, of those whose pod writes."""
        now_s = self._clock.monotonic()
        return {
            resource: process.node
            for process in self._processes()
            if process.running and (process.pending_s is None or now_s - process.pending_s <= WRITES_S)
            for resource in process.resources
        }

    def is_shown(self, wanted: WantedPod, since_s: float) -> bool:
        """Whether an event since then is about the pod, its volume or its node, or an agent explains the pod."""
        pods = [one for one in self._server.list_all(KubernetesPod) if wanted.resource in resources_used(one)]
        about = {wanted.pod, wanted.resource, wanted.resource.removeprefix("pvc-")}
        about |= {one["metadata"]["name"] for one in pods} | {node_of(one) for one in pods}
        since = self._server.format_now(since_s - self._clock.monotonic())
        return any(
            event["regarding"]["name"] in about and event["eventTime"] >= since
            for event in self._server.list_all(KubernetesEvent)
        ) or any(self._explained(key_of(one)) for one in pods)

    # At the end

    def judge_lost_writes(self) -> None:
        """Judge that no acknowledged write is missing."""
        for one in self.wanted:
            lost = [write for write in self._volumes.list_writes(one.resource) if not write.survives]
            if lost and one.quorum:
                text = f"{len(lost)} acknowledged writes are lost, the first by {lost[0].node} at {lost[0].at_s:.1f} s"
                self.violate("two-writers", one.pod, text, one.resource)

    def find_unrecovered(self) -> list[str]:
        """What is not as it should be after everything was healed, each in a few words."""
        writing = self.find_writing()
        found = [f"{one.pod} does not write" for one in self.wanted if one.resource not in writing]
        for node in self._server.list_all(KubernetesNode):
            name = node["metadata"]["name"]
            found += [] if is_ready(node) else [f"{name} is not ready"]
            found += [f"{name} has taint {one['key']}" for one in taints_of(node) if one["key"].startswith(OWN_TAINTS)]
        used = {
            (resource, node_of(pod)) for pod in self._server.list_all(KubernetesPod) for resource in resources_used(pod)
        }
        for attachment in self._server.list_all(VolumeAttachment):
            spec = attachment["spec"]
            resource, node = spec["source"]["persistentVolumeName"], spec["nodeName"]
            if (resource, node) not in used:
                found.append(f"{resource} is attached to {node} without a pod")
        return found

    def violate(self, invariant: str, subject: str, text: str, *involved: str) -> None:
        """An invariant does not hold."""
        if len(self.violations) >= VIOLATIONS_LIMIT:
            return
        self._history.add("violation", subject, f"{invariant}: {text}", loud=True)
        self.violations.append(
            InvariantViolation(
                invariant=invariant,
                at_s=self._clock.monotonic(),
                subject=subject,
                text=text,
                last_events=self._history.last_events(subject, f"{NAMESPACE}/{subject}", *involved),
                seed=self._seed,
                replay=self.replay,
            )
        )

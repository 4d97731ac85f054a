"""A node's kubelet, and the processes of its pods, which write to DRBD devices once a second.

A pod starts once its volumes are attached to the node; its device is opened then, which promotes it. A pod that is to
end unmounts first, which writes: while I/O is suspended nothing ends it, not even a kill. A process whose write fails
ends and is started again after a while. Without the API server a kubelet leaves everything as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final, Protocol

from outlive.base import Clock, OutliveError, Random
from outlive.resources.foreign import KubernetesNode, KubernetesPod, Lease, VolumeAttachment
from outlive.simulation.kubernetes.documents import (
    LEASES,
    attachment_document,
    node_of,
    phase_of,
    resources_used,
    set_condition,
)
from outlive.simulation.kubernetes.server import ENDED, ApiServer, Document, is_ready, is_terminating, key_of
from outlive.simulation.kubernetes.volumes import Volumes
from outlive.simulation.process import go

HEARTBEAT_S: Final = 10.0
"""Between two renewals of a node's lease."""
SYNC_S: Final = 1.0
"""Between two looks at the pods of a node."""
WRITES_S: Final = 1.0
"""Between two writes of a pod."""
MOUNTS_AGAIN_S: Final = 2.0
"""After a device could not be opened."""
RESTART_S, RESTART_MOST_S = 5.0, 60.0
"""Before a process that failed is started again: doubling from one to the other."""


class PodWatcher(Protocol):
    """Hears what the processes of pods really do."""

    def note_opened(self, process: PodProcess, resource: str) -> None:
        """It has the device open."""
        ...

    def note_acknowledged(self, process: PodProcess, resource: str, began_s: float) -> None:
        """A write that began then was acknowledged now."""
        ...

    def note_changed(self, process: PodProcess, text: str) -> None:
        """It began, failed or ended."""
        ...


class PodProcess:
    """The processes of one pod on one node; one task, which a crash of the node cancels."""

    def __init__(
        self, pod: Document, node: str, *, volumes: Volumes, clock: Clock, random: Random, watcher: PodWatcher
    ) -> None:
        self.key = key_of(pod)
        self.uid = str(pod["metadata"]["uid"])
        self.node = node
        self.resources = resources_used(pod)
        self.running = False
        """Whether its devices are open and it writes."""
        self.ended = False
        """Whether nothing of it is left on the node."""
        self.pending_s: float | None = None
        """When the write began that is not answered yet."""
        self.failed_s: float | None = None
        """When a write or an open of it failed last, or took long."""
        self._volumes = volumes
        self._clock = clock
        self._random = random
        self._watcher = watcher
        self._stop = asyncio.Event()
        self._openers: dict[str, Any] = {}

    @property
    def stopping(self) -> bool:
        """Whether it was told to end."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Tell it to end."""
        self._stop.set()

    async def run(self) -> None:
        """Open, write, and begin anew after failures, until told to end."""
        failures = 0
        while not self.stopping:
            try:
                await self._open()
                while not self._stop.is_set():
                    for resource, opener in self._openers.items():
                        await self._write(resource, opener)
                    await self._pause(WRITES_S)
                for resource, opener in self._openers.items():  # it is unmounted
                    with contextlib.suppress(OSError):
                        await self._write(resource, opener)
            except OSError as error:
                failures += 1
                self._fail(f"fails: {error}")
            openers, self._openers, self.running = self._openers, {}, False
            for opener in openers.values():
                self._volumes.close(opener)
            if not self.stopping:
                await self._pause(min(RESTART_S * 2.0 ** (failures - 1), RESTART_MOST_S))
        self.ended = True
        self._watcher.note_changed(self, "has ended")

    async def _open(self) -> None:
        for resource in self.resources:
            while not self.stopping and resource not in self._openers:
                try:
                    self._openers[resource] = await self._volumes.open(self.node, resource)
                    self._watcher.note_opened(self, resource)
                except (OutliveError, OSError) as error:
                    self._fail(f"cannot open {resource}: {error}", quiet=True)
                    await self._pause(MOUNTS_AGAIN_S)
        if not self.stopping:
            self.running = True
            self._watcher.note_changed(self, "runs")

    async def _write(self, resource: str, opener: Any) -> None:
        began_s = self.pending_s = self._clock.monotonic()
        try:
            await self._volumes.write(opener)
        except OSError:
            self.pending_s = None
            raise
        self.pending_s = None
        now_s = self._clock.monotonic()
        if now_s - began_s > WRITES_S:
            self.failed_s = now_s
        self._watcher.note_acknowledged(self, resource, began_s)

    def _fail(self, text: str, *, quiet: bool = False) -> None:
        self.failed_s = self._clock.monotonic()
        self.running = False
        if not quiet:
            self._watcher.note_changed(self, text)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()


class Kubelet:
    """See the module. ``reaches`` says whether its calls reach the API server now."""

    def __init__(
        self,
        node: str,
        server: ApiServer,
        *,
        volumes: Volumes,
        clock: Clock,
        random: Random,
        reaches: Callable[[], bool],
        watcher: PodWatcher,
    ) -> None:
        self.node = node
        self.processes: dict[str, PodProcess] = {}
        """By uid of their pods."""
        self._server = server
        self._volumes = volumes
        self._clock = clock
        self._random = random
        self._reaches = reaches
        self._watcher = watcher
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._renewed_s = float("-inf")

    async def run(self) -> None:
        """Look after the pods of the node, until cancelled."""
        await self._clock.sleep(self._random.uniform(0.0, SYNC_S))
        while True:
            if self._reaches():
                self._renew()
                self._sync()
            await self._clock.sleep(SYNC_S)

    def crash(self) -> None:
        """The node loses power: nothing of it goes on."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        self.processes.clear()

    def _renew(self) -> None:
        """The node's lease and, where it is not so, that it is ready."""
        node = self._server.find(KubernetesNode, self.node)
        if node is None:
            return
        now = self._server.format_now()
        if not is_ready(node):
            self._server.edit(
                KubernetesNode, self.node, lambda one: set_condition(one, "Ready", "True", "KubeletReady", now)
            )
        if self._clock.monotonic() - self._renewed_s < HEARTBEAT_S:
            return
        self._renewed_s = self._clock.monotonic()
        spec = {"holderIdentity": self.node, "renewTime": f"{self._clock.now():.6f}"}
        if self._server.edit(Lease, f"{LEASES}/{self.node}", lambda one: one.update(spec=spec)) is None:
            self._server.add(Lease, {"metadata": {"namespace": LEASES, "name": self.node}, "spec": spec})

    def _sync(self) -> None:
        """Start and stop what the API server has for this node, and report what became of it."""
        bound = {
            pod["metadata"]["uid"]: pod
            for pod in self._server.list_all(KubernetesPod)
            if node_of(pod) == self.node and phase_of(pod) not in ENDED
        }
        for uid, process in list(self.processes.items()):
            pod = bound.get(uid)
            if pod is None or is_terminating(pod):
                process.stop()
            if process.ended:
                del self.processes[uid], self._tasks[uid]
            elif pod is not None:
                self._report(process, pod)
        self._report_volumes()
        for uid, pod in bound.items():
            if uid in self.processes:
                continue
            if is_terminating(pod):
                self._server.remove(KubernetesPod, key_of(pod), uid=uid, grace_s=0)
            elif self._is_attached(pod):
                self._start(uid, pod)

    def _start(self, uid: str, pod: Document) -> None:
        process = PodProcess(
            pod, self.node, volumes=self._volumes, clock=self._clock, random=self._random, watcher=self._watcher
        )
        self.processes[uid] = process
        self._report_volumes()
        self._tasks[uid] = go(process.run(), name=f"{self.node}/{process.key}")

    def _is_attached(self, pod: Document) -> bool:
        """Whether every volume of the pod is attached here."""
        for resource in resources_used(pod):
            name = attachment_document(resource, self.node)["metadata"]["name"]
            found = self._server.find(VolumeAttachment, name)
            if found is None or is_terminating(found) or not found.get("status", {}).get("attached"):
                return False
        return True

    def _report(self, process: PodProcess, pod: Document) -> None:
        ready = "True" if process.running and not process.stopping else "False"
        phase = "Running" if process.running else phase_of(pod)
        now = self._server.format_now()

        def report(one: Document) -> None:
            one["status"]["phase"] = phase
            set_condition(one, "Ready", ready, "", now)

        if is_ready(pod) != (ready == "True") or phase_of(pod) != phase:
            self._server.edit(KubernetesPod, process.key, report)

    def _report_volumes(self) -> None:
        """Which volumes are in use on the node."""
        in_use = sorted({one for process in self.processes.values() for one in process.resources})
        self._server.edit(KubernetesNode, self.node, lambda one: one["status"].update(volumesInUse=in_use))

"""Nodes without machines: what kubelets, a scheduler and a CSI driver do for objects on a real API server.

The controllers of Kubernetes itself run beside (statefulset, attachdetach, nodelifecycle, podgc, disruption). A node
that was killed does nothing any more; one whose pods are stuck keeps its heartbeat and cannot end them.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from datetime import UTC, datetime
from typing import Any

from lab.drbd import DrbdLab
from lab.kubernetes import controllers_command
from lab.processes import LabError

from tests.support.api_server import ApiRefusal, ApiServer

TURN_S = 0.2
HEARTBEAT_S = 2.0
DRIVER = "linstor.csi.linbit.com"
MERGE = "application/merge-patch+json"
LOST_EFFECTS = ("NoSchedule", "NoExecute")


class ControllerManager:
    """The controllers of Kubernetes on one API server, while the context is open."""

    def __init__(self, server: ApiServer, *, grace_s: float = 40.0, sync_s: float = 60.0) -> None:
        self._server = server
        self._times = {"grace_s": grace_s, "sync_s": sync_s}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ControllerManager:
        command = controllers_command(self._server.kubeconfig(), **self._times)
        with (self._server.folder / "controllers.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


class Kubelets:
    """Nodes of one API server, played by a thread while the context is open."""

    def __init__(self, server: ApiServer, nodes: tuple[str, ...], drbd: DrbdLab | None = None) -> None:
        self.server = server
        self.nodes = nodes
        self.dead: set[str] = set()
        self._drbd = drbd
        self._openers: dict[str, dict[str, int]] = {}
        """Uid of a pod → the devices that its processes have open, by their resources."""
        self.errors: list[BaseException] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelets", daemon=True)
        self._beats = 0.0

    def __enter__(self) -> Kubelets:
        for node in self.nodes:
            self._create_node(node)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        for node in self.nodes:
            for path in (f"/api/v1/nodes/{node}", f"/apis/storage.k8s.io/v1/csinodes/{node}"):
                with contextlib.suppress(ApiRefusal):
                    self.server.call("DELETE", path)

    def create_volume(
        self, name: str, claim: str, *, resource: str = "", namespace: str = "default", mode: str = "ReadWriteOnce"
    ) -> None:
        """A persistent volume of the CSI driver, and the claim that is bound to it."""
        size = {"storage": "1Gi"}
        spec: dict[str, Any] = {"accessModes": [mode], "storageClassName": ""}
        claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        wanted = {**spec, "volumeName": name, "resources": {"requests": size}}
        made = self.server.call("POST", claims, {"metadata": {"name": claim}, "spec": wanted})
        claimed = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": claim}
        claimed["uid"] = made["metadata"]["uid"]
        source = {"driver": DRIVER, "volumeHandle": resource or name}
        volume = {**spec, "capacity": size, "csi": source, "claimRef": claimed}
        volume["persistentVolumeReclaimPolicy"] = "Retain"
        self.server.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": volume})
        # the binder would take up to a quarter of a minute for that
        self.server.call("PATCH", f"/api/v1/persistentvolumes/{name}/status", {"status": {"phase": "Bound"}}, MERGE)
        status = {"phase": "Bound", "accessModes": [mode], "capacity": size}
        self.server.call("PATCH", f"{claims}/{claim}/status", {"status": status}, MERGE)

    def create_stateful_set(self, name: str, *, replicas: int = 1, namespace: str = "default", **spec: Any) -> None:
        """A StatefulSet whose pods use the claims ``data-NAME-0`` and so on."""
        template = {
            "metadata": {"labels": {"app": name}},
            "spec": {
                "containers": [{"name": "db", "image": "none", "volumeMounts": [{"name": "data", "mountPath": "/d"}]}],
                **spec,
            },
        }
        claim = {
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }
        document = {
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "serviceName": name,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": {"app": name}},
                "template": template,
                "volumeClaimTemplates": [claim],
            },
        }
        self.server.call("POST", f"/apis/apps/v1/namespaces/{namespace}/statefulsets", document)

    def pods(self, namespace: str = "default") -> dict[str, dict[str, Any]]:
        """Name → pod."""
        found = self.server.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        return {one["metadata"]["name"]: one for one in found}

    def attachments(self) -> list[tuple[str, str]]:
        """Volume and node of each attachment."""
        found = self.server.call("GET", "/apis/storage.k8s.io/v1/volumeattachments")["items"]
        return sorted((one["spec"]["source"].get("persistentVolumeName", ""), one["spec"]["nodeName"]) for one in found)

    def node(self, name: str) -> dict[str, Any]:
        """The node, as the API server has it."""
        found: dict[str, Any] = self.server.call("GET", f"/api/v1/nodes/{name}")
        return found

    def taints(self, name: str) -> set[str]:
        """Keys of the node's taints."""
        return {one["key"] for one in self.node(name)["spec"].get("taints", ())}

    def is_ready(self, name: str) -> bool:
        """Whether the API server believes the node to be."""
        return _is_ready(self.node(name))

    # What the thread does

    def _create_node(self, name: str) -> None:
        annotations = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
        with contextlib.suppress(ApiRefusal):
            self.server.call("DELETE", f"/api/v1/nodes/{name}")
        self.server.call("POST", "/api/v1/nodes", {"metadata": {"name": name, "annotations": annotations}})
        driver = {"name": DRIVER, "nodeID": name}
        with contextlib.suppress(ApiRefusal):
            self.server.call(
                "POST",
                "/apis/storage.k8s.io/v1/csinodes",
                {"metadata": {"name": name}, "spec": {"drivers": [driver]}},
            )
        with contextlib.suppress(ApiRefusal):
            self.server.call("POST", "/api/v1/namespaces", {"metadata": {"name": "kube-node-lease"}})
        with contextlib.suppress(ApiRefusal):
            self.server.call(
                "POST",
                "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases",
                {"metadata": {"name": name}, "spec": {"holderIdentity": name, "leaseDurationSeconds": 40}},
            )
        self._beat(name)

    def _run(self) -> None:
        while not self._ends.wait(TURN_S):
            try:
                self._turn()
            except (ApiRefusal, OSError) as error:
                if isinstance(error, ApiRefusal) and error.code in (404, 409, 422):
                    continue  # the object has changed since it was read
                self.errors.append(error)

    def _turn(self) -> None:
        alive = [node for node in self.nodes if node not in self.dead]
        if time.monotonic() - self._beats >= HEARTBEAT_S:
            self._beats = time.monotonic()
            for node in alive:
                self._beat(node)
        attached = self._attach()
        for pod in self.server.call("GET", "/api/v1/pods")["items"]:
            with contextlib.suppress(ApiRefusal):
                self._play_pod(pod, alive, attached)

    def _beat(self, node: str) -> None:
        now = datetime.now(UTC)
        lease = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node}"
        spec = {"renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        self.server.call("PATCH", lease, {"spec": spec}, MERGE)
        if not _is_ready(self.node(node)):
            at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
            ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
            ready |= {"lastHeartbeatTime": at, "lastTransitionTime": at}
            path = f"/api/v1/nodes/{node}/status"
            self.server.call("PATCH", path, {"status": {"conditions": [ready]}}, MERGE)

    def _attach(self) -> set[tuple[str, str]]:
        """What the CSI driver does: it attaches what is wanted of it; volume and node of what is attached."""
        attached = set()
        for one in self.server.call("GET", "/apis/storage.k8s.io/v1/volumeattachments")["items"]:
            name, spec = one["metadata"]["name"], one["spec"]
            path = f"/apis/storage.k8s.io/v1/volumeattachments/{name}"
            if not one.get("status", {}).get("attached"):
                status = {"status": {"attached": True}}
                self.server.call("PATCH", f"{path}/status", status, MERGE)
            attached.add((spec["source"].get("persistentVolumeName", ""), spec["nodeName"]))
        return attached

    def _play_pod(self, pod: dict[str, Any], alive: list[str], attached: set[tuple[str, str]]) -> None:
        meta, spec, phase = pod["metadata"], pod["spec"], pod.get("status", {}).get("phase")
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        node = spec.get("nodeName")
        if node is None:
            if not meta.get("deletionTimestamp"):
                self._schedule(path, meta, alive)
            return
        if node not in alive:
            return
        if meta.get("deletionTimestamp"):
            if self._end_processes(meta["uid"], node):
                self.server.call("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}})
            return
        wanted = {
            self._volume_of(meta["namespace"], one["persistentVolumeClaim"]["claimName"])
            for one in spec.get("volumes", ())
            if "persistentVolumeClaim" in one
        }
        if phase == "Pending" and all((volume, node) in attached for volume in wanted):
            if not self._start_processes(meta["uid"], node, wanted):
                return
            ready = {"type": "Ready", "status": "True"}
            status = {"status": {"phase": "Running", "conditions": [ready]}}
            self.server.call("PATCH", f"{path}/status", status, MERGE)
            # kubelet says which volumes it uses, by which attach-detach waits six minutes before it detaches by force
            used = [f"kubernetes.io/csi/{DRIVER}^{self._handle_of(volume)}" for volume in sorted(wanted)]
            self.server.call(
                "PATCH",
                f"/api/v1/nodes/{node}/status",
                {"status": {"volumesInUse": used}},
                MERGE,
            )

    def _start_processes(self, uid: str, node: str, volumes: set[str]) -> bool:
        """Open the devices of a pod; whether all of them could be."""
        if self._drbd is None or uid in self._openers:
            return True
        try:
            handles = [self._handle_of(volume) for volume in sorted(volumes)]
            opened = {handle: self._drbd.open(node, handle) for handle in handles}
        except LabError:  # such as one that is in use elsewhere: kubelet tries again
            return False
        self._openers[uid] = opened
        for one in opened.values():
            self._drbd.start_write(one)
        return True

    def _end_processes(self, uid: str, node: str) -> bool:
        """Close the devices of a pod; whether that was possible: a process that waits for its I/O does not end."""
        if self._drbd is None:
            return True
        if any(is_frozen(self._drbd, node, handle) for handle in self._openers.get(uid, ())):
            return False
        for one in self._openers.pop(uid, {}).values():
            self._drbd.close(one)
        return True

    def _schedule(self, path: str, meta: dict[str, Any], alive: list[str]) -> None:
        for name in self.nodes:
            node = self.node(name)
            lost = any(one["effect"] in LOST_EFFECTS for one in node["spec"].get("taints", ()))
            if _is_ready(node) and not lost:
                target = {"apiVersion": "v1", "kind": "Node", "name": name}
                self.server.call("POST", f"{path}/binding", {"metadata": {"name": meta["name"]}, "target": target})
                return

    def _volume_of(self, namespace: str, claim: str) -> str:
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}"
        return str(self.server.call("GET", path)["spec"].get("volumeName", ""))

    def _handle_of(self, volume: str) -> str:
        spec = self.server.call("GET", f"/api/v1/persistentvolumes/{volume}")["spec"]
        return str(spec["csi"]["volumeHandle"])


def is_frozen(drbd: DrbdLab, node: str, resource: str) -> bool:
    """Whether the volume lets its writer on that node wait."""
    states = json.loads(drbd.call("status_text", node, resource))
    return any(one["role"] == "Primary" and one["suspended"] for one in states)


def _is_ready(node: dict[str, Any]) -> bool:
    return any(
        one["type"] == "Ready" and one["status"] == "True" for one in node.get("status", {}).get("conditions", ())
    )

"""A stand-in for KubeVirt on a real API server, as far as a storage agent meets it.

Its webhook refuses evictions with 429 as KubeVirt's does, and marks the instance for evacuation. Its controller makes
instances and launchers, marks an instance failed once its launcher is gone (as KubeVirt 1.2 and later), deletes what is
left of it, and starts the VM anew when all of its pods are gone. Migrations are begun by the test.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from lab.processes import until

from outlive.api import ServerTls, names_of
from outlive.base import SystemClock
from tests.support.api_server import ApiRefusal, ApiServer

TURN_S = 0.2
SERVED_S = 30.0
MERGE = "application/merge-patch+json"
KINDS = ("VirtualMachineInstance", "VirtualMachineInstanceMigration")
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
INSTANCES = "/apis/kubevirt.io/v1/namespaces/default/virtualmachineinstances"
MIGRATIONS = f"{INSTANCES.removesuffix('s')}migrations"
PODS = "/api/v1/namespaces/default/pods"
FINISHED = ("Succeeded", "Failed")


class WantedVm(NamedTuple):
    """A VM as its user wants it."""

    claim: str
    plugged: list[str]
    """Claims of hot-plugged disks."""
    volumes: list[dict[str, Any]]
    """Further volumes of its launcher."""
    strategy: str


class Kubevirt:
    """While the context is open."""

    def __init__(self, server: ApiServer, folder: Path) -> None:
        self._server = server
        self._vms: dict[str, WantedVm] = {}
        self._first_nodes: dict[str, str] = {}
        self.refusals: list[str] = []
        """Pods whose eviction was refused, in order."""
        self.evacuated: dict[str, str] = {}
        """Instances that were marked for evacuation, with the nodes that they are to leave."""
        self.errors: list[BaseException] = []
        self._tls = ServerTls(folder, names_of("127.0.0.1"), SystemClock())
        self._ends = threading.Event()
        self._threads: list[threading.Thread] = []
        self._listener: ThreadingHTTPServer | None = None

    def __enter__(self) -> Kubevirt:
        anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        for kind in KINDS:
            version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
            names = {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower()}
            spec = {"group": "kubevirt.io", "names": names, "scope": "Namespaced", "versions": [version]}
            with contextlib.suppress(ApiRefusal):  # it is there
                self._server.call("POST", CRDS, {"metadata": {"name": f"{names['plural']}.kubevirt.io"}, "spec": spec})
        for path in (INSTANCES, MIGRATIONS):
            until(lambda path=path: self._is_served(path), f"{path} is served", SERVED_S)  # type: ignore[misc]
        self._listener = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._listener.socket = self._tls.context.wrap_socket(self._listener.socket, server_side=True)
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._listener.serve_forever, self._run)]
        for thread in self._threads:
            thread.start()
        self._register(self._listener.server_port)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._listener is not None
        self._server.call("DELETE", f"{WEBHOOKS}/virt-api-validator")
        self._ends.set()
        self._listener.shutdown()
        for thread in self._threads:
            thread.join()
        self._listener.server_close()
        for path in (INSTANCES, MIGRATIONS):
            self._server.call("DELETE", path)

    # What users do

    def start(
        self,
        name: str,
        claim: str,
        node: str,
        *,
        strategy: str = "LiveMigrate",
        volumes: list[dict[str, Any]] | None = None,
    ) -> None:
        """A VM with that disk, which runs on that node at first."""
        self._first_nodes[name] = node
        self._vms[name] = WantedVm(claim, [], volumes or [], strategy)

    def plug(self, name: str, claim: str) -> None:
        """Plug a disk into the VM."""
        self._vms[name].plugged.append(claim)

    def migrate(self, name: str, node: str) -> str:
        """Begin a live migration to that node; the name of the pod of the target, which waits for the memory."""
        instance = self.instance(name)
        assert instance is not None
        spec = {"spec": {"vmiName": name}}
        made = self._server.call("POST", MIGRATIONS, {**_head(KINDS[1], f"{name}-migration"), **spec})
        labels = {"kubevirt.io/migrationJobUID": made["metadata"]["uid"]}
        target = self._create_launcher(instance, self._vms[name], node, labels)
        status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
        self._server.call("PATCH", f"{PODS}/{target}/status", status, MERGE)
        return target

    def stop(self, name: str) -> None:
        """The VM, and all that runs for it."""
        del self._vms[name]
        instance = self.instance(name)
        if instance is not None:
            self._delete_pods(instance)
            self._server.call("DELETE", f"{INSTANCES}/{name}")

    # What can be seen

    def instance(self, name: str) -> dict[str, Any] | None:
        """The instance of a VM; ``None``: there is none now."""
        return self._get(f"{INSTANCES}/{name}")

    def parts(self, name: str, kind: str = "virt-launcher") -> dict[str, str]:
        """Launchers of a VM, or pods of its hot-plugged disks → their nodes; of its present instance only."""
        instance = self.instance(name)
        found = [] if instance is None else self._pods_of(instance)
        return {
            one["metadata"]["name"]: one["spec"].get("nodeName", "")
            for one in found
            if one["metadata"]["labels"]["kubevirt.io"] == kind
        }

    def runs_on(self, name: str) -> str:
        """The node on which the VM runs; empty: it does not."""
        instance = self.instance(name)
        status = (instance or {}).get("status", {})
        return str(status.get("nodeName", "")) if status.get("phase") == "Running" else ""

    # The controller

    def _run(self) -> None:
        while not self._ends.wait(TURN_S):
            for name, vm in list(self._vms.items()):
                try:
                    self._turn(name, vm)
                except (ApiRefusal, OSError) as error:
                    if not (isinstance(error, ApiRefusal) and error.code in (404, 409)):
                        self.errors.append(error)

    def _turn(self, name: str, vm: WantedVm) -> None:
        instance = self.instance(name)
        if instance is None:
            spec = {"spec": {"evictionStrategy": vm.strategy}, "status": {"phase": "Scheduling"}}
            made = self._server.call("POST", INSTANCES, {**_head(KINDS[0], name), **spec})
            self._create_launcher(made, vm, self._first_nodes.pop(name, ""), {})
            return
        status, pods = instance["status"], self._pods_of(instance)
        launchers = [one for one in pods if one["metadata"]["labels"]["kubevirt.io"] == "virt-launcher"]
        here = [one for one in launchers if one["spec"].get("nodeName") == status.get("nodeName")]
        match status["phase"]:
            case "Scheduling" if launchers and launchers[0].get("status", {}).get("phase") == "Running":
                self._set_status(name, phase="Running", nodeName=launchers[0]["spec"]["nodeName"])
            case "Running" if not here:
                self._set_status(name, phase="Failed")
            case "Running" if "deletionTimestamp" not in here[0]["metadata"]:
                for claim in vm.plugged:
                    self._create_attachment(here[0], claim)
            case "Failed" if pods:
                self._delete_pods(instance)
            case "Failed":
                self._server.call("DELETE", f"{INSTANCES}/{name}")

    def _create_launcher(self, instance: dict[str, Any], vm: WantedVm, node: str, labels: dict[str, str]) -> str:
        meta = instance["metadata"]
        labels = {"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": meta["uid"], **labels}
        annotations = {"kubevirt.io/domain": meta["name"]}
        root = {"name": "root", "persistentVolumeClaim": {"claimName": vm.claim}}
        return self._create_pod(
            f"virt-launcher-{meta['name']}-", labels, annotations, instance, [root, *vm.volumes], node
        )

    def _create_attachment(self, launcher: dict[str, Any], claim: str) -> None:
        owned = [
            one
            for one in self._server.call("GET", f"{PODS}?labelSelector=kubevirt.io=hotplug-disk")["items"]
            if one["metadata"]["ownerReferences"][0]["uid"] == launcher["metadata"]["uid"]
            and one["spec"]["volumes"][0]["name"] == claim
        ]
        if not owned:
            volume = {"name": claim, "persistentVolumeClaim": {"claimName": claim}}
            labels, node = {"kubevirt.io": "hotplug-disk"}, launcher["spec"]["nodeName"]
            self._create_pod("hp-volume-", labels, {}, {**launcher, "apiVersion": "v1", "kind": "Pod"}, [volume], node)

    def _create_pod(
        self,
        prefix: str,
        labels: dict[str, str],
        annotations: dict[str, str],
        owner: dict[str, Any],
        volumes: list[dict[str, Any]],
        node: str,
    ) -> str:
        names = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
        reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True, **names}
        meta = {"generateName": prefix, "labels": labels, "annotations": annotations, "ownerReferences": [reference]}
        devices = [{"name": one["name"], "mountPath": f"/{one['name']}"} for one in volumes]
        spec = {"containers": [{"name": "compute", "image": "none", "volumeMounts": devices}], "volumes": volumes}
        made = self._server.call("POST", PODS, {"metadata": meta, "spec": spec | ({"nodeName": node} if node else {})})
        return str(made["metadata"]["name"])

    def _delete_pods(self, instance: dict[str, Any]) -> None:
        """End cleanly: what runs on a dead node stays until somebody deletes it by force."""
        for one in self._pods_of(instance):
            if "deletionTimestamp" not in one["metadata"]:
                with contextlib.suppress(ApiRefusal):
                    self._server.call("DELETE", f"{PODS}/{one['metadata']['name']}")

    def _pods_of(self, instance: dict[str, Any]) -> list[dict[str, Any]]:
        """Its launchers, and the pods that these own."""
        found = self._server.call("GET", f"{PODS}?labelSelector=kubevirt.io")["items"]
        uid = instance["metadata"]["uid"]
        launchers = [one for one in found if one["metadata"]["labels"].get("kubevirt.io/created-by") == uid]
        uids = {one["metadata"]["uid"] for one in launchers}
        return launchers + [one for one in found if one["metadata"]["ownerReferences"][0]["uid"] in uids]

    def _set_status(self, name: str, **status: str) -> None:
        """There is no subresource for it: KubeVirt has none either."""
        self._server.call("PATCH", f"{INSTANCES}/{name}", {"status": status}, MERGE)

    def _get(self, path: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._server.call("GET", path)
        except ApiRefusal as error:
            if error.code != 404:
                raise
            return None
        return found

    # The webhook

    def review(self, namespace: str, name: str) -> str:
        """Why the eviction of a pod is refused; empty: it is not."""
        pod = self._get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        if pod is None or pod.get("status", {}).get("phase") in FINISHED:
            return ""
        kind = pod["metadata"].get("labels", {}).get("kubevirt.io")
        if kind == "hotplug-disk":
            return f"cannot evict hotplug pod {name}"
        instance = self.instance(pod["metadata"].get("annotations", {}).get("kubevirt.io/domain", ""))
        if kind != "virt-launcher" or instance is None or instance["spec"]["evictionStrategy"] == "None":
            return ""
        if instance["status"].get("nodeName") != pod["spec"].get("nodeName"):
            return "Eviction request for target Pod"
        node = pod["spec"]["nodeName"]
        self.evacuated[instance["metadata"]["name"]] = node
        self._set_status(instance["metadata"]["name"], evacuationNodeName=node)
        return f"Eviction triggered evacuation of VMI {instance['metadata']['name']}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        kubevirt = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
                why = kubevirt.review(request["namespace"], request["name"])
                response: dict[str, Any] = {"uid": request["uid"], "allowed": not why}
                if why:
                    kubevirt.refusals.append(request["name"])
                    response["status"] = {"code": 429, "message": why}
                head = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
                body = json.dumps({**head, "response": response}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing is printed."""

        return Handler

    def _register(self, port: int) -> None:
        """Have the API server ask, and return when it does."""
        authority = base64.b64encode(self._tls.authority.encode()).decode()
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"]}
        webhook = {
            "name": "virt-launcher-eviction-interceptor.kubevirt.io",
            "clientConfig": {"url": f"https://127.0.0.1:{port}/launcher-eviction-validate", "caBundle": authority},
            "rules": [rule],
            "failurePolicy": "Ignore",
            "sideEffects": "NoneOnDryRun",
            "admissionReviewVersions": ["v1"],
        }
        self._server.call("POST", WEBHOOKS, {"metadata": {"name": "virt-api-validator"}, "webhooks": [webhook]})
        meta = {"name": "hp-probe", "labels": {"kubevirt.io": "hotplug-disk"}}
        spec = {"containers": [{"name": "compute", "image": "none"}], "nodeName": "nowhere"}
        self._server.call("POST", PODS, {"metadata": meta, "spec": spec})
        until(lambda: self._is_refused("hp-probe"), "the API server asks the webhook", SERVED_S)
        self._server.call("DELETE", f"{PODS}/hp-probe", {"gracePeriodSeconds": 0})
        self.refusals.clear()

    def _is_refused(self, name: str) -> bool:
        eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name}}
        try:
            self._server.call("POST", f"{PODS}/{name}/eviction", {**eviction, "deleteOptions": {"dryRun": ["All"]}})
        except ApiRefusal as error:
            return error.code == 429
        return False

    def _is_served(self, path: str) -> bool:
        try:
            self._server.call("GET", path)
        except ApiRefusal:
            return False
        return True


def _head(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": {"name": name}}

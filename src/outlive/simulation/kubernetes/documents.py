"""The objects of a virtual Kubernetes as documents, and small questions about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from outlive.base import stable_hash
from outlive.simulation.kubernetes.server import ENDED, Document, is_terminating
from outlive.simulation.kubernetes.spec import NAMESPACE, NodeSpecification, StorageSpec, WorkloadSpec

DRIVER: Final = "linstor.csi.linbit.com"
ATTACHER_FINALIZER: Final = "external-attacher/linstor-csi-linbit-com"
LEASES: Final = "kube-node-lease"
"""The namespace of the leases of kubelets."""
WORKLOAD_LABEL: Final = "app"
OPT_OUT: Final = "drbd.linbit.com/ignore-fail-over"
NOT_READY: Final = "node.kubernetes.io/not-ready"
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
NO_SCHEDULE, NO_EXECUTE = "NoSchedule", "NoExecute"


def node_document(node: NodeSpecification, now: str) -> Document:
    """A node that no kubelet has reported yet."""
    labels = {"kubernetes.io/hostname": node.name}
    if node.domain:
        labels["topology.kubernetes.io/zone"] = node.domain
    return {
        "metadata": {"name": node.name, "labels": labels},
        "spec": {"taints": [make_taint(NOT_READY, NO_SCHEDULE, now)]},
        "status": {"conditions": [], "volumesInUse": []},
    }


def make_taint(key: str, effect: str, now: str) -> dict[str, str]:
    """A taint as nodes have it."""
    return {"key": key, "effect": effect, "timeAdded": now}


def volume_document(claim: str, resource: str) -> Document:
    """A bound persistent volume of one writer."""
    return {
        "metadata": {"name": resource},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "namespace": NAMESPACE,
                "name": claim,
                "uid": f"{stable_hash(claim):016x}",
            },
            "csi": {"driver": DRIVER, "volumeHandle": resource, "fsType": "ext4"},
        },
        "status": {"phase": "Bound"},
    }


def resource_of(claim: str) -> str:
    """The DRBD resource of a claim, after which its persistent volume is named too."""
    return f"pvc-{claim}"


def attachment_document(resource: str, node: str) -> Document:
    """That a volume is to be attached to a node."""
    return {
        "metadata": {
            "name": f"csi-{stable_hash(DRIVER, resource, node):016x}",
            "finalizers": [ATTACHER_FINALIZER],
        },
        "spec": {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": resource}},
    }


def pod_document(workload: WorkloadSpec, name: str, claim: str, spec: StorageSpec) -> Document:
    """A pod of a workload with one volume; a name that ends in ``-`` is completed by the server."""
    kind = "StatefulSet" if workload.kind == "statefulset" else "ReplicaSet"
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": workload.name, "controller": True}
    owner["uid"] = f"{stable_hash(kind, workload.name):016x}"
    metadata: dict[str, Any] = {
        "namespace": NAMESPACE,
        "labels": {WORKLOAD_LABEL: workload.name},
        "ownerReferences": [owner],
    }
    metadata["generateName" if name.endswith("-") else "name"] = name
    if workload.ignore:
        metadata["annotations"] = {OPT_OUT: "true"}
    return {
        "metadata": metadata,
        "spec": {
            "containers": [{"name": "writer", "image": "writer"}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            "terminationGracePeriodSeconds": workload.grace_s,
            "tolerations": [
                {
                    "key": key,
                    "operator": "Exists",
                    "effect": NO_EXECUTE,
                    "tolerationSeconds": int(spec.tolerates),
                }
                for key in (NOT_READY, UNREACHABLE)
            ],
        },
        "status": {"phase": "Pending", "conditions": []},
    }


def budget_document(workload: WorkloadSpec) -> Document:
    """The disruption budget of a workload."""
    return {
        "metadata": {"namespace": NAMESPACE, "name": workload.name},
        "spec": {
            "minAvailable": workload.min_available,
            "selector": {"matchLabels": {WORKLOAD_LABEL: workload.name}},
        },
        "status": {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": workload.min_available},
    }


def set_condition(document: Document, kind: str, status: str, reason: str, now: str) -> None:
    """Set a condition of a document that may be changed; its time moves where its status does."""
    conditions: list[dict[str, str]] = document.setdefault("status", {}).setdefault("conditions", [])
    for one in conditions:
        if one["type"] == kind:
            if one["status"] != status:
                one.update(status=status, reason=reason, lastTransitionTime=now)
            return
    conditions.append({"type": kind, "status": status, "reason": reason, "lastTransitionTime": now})


def taints_of(node: Document) -> list[dict[str, str]]:
    """Its taints."""
    found: list[dict[str, str]] = node.get("spec", {}).get("taints") or []
    return found


def has_taint(node: Document, key: str, effect: str) -> bool:
    """Whether it has that taint, whatever its value."""
    return any(one["key"] == key and one["effect"] == effect for one in taints_of(node))


def tolerated_seconds(pod: Document, wanted: Mapping[str, str]) -> float | None:
    """How many seconds the pod tolerates the taint; ``None``: not at all."""
    longest: float | None = None
    for one in pod["spec"].get("tolerations", ()):
        if one.get("effect") in (None, wanted["effect"]) and one.get("key") in (None, wanted["key"]):
            longest = max(longest or 0.0, one.get("tolerationSeconds", float("inf")))
    return longest


def claims_of(pod: Document) -> list[str]:
    """The claims that the pod mounts."""
    volumes = pod["spec"].get("volumes", ())
    return [one["persistentVolumeClaim"]["claimName"] for one in volumes if "persistentVolumeClaim" in one]


def resources_used(pod: Document) -> list[str]:
    """The DRBD resources that the pod mounts."""
    return [resource_of(claim) for claim in claims_of(pod)]


def node_of(pod: Document) -> str:
    """The node that the pod is bound to; empty: none yet."""
    return str(pod["spec"].get("nodeName", ""))


def phase_of(pod: Document) -> str:
    """Its phase."""
    return str(pod.get("status", {}).get("phase", "Pending"))


def is_active(pod: Document) -> bool:
    """Whether it counts as a replica: it has not ended, and nobody has deleted it."""
    return phase_of(pod) not in ENDED and not is_terminating(pod)


def workload_of(pod: Document) -> str:
    """The workload that it belongs to."""
    return str(pod["metadata"].get("labels", {}).get(WORKLOAD_LABEL, ""))


def event_subject(kind: str, document: Document) -> dict[str, str]:
    """What an event says that it is about."""
    metadata = document["metadata"]
    return {
        "kind": kind,
        "name": metadata["name"],
        "namespace": metadata.get("namespace", ""),
        "uid": metadata.get("uid", ""),
    }

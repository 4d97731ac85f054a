"""Small objects for the decisions of the storage agent, as JSON."""

from __future__ import annotations

import json
from typing import Any

from outlive.cli import decision_table

NOW = "2030-01-01T00:00:00Z"
LATER = "2030-01-01T00:00:05Z"
TABLE = decision_table()


def decide(name: str, given: Any) -> Any:
    """The answer of a decision, as ``outlive decide`` prints it."""
    return json.loads(TABLE.decide_json(f"storage.{name}", json.dumps(given).encode()))


def connection(name: str, state: str = "Connected", role: str = "Secondary") -> dict[str, Any]:
    return {"name": name, "connectionState": state, "peerRole": role}


def resource(name: str = "pvc-1", **changes: Any) -> dict[str, Any]:
    """As a survivor sees it whose peer ``k1`` is lost."""
    return {
        "name": name,
        "role": "Secondary",
        "quorum": "majority",
        "present": True,
        "devices": [{"quorum": True, "diskState": "UpToDate"}],
        "connections": [connection("k1", "Connecting", "Unknown"), connection("k3")],
        **changes,
    }


def volume(name: str = "pvc-1", claim: str = "data", **csi: Any) -> dict[str, Any]:
    source = {"driver": "linstor.csi.linbit.com", "volumeHandle": name, **csi}
    ref = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "shop", "name": claim, "uid": f"u-{claim}"}
    return {"metadata": {"name": name, "uid": f"u-{name}"}, "spec": {"csi": source, "claimRef": ref}}


def pod(name: str = "db-0", node: str = "k1", claim: str = "data", **changes: Any) -> dict[str, Any]:
    """A running pod with an owner; ``changes`` are members of its metadata, and ``volumes`` and ``phase``."""
    volumes = changes.pop("volumes", [{"name": "d", "persistentVolumeClaim": {"claimName": claim}}])
    phase = changes.pop("phase", "Running")
    owner = [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "u-db"}]
    return {
        "metadata": {"namespace": "shop", "name": name, "uid": f"u-{name}", "ownerReferences": owner, **changes},
        "spec": {"nodeName": node, "volumes": volumes},
        "status": {"phase": phase},
    }


def node(name: str, ready: str = "True", taints: list[Any] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"u-{name}", "resourceVersion": "7"},
        "spec": {"taints": taints or []},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


def attachment(name: str = "va-1", node_name: str = "k1", of: str = "pvc-1") -> dict[str, Any]:
    spec = {"nodeName": node_name, "source": {"persistentVolumeName": of}}
    return {"metadata": {"name": name, "uid": f"u-{name}"}, "spec": spec}


def tick(*resources: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The input of one decision of a tick on node ``k2``."""
    cluster = {
        "nodes": changes.pop("nodes", [node("k1"), node("k2"), node("k3")]),
        "persistentvolumes": changes.pop("volumes", [volume()]),
        "volumeattachments": changes.pop("attachments", [attachment()]),
        "pods": changes.pop("pods", [pod()]),
    }
    options = {"nodeName": "k2", **changes.pop("options", {})}
    found = resources or (resource(),)
    return {
        "options": options,
        "now": NOW,
        "memory": None,
        "snapshot": {"ageS": 1, "resources": list(found)},
        "cluster": cluster,
        **changes,
    }


def act(name: str, given: dict[str, Any]) -> Any:
    """The answer at the second tick, when every timer is over."""
    first = decide(name, given)
    return decide(name, {**given, "now": LATER, "memory": first["memory"]})


def run_plan(plan: Any, *answers: tuple[Any, int | None]) -> Any:
    """The answer of ``storage.next_calls`` after these calls with their statuses."""
    return decide(
        "next_calls", {"plan": plan, "answers": [{"call": call, "status": status} for call, status in answers]}
    )

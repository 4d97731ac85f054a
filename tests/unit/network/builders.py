"""Small copies, pods and rows for the decisions of the network, as JSON."""

from __future__ import annotations

import json
from typing import Any

from outlive.cli import decision_table

TABLE = decision_table()
CONTROLLER = "default-network-controller"
MAC = "0a:58:0a:2c:07:17"
IPV4 = "10.44.7.23/24"
IPV6 = "fd44:0:0:7::17/64"


def decide(name: str, given: Any) -> Any:
    """The answer of a decision, as ``outlive decide`` prints it."""
    return json.loads(TABLE.decide_json(f"network.{name}", json.dumps(given).encode()))


def created(second: int) -> str:
    return f"2030-01-01T00:00:{second:02}Z"


def addresses(**changes: Any) -> dict[str, Any]:
    """Of ``shop/cart``, born on ``hv-a``, in IPv4."""
    return {"mac": MAC, "addresses": [IPV4], "gateways": ["10.44.7.1"], **changes}


def copy(id: str, second: int = 0, *, vm: str | None = "cart", **changes: Any) -> dict[str, Any]:
    """A living copy of ``shop/<vm>`` on ``hv-<id>``, whose addresses follow it."""
    key = {"namespace": "shop", "name": vm} if vm else None
    return {
        "id": id,
        "namespace": "shop",
        "name": f"virt-launcher-{id}",
        "vm": key,
        "hypervisor": f"hv-{id}",
        "created": created(second),
        "migratable": True,
        "networks": {"default": addresses()},
        **changes,
    }


def pod(name: str = "virt-launcher-cart-1", **changes: Any) -> dict[str, Any]:
    """A running launcher of ``shop/cart`` on ``hv-a``; ``changes`` are labels, annotations, spec and phase."""
    labels = changes.pop("labels", {"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "cart"})
    metadata = {"namespace": "shop", "name": name, "uid": f"u-{name}", "creationTimestamp": created(0)}
    return {
        "metadata": {**metadata, "labels": labels, "annotations": changes.pop("annotations", {})},
        "spec": {"nodeName": "hv-a", **changes.pop("spec", {})},
        "status": {"phase": changes.pop("phase", "Running")},
    }


def error(code: str) -> dict[str, str]:
    return {"error": code}

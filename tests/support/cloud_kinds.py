"""The kinds of clouds whose hypervisors are Kubernetes objects, as far as Outlive uses them; made from our own page."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from tests.support.api_server import ApiRefusal, ApiServer

HYPERVISORS = "/apis/kvm.cloud.sap/v1/hypervisors"
RESERVATIONS = "/apis/cortex.cloud/v1alpha1/reservations"
MERGE_PATCH = "application/merge-patch+json"
ZONE = "topology.kubernetes.io/zone"
SERVED_S = 30.0
LOOK_S = 0.1


def cloud_crd(group: str, version: str, kind: str) -> dict[str, Any]:
    """Any document of that kind is taken: what is wrong with one is for its readers to see."""
    plural, anything = f"{kind.lower()}s", {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
    served = {"name": version, "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [{**served, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def make_cloud_kinds(server: ApiServer) -> None:
    """Have both kinds served, and no object of either."""
    kinds = (("kvm.cloud.sap", "v1", "Hypervisor"), ("cortex.cloud", "v1alpha1", "Reservation"))
    for group, version, kind in kinds:
        with suppress(ApiRefusal):  # an earlier test of this process made it
            server.call(
                "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", cloud_crd(group, version, kind)
            )
    for path in (HYPERVISORS, RESERVATIONS):
        end = time.monotonic() + SERVED_S
        while True:
            try:
                found = server.call("GET", path)["items"]
                break
            except ApiRefusal:
                assert time.monotonic() < end, f"{path} is not served"
                time.sleep(LOOK_S)
        for one in found:
            server.call("DELETE", f"{path}/{one['metadata']['name']}")


def put_hypervisor(server: ApiServer, name: str, zone: str = "z1", **parts: Any) -> None:
    """Create a hypervisor of 16 cores and 64 GiB. ``parts``: ``spec`` and fields of ``status``."""
    spec = parts.pop("spec", {})
    amounts = {"cpu": "16", "memory": "64Gi"}
    status = {"capacity": amounts, "effectiveCapacity": amounts, "allocation": {"cpu": "2", "memory": "4Gi"}, **parts}
    server.call("POST", HYPERVISORS, {**_head(name, zone), "spec": spec})
    patch_status(server, name, status)


def patch_spec(server: ApiServer, name: str, spec: dict[str, Any]) -> None:
    """Change the spec of a hypervisor."""
    server.call("PATCH", f"{HYPERVISORS}/{name}", {"spec": spec}, MERGE_PATCH)


def patch_status(server: ApiServer, name: str, status: dict[str, Any]) -> None:
    """Change the status of a hypervisor."""
    server.call("PATCH", f"{HYPERVISORS}/{name}/status", {"status": status}, MERGE_PATCH)


def put_reservation(server: ApiServer, name: str, **metadata: Any) -> None:
    """Create a reservation that Outlive did not write, whatever its labels say."""
    head = {"apiVersion": "cortex.cloud/v1alpha1", "kind": "Reservation", "metadata": {"name": name, **metadata}}
    server.call("POST", RESERVATIONS, {**head, "spec": {"type": "InFlightReservation"}})


def cloud_reservations(server: ApiServer) -> dict[str, dict[str, Any]]:
    """All reservations, by name."""
    return {one["metadata"]["name"]: one for one in server.call("GET", RESERVATIONS)["items"]}


def _head(name: str, zone: str) -> dict[str, Any]:
    labels = {ZONE: zone} if zone else {}
    return {"apiVersion": "kvm.cloud.sap/v1", "kind": "Hypervisor", "metadata": {"name": name, "labels": labels}}

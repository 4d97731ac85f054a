"""KubeVirt: ``kubectl get nodes,vmi -A -o json``, in one file or several.

A ``VirtualMachineInstance`` is a VM that runs, or is about to; a VM that is switched off has none. Its CPUs are sockets
times cores times threads; its memory is that of the guest, else what it requests. A node counts where KubeVirt may run
VMs on it (``kubevirt.io/schedulable``), with what pods may use (``allocatable``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from outlive.base import BadInput
from outlive.drivers.files import read_input
from outlive.drivers.listings.entries import ListingEntry, select_entries
from outlive.inventory import Inventory, Selection
from outlive.resources import ZONE_LABEL, parse_json
from outlive.resources.reasons import ImportNotice, make_reason

COMMAND: Final = "kubectl get nodes,vmi -A -o json"
SCHEDULABLE: Final = "kubevirt.io/schedulable"
INSTANCE: Final = "VirtualMachineInstance"
ENDED: Final = ("Succeeded", "Failed")


def read_kubevirt(paths: Sequence[Path], selection: Selection) -> Inventory:
    """All records of the files; ``BadInput`` for one that is no list of such objects."""
    inventory = Inventory(what="kubevirt")
    placed = [(item, f"{path}[{index}]") for path in paths for index, item in enumerate(_read_items(path))]
    nodes = [ListingEntry(_read_node(item), place, inventory) for item, place in placed if item.get("kind") == "Node"]
    instances = [
        ListingEntry(_read_instance(item), place, inventory) for item, place in placed if item.get("kind") == INSTANCE
    ]
    if not nodes and not instances:
        raise BadInput(f"there is no Node and no {INSTANCE}", remedy=f"write the file with: {COMMAND}")
    inventory.has_hosts, inventory.has_vms = bool(nodes), bool(instances)
    workers = [one for one in nodes if one.get_text(SCHEDULABLE)]
    for node in select_entries(workers, selection.hosts, inventory, "--host-where"):
        closed = "it is cordoned" if node.is_set("unschedulable") else ""
        node.add_host(
            node.get_text("name"),
            "node",
            cpu=("cpu",),
            memory=("memory",),
            zone=node.get_text(ZONE_LABEL) or None,
            disabled=closed or ("" if node.is_set(SCHEDULABLE) else "KubeVirt may not run VMs there"),
            down=node.get_text("ready") not in ("", "True"),
        )
    for one in select_entries(instances, selection.vms, inventory, "--where"):
        name, namespace, phase = one.get_text("name"), one.get_text("namespace"), one.get_text("phase")
        one.add_vm(
            one.get_text("uid") or f"{namespace}.{name}",
            f"{INSTANCE} {namespace}/{name}",
            cpu=("cpu",),
            memory=("memory",),
            name=name,
            project=namespace,
            host="" if phase in ENDED else one.get_text("nodeName"),
            phase=phase,
        )
    if others := len(nodes) - len(workers):
        inventory.notices.append(make_reason(ImportNotice.NODES_WITHOUT_VMS, count=others))
    return inventory


def _read_items(path: Path) -> list[dict[str, Any]]:
    document: Any = parse_json(read_input(path), str(path))
    items = document.get("items") if isinstance(document, dict) else None
    if not isinstance(items, list) or not all(isinstance(one, dict) for one in items):
        raise BadInput("is not a list of Kubernetes objects", place=str(path), remedy=f"write it with: {COMMAND}")
    return items


def _get_path(document: Any, *names: str) -> Any:
    for name in names:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def _read_node(item: dict[str, Any]) -> dict[str, Any]:
    """What is read of a node, and its labels."""
    conditions = _get_path(item, "status", "conditions") or ()
    ready = next((_get_path(one, "status") for one in conditions if _get_path(one, "type") == "Ready"), None)
    sizes = _get_path(item, "status", "allocatable") or _get_path(item, "status", "capacity") or {}
    return {
        **(_get_path(item, "metadata", "labels") or {}),
        "name": _get_path(item, "metadata", "name"),
        "cpu": sizes.get("cpu"),
        "memory": sizes.get("memory"),
        "ready": ready,
        "unschedulable": _get_path(item, "spec", "unschedulable"),
    }


def _read_instance(item: dict[str, Any]) -> dict[str, Any]:
    """What is read of a VirtualMachineInstance, and its labels."""
    meta, domain = item.get("metadata") or {}, _get_path(item, "spec", "domain") or {}
    requests, limits = _get_path(domain, "resources", "requests") or {}, _get_path(domain, "resources", "limits") or {}
    return {
        **(meta.get("labels") or {}),
        "uid": meta.get("uid"),
        "name": meta.get("name"),
        "namespace": meta.get("namespace") or "default",
        "phase": _get_path(item, "status", "phase"),
        "nodeName": _get_path(item, "status", "nodeName"),
        "cpu": _count_cores(_get_path(item, "status", "currentCPUTopology") or domain.get("cpu"))
        or requests.get("cpu")
        or limits.get("cpu")
        or "1",
        "memory": _get_path(item, "status", "memory", "guestCurrent")
        or _get_path(domain, "memory", "guest")
        or requests.get("memory")
        or limits.get("memory"),
    }


def _count_cores(topology: Any) -> str:
    """Sockets times cores times threads; empty where none of them is said."""
    named = [_get_path(topology, one) for one in ("sockets", "cores", "threads")]
    if not any(isinstance(one, int) for one in named):
        return ""
    total = 1
    for one in named:
        total *= one if isinstance(one, int) and one > 0 else 1
    return str(total)

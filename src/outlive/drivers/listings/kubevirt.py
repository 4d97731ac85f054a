"""KubeVirt: ``kubectl get nodes,vmi -A -o json``, in one file or several.

A ``VirtualMachineInstance`` is a VM that runs, or is about to; a VM that is switched off has none. Its CPUs are sockets
times cores times threads; its memory is that of the guest, else what it requests. A node counts where KubeVirt may run
VMs on it (``kubevirt.io/schedulable``), with what pods may use (``allocatable``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from outlive.base.errors import BadInput
from outlive.drivers.files import read_input
from outlive.drivers.listings.entries import Entry, select
from outlive.inventory.records import Inventory
from outlive.inventory.selection import Selection
from outlive.resources.documents import parse_json
from outlive.resources.meta import ZONE_LABEL
from outlive.resources.reasons import reason
from outlive.resources.reasons.inventory import ImportNotice

COMMAND: Final = "kubectl get nodes,vmi -A -o json"
SCHEDULABLE: Final = "kubevirt.io/schedulable"
INSTANCE: Final = "VirtualMachineInstance"
ENDED: Final = ("Succeeded", "Failed")


def read_kubevirt(paths: Sequence[Path], selection: Selection) -> Inventory:
    """All records of the files; ``BadInput`` for one that is no list of such objects."""
    inventory = Inventory(what="kubevirt")
    placed = [(item, f"{path}[{index}]") for path in paths for index, item in enumerate(_items(path))]
    nodes = [Entry(_node(item), place, inventory) for item, place in placed if item.get("kind") == "Node"]
    instances = [Entry(_instance(item), place, inventory) for item, place in placed if item.get("kind") == INSTANCE]
    if not nodes and not instances:
        raise BadInput(f"there is no Node and no {INSTANCE}", remedy=f"write the file with: {COMMAND}")
    inventory.has_hosts, inventory.has_vms = bool(nodes), bool(instances)
    workers = [one for one in nodes if one.text(SCHEDULABLE)]
    for node in select(workers, selection.hosts, inventory, "--host-where"):
        _add_node(node)
    for instance in select(instances, selection.vms, inventory, "--where"):
        _add_instance(instance)
    if others := len(nodes) - len(workers):
        inventory.notices.append(reason(ImportNotice.NODES_WITHOUT_VMS, count=others))
    return inventory


def _items(path: Path) -> list[dict[str, Any]]:
    document: Any = parse_json(read_input(path), str(path))
    items = document.get("items") if isinstance(document, dict) else None
    if not isinstance(items, list) or not all(isinstance(one, dict) for one in items):
        raise BadInput("is not a list of Kubernetes objects", place=str(path), remedy=f"write it with: {COMMAND}")
    return items


def _at(document: Any, *names: str) -> Any:
    for name in names:
        document = document.get(name) if isinstance(document, Mapping) else None
    return document


def _node(item: dict[str, Any]) -> dict[str, Any]:
    """What is read of a node, and its labels."""
    conditions = _at(item, "status", "conditions") or ()
    ready = next((_at(one, "status") for one in conditions if _at(one, "type") == "Ready"), None)
    sizes = _at(item, "status", "allocatable") or _at(item, "status", "capacity") or {}
    return {
        **(_at(item, "metadata", "labels") or {}),
        "name": _at(item, "metadata", "name"),
        "cpu": sizes.get("cpu"),
        "memory": sizes.get("memory"),
        "ready": ready,
        "unschedulable": _at(item, "spec", "unschedulable"),
    }


def _add_node(entry: Entry) -> None:
    closed = "it is cordoned" if entry.flag("unschedulable") else ""
    entry.add_host(
        entry.text("name"),
        "node",
        cpu=("cpu",),
        memory=("memory",),
        zone=entry.text(ZONE_LABEL) or None,
        disabled=closed or ("" if entry.flag(SCHEDULABLE) else "KubeVirt may not run VMs there"),
        down=entry.text("ready") not in ("", "True"),
    )


def _instance(item: dict[str, Any]) -> dict[str, Any]:
    """What is read of a VirtualMachineInstance, and its labels."""
    meta, domain = item.get("metadata") or {}, _at(item, "spec", "domain") or {}
    requests, limits = _at(domain, "resources", "requests") or {}, _at(domain, "resources", "limits") or {}
    return {
        **(meta.get("labels") or {}),
        "uid": meta.get("uid"),
        "name": meta.get("name"),
        "namespace": meta.get("namespace") or "default",
        "phase": _at(item, "status", "phase"),
        "nodeName": _at(item, "status", "nodeName"),
        "cpu": _cores(_at(item, "status", "currentCPUTopology") or domain.get("cpu"))
        or requests.get("cpu")
        or limits.get("cpu")
        or "1",
        "memory": _at(item, "status", "memory", "guestCurrent")
        or _at(domain, "memory", "guest")
        or requests.get("memory")
        or limits.get("memory"),
    }


def _add_instance(entry: Entry) -> None:
    name, namespace, phase = entry.text("name"), entry.text("namespace"), entry.text("phase")
    entry.add_vm(
        entry.text("uid") or f"{namespace}.{name}",
        f"{INSTANCE} {namespace}/{name}",
        cpu=("cpu",),
        memory=("memory",),
        name=name,
        project=namespace,
        host="" if phase in ENDED else entry.text("nodeName"),
        phase=phase,
    )


def _cores(topology: Any) -> str:
    """Sockets times cores times threads; empty where none of them is said."""
    named = [_at(topology, one) for one in ("sockets", "cores", "threads")]
    if not any(isinstance(one, int) for one in named):
        return ""
    total = 1
    for one in named:
        total *= one if isinstance(one, int) and one > 0 else 1
    return str(total)

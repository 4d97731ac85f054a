"""Pods of KubeVirt: a VM is a launcher pod, a second one while it migrates, and the pods that hold hot-plugged disks.

All of them are one unit: a disk without its VM is of no use, and a VM whose other end goes on running is no VM less.
KubeVirt's webhook answers each eviction of a launcher with 429 and begins a live migration, and never lets a pod of a
hot-plugged disk go, so that evictions alone would not end (docs/roles/storage-agent.md#kubevirt).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from outlive.storage.objects import PodView, VolumeView

KIND_LABEL: Final = "kubevirt.io"
LAUNCHER: Final = "virt-launcher"
HOTPLUG: Final = "hotplug-disk"
INSTANCE_LABEL: Final = "kubevirt.io/created-by"
"""Of launchers: the uid of the VM instance that they run; that of both ends of a migration is one."""
VM_PARTS: Final = "vm-parts"
"""The index of pods by ``vm_keys``."""
FINISHED: Final = ("Succeeded", "Failed")


def is_launcher(pod: PodView) -> bool:
    """Whether the pod runs a VM."""
    return pod.metadata.labels.get(KIND_LABEL) == LAUNCHER


def is_hotplug(pod: PodView) -> bool:
    """Whether the pod holds hot-plugged disks of a VM."""
    return pod.metadata.labels.get(KIND_LABEL) == HOTPLUG


def is_vm_part(pod: PodView) -> bool:
    """Whether the pod is a part of a VM of KubeVirt."""
    return pod.metadata.labels.get(KIND_LABEL) in (LAUNCHER, HOTPLUG)


def vm_keys(pod: PodView) -> list[str]:
    """Uids by which parts of one VM find each other: of a launcher its own and that of its VM instance, of a pod of
    hot-plugged disks that of its launcher. Pods that share one belong together; other pods have none."""
    if is_launcher(pod):
        keys = [pod.metadata.uid, pod.metadata.labels.get(INSTANCE_LABEL, "")]
    elif is_hotplug(pod):
        keys = [str(owner.get("uid") or "") for owner in pod.metadata.owner_references]
    else:
        return []
    return [key for key in dict.fromkeys(keys) if key]


class VmParts:
    """The pods of a cluster that are parts of VMs."""

    def __init__(self, pods: Iterable[PodView]) -> None:
        self._by_key: dict[str, list[PodView]] = {}
        for pod in pods:
            for key in vm_keys(pod):
                self._by_key.setdefault(key, []).append(pod)

    def parts_of(self, pod: PodView) -> list[PodView]:
        """The pod, and all other parts of its VM that have not finished, by namespace and name."""
        found = {pod.metadata.key: pod}
        rest = [pod]
        while rest:
            for key in vm_keys(rest.pop()):
                for other in self._by_key.get(key, ()):
                    if other.metadata.key not in found and other.status.phase not in FINISHED:
                        found[other.metadata.key] = other
                        rest.append(other)
        return [pod, *(found[key] for key in sorted(found) if found[key] is not pod)]


def vm_volume_reason(volume: VolumeView, reason: str) -> str:
    """Why a volume of a part of a VM is unsafe, given why one of any pod would be; empty: it is not.

    Container disks may be volumes of type ``image``, which nobody writes. A path of the host is a disk of the VM.
    """
    if volume.image is not None:
        return ""
    if isinstance(volume.host_path, Mapping):
        return f"host disk {volume.host_path.get('path', '')}".rstrip()
    return reason

"""Pods of KubeVirt: a VM is a launcher pod, with a second one while it migrates, and pods that hold hot-plugged disks.

Its webhook answers an eviction of a launcher with 429 and begins a live migration, which cannot end well where the disk
is lost; pods of hot-plugged disks it never lets go. So both are deleted where the loss is proven: the disruption budget
that KubeVirt keeps for them would block for ever (docs/roles/storage-agent.md#kubevirt).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from outlive.storage.objects import PodView

KIND_LABEL: Final = "kubevirt.io"
LAUNCHER: Final = "virt-launcher"
HOTPLUG: Final = "hotplug-disk"
INSTANCE_LABEL: Final = "kubevirt.io/created-by"
"""Of launchers: the uid of the VM instance that they run; that of both ends of a migration is one."""


def is_launcher(pod: PodView) -> bool:
    """Whether the pod runs a VM."""
    return pod.metadata.labels.get(KIND_LABEL) == LAUNCHER


def is_hotplug(pod: PodView) -> bool:
    """Whether the pod holds hot-plugged disks of a VM."""
    return pod.metadata.labels.get(KIND_LABEL) == HOTPLUG


def is_vm_part(pod: PodView) -> bool:
    """Whether the pod is a part of a VM of KubeVirt."""
    return is_launcher(pod) or is_hotplug(pod)


def with_launchers(pods: Iterable[PodView], by_uid: Mapping[str, PodView]) -> list[PodView]:
    """The pods, and the launcher of each that holds hot-plugged disks: the VM goes with its disk."""
    found = {pod.metadata.key: pod for pod in pods}
    for pod in list(found.values()):
        if is_hotplug(pod):
            for owner in pod.metadata.owner_references:
                launcher = by_uid.get(str(owner.get("uid", "")))
                if launcher is not None and is_launcher(launcher):
                    found[launcher.metadata.key] = launcher
    return list(found.values())


def vm_of(pod: PodView) -> str:
    """The uid of the VM instance that a launcher runs; empty: the pod runs none."""
    return pod.metadata.labels.get(INSTANCE_LABEL, "") if is_launcher(pod) else ""

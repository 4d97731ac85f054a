"""Pods as copies: what of a pod of KubeVirt says whose copy it is and where its VM runs.

Labels cannot tell a VM's name for sure: they are cut to 63 characters, and a VM's hostname stands in their place if it
has one. So the annotation comes first (docs/reference/network-decisions.md#networkcopy).
"""

from __future__ import annotations

from typing import Final

import msgspec

from outlive.base.errors import OutliveError
from outlive.network.annotation import decode_entry, parse_annotation
from outlive.network.copies import Copy, PortAddresses, TimeText, VmKey, VmNameMissing, parse_time
from outlive.network.names import POD_NETWORKS
from outlive.runtime.decisions import Decision

LAUNCHER_LABEL: Final = "kubevirt.io"
LAUNCHER: Final = "virt-launcher"
DOMAIN_ANNOTATION: Final = "kubevirt.io/domain"
VM_LABEL: Final = "vm.kubevirt.io/name"
MIGRATABLE_ANNOTATION: Final = "kubevirt.io/allow-pod-bridge-network-live-migration"
"""Its value says nothing, not even an empty one."""
RUNS_ON_LABEL: Final = "kubevirt.io/nodeName"
READY_ANNOTATION: Final = "kubevirt.io/migration-target-ready-timestamp"
COMPLETED_PHASES: Final = ("Succeeded", "Failed")


class PodMetadataView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is read of a pod's metadata."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: TimeText | None = None

    def __post_init__(self) -> None:
        """``ValueError`` for a time that cannot be read."""
        parse_time(self.creation_timestamp)


class PodPlacementView(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is read of a pod's spec."""

    node_name: str = ""
    host_network: bool = False


class PodPhaseView(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a pod's status."""

    phase: str = ""


class NetworkPodView(msgspec.Struct, frozen=True, kw_only=True):
    """What of a pod matters to the network."""

    metadata: PodMetadataView = PodMetadataView()
    spec: PodPlacementView = PodPlacementView()
    status: PodPhaseView = PodPhaseView()


def find_vm(pod: NetworkPodView) -> VmKey | None:
    """The VM of which the pod is a copy; ``None``: of none. ``VmNameMissing`` where a copy does not name it."""
    labels, annotations = pod.metadata.labels, pod.metadata.annotations
    if labels.get(LAUNCHER_LABEL, LAUNCHER) != LAUNCHER:
        return None
    if LAUNCHER_LABEL not in labels and VM_LABEL not in labels:
        return None
    name = annotations.get(DOMAIN_ANNOTATION) or labels.get(VM_LABEL)
    if not name:
        raise VmNameMissing(
            f"pod {pod.metadata.namespace}/{pod.metadata.name} does not name its VM",
            remedy=f"set its annotation {DOMAIN_ANNOTATION}",
        )
    return VmKey(pod.metadata.namespace, name)


def is_migratable(pod: NetworkPodView) -> bool:
    """True if addresses on a routed network follow the pod's VM."""
    return MIGRATABLE_ANNOTATION in pod.metadata.annotations


def read_networks(text: str | None) -> dict[str, PortAddresses]:
    """What an annotation says of each network; entries that cannot be read are left out."""
    networks: dict[str, PortAddresses] = {}
    try:
        entries = parse_annotation(text)
    except OutliveError:  # not written yet, or no JSON: the copy has no addresses so far
        return networks
    for network, entry in entries.items():
        try:
            networks[network] = decode_entry(entry)
        except OutliveError:
            continue
    return networks


def read_copy(pod: NetworkPodView) -> Copy:
    """The pod as a copy; ``VmNameMissing``."""
    metadata = pod.metadata
    return Copy(
        id=metadata.uid,
        namespace=metadata.namespace,
        name=metadata.name,
        vm=find_vm(pod),
        hypervisor=pod.spec.node_name or None,
        created=metadata.creation_timestamp,
        completed=pod.status.phase in COMPLETED_PHASES,
        host_network=pod.spec.host_network,
        migratable=is_migratable(pod),
        runs_on=metadata.labels.get(RUNS_ON_LABEL) or None,
        ready_at=metadata.annotations.get(READY_ANNOTATION) or None,
        networks=read_networks(metadata.annotations.get(POD_NETWORKS)),
    )


class PodInput(msgspec.Struct, frozen=True, kw_only=True):
    """A pod as the API server has it."""

    pod: NetworkPodView


COPY: Final[Decision[PodInput, Copy]] = Decision(
    "network.copy",
    lambda given: read_copy(given.pod),
    PodInput,
    Copy,
    "The copy of a VM that a pod is",
    nulls_are_absent=True,
)

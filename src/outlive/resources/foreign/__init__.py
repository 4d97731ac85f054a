"""Kinds of others: Kubernetes itself, KubeVirt, and clouds whose hypervisors are Kubernetes objects."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

from outlive.resources.foreign.base import ForeignPart, ForeignResource, foreign_kind
from outlive.resources.foreign.cloud import CloudHypervisor, CloudReservation
from outlive.resources.foreign.kubernetes import (
    KubernetesEvent,
    KubernetesNode,
    KubernetesPod,
    KubernetesSecret,
    KubernetesService,
    Lease,
    PersistentVolume,
    PodDisruptionBudget,
    VolumeAttachment,
)
from outlive.resources.foreign.kubevirt import (
    ClusterUserDefinedNetwork,
    InstanceMigration,
    KubevirtVirtualMachine,
    UserDefinedNetwork,
    VirtualMachineInstance,
)

if TYPE_CHECKING:
    from outlive.resources.foreign.cloud import CloudHypervisorSpec, CloudHypervisorStatus
    from outlive.resources.foreign.kubernetes import ForeignCondition
else:
    __getattr__ = load_exports(__name__)

FOREIGN_KINDS: tuple[type[ForeignResource], ...] = (
    CloudHypervisor,
    CloudReservation,
    ClusterUserDefinedNetwork,
    InstanceMigration,
    KubernetesEvent,
    KubernetesNode,
    KubernetesPod,
    KubernetesSecret,
    KubernetesService,
    KubevirtVirtualMachine,
    Lease,
    PersistentVolume,
    PodDisruptionBudget,
    UserDefinedNetwork,
    VirtualMachineInstance,
    VolumeAttachment,
)
"""Every kind of others of which something is used."""

__all__ = [
    "FOREIGN_KINDS",
    "CloudHypervisor",
    "CloudReservation",
    "ClusterUserDefinedNetwork",
    "ForeignPart",
    "ForeignResource",
    "InstanceMigration",
    "KubernetesEvent",
    "KubernetesNode",
    "KubernetesPod",
    "KubernetesSecret",
    "KubernetesService",
    "KubevirtVirtualMachine",
    "Lease",
    "PersistentVolume",
    "PodDisruptionBudget",
    "UserDefinedNetwork",
    "VirtualMachineInstance",
    "VolumeAttachment",
    "foreign_kind",
]

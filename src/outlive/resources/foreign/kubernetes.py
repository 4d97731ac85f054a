"""Kinds of Kubernetes itself."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from outlive.resources.foreign.base import ForeignPart, ForeignResource, foreign_kind
from outlive.resources.meta import KindInfo


class NodeTaint(ForeignPart, frozen=True, kw_only=True):
    """What keeps pods off a node."""

    key: str
    effect: str
    value: str | UnsetType | None = UNSET


class NodeSpec(ForeignPart, frozen=True, kw_only=True):
    """What is wanted of a node."""

    unschedulable: bool | UnsetType | None = UNSET
    taints: tuple[NodeTaint, ...] | UnsetType | None = UNSET


class ForeignCondition(ForeignPart, frozen=True, kw_only=True):
    """One observed fact."""

    type: str
    status: str
    reason: str | UnsetType | None = UNSET
    message: str | UnsetType | None = UNSET
    last_transition_time: str | UnsetType | None = UNSET


class ForeignConditions(ForeignPart, frozen=True, kw_only=True):
    """A status half, of which the conditions are used."""

    conditions: tuple[ForeignCondition, ...] | UnsetType | None = UNSET


class KubernetesNode(ForeignResource, frozen=True, kw_only=True, tag=False):
    """A machine that runs pods."""

    info: ClassVar[KindInfo] = foreign_kind("v1", "Node", "nodes")
    spec: NodeSpec | UnsetType | None = UNSET
    status: ForeignConditions | UnsetType | None = UNSET


class PodSpec(ForeignPart, frozen=True, kw_only=True):
    """What is wanted of a pod."""

    node_name: str | UnsetType | None = UNSET


class PodStatus(ForeignConditions, frozen=True, kw_only=True):
    """What is seen of a pod."""

    phase: str | UnsetType | None = UNSET


class KubernetesPod(ForeignResource, frozen=True, kw_only=True, tag=False):
    """A group of processes on one node."""

    info: ClassVar[KindInfo] = foreign_kind("v1", "Pod", "pods", namespaced=True)
    spec: PodSpec | UnsetType | None = UNSET
    status: PodStatus | UnsetType | None = UNSET


class KubernetesSecret(ForeignResource, frozen=True, kw_only=True, tag=False):
    """Bytes that few may read; another kind than ``Secret`` of Outlive."""

    info: ClassVar[KindInfo] = foreign_kind("v1", "Secret", "secrets", namespaced=True)
    type: str | UnsetType | None = UNSET
    data: dict[str, str] | UnsetType | None = UNSET
    """In base64."""


class ServiceSpec(ForeignPart, frozen=True, kw_only=True):
    """Where a service is reached."""

    cluster_ips: tuple[str, ...] | UnsetType | None = msgspec.field(default=UNSET, name="clusterIPs")
    """Of each family one; a service without addresses has the text ``None``."""


class KubernetesService(ForeignResource, frozen=True, kw_only=True, tag=False):
    """Pods under addresses that stay the same."""

    info: ClassVar[KindInfo] = foreign_kind("v1", "Service", "services", namespaced=True)
    spec: ServiceSpec | UnsetType | None = UNSET


class CsiVolume(ForeignPart, frozen=True, kw_only=True):
    """A volume of a storage driver."""

    driver: str
    volume_handle: str


class PersistentVolumeSpec(ForeignPart, frozen=True, kw_only=True):
    """Where a volume's data is."""

    csi: CsiVolume | UnsetType | None = UNSET


class PersistentVolume(ForeignResource, frozen=True, kw_only=True, tag=False):
    """A disk that outlives pods."""

    info: ClassVar[KindInfo] = foreign_kind("v1", "PersistentVolume", "persistentvolumes")
    spec: PersistentVolumeSpec | UnsetType | None = UNSET


class VolumeAttachmentSpec(ForeignPart, frozen=True, kw_only=True):
    """Which volume is to be attached to which node."""

    attacher: str
    node_name: str


class VolumeAttachment(ForeignResource, frozen=True, kw_only=True, tag=False):
    """A volume that a node uses."""

    info: ClassVar[KindInfo] = foreign_kind("storage.k8s.io/v1", "VolumeAttachment", "volumeattachments")
    spec: VolumeAttachmentSpec | UnsetType | None = UNSET


class PodDisruptionBudget(ForeignResource, frozen=True, kw_only=True, tag=False):
    """How many pods of a set may be away by intent; 1.20 serves ``v1beta1`` alone, which later servers do not."""

    info: ClassVar[KindInfo] = foreign_kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", namespaced=True)


class KubernetesEvent(ForeignResource, frozen=True, kw_only=True, tag=False):
    """Something that happened; another kind than ``Event`` of Outlive, and than ``Event`` of the core."""

    info: ClassVar[KindInfo] = foreign_kind("events.k8s.io/v1", "Event", "events", namespaced=True)
    type: str | UnsetType | None = UNSET
    reason: str | UnsetType | None = UNSET
    note: str | UnsetType | None = UNSET


class LeaseSpec(ForeignPart, frozen=True, kw_only=True):
    """Who holds it, and since when."""

    holder_identity: str | UnsetType | None = UNSET
    renew_time: str | UnsetType | None = UNSET


class Lease(ForeignResource, frozen=True, kw_only=True, tag=False):
    """Who is alive, or elected, of others; nothing of Outlive's safety rests on one."""

    info: ClassVar[KindInfo] = foreign_kind("coordination.k8s.io/v1", "Lease", "leases", namespaced=True)
    spec: LeaseSpec | UnsetType | None = UNSET

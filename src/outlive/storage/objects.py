"""Objects of Kubernetes, as the decisions of the storage agent see them: only what they read.

All members may be absent, and unknown ones are overlooked: a decision takes whole documents and trimmed ones alike. A
member of another type makes the object one that is not understood, which is reported and never acted on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec

from outlive.runtime import without_nulls

VIEWS_KEPT: Final = 4096
"""Views of objects that were read, for the next tick."""
DRIVER: Final = "linstor.csi.linbit.com"
"""The CSI driver whose volumes are DRBD resources."""
EXPORT_ATTRIBUTE: Final = "linstor.csi.linbit.com/nfs-export"
"""Of volumes that the storage side exports by itself, and keeps available."""
IGNORE_ANNOTATION: Final = "drbd.linbit.com/ignore-fail-over"
"""Of pods that are left alone, whatever its value."""
POD: Final = ("v1", "Pod")
NODE: Final = ("v1", "Node")
VOLUME: Final = ("v1", "PersistentVolume")
CLAIM: Final = ("v1", "PersistentVolumeClaim")
ATTACHMENT: Final = ("storage.k8s.io/v1", "VolumeAttachment")


class ObjectPart(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A piece of an object."""


class MetaView(ObjectPart, frozen=True, kw_only=True):
    """Which object it is."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str = ""
    owner_references: tuple[dict[str, Any], ...] = ()
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name, by which objects are sorted."""
        return self.namespace, self.name


class ObjectView(ObjectPart, frozen=True, kw_only=True):
    """Any object."""

    metadata: MetaView = MetaView()


class ConditionView(ObjectPart, frozen=True, kw_only=True):
    """One observed fact."""

    type: str = ""
    status: str = ""


class NodeSpecView(ObjectPart, frozen=True, kw_only=True):
    """What is wanted of a node."""

    taints: tuple[dict[str, Any], ...] = ()
    """As they are; one of them is changed by writing all."""


class NodeStatusView(ObjectPart, frozen=True, kw_only=True):
    """What is seen of a node."""

    conditions: tuple[ConditionView, ...] = ()


class NodeView(ObjectView, frozen=True, kw_only=True):
    """A machine that runs pods."""

    spec: NodeSpecView = NodeSpecView()
    status: NodeStatusView = NodeStatusView()

    @property
    def is_ready(self) -> bool:
        """Whether its first condition of type ``Ready`` is true."""
        return is_ready(self.status.conditions)


def is_ready(conditions: tuple[ConditionView, ...]) -> bool:
    """Whether the first condition of type ``Ready`` is true."""
    return next((one.status == "True" for one in conditions if one.type == "Ready"), False)


class ClaimSource(ObjectPart, frozen=True, kw_only=True):
    """A volume of a pod that is a claim."""

    claim_name: str = ""
    read_only: bool = False


class VolumeView(ObjectPart, frozen=True, kw_only=True):
    """A volume of a pod; of which kind it is says the member that is there."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: dict[str, Any] | None = None
    config_map: Any = None
    csi: Any = None
    downward_api: Any = msgspec.field(name="downwardAPI", default=None)
    empty_dir: Any = None
    git_repo: Any = None
    host_path: Any = None
    image: Any = None
    projected: Any = None
    secret: Any = None

    @property
    def is_harmless(self) -> bool:
        """Whether it is of a kind that nobody else writes."""
        kinds = (
            self.config_map,
            self.csi,
            self.downward_api,
            self.empty_dir,
            self.ephemeral,
            self.git_repo,
            self.projected,
            self.secret,
        )
        return any(kind is not None for kind in kinds)


class PodSpecView(ObjectPart, frozen=True, kw_only=True):
    """What is wanted of a pod."""

    node_name: str = ""
    volumes: tuple[VolumeView, ...] = ()


class PodStatusView(ObjectPart, frozen=True, kw_only=True):
    """What is seen of a pod."""

    phase: str = ""


class PodView(ObjectView, frozen=True, kw_only=True):
    """Processes on one node."""

    spec: PodSpecView = PodSpecView()
    status: PodStatusView = PodStatusView()

    @property
    def is_running(self) -> bool:
        """Whether its phase is ``Running``; that of one that is being deleted still is."""
        return self.status.phase == "Running"

    @property
    def is_terminating(self) -> bool:
        """Whether somebody has deleted it."""
        return bool(self.metadata.deletion_timestamp)

    @property
    def claims(self) -> list[tuple[str, bool]]:
        """Names of the claims that it names itself, with whether it only reads them."""
        sources = (volume.persistent_volume_claim for volume in self.spec.volumes)
        return [(one.claim_name, one.read_only) for one in sources if one is not None]

    @property
    def derived_claims(self) -> list[str]:
        """Names of the claims that are made for its ephemeral volumes."""
        return [f"{self.metadata.name}-{one.name}" for one in self.spec.volumes if one.ephemeral is not None]


class CsiView(ObjectPart, frozen=True, kw_only=True):
    """A volume of a CSI driver."""

    driver: str = ""
    volume_handle: str = ""
    read_only: bool = False
    volume_attributes: Mapping[str, Any] = {}


class ClaimRef(ObjectPart, frozen=True, kw_only=True):
    """Whose volume it is."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""

    @property
    def counts(self) -> bool:
        """Whether it names a claim; those that populate volumes themselves write no type."""
        return (self.api_version, self.kind) in (CLAIM, ("", ""))


class VolumeSpecView(ObjectPart, frozen=True, kw_only=True):
    """Where a volume's data is."""

    csi: CsiView | None = None
    claim_ref: ClaimRef | None = None


class PersistentVolumeView(ObjectView, frozen=True, kw_only=True):
    """A disk that outlives pods."""

    spec: VolumeSpecView = VolumeSpecView()

    @property
    def claim(self) -> ClaimRef | None:
        """Its claim, if it counts as one."""
        ref = self.spec.claim_ref
        return ref if ref is not None and ref.counts else None

    @property
    def is_exported(self) -> bool:
        """Whether the storage side keeps it available by itself."""
        return self.spec.csi is not None and EXPORT_ATTRIBUTE in self.spec.csi.volume_attributes


class AttachedSource(ObjectPart, frozen=True, kw_only=True):
    """What is attached."""

    persistent_volume_name: str = ""


class AttachmentSpecView(ObjectPart, frozen=True, kw_only=True):
    """What is attached where."""

    node_name: str = ""
    source: AttachedSource = AttachedSource()


class AttachmentView(ObjectView, frozen=True, kw_only=True):
    """A volume that a node uses."""

    spec: AttachmentSpecView = AttachmentSpecView()


V = TypeVar("V", bound=ObjectView)


@lru_cache(maxsize=VIEWS_KEPT)
def read_view(kind: type[V], raw: bytes) -> V:
    """The view of a document; ``msgspec.ValidationError`` where a member that is read is of another type."""
    return msgspec.convert(without_nulls(msgspec.json.decode(raw)), kind)


class ObjectReference(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The object that an event is about; what is not known is left out."""

    kind: str = ""
    name: str = ""
    namespace: str = ""
    uid: str = ""
    api_version: str = ""


def reference_to(kind: tuple[str, str], obj: ObjectView) -> ObjectReference:
    """How an event names the object."""
    meta = obj.metadata
    return ObjectReference(kind=kind[1], name=meta.name, namespace=meta.namespace, uid=meta.uid, api_version=kind[0])


# Pods of KubeVirt: a VM is a launcher pod, a second one while it migrates, and the pods that hold hot-plugged disks.
#
# All of them are one unit: a disk without its VM is of no use, and a VM whose other end goes on running is no VM
# less. KubeVirt's webhook answers each eviction of a launcher with 429 and begins a live migration, and never lets a
# pod of a hot-plugged disk go, so that evictions alone would not end (docs/how-to/storage-agent.md#kubevirt).

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


def is_vm_part(pod: PodView) -> bool:
    """Whether the pod is a part of a VM of KubeVirt."""
    return pod.metadata.labels.get(KIND_LABEL) in (LAUNCHER, HOTPLUG)


def vm_keys(pod: PodView) -> list[str]:
    """Uids by which parts of one VM find each other: of a launcher its own and that of its VM instance, of a pod of
    hot-plugged disks that of its launcher. Pods that share one belong together; other pods have none."""
    if is_launcher(pod):
        keys = [pod.metadata.uid, pod.metadata.labels.get(INSTANCE_LABEL, "")]
    elif pod.metadata.labels.get(KIND_LABEL) == HOTPLUG:
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

"""How the names of DRBD and those of Kubernetes meet: handles, volumes, claims, pods, attachments, nodes.

The name of a resource is in the handle of its persistent volume; the name of a peer is that of its node, or of the pod
in which its satellite runs (docs/design/storage-decisions.md#names).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from outlive.base import BadInput
from outlive.runtime import Decision
from outlive.storage.objects import (
    DRIVER,
    IGNORE_ANNOTATION,
    AttachmentView,
    ConditionView,
    PersistentVolumeView,
    PodView,
    VolumeView,
    is_ready,
)
from outlive.storage.options import Profile
from outlive.store import Selector

SATELLITE_LABEL: Final = "app.kubernetes.io/component=linstor-satellite"
"""Which pods are satellites, whose names may be those of peers."""
VOLUMES_BY_RESOURCE: Final = "pv-by-rd"
VOLUMES_BY_CLAIM: Final = "pv-by-pvc"
PODS_BY_CLAIM: Final = "pod-by-pvc"
SATELLITE_PODS: Final = "satellite-pod"
ATTACHMENTS_BY_VOLUME: Final = "va-by-pv"
_VOLUME_NUMBER: Final = re.compile(r"(?:\+?0*([0-9]{1,5})|-0+)", re.ASCII)
VOLUME_NUMBER_MOST: Final = 65_535


class BadSelector(BadInput):
    """The label selector of satellites is none."""

    code = "bad-selector"


def resource_of_handle(handle: str, profile: Profile = "hardened") -> tuple[str | None, int | None]:
    """Resource and volume number that a CSI handle names: ``RESOURCE`` or ``RESOURCE/NUMBER``. No resource: it names
    none. In ``compat`` the handle is the name, whatever it is."""
    if profile == "compat":
        return handle, None
    name, slash, text = handle.partition("/")
    if not name:
        return None, None
    if not slash:
        return name, None
    match = _VOLUME_NUMBER.fullmatch(text)
    number = int(match.group(1) or 0) if match is not None else VOLUME_NUMBER_MOST + 1
    return (name, number) if number <= VOLUME_NUMBER_MOST else (None, None)


def parse_selector(text: str) -> Selector:
    """The selector of satellite pods; an empty one selects every pod. ``BadSelector``."""
    try:
        return Selector.parse(text)
    except BadInput as error:
        raise BadSelector(error.message, place="--satellite-pod-label", remedy=error.remedy) from None


def volume_keys(volume: PersistentVolumeView, profile: Profile) -> dict[str, list[str]]:
    """Keys of a persistent volume in the indexes."""
    csi, claim = volume.spec.csi, volume.claim
    name = resource_of_handle(csi.volume_handle, profile)[0] if csi is not None and csi.driver == DRIVER else None
    return {
        VOLUMES_BY_RESOURCE: [] if name is None else [name],
        VOLUMES_BY_CLAIM: [] if claim is None else [f"{claim.namespace}/{claim.name}"],
    }


def pod_keys(pod: PodView, profile: Profile, satellites: Selector) -> dict[str, list[str]]:
    """Keys of a pod in the indexes."""
    claims = [name for name, _ in pod.claims] + ([] if profile == "compat" else pod.derived_claims)
    selected = satellites.matches(pod.metadata.labels)
    return {
        PODS_BY_CLAIM: list(dict.fromkeys(f"{pod.metadata.namespace}/{name}" for name in claims)),
        SATELLITE_PODS: [pod.metadata.name] if selected else [],
    }


def attachment_keys(attachment: AttachmentView) -> dict[str, list[str]]:
    """Keys of an attachment in the indexes."""
    name = attachment.spec.source.persistent_volume_name
    return {ATTACHMENTS_BY_VOLUME: [name] if name else []}


KUBEVIRT_LABELS: Final = (
    "kubevirt.io",
    "kubevirt.io/created-by",
    "kubevirt.io/migrationJobUID",
    "kubevirt.io/vm",
    "vm.kubevirt.io/name",
)
"""Labels by which pods of KubeVirt are known; they are kept beside those of the selector."""


def trim_pod(pod: Mapping[str, Any], satellites: Selector) -> dict[str, Any]:
    """The members of a pod that anything here reads; a cache of whole pods would take hundreds of MiB on each node."""
    kept = {term.key for term in satellites.terms} | set(KUBEVIRT_LABELS)
    metadata = _get_mapping(pod, "metadata")
    trimmed: dict[str, Any] = {name: pod[name] for name in ("apiVersion", "kind") if name in pod}
    names = ("namespace", "name", "uid", "resourceVersion", "deletionTimestamp", "ownerReferences")
    trimmed["metadata"] = {name: metadata[name] for name in names if name in metadata} | {
        "labels": {name: value for name, value in _get_mapping(metadata, "labels").items() if name in kept},
        "annotations": {
            name: value for name, value in _get_mapping(metadata, "annotations").items() if name == IGNORE_ANNOTATION
        },
    }
    for half, fields in (("spec", ("nodeName", "volumes")), ("status", ("phase",))):
        found = {name: value for name, value in _get_mapping(pod, half).items() if name in fields}
        if found:
            trimmed[half] = found
    return trimmed


def _get_mapping(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = document.get(name)
    return part if isinstance(part, Mapping) else {}


def map_node_names(names: Iterable[str], satellites: Mapping[str, list[PodView]]) -> list[str]:
    """The nodes of peers: where exactly one satellite pod has a peer's name and is scheduled, its node."""
    mapped = []
    for name in names:
        pods = satellites.get(name, [])
        mapped.append((pods[0].spec.node_name if len(pods) == 1 else "") or name)
    return mapped


def unsafe_reason(volume: VolumeView, namespace: str, by_claim: Mapping[str, list[PersistentVolumeView]]) -> str:
    """Why somebody else may write the volume while this node is cut off; empty: nobody can.

    DRBD shuts a node out of its own volumes only; what is written elsewhere too would be written by two.
    """
    if volume.is_harmless:
        return ""
    source = volume.persistent_volume_claim
    if source is None:
        return "not-a-claim"
    if source.read_only:
        return ""
    found = by_claim.get(f"{namespace}/{source.claim_name}", [])
    if len(found) != 1:
        return "claim-without-volume" if not found else "claim-with-several-volumes"
    csi = found[0].spec.csi
    if csi is None:
        return "not-csi"
    return "" if csi.read_only or csi.driver == DRIVER else "other-driver"


class HandleInput(msgspec.Struct, frozen=True, kw_only=True):
    """A handle of a CSI volume."""

    handle: str
    profile: Profile = "hardened"


class HandleResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the handle names; no resource: the volume is not indexed."""

    resource: str | None
    volume: int | None


class IndexInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One object, of one of three kinds."""

    profile: Profile = "hardened"
    satellite_pod_label: str = SATELLITE_LABEL
    persistent_volume: PersistentVolumeView | None = None
    volume_attachment: AttachmentView | None = None
    pod: PodView | None = None


class TrimInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod as the API server has it."""

    pod: dict[str, Any]
    satellite_pod_label: str = SATELLITE_LABEL


class TrimResult(msgspec.Struct, frozen=True, kw_only=True):
    """The pod with what is read of it."""

    pod: dict[str, Any]


class NamesInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Names of connections, and pods."""

    connections: tuple[str, ...] = ()
    pods: tuple[PodView, ...] = ()
    satellite_pod_label: str = SATELLITE_LABEL


class NamesResult(msgspec.Struct, frozen=True, kw_only=True):
    """Names of nodes, in the order of the connections."""

    connections: tuple[str, ...]


class SafeInput(msgspec.Struct, frozen=True, kw_only=True):
    """A volume of a pod in a namespace, and the persistent volumes."""

    volume: VolumeView
    namespace: str = ""
    persistentvolumes: tuple[PersistentVolumeView, ...] = ()


class SafeResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a pod with the volume may be started elsewhere."""

    safe: bool
    reason: str | None


class ReadyInput(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions of a node."""

    conditions: tuple[ConditionView, ...] = ()


class ReadyResult(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the node is ready."""

    ready: bool


def index_object(given: IndexInput) -> dict[str, list[str]]:
    """Keys of one object in the indexes of its kind; ``BadInput`` where it is not one object."""
    objects = (given.persistent_volume, given.volume_attachment, given.pod)
    if sum(one is not None for one in objects) != 1:
        raise BadInput("one object is indexed at a time", remedy="give persistentVolume, volumeAttachment or pod")
    if given.persistent_volume is not None:
        return volume_keys(given.persistent_volume, given.profile)
    if given.volume_attachment is not None:
        return attachment_keys(given.volume_attachment)
    assert given.pod is not None
    return pod_keys(given.pod, given.profile, parse_selector(given.satellite_pod_label))


def _resource_name(given: HandleInput) -> HandleResult:
    resource, volume = resource_of_handle(given.handle, given.profile)
    return HandleResult(resource=resource, volume=volume)


def _node_names(given: NamesInput) -> NamesResult:
    selector = parse_selector(given.satellite_pod_label)
    satellites: dict[str, list[PodView]] = {}
    for pod in given.pods:
        if selector.matches(pod.metadata.labels):
            satellites.setdefault(pod.metadata.name, []).append(pod)
    return NamesResult(connections=tuple(map_node_names(given.connections, satellites)))


def _volume_safe(given: SafeInput) -> SafeResult:
    by_claim: dict[str, list[PersistentVolumeView]] = {}
    for volume in given.persistentvolumes:
        for key in volume_keys(volume, "hardened")[VOLUMES_BY_CLAIM]:
            by_claim.setdefault(key, []).append(volume)
    reason = unsafe_reason(given.volume, given.namespace, by_claim)
    return SafeResult(safe=not reason, reason=reason or None)


RESOURCE_NAME: Final = Decision(
    "storage.resource_name",
    _resource_name,
    HandleInput,
    HandleResult,
    "The DRBD resource that a volume handle names",
    nulls_are_absent=True,
)
INDEX: Final = Decision(
    "storage.index",
    index_object,
    IndexInput,
    dict[str, list[str]],
    "Under which keys an object is found",
    nulls_are_absent=True,
)
TRIM_POD: Final[Decision[TrimInput, TrimResult]] = Decision(
    "storage.trim_pod",
    lambda given: TrimResult(pod=trim_pod(given.pod, parse_selector(given.satellite_pod_label))),
    TrimInput,
    TrimResult,
    "The members of a pod that are kept",
    nulls_are_absent=True,
)
NODE_NAMES: Final = Decision(
    "storage.node_names", _node_names, NamesInput, NamesResult, "The nodes that peers are", nulls_are_absent=True
)
VOLUME_SAFE: Final = Decision(
    "storage.volume_safe",
    _volume_safe,
    SafeInput,
    SafeResult,
    "Whether a volume of a pod is written by nobody else while its node is cut off",
    nulls_are_absent=True,
)
NODE_READY: Final[Decision[ReadyInput, ReadyResult]] = Decision(
    "storage.node_ready",
    lambda given: ReadyResult(ready=is_ready(given.conditions)),
    ReadyInput,
    ReadyResult,
    "Whether a node of Kubernetes is ready",
    nulls_are_absent=True,
)

"""What the four decisions of a tick have in common: what they are given, what they answer, and how a plan looks.

Each tick calls ``storage.failover``, ``storage.suspended``, ``storage.forced_errors`` and ``storage.own_taints`` once,
for all resources. A decision remembers nothing but its ``memory``, which the caller gives back unread.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final, Literal

import msgspec

from outlive.base import BadInput
from outlive.storage.drbd import DrbdResource
from outlive.storage.mapping import (
    SATELLITE_PODS,
    attachment_keys,
    map_node_names,
    parse_selector,
    pod_keys,
    unsafe_reason,
    volume_keys,
)
from outlive.storage.objects import (
    ATTACHMENT,
    NODE,
    AttachmentView,
    ClaimRef,
    NodeView,
    ObjectReference,
    PersistentVolumeView,
    PodView,
    VmParts,
    is_vm_part,
    reference_to,
    vm_volume_reason,
)
from outlive.storage.options import AgentOptions, Profile

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
LOST_QUORUM: Final = "drbd.linbit.com/lost-quorum"
FORCED_ERRORS: Final = "drbd.linbit.com/force-io-error"
NO_SCHEDULE: Final = "NoSchedule"
PROVED_BY_QUORUM: Final = "VolumeWithoutQuorum"


class DrbdSnapshot(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The last good poll of DRBD."""

    age_s: float = 0.0
    resources: tuple[DrbdResource, ...] = ()


class KubernetesObjects(msgspec.Struct, frozen=True, kw_only=True):
    """Objects that concern the resources, in any order; others are overlooked."""

    nodes: tuple[NodeView, ...] = ()
    persistentvolumes: tuple[PersistentVolumeView, ...] = ()
    volumeattachments: tuple[AttachmentView, ...] = ()
    pods: tuple[PodView, ...] = ()


class OwnRules(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Rules of our own; each is off unless its member is given."""

    standby_delay_s: float = 0.0
    """How long survivors wait for the one that acts first: of those with current data that of the lowest node id."""
    brake_fraction: float | None = None
    """More than this share of nodes, and of failure domains, lost at once is a mass failover."""
    brake_window_s: float = 0.0
    """How long each loss of a mass failover must last beyond its time."""
    domains: dict[str, str] = {}
    """Node → its failure domain; a node without one is a domain of its own."""
    kubevirt: bool = False
    """Whether pods of KubeVirt are treated as parts of VMs."""
    evacuation_limit_s: float = 60.0
    """How long an evicted VM may take to migrate away from a volume that fails, before its pods are deleted."""
    out_of_service: bool = False
    """Whether a node that somebody declared out of service counts as not ready."""


class TickInput(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one decision of a tick is given."""

    options: AgentOptions
    now: str
    """The reference time (RFC 3339), one for the whole tick."""
    profile: Profile = "hardened"
    memory: Any = None
    snapshot: DrbdSnapshot | None = None
    """``None``: no poll has ended well yet."""
    cluster: KubernetesObjects = KubernetesObjects()
    own: OwnRules = OwnRules()


class StorageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What is reported about an object of Kubernetes once a call has succeeded."""

    type: Literal["Normal", "Warning"]
    reason: str
    action: str
    regarding: ObjectReference
    related: ObjectReference | None = None
    note: str = ""


class PlannedTaint(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A change of a node's taints."""

    node: str
    taints: tuple[dict[str, Any], ...]
    """All of them, after the change."""
    resource_version: str = ""
    """Of the node that they were made from."""
    adds: dict[str, Any] | None = None
    """The taint that the change is about, where it is one that must be there."""
    events: tuple[StorageEvent, ...] = ()


class PlannedRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that goes."""

    op: Literal["evict", "delete_pod"]
    namespace: str
    pod: str
    uid: str
    grace: int
    events: tuple[StorageEvent, ...] = ()
    refused: tuple[StorageEvent, ...] = ()
    """What is reported after a refusal (429), which is no failure then: KubeVirt moves the VM itself."""


class PlannedDetachment(msgspec.Struct, frozen=True, kw_only=True):
    """An attachment that goes once all pods went."""

    name: str
    uid: str
    grace: int
    events: tuple[StorageEvent, ...] = ()


class PlannedDemotion(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A resource of this node that gives up its role."""

    resource: str
    has_volume: bool
    events: tuple[StorageEvent, ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one decision wants done about one node: everything that carrying it out needs."""

    of: Literal["failover", "suspended", "forced_errors", "own_taints"]
    profile: Profile
    resource: str | None
    node: str
    further_nodes: tuple[str, ...] = ()
    """Lost nodes with parts of VMs that go as well."""
    node_ready: bool = False
    taint: PlannedTaint | None = None
    removals: tuple[PlannedRemoval, ...] = ()
    detachments: tuple[PlannedDetachment, ...] = ()
    demotion: PlannedDemotion | None = None


class PendingLoss(msgspec.Struct, frozen=True, kw_only=True):
    """A peer that looks lost, whose time is not over."""

    resource: str
    node: str
    since: str


class WaitingLoss(msgspec.Struct, frozen=True, kw_only=True):
    """A lost peer whose time is over, and for whom something else is waited for."""

    resource: str
    node: str
    since: str
    rule: Literal["standby", "brake", "migration"]
    detail: str = ""


class RecordedCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One check of a decision with the value that it saw."""

    resource: str
    check: str
    holds: bool
    value: str = ""
    node: str = ""
    pod: str = ""


class SkippedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that is left alone, and why."""

    resource: str
    node: str
    namespace: str
    pod: str
    reason: Literal["unowned", "annotation", "unsafe", "read-only"]
    detail: str = ""


class TickResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one decision of a tick answers."""

    memory: Any = None
    plans: tuple[Plan, ...] = ()
    pending: tuple[PendingLoss, ...] = ()
    skipped: tuple[SkippedPod, ...] = ()
    waiting: tuple[WaitingLoss, ...] = ()
    """Losses that own rules hold back."""
    braked: bool = False
    """Whether so much is lost that it is a mass failover."""
    stale: bool = False
    error: Literal["node-missing"] | None = None


def parse_time(text: str) -> datetime:
    """A time as objects have it; ``BadInput``."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"{text[:80]!r} is no time", remedy="write one such as 2030-01-01T00:00:00Z") from None
    if found.tzinfo is None:
        raise BadInput(f"{text[:80]!r} has no zone", remedy="write one such as 2030-01-01T00:00:00Z")
    return found


def has_elapsed(since: str, seconds: float, now: str) -> bool:
    """Whether so long has passed; the very instant counts."""
    return parse_time(since) + timedelta(seconds=seconds) <= parse_time(now)


class ResourceObjects:
    """One resource with all that Kubernetes has of it; nothing in it is changed."""

    def __init__(self, view: TickView, resource: DrbdResource, volumes: list[PersistentVolumeView]) -> None:
        self.resource = resource
        self.volumes = volumes
        self._view = view

    @cached_property
    def claims(self) -> list[ClaimRef]:
        """Claims of the volumes that count."""
        return [volume.claim for volume in self.volumes if volume.claim is not None]

    @cached_property
    def pods(self) -> list[PodView]:
        """Pods that name one of the claims, on all nodes and in all phases."""
        found = {}
        for claim in self.claims:
            for pod in self._view.pods_by_claim.get(f"{claim.namespace}/{claim.name}", ()):
                found[pod.metadata.key] = pod
        return [found[key] for key in sorted(found)]

    @cached_property
    def attachments(self) -> list[AttachmentView]:
        """Attachments of the volumes, in order of the volumes."""
        names = [self.resource.name]
        if self._view.profile != "compat" and self.volumes:
            names = [volume.metadata.name for volume in self.volumes]
        return [one for name in names for one in self._view.attachments_by_volume.get(name, ())]

    @cached_property
    def node_names(self) -> list[str]:
        """Nodes of the connections, in their order."""
        names = [connection.name for connection in self.resource.connections]
        return map_node_names(names, self._view.satellite_pods)

    def attachments_on(self, node: str) -> list[AttachmentView]:
        """Attachments to that node."""
        return [one for one in self.attachments if one.spec.node_name == node]

    def pods_on(self, node: str) -> list[PodView]:
        """Pods on that node, in all phases."""
        return [pod for pod in self.pods if pod.spec.node_name == node]

    def is_read_only(self) -> bool:
        """Whether no pod may write; that holds where there is none."""
        claims = {(claim.namespace, claim.name) for claim in self.claims}
        for pod in self.pods:
            writes = {name for name, read_only in pod.claims if not read_only}
            if self._view.profile != "compat":
                writes.update(pod.derived_claims)
            if any((pod.metadata.namespace, name) in claims for name in writes):
                return False
        return True

    def local_attachment(self, node: str) -> ObjectReference | None:
        """The first attachment to that node, which events of this node relate to."""
        found = self.attachments_on(node)
        return reference_to(ATTACHMENT, found[0]) if found else None


_SHARED: Final = ("resources", "_volumes", "_pods", "attachments_by_volume", "nodes", "pods_by_uid", "requests")
"""What a view works out of objects, DRBD and options alone."""
_last_view: Final[list[TickView]] = []
"""The view of the decision before; none or one."""


def view_of(given: TickInput) -> TickView:
    """The view of an input. The decisions of one tick are given the very same objects, whose indexes are made once."""
    view = TickView(given)
    for last in _last_view:
        parts = ("cluster", "snapshot", "options", "profile")
        if all(getattr(last.given, name) is getattr(given, name) for name in parts):
            view.__dict__.update({name: last.__dict__[name] for name in _SHARED if name in last.__dict__})
    _last_view[:] = [view]
    return view


class TickView:
    """The input of a decision with its indexes, which are made when they are needed."""

    def __init__(self, given: TickInput) -> None:
        self.given = given
        self.profile = given.profile
        self.options = given.options

    @property
    def is_hardened(self) -> bool:
        """Which profile decides."""
        return self.profile == "hardened"

    @property
    def is_stale(self) -> bool:
        """Whether nothing may be decided: there is no snapshot, or it is too old."""
        snapshot = self.given.snapshot
        return self.is_hardened and (snapshot is None or snapshot.age_s > self.options.drbd_stale_after_s)

    @cached_property
    def resources(self) -> list[DrbdResource]:
        """Those of the snapshot, without exports."""
        found = self.given.snapshot.resources if self.given.snapshot is not None else ()
        if not self.is_hardened:
            return list(found)
        volumes = self.volumes_by_resource
        return [one for one in found if not any(volume.is_exported for volume in volumes.get(one.name, ()))]

    @cached_property
    def volumes_by_resource(self) -> dict[str, list[PersistentVolumeView]]:
        """Resource → its persistent volumes, by name."""
        return self._volumes[0]

    @cached_property
    def volumes_by_claim(self) -> dict[str, list[PersistentVolumeView]]:
        """``namespace/name`` of a claim → its persistent volumes."""
        return self._volumes[1]

    @cached_property
    def pods_by_claim(self) -> dict[str, list[PodView]]:
        """``namespace/name`` of a claim → pods that name it."""
        return self._pods[0]

    @cached_property
    def satellite_pods(self) -> dict[str, list[PodView]]:
        """Name of a satellite pod → the pods of that name."""
        return self._pods[1]

    @cached_property
    def attachments_by_volume(self) -> dict[str, list[AttachmentView]]:
        """Name of a persistent volume → its attachments."""
        found: dict[str, list[AttachmentView]] = {}
        for one in sorted(self.given.cluster.volumeattachments, key=_sort_key):
            for keys in attachment_keys(one).values():
                for key in keys:
                    found.setdefault(key, []).append(one)
        return found

    @cached_property
    def nodes(self) -> dict[str, NodeView]:
        """Name → node."""
        return {node.metadata.name: node for node in self.given.cluster.nodes}

    def counts_as_ready(self, node: NodeView) -> bool:
        """Whether pods of the node can be expected to end by themselves."""
        declared = self.given.own.out_of_service and any(
            taint.get("key") == OUT_OF_SERVICE for taint in node.spec.taints
        )
        return node.is_ready and not declared

    @cached_property
    def vms(self) -> VmParts:
        """VMs of KubeVirt; none without the rule of our own."""
        return VmParts(self.given.cluster.pods if self.given.own.kubevirt else ())

    def unsafe_volumes(self, pod: PodView) -> list[str]:
        """Each volume of the pod that somebody else may write while its node is cut off, with the reason."""
        found = []
        for volume in pod.spec.volumes:
            why = unsafe_reason(volume, pod.metadata.namespace, self.volumes_by_claim)
            if why and self.given.own.kubevirt and is_vm_part(pod):
                why = vm_volume_reason(volume, why)
            if why:
                found.append(f"{volume.name}: {why}")
        return found

    @cached_property
    def requests(self) -> list[ResourceObjects]:
        """One for each resource that can be decided about. In ``compat`` one with several volumes cannot."""
        made = []
        for resource in self.resources:
            volumes = self.volumes_by_resource.get(resource.name, [])
            if self.is_hardened or len(volumes) <= 1:
                made.append(ResourceObjects(self, resource, volumes))
        return made

    def plan_taint(
        self, node: NodeView, key: str, reason: str, related: ObjectReference | None, note: str
    ) -> PlannedTaint | None:
        """Add a taint of ours to a node; ``None``: it is there, or no taints are written."""
        if self.options.disable_node_taints or has_taint(node, key):
            return None
        taint = {"key": key, "effect": NO_SCHEDULE, "timeAdded": self.given.now}
        return PlannedTaint(
            node=node.metadata.name,
            taints=(*node.spec.taints, taint),
            resource_version=node.metadata.resource_version,
            adds=taint,
            events=(
                StorageEvent(
                    type="Warning",
                    reason=reason,
                    action="TaintedNode",
                    regarding=reference_to(NODE, node),
                    related=related,
                    note=note,
                ),
            ),
        )

    @cached_property
    def _volumes(self) -> tuple[dict[str, list[PersistentVolumeView]], dict[str, list[PersistentVolumeView]]]:
        by_resource: dict[str, list[PersistentVolumeView]] = {}
        by_claim: dict[str, list[PersistentVolumeView]] = {}
        for volume in sorted(self.given.cluster.persistentvolumes, key=_sort_key):
            keys = volume_keys(volume, self.profile)
            for found, names in zip((by_resource, by_claim), keys.values(), strict=True):
                for name in names:
                    found.setdefault(name, []).append(volume)
        return by_resource, by_claim

    @cached_property
    def _pods(self) -> tuple[dict[str, list[PodView]], dict[str, list[PodView]]]:
        satellites = parse_selector(self.options.satellite_pod_label)
        by_claim: dict[str, list[PodView]] = {}
        by_name: dict[str, list[PodView]] = {}
        for pod in sorted(self.given.cluster.pods, key=_sort_key):
            keys = pod_keys(pod, self.profile, satellites)
            for name in keys[SATELLITE_PODS]:
                by_name.setdefault(name, []).append(pod)
            for found in (keys[name] for name in keys if name != SATELLITE_PODS):
                for name in found:
                    by_claim.setdefault(name, []).append(pod)
        return by_claim, by_name


def has_taint(node: NodeView, key: str) -> bool:
    """Whether the node has a taint of that key with our effect; its value does not matter."""
    return any(one.get("key") == key and one.get("effect") == NO_SCHEDULE for one in node.spec.taints)


def _sort_key(obj: Any) -> tuple[str, str]:
    key: tuple[str, str] = obj.metadata.key
    return key

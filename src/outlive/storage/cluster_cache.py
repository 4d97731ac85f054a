"""What the agent keeps of the cluster: four kinds, cluster wide, each trimmed to what is read of it, with indexes.

An object that is not understood stays out, and its last good state stays in; ``malformed`` names it and why.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET

from outlive.base import Clock, Random
from outlive.resources import ObjectMeta, ObjectRef
from outlive.resources.foreign import (
    ForeignResource,
    KubernetesNode,
    KubernetesPod,
    PersistentVolume,
    VolumeAttachment,
)
from outlive.runtime import Informer, OrderedTaskGroup, without_nulls
from outlive.storage.drbd import DrbdResource
from outlive.storage.mapping import (
    ATTACHMENTS_BY_VOLUME,
    PODS_BY_CLAIM,
    SATELLITE_PODS,
    VOLUMES_BY_CLAIM,
    VOLUMES_BY_RESOURCE,
    attachment_keys,
    map_node_names,
    parse_selector,
    pod_keys,
    trim_pod,
    volume_keys,
)
from outlive.storage.metrics import CacheState
from outlive.storage.objects import (
    VM_PARTS,
    AttachmentView,
    NodeView,
    ObjectView,
    PersistentVolumeView,
    PodView,
    is_vm_part,
    read_view,
    vm_keys,
)
from outlive.storage.options import AgentFlags
from outlive.storage.tick import KubernetesObjects
from outlive.store import Change, Malformed, Selector, Store, Upsert

K = TypeVar("K", bound=ForeignResource)
VIEWS: Final[Mapping[type[ForeignResource], type[ObjectView]]] = {
    KubernetesNode: NodeView,
    KubernetesPod: PodView,
    PersistentVolume: PersistentVolumeView,
    VolumeAttachment: AttachmentView,
}
"""Kinds that are kept → what is read of them."""


class ClusterCache:
    """See the module."""

    def __init__(self, flags: AgentFlags, store: Store, clock: Clock, random: Random) -> None:
        profile, self._satellites = flags.profile, parse_selector(flags.options.satellite_pod_label)
        trimmed: Any = _TrimmedStore(store, self._satellites)

        def make_informer(kind: type[K], indexes: Any) -> Informer[K]:
            return Informer(trimmed, kind, clock=clock, random=random, indexes=indexes)

        self.nodes = make_informer(KubernetesNode, {})
        self.volumes = make_informer(
            PersistentVolume,
            {
                name: lambda obj, name=name: volume_keys(_convert_view(PersistentVolumeView, obj), profile)[name]
                for name in (VOLUMES_BY_RESOURCE, VOLUMES_BY_CLAIM)
            },
        )
        self.attachments = make_informer(
            VolumeAttachment,
            {
                ATTACHMENTS_BY_VOLUME: lambda obj: attachment_keys(_convert_view(AttachmentView, obj))[
                    ATTACHMENTS_BY_VOLUME
                ]
            },
        )
        self.pods = make_informer(
            KubernetesPod,
            {
                name: lambda obj, name=name: pod_keys(_convert_view(PodView, obj), profile, self._satellites)[name]
                for name in (PODS_BY_CLAIM, SATELLITE_PODS)
            }
            | {VM_PARTS: lambda obj: vm_keys(_convert_view(PodView, obj))},
        )
        self._informers: tuple[Informer[Any], ...] = (self.volumes, self.pods, self.attachments, self.nodes)

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        async with OrderedTaskGroup() as group:
            for one in self._informers:
                group.create_task(one.run(), name=f"cache of {one.name}")

    @property
    def filled(self) -> bool:
        """Whether all kinds were listed once."""
        return all(one.synced for one in self._informers)

    async def wait_filled(self) -> None:
        """Return once ``filled``."""
        for one in self._informers:
            await one.wait_synced()

    def list_states(self) -> list[CacheState]:
        """How well each kind is known."""
        return [
            CacheState(one.kind.info.plural, one.synced, one.stalled_s(), one.error, len(one.malformed))
            for one in self._informers
        ]

    @property
    def malformed(self) -> dict[str, str]:
        """``kind/key`` of objects that are not understood → why."""
        return {f"{one.name}/{key}": why for one in self._informers for key, why in one.malformed.items()}

    def failure_domains(self, label: str) -> dict[str, str]:
        """Node → its failure domain, of nodes that have that label."""
        labels = {one.name: _convert_view(NodeView, one).metadata.labels for one in self.nodes.items()}
        return {name: found[label] for name, found in labels.items() if label in found}

    def find_node(self, name: str) -> NodeView | None:
        """The node of that name."""
        found = self.nodes.get(name)
        return None if found is None else _convert_view(NodeView, found)

    def node_of_peer(self, name: str) -> str:
        """The node that DRBD knows by that name."""
        return map_node_names([name], {name: self._find(self.pods, PodView, SATELLITE_PODS, name)})[0]

    def gather(self, resources: Iterable[DrbdResource], own_node: str) -> KubernetesObjects:
        """All objects that concern the resources and this node."""
        volumes: dict[str, PersistentVolumeView] = {}
        pods: dict[tuple[str, str], PodView] = {}
        attachments: dict[str, AttachmentView] = {}
        nodes = {own_node}
        for resource in resources:
            names = [resource.name]
            claims = []
            for volume in self._find(self.volumes, PersistentVolumeView, VOLUMES_BY_RESOURCE, resource.name):
                volumes[volume.metadata.name] = volume
                names.append(volume.metadata.name)
                if volume.claim is not None:
                    claims.append(f"{volume.claim.namespace}/{volume.claim.name}")
            for claim in claims:
                for pod in self._find(self.pods, PodView, PODS_BY_CLAIM, claim):
                    pods[pod.metadata.key] = pod
            for name in names:
                for attachment in self._find(self.attachments, AttachmentView, ATTACHMENTS_BY_VOLUME, name):
                    attachments[attachment.metadata.name] = attachment
            for connection in resource.connections:
                nodes.add(connection.name)
                for pod in self._find(self.pods, PodView, SATELLITE_PODS, connection.name):
                    pods[pod.metadata.key] = pod
                    nodes.add(pod.spec.node_name)
        rest = [pod for pod in pods.values() if is_vm_part(pod)]
        while rest:
            for key in vm_keys(rest.pop()):
                for pod in self._find(self.pods, PodView, VM_PARTS, key):
                    if pod.metadata.key not in pods:
                        pods[pod.metadata.key] = pod
                        rest.append(pod)
        for pod in list(pods.values()):
            for name, _ in pod.claims:
                key = f"{pod.metadata.namespace}/{name}"
                for volume in self._find(self.volumes, PersistentVolumeView, VOLUMES_BY_CLAIM, key):
                    volumes[volume.metadata.name] = volume
        return KubernetesObjects(
            nodes=tuple(node for name in sorted(nodes) if (node := self.find_node(name)) is not None),
            persistentvolumes=tuple(volumes.values()),
            volumeattachments=tuple(attachments.values()),
            pods=tuple(pods.values()),
        )

    def _find(self, informer: Informer[Any], kind: type[Any], index: str, key: str) -> list[Any]:
        return [_convert_view(kind, obj) for obj in informer.list_by_index(index, key)]


def _convert_view(kind: type[Any], obj: ForeignResource) -> Any:
    view: Any = read_view(kind, obj.raw)  # type: ignore[arg-type]
    return view


class _TrimmedStore:
    """The store as the informers observe it: each object is cut down to its view, and checked to be one."""

    def __init__(self, store: Store, satellites: Selector) -> None:
        self._store = store
        self._satellites = satellites

    async def observe(self, kind: type[K], *, selector: Selector | None = None) -> AsyncGenerator[Change[K], None]:
        """See ``Store``."""
        async with aclosing(self._store.observe(kind, selector=selector)) as changes:  # type: ignore[type-var]
            async for change in changes:
                yield self._trim(kind, change.object) if isinstance(change, Upsert) else change

    def _trim(self, kind: type[K], obj: K) -> Change[K]:
        document, meta = obj.document, obj.metadata
        if kind is KubernetesPod:  # first, since little is left of one
            document = trim_pod(document, self._satellites)
        document = without_nulls(document)
        try:
            view = msgspec.convert(document, VIEWS[kind])
        except msgspec.ValidationError as error:
            version = kind.info.api_version
            ref = ObjectRef(
                kind=kind.kind(), name=meta.name, namespace=meta.namespace, uid=meta.uid, api_version=version
            )
            return Malformed(ref, str(error))
        trimmed = ObjectMeta(
            name=meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version
        )
        raw = msgspec.json.encode(document if kind is KubernetesPod else view)
        halves: dict[str, Any] = {name: UNSET for name in obj.__struct_fields__ if name in ("spec", "status")}
        return Upsert(msgspec.structs.replace(obj, metadata=trimmed, raw=raw, **halves))

"""What the follower keeps of a Kubernetes cluster: pods and nodes, cut down to facts, with indexes.

A pod that is not understood stays out, and its last good state stays in; ``Informer.malformed`` names it and why.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Iterator
from contextlib import aclosing
from functools import lru_cache
from ipaddress import ip_network
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET

from outlive.base import Clock, OutliveError, Random, get_logger
from outlive.network.addressing import parse_any
from outlive.network.copies import Copy, VmKey, find_copies
from outlive.network.names import DEFAULT_NETWORK, POD_NETWORKS
from outlive.network.pod_facts import (
    ANNOUNCEMENTS,
    NODE_ANNOTATIONS,
    NodeAnnotationsView,
    NodeFacts,
    PodFacts,
    read_node,
    read_pod,
)
from outlive.network.pods import (
    DOMAIN_ANNOTATION,
    LAUNCHER_LABEL,
    MIGRATABLE_ANNOTATION,
    READY_ANNOTATION,
    RUNS_ON_LABEL,
    VM_LABEL,
    NetworkPodView,
)
from outlive.resources import ObjectMeta, ObjectRef
from outlive.resources.foreign import ForeignResource, KubernetesNode, KubernetesPod, KubernetesService
from outlive.runtime import Informer, without_nulls
from outlive.store import Change, Malformed, Selector, Store, Upsert

K = TypeVar("K", bound=ForeignResource)
BY_COPY: Final = "vm"
"""Copies of a VM, by ``namespace/name``."""
BY_POD_ADDRESS: Final = "address"
"""Pods that live, by ``network/address``."""
BY_BLOCK: Final = "block"
"""Pods that live, by the block in which an address of the default network lies."""
BLOCKS: Final = {4: 24, 6: 64}
"""Length of a block's prefix."""
BLOCKS_LIMIT: Final = 64
"""Blocks of one subnet that are looked at."""
FACTS_KEPT: Final = 65_536
"""Objects whose facts are kept decoded."""
POD_LABELS: Final = frozenset({LAUNCHER_LABEL, VM_LABEL, RUNS_ON_LABEL})
POD_ANNOTATIONS: Final = frozenset(
    {DOMAIN_ANNOTATION, MIGRATABLE_ANNOTATION, READY_ANNOTATION, POD_NETWORKS, ANNOUNCEMENTS}
)


_log = get_logger("network")


class PodCache:
    """See the module."""

    def __init__(self, store: Store, clock: Clock, random: Random) -> None:
        facts: Any = _FactsStore(store)
        self.pods: Informer[KubernetesPod] = Informer(
            facts,
            KubernetesPod,
            clock=clock,
            random=random,
            indexes={BY_COPY: _vm_index, BY_POD_ADDRESS: _address_index, BY_BLOCK: _block_index},
        )
        self.nodes: Informer[KubernetesNode] = Informer(facts, KubernetesNode, clock=clock, random=random)

    def copies_of(self, vm: VmKey) -> list[Copy]:
        """Copies of a VM, oldest first."""
        return find_copies(vm, (pod_facts(one).copy for one in self.pods.list_by_index(BY_COPY, str(vm))))

    def pods_of(self, vm: VmKey | None) -> list[PodFacts]:
        """The facts of a VM's pods; of nobody none."""
        return [pod_facts(one) for one in self.pods.list_by_index(BY_COPY, str(vm))]

    def all_copies(self) -> list[Copy]:
        """Copies of all VMs."""
        return [copy for one in self.pods.items() if (copy := pod_facts(one).copy).vm is not None]

    def pods_with(self, network: str, address: str) -> list[Copy]:
        """Pods that live and have the address (without mask) on a network."""
        return [pod_facts(one).copy for one in self.pods.list_by_index(BY_POD_ADDRESS, f"{network}/{address}")]

    def copies_near(self, subnets: Iterable[str]) -> Iterator[Copy]:
        """Pods that live and have an address of the default network in one of the subnets or near it; some twice."""
        for subnet in map(ip_network, subnets):
            length = BLOCKS[subnet.version]
            blocks: Iterable[Any] = (
                subnet.subnets(new_prefix=length)
                if subnet.prefixlen <= length
                else (subnet.supernet(new_prefix=length),)
            )
            for block in islice(blocks, BLOCKS_LIMIT):
                yield from (pod_facts(one).copy for one in self.pods.list_by_index(BY_BLOCK, str(block)))

    def all_nodes(self) -> list[NodeFacts]:
        """All nodes, by their names."""
        return [node_facts(one) for one in self.nodes.items()]


class DnsService:
    """The service whose addresses guests are given for names."""

    def __init__(self, store: Store, name: str) -> None:
        """``name``: ``namespace/name``; empty: guests are given none."""
        self.addresses: tuple[str, ...] | None = None
        """As last read; ``None``: it was never there."""
        self._store = store
        self._name = name

    async def read(self) -> bool:
        """Read it; true if its addresses changed. One that is gone leaves them: guests keep what they know."""
        if not self._name:
            return False
        try:
            service = await self._store.get(KubernetesService, self._name)
        except OutliveError as error:
            _log.warning("network.dns_service", service=self._name, error=str(error))
            return False
        spec = service.spec if isinstance(service.spec, msgspec.Struct) else None
        found = spec.cluster_ips if spec is not None else None
        before, self.addresses = self.addresses, found if isinstance(found, tuple) else ()
        return self.addresses != before


def pod_facts(pod: KubernetesPod) -> PodFacts:
    """The facts of a pod of the cache."""
    return _pod_facts(pod.raw)


def node_facts(node: KubernetesNode) -> NodeFacts:
    """The facts of a node of the cache."""
    return _node_facts(node.raw)


@lru_cache(maxsize=FACTS_KEPT)
def _pod_facts(raw: bytes) -> PodFacts:
    return msgspec.json.decode(raw, type=PodFacts)


@lru_cache(maxsize=FACTS_KEPT)
def _node_facts(raw: bytes) -> NodeFacts:
    return msgspec.json.decode(raw, type=NodeFacts)


def _vm_index(pod: KubernetesPod) -> Iterable[str]:
    vm = pod_facts(pod).copy.vm
    return () if vm is None else (str(vm),)


def _block_index(pod: KubernetesPod) -> Iterable[str]:
    copy = pod_facts(pod).copy
    entry = copy.networks.get(DEFAULT_NETWORK)
    if entry is None or copy.completed or copy.host_network:
        return ()
    addresses = [parse_any(one) for one in entry.addresses]
    return [str(ip_network((one, BLOCKS[one.version]), strict=False)) for one in addresses]


def _address_index(pod: KubernetesPod) -> Iterable[str]:
    copy = pod_facts(pod).copy
    if copy.completed or copy.host_network:
        return ()
    return [f"{name}/{one.partition('/')[0]}" for name, entry in copy.networks.items() for one in entry.addresses]


class _FactsStore:
    """The store as the informers observe it: each document is replaced by its facts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def observe(self, kind: type[K], *, selector: Selector | None = None) -> AsyncGenerator[Change[K], None]:
        """See ``Store``."""
        async with aclosing(self._store.observe(kind, selector=selector)) as changes:  # type: ignore[type-var]
            async for change in changes:
                yield _cut(kind, change.object) if isinstance(change, Upsert) else change


def _cut(kind: type[K], obj: K) -> Change[K]:
    document, meta = without_nulls(obj.document), obj.metadata
    facts: PodFacts | NodeFacts
    try:
        metadata = document.get("metadata", {})
        if kind is KubernetesPod:
            _keep(metadata, "labels", POD_LABELS)
            _keep(metadata, "annotations", POD_ANNOTATIONS)
            facts = read_pod(msgspec.convert(document, NetworkPodView))
        else:
            _keep(metadata, "annotations", NODE_ANNOTATIONS)
            facts = read_node(meta.name, msgspec.convert(document, NodeAnnotationsView))
    except msgspec.ValidationError as error:
        version = kind.info.api_version
        ref = ObjectRef(kind=kind.kind(), name=meta.name, namespace=meta.namespace, uid=meta.uid, api_version=version)
        return Malformed(ref, str(error))
    own = ObjectMeta(name=meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=meta.resource_version)
    halves: dict[str, Any] = dict.fromkeys(("spec", "status"), UNSET)
    return Upsert(msgspec.structs.replace(obj, metadata=own, raw=msgspec.json.encode(facts), **halves))


def _keep(metadata: Any, part: str, names: Collection[str]) -> None:
    """Cut a map of an object's metadata down to some names; a value of another type stays, to be refused."""
    found = metadata.get(part) if isinstance(metadata, dict) else None
    if isinstance(found, dict):
        metadata[part] = {name: found[name] for name in names if name in found}

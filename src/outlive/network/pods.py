"""Pods as copies: what of a pod of KubeVirt says whose copy it is and where its VM runs.

Labels cannot tell a VM's name for sure: they are cut to 63 characters, and a VM's hostname stands in their place if it
has one. So the annotation comes first (docs/design/network-decisions.md#networkcopy).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from outlive.base import OutliveError
from outlive.network.annotation import decode_entry, parse_annotation
from outlive.network.copies import Copy, PortAddresses, TimeText, VmKey, VmNameMissing, is_allowed, parse_time
from outlive.network.dhcp import PRIMARY, SECONDARY
from outlive.network.names import DEFAULT_NETWORK, POD_NETWORKS
from outlive.resources import VirtualNetwork
from outlive.runtime import Decision

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
        migratable=MIGRATABLE_ANNOTATION in metadata.annotations,
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


# Which networks a VM's pods are on, by the entries of their annotations.
#
# The entry ``default`` is the cluster's routed network, which is followed for pods that may take their address along
# (the bridge annotation). Any other entry is named like its NetworkAttachmentDefinition, ``namespace/name``, and
# belongs to the ``VirtualNetwork`` that lists it in its annotation ``outlive.dev/attachments``, or else is called
# ``namespace.name``. An entry that no VirtualNetwork claims is somebody else's.

ATTACHMENTS: Final = "outlive.dev/attachments"
"""Annotation of a ``VirtualNetwork``: its NetworkAttachmentDefinitions, ``namespace/name`` with commas between."""
NETWORK_NUMBER: Final = "outlive.dev/network-id"
"""Annotation of a ``VirtualNetwork``: the number by which nodes name their management interface there."""
TRANSIT_ROUTER: Final = "outlive.dev/transit-router"
"""Annotation of a ``VirtualNetwork``: ``true`` where one router is shared by all nodes."""
LOCKED: Final = "infrastructure-locked"
"""Role of the default network in a pod whose primary network is another one."""


class PodNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """One network that a VM's pods are on, besides the default one."""

    nad: str
    """Its key in the annotation."""
    network: str
    """Name of the ``VirtualNetwork``."""
    topology: Literal["layer2", "localnet"]
    role: Literal["primary", "secondary"] = "secondary"
    port_security: bool = True
    mtu: int = 0
    dns_servers: tuple[str, ...] = ()
    """That guests are given in place of the cluster's."""
    number: str = ""
    """Of the network's management interfaces; empty: it is not known."""
    transit_router: bool = False


def attachments_of(network: VirtualNetwork) -> tuple[str, ...]:
    """The attachments that a network has: as it lists them, else the one that it is called after."""
    listed = network.metadata.annotations.get(ATTACHMENTS, "")
    if listed:
        return tuple(one.strip() for one in listed.split(",") if one.strip())
    namespace, dot, name = network.name.partition(".")
    return (f"{namespace}/{name}",) if dot else ()


def index_attachments(networks: Iterable[VirtualNetwork]) -> dict[str, VirtualNetwork]:
    """Attachment → its network; of two that list one, the first by name."""
    found: dict[str, VirtualNetwork] = {}
    for network in sorted(networks, key=lambda one: one.name):
        for nad in attachments_of(network):
            found.setdefault(nad, network)
    return found


def networks_of(copies: Sequence[Copy], attachments: Mapping[str, VirtualNetwork]) -> list[PodNetwork]:
    """The named networks of a VM's pods, by their keys."""
    roles: dict[str, str] = {}
    for copy in copies:
        for nad, entry in copy.networks.items():
            roles[nad] = entry.role or roles.get(nad, SECONDARY)
    found = []
    for nad, role in sorted(roles.items()):
        network = attachments.get(nad)
        if nad == DEFAULT_NETWORK or network is None:
            continue
        if any(is_allowed(copy, network.spec.type) for copy in copies):
            found.append(pod_network(nad, network, role))
    return found


def pod_network(nad: str, network: VirtualNetwork, role: str = SECONDARY) -> PodNetwork:
    """A network as a VM's pods are on it."""
    assert network.spec.type in ("layer2", "localnet")
    annotations = network.metadata.annotations
    return PodNetwork(
        nad=nad,
        network=network.name,
        topology=network.spec.type,
        role="primary" if role == PRIMARY else "secondary",
        port_security=network.spec.port_security,
        mtu=network.spec.mtu,
        dns_servers=network.spec.dhcp.dns_servers,
        number=annotations.get(NETWORK_NUMBER, ""),
        transit_router=annotations.get(TRANSIT_ROUTER, "") == "true",
    )


def follows_default(copy: Copy) -> bool:
    """True if the default network follows the copy."""
    entry = copy.networks.get(DEFAULT_NETWORK)
    return copy.migratable and not (entry is not None and entry.role == LOCKED)

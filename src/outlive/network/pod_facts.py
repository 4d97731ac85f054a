"""What the network reads of pods and nodes: facts, made once for each state of an object; and reports about pods."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from ipaddress import ip_network
from typing import Any, Final

import msgspec

from outlive.base import InUse, LimitExceeded, OutliveError
from outlive.network.addressing import parse_host
from outlive.network.annotation import AnnotationNotSet, decode_entry, parse_annotation
from outlive.network.copies import Copy, VmKey, VmNameMissing
from outlive.network.names import DEFAULT_NETWORK, POD_NETWORKS, PREFIX
from outlive.network.pods import LAUNCHER_LABEL, NetworkPodView, find_vm, read_copy
from outlive.network.routes import HypervisorNetwork
from outlive.resources import ObjectRef, decode_as
from outlive.runtime import ClusterEvents, Metrics

NODE_SUBNETS: Final = f"{PREFIX}/node-subnets"
NODE_TRANSIT: Final = f"{PREFIX}/node-transit-switch-port-ifaddr"
NODE_NUMBER: Final = f"{PREFIX}/node-id"
NODE_CHASSIS: Final = f"{PREFIX}/node-chassis-id"
NODE_ZONE: Final = f"{PREFIX}/zone-name"
NODE_ANNOTATIONS: Final = (NODE_SUBNETS, NODE_TRANSIT, NODE_NUMBER, NODE_CHASSIS, NODE_ZONE)
"""Annotations of nodes that are read."""
ALL_NETWORKS: Final = "*"
ANNOUNCEMENTS: Final = "outlive.dev/announcements"
"""Annotation of a migration's target: frames that nodes are to send."""


class PodFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pod as the network sees it."""

    copy: Copy
    problems: tuple[str, ...] = ()
    """What of its annotations cannot be read, in words."""
    unreadable: tuple[str, ...] = ()
    """Networks of which the entry cannot be read; ``*``: all of them."""
    announced: str = ""
    """Id of the first announcement that it has."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node as the network sees it."""

    name: str
    subnets: tuple[str, ...] = ()
    """Of its switch on the default network."""
    transit: tuple[str, ...] = ()
    number: int = 0
    """By which addresses of its routers are found; 0: it has none yet."""
    chassis: str = ""
    zone: str = ""
    problems: tuple[str, ...] = ()
    """What of its annotations cannot be read, in words."""

    def network_position(self, join_subnets: Sequence[str]) -> HypervisorNetwork:
        """Where the node is in the network, with the addresses of its gateway router in these subnets."""
        return HypervisorNetwork(
            subnets=self.subnets,
            gateway_router=self.join_addresses(join_subnets),
            transit=self.transit,
            chassis=self.chassis or None,
        )

    def join_addresses(self, join_subnets: Sequence[str]) -> tuple[str, ...]:
        """Addresses of its gateway router: of each subnet that of its number."""
        networks = [ip_network(one) for one in join_subnets] if self.number > 0 else []
        return tuple(str(one.network_address + self.number) for one in networks if self.number < one.num_addresses)


class _NodeMetadata(msgspec.Struct, frozen=True):
    annotations: dict[str, str] = {}


class NodeAnnotationsView(msgspec.Struct, frozen=True):
    """What is read of a node's document."""

    metadata: _NodeMetadata = _NodeMetadata()


def read_pod(pod: NetworkPodView) -> PodFacts:
    """The facts of a pod; problems of one annotation never hide the rest."""
    annotations, problems = pod.metadata.annotations, list[str]()
    try:
        find_vm(pod)
    except VmNameMissing as error:
        problems.append(str(error))
        metadata = msgspec.structs.replace(pod.metadata, labels={**pod.metadata.labels, LAUNCHER_LABEL: ""})
        pod = msgspec.structs.replace(pod, metadata=metadata)  # nobody's copy, but a pod with addresses
    unreadable = find_unreadable(annotations.get(POD_NETWORKS))
    problems += [f"{POD_NETWORKS}, network {network[:80]}: {why}" for network, why in unreadable.items()]
    return PodFacts(
        copy=read_copy(pod),
        problems=tuple(problems),
        unreadable=tuple(unreadable),
        announced=_first_id(annotations.get(ANNOUNCEMENTS, "")),
    )


def is_unreadable(unreadable: Collection[str], network: str) -> bool:
    """True if the entry of the network is among those that cannot be read."""
    return network in unreadable or ALL_NETWORKS in unreadable


def find_unreadable(text: str | None) -> dict[str, str]:
    """Networks of a network annotation whose entries cannot be read → why; ``*`` of one that is no JSON."""
    found: dict[str, str] = {}
    try:
        entries = parse_annotation(text)
    except AnnotationNotSet:
        return {}
    except OutliveError as error:
        return {ALL_NETWORKS: str(error)}
    for network, entry in entries.items():
        try:
            decode_entry(entry)
        except OutliveError as error:
            found[network] = str(error)
    return found


def _first_id(text: str) -> str:
    try:
        found = decode_as(list[dict[str, Any]], text) if text else []
    except OutliveError:
        return ""
    return str(found[0].get("id", "")) if found else ""


def read_node(name: str, node: NodeAnnotationsView) -> NodeFacts:
    """The facts of a node; an annotation that cannot be read counts as absent and is told."""
    annotations, problems = node.metadata.annotations, list[str]()
    subnets: tuple[str, ...] = ()
    transit: tuple[str, ...] = ()
    try:
        listed = decode_as(dict[str, Any], annotations.get(NODE_SUBNETS, "{}")).get(DEFAULT_NETWORK, ())
        listed = (listed,) if isinstance(listed, str) else listed  # a bare one is a list of one
        subnets = tuple(str(ip_network(str(one))) for one in listed)
    except (OutliveError, ValueError) as error:
        problems.append(f"{NODE_SUBNETS}: {error}")
    try:
        found = decode_as(dict[str, str], annotations.get(NODE_TRANSIT, "{}"))
        transit = tuple(str(parse_host(found[family])) for family in ("ipv4", "ipv6") if found.get(family))
    except OutliveError as error:
        problems.append(f"{NODE_TRANSIT}: {error}")
    number = annotations.get(NODE_NUMBER, "0")
    if not (number.isdecimal() and len(number) <= 9):
        problems.append(f"{NODE_NUMBER}: {number[:80]!r} is no number")
        number = "0"
    return NodeFacts(
        name=name,
        subnets=subnets,
        transit=transit,
        number=int(number),
        chassis=annotations.get(NODE_CHASSIS, ""),
        zone=annotations.get(NODE_ZONE, ""),
        problems=tuple(problems),
    )


# What is told of VMs of pods: events at their pods, and figures.

VMS_KEPT: Final = 10_000
"""VMs of which the problems that were told are remembered."""
REASONS: Final[Mapping[str, str]] = {
    "ambiguous-migration": "AmbiguousMigration",
    "plan-too-large": "PlanTooLarge",
    "limit": "NoAddressLeft",
    "address-twice": "AddressTwice",
    "tunnel-key-missing": "TunnelKeyMissing",
    "service-missing": "DnsServiceMissing",
    "join-address-missing": "JoinAddressMissing",
}
"""Codes of errors → reasons of events; all others are ``NetworkNotProgrammed``."""


class PlanTooLarge(LimitExceeded):
    """More operations than one transaction has."""

    code = "plan-too-large"


class AddressTwice(InUse):
    """Somebody else has the address already."""

    code = "address-twice"


class PodReports:
    """See the module."""

    def __init__(self, events: ClusterEvents, metrics: Metrics) -> None:
        self._events = events
        self._told: OrderedDict[VmKey, dict[str, str]] = OrderedDict()
        self._problems = metrics.add_counter("network_pod_problems_total", "Problems of VMs' pods", ("reason",))
        self._deleted = metrics.add_counter(
            "network_pod_orphans_deleted_total", "Rows of pods' VMs that are gone, deleted", ()
        )
        self._orphans = metrics.add_gauge("network_pod_orphans", "Rows of pods' VMs that are gone, as last found", ())

    def tell(self, vm: VmKey, copies: Sequence[Copy], problems: Mapping[str, OutliveError]) -> None:
        """Tell the VM's newest pod of each problem, once until it changes."""
        before = self._told.pop(vm, {})
        texts = {network: f"{network}: {error}" if network else str(error) for network, error in problems.items()}
        if texts:
            self._told[vm] = texts
        while len(self._told) > VMS_KEPT:
            self._told.popitem(last=False)
        newest = next((one for one in reversed(copies) if not one.completed), copies[-1] if copies else None)
        for network, text in texts.items():
            if before.get(network) == text or newest is None:
                continue
            reason = REASONS.get(problems[network].code, "NetworkNotProgrammed")
            self._emit(newest, reason, text)

    def tell_unreadable(self, facts: PodFacts) -> None:
        """Tell a pod what of its annotations cannot be read."""
        for problem in facts.problems:
            self._emit(facts.copy, "NetworkAnnotationUnreadable", problem)

    def count_orphans(self, found: int, deleted: int) -> None:
        """Note what a look for garbage has found and deleted."""
        self._orphans.set(found)
        self._deleted.inc(deleted)

    def _emit(self, copy: Copy, reason: str, note: str) -> None:
        self._problems.labels(reason).inc()
        about = ObjectRef(kind="Pod", namespace=copy.namespace, name=copy.name, uid=copy.id, api_version="v1")
        self._events.emit(about, reason, note, type="Warning", action="FollowNetwork")

"""What is told of VMs of pods: events at their pods, and figures."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from outlive.base.errors import InUse, LimitExceeded, OutliveError
from outlive.network.copies import Copy, VmKey
from outlive.network.pod_facts import PodFacts
from outlive.resources import ObjectRef
from outlive.runtime.cluster_verbs import ClusterEvents
from outlive.runtime.metrics import Metrics

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
        self._problems = metrics.counter("network_pod_problems_total", "Problems of VMs' pods, as told", ("reason",))
        self._deleted = metrics.counter(
            "network_pod_orphans_deleted_total", "Rows of pods' VMs that are gone, deleted", ()
        )
        self._orphans = metrics.gauge("network_pod_orphans", "Rows of pods' VMs that are gone, as last found", ())

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

    def address_twice(self, copy: Copy, rival: Copy) -> AddressTwice:
        """What is told of a copy whose address an older pod has."""
        return AddressTwice(
            f"{rival.namespace}/{rival.name} has an address of {copy.namespace}/{copy.name}",
            remedy=f"delete one of the two pods: {copy.name} gets no port",
        )

    def count_orphans(self, found: int, deleted: int) -> None:
        """Note what a look for garbage has found and deleted."""
        self._orphans.set(found)
        self._deleted.inc(deleted)

    def _emit(self, copy: Copy, reason: str, note: str) -> None:
        self._problems.labels(reason).inc()
        self._events.emit(reference_of(copy), reason, note, type="Warning", action="FollowNetwork")


def reference_of(copy: Copy) -> ObjectRef:
    """The pod that a copy is."""
    return ObjectRef(kind="Pod", namespace=copy.namespace, name=copy.name, uid=copy.id, api_version="v1")

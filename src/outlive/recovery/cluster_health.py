"""How well the cluster is, as one figure of 100 and what takes from it; and by what a VM is covered. Pure.

The weights stand here and are printed in the manual from here (docs/how-to/observing.md#health). Faults take what
their own table says (``runtime.faults.compute_health``); what is counted here is true at the moment, whether or not
anybody has raised a fault for it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from outlive.base import count_of
from outlive.node import HostLife, HostLiveness, VmLife
from outlive.node.fencing import OK, HostSettings
from outlive.resources import CLUSTER, Cluster, Coverage, CoveredBy, Fault, Hypervisor, Membership, Resource
from outlive.resources.reasons import FULL_HEALTH
from outlive.runtime import compute_health

STORE_STILL_S: Final = 60.0
"""A store that nobody has written to for longer is said to stand still: each host and each server writes in seconds."""


class HealthIssue(enum.StrEnum):
    """What takes from the health, besides faults."""

    UNCOVERED_VMS = "uncovered VMs"
    WAITING_VMS = "VMs that wait or are down"
    UNKNOWN_VMS = "VMs of which nothing is known"
    SILENT_HOSTS = "silent hosts"
    UNKNOWN_HOSTS = "hosts of which nothing is known"
    UNPROVABLE_HOSTS = "hosts that could not be proven dead"
    STORE_STILL = "the store stands still"


class HealthWeight(NamedTuple):
    """What each one takes, and what all of them take at most."""

    each: int
    most: int


WEIGHTS: Final[Mapping[HealthIssue, HealthWeight]] = {
    HealthIssue.UNCOVERED_VMS: HealthWeight(1, 20),
    HealthIssue.WAITING_VMS: HealthWeight(10, 60),
    HealthIssue.UNKNOWN_VMS: HealthWeight(5, 40),
    HealthIssue.SILENT_HOSTS: HealthWeight(20, 60),
    HealthIssue.UNKNOWN_HOSTS: HealthWeight(5, 40),
    HealthIssue.UNPROVABLE_HOSTS: HealthWeight(2, 20),
    HealthIssue.STORE_STILL: HealthWeight(30, 30),
}


class HealthCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The health of the cluster, and of what it is made."""

    health: int
    counts: dict[HealthIssue, int]
    """Those that are there."""


def judge_health(faults: Iterable[Fault], counts: Mapping[HealthIssue, int]) -> HealthCounts:
    """100 less what faults and what is counted take, and never below 0."""
    found = {issue: counts[issue] for issue in HealthIssue if counts.get(issue, 0)}
    taken = sum(min(WEIGHTS[issue].most, WEIGHTS[issue].each * count) for issue, count in found.items())
    return HealthCounts(health=max(0, compute_health(faults) - min(FULL_HEALTH, taken)), counts=found)


def count_issues(
    hosts: Iterable[HostLiveness], vms: Iterable[VmLife], *, uncovered: int, unprovable: int, still_s: float
) -> dict[HealthIssue, int]:
    """What there is of each; ``still_s``: for how long nobody wrote to the store."""
    watched = [one.state for one in hosts if one.watched]
    states = list(vms)
    return {
        HealthIssue.UNCOVERED_VMS: uncovered,
        HealthIssue.WAITING_VMS: states.count(VmLife.WAITING) + states.count(VmLife.DOWN),
        HealthIssue.UNKNOWN_VMS: states.count(VmLife.UNKNOWN),
        HealthIssue.SILENT_HOSTS: watched.count(HostLife.SILENT),
        HealthIssue.UNKNOWN_HOSTS: watched.count(HostLife.UNKNOWN),
        HealthIssue.UNPROVABLE_HOSTS: unprovable,
        HealthIssue.STORE_STILL: int(still_s > STORE_STILL_S),
    }


# Proofs and coverage


def is_provable(host: Hypervisor, member: Membership, cluster: Cluster | None, now: float) -> bool:
    """Whether as many kinds of proof as must agree would prove the host dead if it died now: by power if the last
    rehearsal found its BMC good, by its guard if that is armed. Isolation is tried when it is needed, and not
    counted."""
    settings, record = HostSettings(cluster, host), member.record
    fencing = settings.fencing
    power = fencing.driver not in ("", "none") and host.status.rehearsed == OK
    power = power and not fencing.power_in_maintenance(now) and "power" not in record.distrusted
    guard = record.guard.armed and "watchdog" not in record.distrusted
    return power + guard >= settings.demanded


def covered_by(host: Hypervisor | None, member: Membership | None, cluster: Cluster | None, now: float) -> CoveredBy:
    """By what the covered VMs of the host are covered."""
    if member is None:
        return CoveredBy.UNPROVEN if host is not None and host.spec.management == "node" else CoveredBy.RESERVED
    is_proven = host is not None and is_provable(host, member, cluster, now)
    return CoveredBy.RECOVERABLE if is_proven else CoveredBy.UNPROVEN


NOT_HEARD: Final = "host-not-heard"
"""Reason of a VM that has its slots and counts as covered no more, because nobody hears of its host, or of theirs."""


def covered_by_hosts(objects: Iterable[Resource], now: float) -> dict[str, CoveredBy]:
    """Host → by what its covered VMs are covered, of the whole state."""
    kinds: dict[type, dict[str, Any]] = {Hypervisor: {}, Membership: {}, Cluster: {}}
    for one in objects:
        if type(one) in kinds:
            kinds[type(one)][one.name] = one
    cluster, members = kinds[Cluster].get(CLUSTER), kinds[Membership]
    return {name: covered_by(host, members.get(name), cluster, now) for name, host in kinds[Hypervisor].items()}


class CoverageView(NamedTuple):
    """By what each covered VM is covered, and whose coverage is in doubt."""

    by: dict[CoveredBy, int]
    doubtful: dict[str, str]
    """VMs that have their slots → the host that nobody hears of: its own, or that of a slot."""

    def describe(self) -> str:
        """By what, in words."""
        return ", ".join(f"{count_of(count, 'VM')} {by.text}" for by, count in self.by.items() if count)


def view_coverage(
    reported: Iterable[Coverage],
    slot_hosts: Mapping[str, str],
    hosts: Mapping[str, HostLiveness],
    by_host: Mapping[str, CoveredBy],
) -> CoverageView:
    """Coverage as it was reported, against how hosts are now. ``slot_hosts``: slot → its host; ``by_host``: host →
    ``covered_by``."""
    by, doubtful = dict.fromkeys(CoveredBy, 0), dict[str, str]()
    # hosts that are there and heard of, or that nobody here watches: what lies on them counts as covered
    counted = {name for name, host in hosts.items() if not host.watched or host.state is HostLife.ALIVE}
    for one in reported:
        if one.status.required == 0 or not one.status.covered:
            continue
        names = (one.status.host, *(slot_hosts.get(slot, "") for slot in one.status.slots))
        lost = next((name for name in names if name and name not in counted), None)
        if lost is not None:
            doubtful[one.name] = lost
        else:
            by[by_host.get(one.status.host, CoveredBy.UNPROVEN)] += 1
    return CoverageView(by, doubtful)

"""What is used, committed, kept for failover and free, and what each project uses of what it committed to.

Pure functions for people's eyes: the status page and ``outlive commitments capacity|usage``. The rules are those of the
parts that they ask (docs/reference/commitments.md#overview).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from outlive.commitments.names import RESOURCE_KINDS, ResourceKind, resource_name
from outlive.commitments.quota import DEFAULT_STATES, Sizes, UsageCounter, committed_usage, uncovered_usage
from outlive.commitments.units import UNLIMITED, GroupUnit
from outlive.commitments.usage import UsageInput, assign, list_accepted, usage_vms
from outlive.placement import VmView, groups_by_flavor, placed_on, unused_amounts
from outlive.resources import (
    COMMITTED,
    FAILOVER,
    MEMORY,
    CommitmentState,
    CommittedResource,
    FlavorGroupCapacity,
    FlavorGroupSpec,
    ProjectQuota,
    Reservation,
    find_condition,
)


class GroupOverview(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The memory of one flavor group in one zone, in bytes. The four parts do not overlap."""

    group: str
    zone: str
    used_bytes: int = 0
    """Of VMs of the group that run."""
    committed_bytes: int = 0
    """What commitment slots hold beside their VMs."""
    failover_bytes: int = 0
    """What failover slots of the group's VMs hold."""
    free_bytes: int = 0
    """What is left for this group alone, after the fair split."""
    promised_bytes: int = 0
    """Of all active commitments, used or not."""
    ready: bool = True
    """Whether the figures are current; else those of VMs and free capacity are old or missing."""


class Overview:
    """Collects reservations one by one, so that a caller with many can do something else in between."""

    def __init__(self, groups: Iterable[FlavorGroupSpec], zones: Mapping[str, str]) -> None:
        """``zones``: host → zone."""
        known = list(groups)
        self._of_flavor = {flavor: group.group_name for flavor, group in groups_by_flavor(known).items()}
        self._names = {group.group_name for group in known}
        self._zones = zones
        self._held: dict[tuple[str, str], dict[str, int]] = {}

    def add(self, one: Reservation) -> None:
        """Count a reservation; one of neither kind, or on no host, does not count."""
        details, failover = one.spec.committed_resource_reservation, one.spec.failover_reservation
        if one.spec.type == COMMITTED and details is not None:
            group, size = details.resource_group, unused_amounts(one).memory_bytes
        elif one.spec.type == FAILOVER:
            named = failover.resource_group if failover is not None else ""
            group = named if named in self._names else self._of_flavor.get(named, "")
            size = one.spec.resources.memory_bytes
        else:
            return
        host = placed_on(one)
        if host:
            held = self._held.setdefault((group, self._zones.get(host, "")), {})
            held[one.spec.type] = held.get(one.spec.type, 0) + size

    def list_rows(self, capacities: Iterable[FlavorGroupCapacity]) -> tuple[GroupOverview, ...]:
        """Every group in every zone, by zone and name. What belongs to no group stands under the empty name."""
        found = {key: GroupOverview(group=key[0], zone=key[1], ready=not key[0]) for key in self._held}
        for one in capacities:
            status, key = one.status, (one.spec.flavor_group, one.spec.availability_zone)
            ready = find_condition(status.conditions, "Ready")
            found[key] = GroupOverview(
                group=key[0],
                zone=key[1],
                used_bytes=status.running_resources.get(MEMORY, 0),
                free_bytes=status.exclusively_free_capacity.get(MEMORY, 0),
                promised_bytes=status.committed_capacity_bytes,
                ready=ready is not None and ready.status == "True",
            )
        return tuple(
            replace(
                found[key],
                committed_bytes=self._held.get(key, {}).get(COMMITTED, 0),
                failover_bytes=self._held.get(key, {}).get(FAILOVER, 0),
            )
            for key in sorted(found, key=lambda key: (key[1], not key[0], key[0]))
        )


class ProjectUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a project uses of one resource in one zone. Memory is in GiB."""

    project: str
    zone: str
    group: str
    kind: ResourceKind
    used: int = 0
    committed: int = 0
    """Of its active commitments."""
    covered: int = 0
    """What of the use is charged to them."""
    payg: int = 0
    """What is paid as it goes."""
    quota: int = UNLIMITED


def project_usage(
    *,
    vms: Iterable[VmView],
    commitments: Iterable[CommittedResource],
    quotas: Iterable[ProjectQuota],
    groups: Iterable[FlavorGroupSpec],
    units: Mapping[str, GroupUnit],
    zones: Iterable[str],
    now: float,
    states: Collection[CommitmentState] = DEFAULT_STATES,
) -> tuple[ProjectUsage, ...]:
    """What every project uses, VMs charged to commitments anew; those in ``states`` cover what is charged to them.
    Resources that are neither used, committed nor limited are left out."""
    known, all_vms = [group for group in groups if group.group_name in units], list(vms)
    charged = _charge_vms(list(commitments), all_vms, known, zones, now)
    counter, accounts = UsageCounter(Sizes(known, units)), set[tuple[str, str]]()
    for vm in all_vms:
        accounts.update(counter.put(vm, vm.zone))
    covered = committed_usage(charged, counter, now=now, states=states)
    committed = _sum_committed(charged, units, now)
    limits = {(one.spec.project_id, one.spec.availability_zone): one.spec.quota for one in quotas}
    rows: list[ProjectUsage] = []
    for account in sorted({*accounts, *committed, *limits}):
        used, promised = counter.sum_usage(account), committed.get(account, {})
        paid, limit = uncovered_usage(used, covered.get(account, {})), limits.get(account, {})
        for group in sorted(units):
            for kind in RESOURCE_KINDS:
                name = resource_name(group, kind)
                if used.get(name) or promised.get(name) or name in limit:
                    rows.append(
                        ProjectUsage(
                            project=account[0],
                            zone=account[1],
                            group=group,
                            kind=kind,
                            used=used.get(name, 0),
                            committed=promised.get(name, 0),
                            covered=used.get(name, 0) - paid.get(name, 0),
                            payg=paid.get(name, 0),
                            quota=limit.get(name, UNLIMITED),
                        )
                    )
    return tuple(rows)


def _charge_vms(
    commitments: list[CommittedResource],
    vms: list[VmView],
    groups: list[FlavorGroupSpec],
    zones: Iterable[str],
    now: float,
) -> list[CommittedResource]:
    """The commitments with what the VMs of now are charged to them."""
    by_project: dict[str, list[VmView]] = {}
    for vm in vms:
        by_project.setdefault(vm.project, []).append(vm)
    flavors, known = groups_by_flavor(groups), list(zones)
    found: list[CommittedResource] = []
    projects: dict[str, list[CommittedResource]] = {}
    for one in commitments:
        projects.setdefault(one.spec.project_id, []).append(one)
    for project, mine in projects.items():
        given = UsageInput(
            commitments=tuple(list_accepted(mine, now)),
            vms=tuple(usage_vms(by_project.get(project, ()), flavors, known)),
            now=now,
        )
        charges = {charge.uuid: charge for charge in assign(given).charges}
        for one in mine:
            charge = charges.get(one.spec.commitment_uuid)
            vms_charged = charge.vms if charge is not None else ()
            found.append(replace(one, status=replace(one.status, assigned_instances=vms_charged)))
    return found


def _sum_committed(
    commitments: Iterable[CommittedResource], units: Mapping[str, GroupUnit], now: float
) -> dict[tuple[str, str], dict[str, int]]:
    """Project and zone → resource → what was accepted and is active."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for one in list_accepted(commitments, now):
        if one.group in units:
            kind: ResourceKind = "ram" if one.type == "memory" else "cores"
            mine = found.setdefault((one.project, one.zone), {})
            name = resource_name(one.group, kind)
            mine[name] = mine.get(name, 0) + (one.memory_bytes // 2**30 if one.type == "memory" else one.cores)
    return found

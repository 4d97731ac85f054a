"""What projects use, what of it commitments cover, and what is paid as it goes (docs/reference/commitments.md#payg).

Maps are LIQUID's resource → amount as ``ProjectQuota`` has them: memory in GiB, whole cores, VMs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from outlive.commitments.names import RESOURCE_KINDS, RESOURCE_PREFIX, ResourceKind, resource_name
from outlive.commitments.state import is_over
from outlive.commitments.units import UNLIMITED, GroupUnit
from outlive.placement import VmView
from outlive.resources import (
    CommitmentState,
    CommittedResource,
    Condition,
    FlavorGroupSpec,
    ProjectQuota,
    ProjectQuotaStatus,
    with_condition,
)

Account = tuple[str, str]
"""Project and zone."""
Usage = dict[str, int]
"""Resource of LIQUID → amount."""

DEFAULT_STATES: Final[tuple[CommitmentState, ...]] = ("confirmed", "guaranteed")


class Sizes:
    """What one VM of each flavor counts as: group, units of memory, cores."""

    def __init__(self, groups: Iterable[FlavorGroupSpec], units: Mapping[str, GroupUnit]) -> None:
        self.units = units
        self.of = {
            flavor.name: (group.group_name, units[group.group_name].count_vm_units(flavor.memory_mb), flavor.vcpus)
            for group in groups
            for flavor in group.flavors
        }


class UsageCounter:
    """What projects use, followed VM by VM: 100,000 VMs are not counted anew because one was started.

    Memory is counted in the group's unit, VM by VM as in the usage report, and the sum is given in GiB.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self._places: dict[str, tuple[Account, str]] = {}
        """VM → its account and flavor."""
        self._counts: dict[Account, dict[str, list[int]]] = {}
        """Account → group → units of memory, cores, VMs."""

    def __len__(self) -> int:
        return len(self._places)

    def put(self, vm: VmView, zone: str) -> tuple[Account, ...]:
        """The VM exists and looks like this now; the accounts whose usage that changes. One whose flavor is in no group
        does not count."""
        place = ((vm.project, zone), vm.flavor) if vm.flavor in self.sizes.of else None
        before = self._places.get(vm.id)
        if before == place:
            return ()
        touched = self.drop(vm.id)
        if place is None:
            return touched
        self._places[vm.id] = place
        self._add(place, 1)
        return tuple(dict.fromkeys((*touched, place[0])))

    def drop(self, vm: str) -> tuple[Account, ...]:
        """The VM is gone; the account that it was in."""
        place = self._places.pop(vm, None)
        if place is None:
            return ()
        self._add(place, -1)
        return (place[0],)

    def size_of(self, vm: str, account: Account, group: str) -> tuple[int, int]:
        """What a VM of the account and group counts as: units of memory and cores; nothing where it is not there."""
        place = self._places.get(vm)
        of, units, cores = self.sizes.of[place[1]] if place is not None and place[0] == account else ("", 0, 0)
        return (units, cores) if of == group else (0, 0)

    def sum_usage(self, account: Account) -> Usage:
        """What a project uses in a zone."""
        found: Usage = {}
        for group, (units, cores, instances) in sorted(self._counts.get(account, {}).items()):
            found[resource_name(group, "ram")] = self.sizes.units[group].to_gib(units)
            found[resource_name(group, "cores")] = cores
            found[resource_name(group, "instances")] = instances
        return found

    def _add(self, place: tuple[Account, str], sign: int) -> None:
        account, flavor = place
        group, units, cores = self.sizes.of[flavor]
        groups = self._counts.setdefault(account, {})
        counts = groups.setdefault(group, [0, 0, 0])
        for at, amount in enumerate((units, cores, 1)):
            counts[at] += sign * amount
        if not counts[2]:
            del groups[group]
            if not groups:
                del self._counts[account]


def committed_usage(
    commitments: Iterable[CommittedResource],
    counter: UsageCounter,
    *,
    now: float,
    states: Collection[CommitmentState] = DEFAULT_STATES,
) -> dict[Account, Usage]:
    """What commitments of these states cover of the usage of projects: what the VMs that are charged to them count as
    in the total, so that a VM which is rounded down or gone covers no other one.

    Cores are covered by commitments of cores, and by those of memory, whose VMs have them; a VM that counts against
    both has its cores once, so the larger number of the two is what is covered
    (docs/reference/commitments.md#usage-of-cores).
    """
    covered: dict[tuple[Account, str], dict[str, int]] = {}
    for one in commitments:
        spec = one.status.accepted_spec or one.spec
        if spec.state not in states or is_over(one.spec, now):
            continue
        account, group = (spec.project_id, spec.availability_zone), spec.flavor_group_name
        sums = covered.setdefault((account, group), {"units": 0, "memory": 0, "cores": 0})
        for vm in one.status.assigned_instances:
            units, cores = counter.size_of(vm, account, group)
            sums[spec.resource_type] += cores
            if spec.resource_type == "memory":
                sums["units"] += units
    found: dict[Account, Usage] = {}
    for (account, group), sums in covered.items():
        units, cores = sums["units"], max(sums["memory"], sums["cores"])
        if units:
            found.setdefault(account, {})[resource_name(group, "ram")] = counter.sizes.units[group].to_gib(units)
        if cores:
            found.setdefault(account, {})[resource_name(group, "cores")] = cores
    return found


def uncovered_usage(total: Mapping[str, int], covered: Mapping[str, int]) -> Usage:
    """What no commitment covers, for every resource that is used."""
    return {name: max(0, amount - covered.get(name, 0)) for name, amount in sorted(total.items())}


def with_zeros(usage: Mapping[str, int], quota: Mapping[str, int]) -> Usage:
    """The usage, and 0 of whatever has a quota and is not used."""
    return {**dict.fromkeys(sorted(quota), 0), **usage}


def quota_status(
    quota: ProjectQuota,
    total: Mapping[str, int],
    covered: Mapping[str, int],
    units: Mapping[str, GroupUnit],
    *,
    now: datetime,
    full: bool,
) -> ProjectQuotaStatus:
    """The status with this usage. ``full``: everything was counted anew."""
    spec, status = quota.spec, quota.status
    text = "Quota usage successfully computed"
    ready = Condition(type="Ready", status="True", reason="Reconciled", message=text, last_transition_time=now)
    usage = with_zeros(total, spec.quota)
    rest = uncovered_usage(usage, covered)
    return msgspec.structs.replace(
        status,
        observed_generation=quota.metadata.generation,
        total_usage=usage,
        payg_usage=rest,
        total_usage_summary=usage_summary(usage),
        payg_usage_summary=usage_summary(rest),
        limes_usage_summary=usage_summary(usage, units),
        limes_quota_summary=usage_summary(spec.quota, units),
        last_reconcile_at=now,
        last_full_reconcile_at=now if full else status.last_full_reconcile_at,
        conditions=with_condition(status.conditions, ready),
    )


def says_the_same(one: ProjectQuotaStatus, other: ProjectQuotaStatus) -> bool:
    """Whether they differ in times alone."""
    return msgspec.structs.replace(one, last_reconcile_at=other.last_reconcile_at) == other


# One line for people.


def usage_summary(usage: Mapping[str, int], units: Mapping[str, GroupUnit] | None = None) -> str:
    """``<group>: c=<cores> i=<instances> r=<ram>`` of each group, joined by ``; ``; memory in GiB, or in ``units``.

    Names that are no resources of a group are left out; what a group lacks is 0.
    """
    groups: dict[str, dict[ResourceKind, int]] = {}
    for name, amount in usage.items():
        rest = name.removeprefix(RESOURCE_PREFIX)
        for kind in RESOURCE_KINDS if rest != name else ():
            group = rest.removesuffix(f"_{kind}")
            if group != rest and group:
                groups.setdefault(group, {})[kind] = amount
                break
    parts: list[str] = []
    for group in sorted(groups):
        of = groups[group]
        ram = of.get("ram", 0)
        if units is not None and group in units:
            ram = units[group].from_gib(ram) if ram >= 0 else UNLIMITED
        parts.append(f"{group}: c={of.get('cores', 0)} i={of.get('instances', 0)} r={ram}")
    return "; ".join(parts)

"""What projects use, what of it commitments cover, and what is paid as it goes (docs/reference/commitments.md#payg).

Maps are LIQUID's resource → amount as ``ProjectQuota`` has them: memory in GiB, whole cores, VMs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from outlive.commitments.names import RESOURCE_KINDS, RESOURCE_PREFIX, ResourceKind, resource_name
from outlive.commitments.state import is_over
from outlive.commitments.units import UNLIMITED, VIDEO_MEMORY_MIB, GroupUnit
from outlive.placement.settings import MIB
from outlive.placement.vms import VmView
from outlive.resources import CommitmentState, CommittedResource, FlavorGroupSpec

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
            flavor.name: (group.group_name, units[group.group_name].of_vm(flavor.memory_mb), flavor.vcpus)
            for group in groups
            for flavor in group.flavors
        }


class _Totals:
    """Counts by account and group: units of memory, cores, VMs."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self.counts: dict[Account, dict[str, list[int]]] = {}

    def add(self, vm: VmView, sign: int = 1) -> None:
        """Count the VM once more, or once less; one whose flavor is in no group does not count."""
        found = self._sizes.of.get(vm.flavor)
        if found is None:
            return
        group, units, cores = found
        counts = self.counts.setdefault((vm.project, vm.zone), {}).setdefault(group, [0, 0, 0])
        counts[0] += sign * units
        counts[1] += sign * cores
        counts[2] += sign


def total_usage(vms: Iterable[VmView], sizes: Sizes) -> dict[Account, Usage]:
    """What every project uses in every zone.

    Memory is counted in the group's unit, VM by VM as in the usage report, and the sum is given in GiB.
    """
    totals = _Totals(sizes)
    for vm in vms:
        totals.add(vm)
    return {
        account: _in_gib({group: (counts[0], counts[1], counts[2]) for group, counts in groups.items()}, sizes)
        for account, groups in totals.counts.items()
    }


def _in_gib(groups: Mapping[str, tuple[int, int, int]], sizes: Sizes) -> Usage:
    found: Usage = {}
    for group, (units, cores, instances) in sorted(groups.items()):
        found[resource_name(group, "ram")] = sizes.units[group].to_gib(max(0, units))
        found[resource_name(group, "cores")] = max(0, cores)
        found[resource_name(group, "instances")] = max(0, instances)
    return found


def committed_usage(
    commitments: Iterable[CommittedResource],
    units: Mapping[str, GroupUnit],
    *,
    now: float,
    states: Collection[CommitmentState] = DEFAULT_STATES,
) -> dict[Account, Usage]:
    """What commitments of these states cover of the usage of projects.

    A commitment of a group without a unit counts for nothing. Cores are covered by commitments of cores, and by those
    of memory, whose VMs have them; a VM that counts against both has its cores once, so the larger number of the two is
    what is covered (docs/reference/commitments.md#usage-of-cores).
    """
    memory: dict[tuple[Account, str], int] = {}
    cores: dict[tuple[Account, str], dict[str, int]] = {}
    for one in commitments:
        spec, used = one.status.accepted_spec or one.spec, one.status.used_resources
        if used is None or spec.state not in states or is_over(one.spec, now) or spec.flavor_group_name not in units:
            continue
        key = ((spec.project_id, spec.availability_zone), spec.flavor_group_name)
        by_type = cores.setdefault(key, {"memory": 0, "cores": 0})
        by_type[spec.resource_type] += max(0, used.cpu_milli) // 1000
        if spec.resource_type == "memory":
            unit = units[spec.flavor_group_name]
            missing = 0 if unit.fixed else VIDEO_MEMORY_MIB * MIB * len(one.status.assigned_instances)
            memory[key] = memory.get(key, 0) + max(0, used.memory_bytes) + missing
    found: dict[Account, Usage] = {}
    for (account, group), by_type in cores.items():
        usage = found.setdefault(account, {})
        unit = units[group]
        covered = {
            "ram": unit.to_gib(unit.from_bytes(memory.get((account, group), 0))),
            "cores": max(by_type.values()),
        }
        for kind, amount in covered.items():
            if amount > 0:
                usage[f"{RESOURCE_PREFIX}{group}_{kind}"] = amount
    return found


def payg(total: Mapping[str, int], covered: Mapping[str, int]) -> Usage:
    """What no commitment covers, for every resource that is used."""
    return {name: max(0, amount - covered.get(name, 0)) for name, amount in sorted(total.items())}


def with_zeros(usage: Mapping[str, int], quota: Mapping[str, int]) -> Usage:
    """The usage, and 0 of whatever has a quota and is not used."""
    return {**dict.fromkeys(sorted(quota), 0), **usage}


# What hosts report between two full counts.


class UsageDelta(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """By how much one project's usage in one zone changed: units of memory, cores and VMs of each group."""

    project: str
    zone: str
    groups: dict[str, tuple[int, int, int]]


class Deltas(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What changed, and the VMs that the totals count from now on."""

    deltas: tuple[UsageDelta, ...]
    counted: frozenset[str]


def usage_deltas(
    *,
    added: Iterable[str],
    removed: Iterable[str],
    vms: Mapping[str, VmView],
    gone: Mapping[str, VmView],
    counted: frozenset[str],
    sizes: Sizes,
) -> Deltas:
    """By how much usage changed since the totals were counted, from the VMs that hosts began and ceased to run.

    ``counted``: the VMs that the totals count, so that a VM that moves, or that a host reports twice, changes nothing,
    and none is forgotten that was made while a full count ran. ``vms``: VM → what is known of it, if it still exists;
    ``gone``: the same of deleted ones. A VM of which neither says anything is left to the next full count.
    """
    totals, now = _Totals(sizes), set(counted)
    for vm in sorted(set(added) - counted):
        if vm in vms:
            totals.add(vms[vm])
            now.add(vm)
    for vm in sorted(set(removed) & counted):
        if vm not in vms and vm in gone:
            totals.add(gone[vm], -1)
            now.discard(vm)
    return Deltas(
        deltas=tuple(
            UsageDelta(
                project=project,
                zone=zone,
                groups={group: (counts[0], counts[1], counts[2]) for group, counts in sorted(groups.items())},
            )
            for (project, zone), groups in sorted(totals.counts.items())
        ),
        counted=frozenset(now),
    )


def with_delta(total: Mapping[str, int], delta: UsageDelta, sizes: Sizes) -> Usage:
    """The totals after the change; nothing falls below 0."""
    found = dict(total)
    for group, (units, cores, instances) in delta.groups.items():
        unit, ram = sizes.units[group], resource_name(group, "ram")
        found[ram] = unit.to_gib(max(0, unit.from_gib(max(0, total.get(ram, 0))) + units))
        for kind, change in (("cores", cores), ("instances", instances)):
            name = f"{RESOURCE_PREFIX}{group}_{kind}"
            found[name] = max(0, total.get(name, 0) + change)
    return found


# One line for people.


def usage_summary(usage: Mapping[str, int], units: Mapping[str, GroupUnit] | None = None) -> str:
    """``<group>: c=<cores> i=<instances> r=<ram>`` of each group, joined by ``; ``; memory in GiB, or in ``units``.

    Names that are no resources of a group are left out; what a group lacks is 0.
    """
    groups: dict[str, dict[ResourceKind, int]] = {}
    for name, amount in usage.items():
        parsed = _group_and_kind(name)
        if parsed is not None:
            groups.setdefault(parsed[0], {})[parsed[1]] = amount
    parts: list[str] = []
    for group in sorted(groups):
        of = groups[group]
        ram = of.get("ram", 0)
        if units is not None and group in units:
            ram = units[group].from_gib(ram) if ram >= 0 else UNLIMITED
        parts.append(f"{group}: c={of.get('cores', 0)} i={of.get('instances', 0)} r={ram}")
    return "; ".join(parts)


def _group_and_kind(name: str) -> tuple[str, ResourceKind] | None:
    rest = name.removeprefix(RESOURCE_PREFIX)
    if rest == name:
        return None
    for kind in RESOURCE_KINDS:
        group = rest.removesuffix(f"_{kind}")
        if group != rest and group:
            return group, kind
    return None

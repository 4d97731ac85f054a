"""Flavor groups: sizes that share hardware, and which of them a flavor belongs to (placement.md#flavor-groups)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from outlive.placement.request import HYPERVISOR_TYPE
from outlive.placement.settings import MIB
from outlive.resources import Flavor, FlavorGroupSpec, FlavorSpec, GroupFlavor

_KVM: Final = frozenset({"qemu", "ch"})


def flavor_groups(
    flavors: Iterable[Flavor], *, keys: tuple[str, ...] = ("quota:hw_version",)
) -> tuple[FlavorGroupSpec, ...]:
    """The groups of all KVM flavors that name one, sorted by name; invalid groups are left out."""
    members: dict[str, list[GroupFlavor]] = {}
    for flavor in flavors:
        specs = flavor.spec.extra_specs
        name = next((specs[key] for key in keys if specs.get(key)), "")
        if name and specs.get(HYPERVISOR_TYPE, "").lower() in _KVM:
            members.setdefault(name, []).append(_member(flavor.spec))
    groups = (_group(name, members[name]) for name in sorted(members))
    return tuple(group for group in groups if is_valid(group))


def is_valid(group: FlavorGroupSpec) -> bool:
    """Whether the ratio is absent, fixed or a real range, and the smallest flavor can be a unit of it."""
    fixed, low, high = group.ram_core_ratio, group.ram_core_ratio_min, group.ram_core_ratio_max
    if fixed is None and low is None and high is None:
        return True
    if fixed is not None:
        consistent = (low is None and high is None) or (low == high == fixed)
    else:
        consistent = low is not None and high is not None and low < high
    return consistent and group.smallest_flavor.memory_mb > 0


def _group(name: str, flavors: list[GroupFlavor]) -> FlavorGroupSpec:
    ordered = tuple(sorted(flavors, key=lambda f: (-f.memory_mb, -f.vcpus, f.name)))
    ratios = [flavor.memory_mb // flavor.vcpus for flavor in ordered if flavor.vcpus > 0]
    low, high = (min(ratios), max(ratios)) if ratios else (None, None)
    fixed = low == high
    return FlavorGroupSpec(
        group_name=name,
        flavors=ordered,
        largest_flavor=ordered[0],
        smallest_flavor=ordered[-1],
        ram_core_ratio=low if fixed else None,
        ram_core_ratio_min=None if fixed else low,
        ram_core_ratio_max=None if fixed else high,
    )


def _member(spec: FlavorSpec) -> GroupFlavor:
    return GroupFlavor(
        name=spec.flavor_name,
        vcpus=-(-spec.resources.cpu_milli // 1000),
        memory_mb=-(-spec.resources.memory_bytes // MIB),
        disk_gb=spec.disk_gib,
        ephemeral_gb=spec.ephemeral_gib,
        extra_specs=dict(sorted(spec.extra_specs.items())),
    )


def groups_by_flavor(groups: Iterable[FlavorGroupSpec]) -> dict[str, FlavorGroupSpec]:
    """Flavor name → its group. Invalid groups are left out; of several groups the first by name counts."""
    found: dict[str, FlavorGroupSpec] = {}
    for group in sorted(groups, key=lambda g: g.group_name):
        if is_valid(group):
            for flavor in group.flavors:
                found.setdefault(flavor.name, group)
    return found

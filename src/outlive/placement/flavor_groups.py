"""Flavor groups: sizes that share hardware, and which of them a flavor belongs to (placement.md#flavor-groups)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from outlive.placement.request import HYPERVISOR_TYPE
from outlive.placement.settings import MIB
from outlive.resources import Flavor, FlavorGroupSpec, GroupFlavor

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
            member = GroupFlavor(
                name=flavor.spec.flavor_name,
                vcpus=-(-flavor.spec.resources.cpu_milli // 1000),
                memory_mb=-(-flavor.spec.resources.memory_bytes // MIB),
                disk_gb=flavor.spec.disk_gib,
                ephemeral_gb=flavor.spec.ephemeral_gib,
                extra_specs=dict(sorted(specs.items())),
            )
            members.setdefault(name, []).append(member)
    groups = []
    for name in sorted(members):
        ordered = tuple(sorted(members[name], key=lambda f: (-f.memory_mb, -f.vcpus, f.name)))
        ratios = [flavor.memory_mb // flavor.vcpus for flavor in ordered if flavor.vcpus > 0]
        low, high = (min(ratios), max(ratios)) if ratios else (None, None)
        group = FlavorGroupSpec(
            group_name=name,
            flavors=ordered,
            largest_flavor=ordered[0],
            smallest_flavor=ordered[-1],
            ram_core_ratio=low if low == high else None,
            ram_core_ratio_min=None if low == high else low,
            ram_core_ratio_max=None if low == high else high,
        )
        if is_valid(group):
            groups.append(group)
    return tuple(groups)


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


def groups_by_flavor(groups: Iterable[FlavorGroupSpec]) -> dict[str, FlavorGroupSpec]:
    """Flavor name → its group. Invalid groups are left out; of several groups the first by name counts."""
    found: dict[str, FlavorGroupSpec] = {}
    for group in sorted(groups, key=lambda g: g.group_name):
        if is_valid(group):
            for flavor in group.flavors:
                found.setdefault(flavor.name, group)
    return found

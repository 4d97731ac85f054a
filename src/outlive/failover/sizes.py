"""How large a VM's slot must be: one answer, used for the placement request and for the slot itself.

With group sizing a slot is as large as the largest flavor of the VM's group, so that any VM of the group
may share it; without, it is as large as the VM (docs/reference/failover-rules.md#size). What is *not* decided
here is whether the VM fits a given slot: that compares the VM's own size.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from outlive.base.quantity import format_bytes, format_milli
from outlive.placement.settings import MIB
from outlive.placement.vms import MILLI, VmView
from outlive.resources import FlavorGroupSpec


class ResolvedSize(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A slot's size: milli-cores and bytes, with the flavor and the group that it was taken from."""

    flavor_name: str = ""
    group_name: str = ""
    """Empty where the size is the VM's own."""
    cpu_milli: int = 0
    memory_bytes: int = 0


def resolve_size(vm: VmView, groups: Mapping[str, FlavorGroupSpec] | None = None) -> ResolvedSize:
    """The size of the VM's slot, to the byte; ``groups`` (flavor name → group) is ``None`` where group sizing is
    off."""
    group = groups.get(vm.flavor) if groups else None
    if group is None:
        return ResolvedSize(flavor_name=vm.flavor, cpu_milli=vm.cpu_milli, memory_bytes=vm.memory_bytes)
    largest = group.largest_flavor
    return ResolvedSize(
        flavor_name=largest.name,
        group_name=group.group_name,
        cpu_milli=largest.vcpus * MILLI,
        memory_bytes=largest.memory_mb * MIB,
    )


def enough_for(vm: VmView, size: ResolvedSize) -> ResolvedSize:
    """The size, lifted where the VM itself is larger.

    The largest flavor of a group is largest by memory; another one may have more cores, and a flavor may have been
    changed under a running VM. A slot that does not hold its VM would be no promise.
    """
    if size.cpu_milli >= vm.cpu_milli and size.memory_bytes >= vm.memory_bytes:
        return size
    return msgspec.structs.replace(
        size, cpu_milli=max(size.cpu_milli, vm.cpu_milli), memory_bytes=max(size.memory_bytes, vm.memory_bytes)
    )


def amounts(cpu_milli: int, memory_bytes: int) -> str:
    """A size for people: cores and bytes as quantities."""
    return f"{format_milli(cpu_milli)} cpu and {format_bytes(memory_bytes)} memory"


def resource_group(vm: VmView, size: ResolvedSize) -> str:
    """What a new slot calls its group: the flavor group, else the VM's own flavor."""
    return size.group_name or vm.flavor

from __future__ import annotations

from typing import Any

import pytest

from outlive.failover import ResolvedSize, enlarge_for_vm, resolve_size, resource_group
from outlive.placement import VmView, groups_by_flavor
from outlive.resources import FlavorGroupSpec, GroupFlavor

GIB = 2**30


def vm(flavor: str = "m4", cpu: int = 4000, memory: int = 16 * GIB) -> VmView:
    return VmView(id="v", host="h", flavor=flavor, cpu_milli=cpu, memory_bytes=memory)


def group(name: str, *flavors: tuple[str, int, int], **ratio: Any) -> FlavorGroupSpec:
    made = tuple(GroupFlavor(name=n, vcpus=c, memory_mb=m) for n, c, m in flavors)
    return FlavorGroupSpec(group_name=name, flavors=made, largest_flavor=made[0], smallest_flavor=made[-1], **ratio)


GROUP = group("g", ("m8", 8, 32768), ("m4", 4, 16384))


def test_without_groups_the_slot_is_as_large_as_the_vm():
    assert resolve_size(vm()) == ResolvedSize(flavor_name="m4", cpu_milli=4000, memory_bytes=16 * GIB)
    assert resolve_size(vm("other"), groups_by_flavor([GROUP])).group_name == ""


def test_with_groups_the_slot_is_as_large_as_the_largest_flavor():
    size = resolve_size(vm(), groups_by_flavor([GROUP]))
    assert size == ResolvedSize(flavor_name="m8", group_name="g", cpu_milli=8000, memory_bytes=32 * GIB)


def test_of_several_groups_the_first_by_name_counts():
    other = group("a", ("m16", 16, 65536), ("m4", 4, 16384))
    assert resolve_size(vm(), groups_by_flavor([GROUP, other])).group_name == "a"


@pytest.mark.parametrize(
    ("ratio", "usable"),
    [
        ({}, True),
        ({"ram_core_ratio": 4096}, True),
        ({"ram_core_ratio": 4096, "ram_core_ratio_min": 4096, "ram_core_ratio_max": 4096}, True),
        ({"ram_core_ratio_min": 1024, "ram_core_ratio_max": 4096}, True),
        ({"ram_core_ratio_min": 4096, "ram_core_ratio_max": 4096}, False),
        ({"ram_core_ratio_min": 4096}, False),
        ({"ram_core_ratio": 4096, "ram_core_ratio_min": 4096}, False),
        ({"ram_core_ratio": 4096, "ram_core_ratio_min": 1024, "ram_core_ratio_max": 4096}, False),
    ],
)
def test_a_group_with_inconsistent_ratios_is_left_out(ratio: dict[str, int], usable: bool):
    assert bool(groups_by_flavor([group("g", ("m8", 8, 32768), ("m4", 4, 16384), **ratio)])) is usable


def test_a_ratio_over_flavors_without_memory_is_inconsistent():
    assert not groups_by_flavor([group("g", ("m8", 8, 32768), ("m0", 1, 0), ram_core_ratio=4096)])
    assert groups_by_flavor([group("g", ("m8", 8, 32768), ("m0", 1, 0))])


def test_own_memory_is_kept_to_the_byte():
    odd = vm(memory=GIB + 5)
    assert resolve_size(odd).memory_bytes == GIB + 5


def test_a_slot_is_never_smaller_than_its_vm():
    wide = vm("m4", cpu=12000)
    lifted = enlarge_for_vm(wide, resolve_size(wide, groups_by_flavor([GROUP])))
    assert (lifted.cpu_milli, lifted.memory_bytes, lifted.group_name) == (12000, 32 * GIB, "g")
    assert enlarge_for_vm(vm(), resolve_size(vm())) == resolve_size(vm())


def test_a_slot_without_a_group_is_named_after_the_vms_own_flavor():
    assert resource_group(vm(), resolve_size(vm())) == "m4"
    assert resource_group(vm(), resolve_size(vm(), groups_by_flavor([GROUP]))) == "g"

"""Flavor groups: who is in, in which order, with which ratio, under which name."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from outlive.placement.flavor_groups import flavor_groups
from outlive.resources import Amounts, Flavor, FlavorSpec, ObjectMeta, check_name, object_name


def flavor(
    name: str, cpu: int, memory_mib: int, *, kind: str = "QEMU", group: str | None = "g", key: str = "quota:hw_version"
) -> Flavor:
    specs = {"capabilities:hypervisor_type": kind}
    if group is not None:
        specs[key] = group
    amounts = Amounts(cpu=cpu * 1000, memory=memory_mib * 2**20)
    return Flavor(
        metadata=ObjectMeta(name="x"), spec=FlavorSpec(flavor_name=name, resources=amounts, extra_specs=specs)
    )


def test_flavors_stand_largest_first() -> None:
    made = [flavor("b", 2, 4096), flavor("a", 2, 4096), flavor("c", 4, 4096), flavor("d", 8, 8192)]
    (group,) = flavor_groups(made)
    assert [one.name for one in group.flavors] == ["d", "c", "a", "b"]
    assert (group.largest_flavor.name, group.smallest_flavor.name) == ("d", "b")


def test_ratio_is_fixed_or_a_range_or_absent() -> None:
    fixed, mixed, free = flavor_groups(
        [
            flavor("a", 1, 2048, group="1"), flavor("b", 2, 4096, group="1"),
            flavor("a", 1, 2048, group="2"), flavor("b", 2, 8192, group="2"), flavor("z", 0, 1024, group="2"),
            flavor("a", 0, 2048, group="3"),
        ]
    )  # fmt: skip
    assert (fixed.ram_core_ratio, fixed.ram_core_ratio_min, fixed.ram_core_ratio_max) == (2048, None, None)
    assert (mixed.ram_core_ratio, mixed.ram_core_ratio_min, mixed.ram_core_ratio_max) == (None, 2048, 4096)
    assert (free.ram_core_ratio, free.ram_core_ratio_min) == (None, None)


def test_only_kvm_flavors_with_a_group_count() -> None:
    made = [
        flavor("a", 1, 1024, kind="qemu"), flavor("b", 1, 1024, kind="Ch"), flavor("c", 1, 1024, kind="Ironic"),
        flavor("d", 1, 1024, group=None), flavor("e", 1, 1024, group=""),
    ]  # fmt: skip
    assert [one.name for group in flavor_groups(made) for one in group.flavors] == ["a", "b"]


def test_a_group_whose_smallest_flavor_has_no_memory_is_left_out() -> None:
    assert flavor_groups([flavor("a", 1, 1024), flavor("b", 1, 0)]) == ()


def test_the_key_of_older_clouds_is_accepted_when_configured() -> None:
    old = flavor("a", 1, 1024, key="hw_version")
    assert flavor_groups([old]) == ()
    (group,) = flavor_groups([old], keys=("quota:hw_version", "hw_version"))
    assert [one.name for one in group.flavors] == ["a"]


@given(st.text(min_size=1, max_size=300))
def test_every_group_has_a_name_that_stores_take(name: str) -> None:
    check_name(object_name(name))


def test_different_groups_have_different_names() -> None:
    names = ["s4", "S4", "s_4", "s-4", "s..4", "_", "-", "ä"]
    assert len({object_name(name) for name in names}) == len(names)
    assert re.fullmatch(r"s-4-[0-9a-f]{8}", object_name("s_4"))

"""Units: texts of LIQUID, one unit for each flavor group, and conversions that lose nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.commitments import GIB, GROUP, MIXED, group_of

from outlive.base import QUANTITY_LIMIT, BadInput
from outlive.commitments import (
    UNIT_LIMIT,
    UNLIMITED,
    CommitmentSettings,
    GroupSettings,
    GroupUnit,
    LiquidUnit,
    RamSettings,
    format_unit,
    group_unit,
    parse_unit,
    unit_of,
)


@pytest.mark.parametrize(
    ("unit", "text"),
    [
        (LiquidUnit("B", 2**34), "16 GiB"),
        (LiquidUnit("B", 1024), "KiB"),
        (LiquidUnit("B", 1000), "1000 B"),
        (LiquidUnit("B", 240 * GIB), "240 GiB"),
        (LiquidUnit("piece", 1000), "1000 piece"),
        (LiquidUnit("piece", 1), "piece"),
        (LiquidUnit(), ""),
    ],
)
def test_units_are_written_with_the_largest_exact_prefix(unit: LiquidUnit, text: str) -> None:
    assert format_unit(unit) == text
    assert parse_unit(text) == unit


def test_any_number_may_stand_before_a_unit() -> None:
    assert parse_unit("1024 B") == parse_unit("KiB") == parse_unit("1 KiB")


@given(st.integers(1, UNIT_LIMIT), st.sampled_from(["B", "piece"]))
def test_every_unit_is_read_back(size: int, measure: str) -> None:
    unit = LiquidUnit(measure, size)  # type: ignore[arg-type]
    assert parse_unit(format_unit(unit)) == unit


@pytest.mark.parametrize(
    "text", ["16 EiB", "18446744073709551616 B", "0 B", "-1 B", "1.5 GiB", "GB", "gib", "2  KiB", " "]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_unit(text)


def test_a_fixed_ratio_is_counted_in_the_smallest_flavor() -> None:
    assert group_unit(GROUP) == group_unit(GROUP, 8) == GroupUnit(group="g", mib=8192, fixed=True)
    assert group_unit(GROUP).text == "8 GiB"


def test_a_unit_that_contradicts_a_fixed_ratio_is_refused() -> None:
    with pytest.raises(
        BadInput, match=r"flavor group g .* g_c2_m8192, 8 GiB; ramUnitGiB says 1 GiB .*entry of its own"
    ):
        group_unit(GROUP, 1)


def test_other_groups_are_counted_as_configured_or_in_gib() -> None:
    assert group_unit(MIXED) == GroupUnit(group="v", mib=1024)
    assert group_unit(MIXED, 4).text == "4 GiB"
    assert group_unit(group_of("n", (0, 0))).text == "GiB"


def test_a_wildcard_that_contradicts_a_group_is_refused() -> None:
    settings = CommitmentSettings(flavor_group_resources={"*": GroupSettings(ram=RamSettings(ram_unit_gib=4))})
    with pytest.raises(BadInput, match="flavor group g"):
        unit_of(GROUP, settings)
    own = GroupSettings(ram=RamSettings(ram_unit_gib=8))
    better = CommitmentSettings(flavor_group_resources={"*": settings.group_settings("any"), "g": own})
    assert [unit_of(one, better).mib for one in (GROUP, MIXED)] == [8192, 4096]


@given(st.integers(1, 4096), st.integers(0, 2**20))
def test_units_become_gib_and_come_back(unit_gib: int, amount: int) -> None:
    unit = GroupUnit(group="g", mib=unit_gib * 1024)
    assert unit.from_gib(unit.to_gib(amount)) == amount
    assert unit.from_bytes(unit.to_bytes(amount)) == amount
    assert unit.to_gib(amount) * GIB == unit.to_bytes(amount)


@given(st.integers(1024, 2**20), st.integers(0, 2**30))
def test_units_of_broken_gib_lose_nothing_either(mib: int, amount: int) -> None:
    unit = GroupUnit(group="g", mib=mib)
    assert unit.from_gib(unit.to_gib(amount)) == amount


def test_unlimited_stays_unlimited() -> None:
    unit = GroupUnit(group="g", mib=240 * 1024)
    assert unit.to_gib(UNLIMITED) == unit.from_gib(UNLIMITED) == UNLIMITED


def test_amounts_beyond_63_bits_are_refused() -> None:
    unit = GroupUnit(group="g")
    largest = QUANTITY_LIMIT // GIB
    assert unit.to_bytes(largest) == largest * GIB
    assert unit.to_gib(QUANTITY_LIMIT) == QUANTITY_LIMIT
    with pytest.raises(BadInput, match="8589934592 x GiB is too large"):
        unit.to_bytes(largest + 1)
    with pytest.raises(BadInput, match="9223372036854775808 x GiB is too large"):
        unit.to_gib(QUANTITY_LIMIT + 1)
    for convert in (unit.to_bytes, unit.to_gib):
        with pytest.raises(BadInput, match="negative"):
            convert(-2)
    with pytest.raises(BadInput, match="negative"):
        unit.from_gib(-2)


def test_video_memory_that_is_missing_counts_as_there() -> None:
    unit = GroupUnit(group="v", mib=2048)
    assert [unit.count_vm_units(size) for size in (2031, 2032, 2048, 4080, 4079)] == [0, 1, 1, 2, 1]
    assert group_unit(GROUP).count_vm_units(8191) == 0


def test_capacity_counts_running_vms_as_usage_does() -> None:
    unit = GroupUnit(group="v", mib=2048)
    assert unit.count_units_of_vms([(2032, 3)]) == 3
    assert unit.count_units_of_vms([(2048, 128), (4080, 2)]) == 132
    assert unit.count_free_units(5, 2032, 5 * 2032 * 2**20) == 5
    assert unit.count_free_units(2, 1024, 3 * GIB) == 1

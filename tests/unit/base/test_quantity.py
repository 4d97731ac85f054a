"""Quantities are Kubernetes', and whole numbers inside."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import (
    QUANTITY_LIMIT,
    BadInput,
    format_bytes,
    format_milli,
    parse_bytes,
    parse_milli,
    parse_quantity,
    round_away_from_zero,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0), ("8", 8), ("+8", 8), ("-8", -8), ("500m", Fraction(1, 2)), ("1Ki", 1024), ("480Gi", 480 * 2**30),
        ("1.5Gi", 3 * 2**29), ("1k", 1000), ("2M", 2_000_000), ("1e3", 1000), ("1E3", 1000), ("1E", 10**18),
        ("1Ei", 2**60), (".5", Fraction(1, 2)), ("5.", 5), ("1n", Fraction(1, 10**9)), ("1u", Fraction(1, 10**6)),
        ("12e-1", Fraction(6, 5)), (" 8 ", 8), (8, 8), (1.5, Fraction(3, 2)), (0.1, Fraction(1, 10)), ("1P", 10**15),
    ],
)  # fmt: skip
def test_a_quantity_has_its_exact_value(text: str | int | float, value: Fraction | int) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    ["", " ", "x", "8 Gi", "8gi", "8K", "8KiB", "1e3Mi", "--8", "1.2.3", "e3", "8m8", "0x10", "1_000", "NaN", "inf",
     "½", "٣", "8\n9", True, float("nan"), float("inf"), "9" * 41],
)  # fmt: skip
def test_what_is_no_quantity_is_refused_by_name(text: str | float) -> None:
    with pytest.raises(BadInput) as reported:
        parse_quantity(text)
    assert reported.value.remedy


@pytest.mark.parametrize("text", ["8Ei", "9223372036854775808", "1e30", "-1e30", "1e999", "1e-999"])
def test_what_is_absurdly_large_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_quantity(text)


def test_the_largest_quantity_is_taken() -> None:
    assert parse_quantity(str(QUANTITY_LIMIT)) == QUANTITY_LIMIT


def test_finer_parts_are_rounded_away_from_zero() -> None:
    assert [round_away_from_zero(Fraction(n, 10)) for n in (-15, -10, -1, 0, 1, 10, 15)] == [-2, -1, -1, 0, 1, 1, 2]
    assert parse_bytes("1m") == 1
    assert parse_milli("0.0001") == 1
    assert parse_milli("7.5") == 7500
    assert parse_milli(8) == 8000


def test_one_and_true_are_not_confused() -> None:
    assert parse_bytes(1) == 1
    with pytest.raises(BadInput):
        parse_bytes(True)


@given(st.integers(-(2**62), 2**62))
def test_bytes_read_back(value: int) -> None:
    assert parse_bytes(format_bytes(value)) == value


@given(st.integers(-(10**15), 10**15))
def test_milli_cores_read_back(value: int) -> None:
    assert parse_milli(format_milli(value)) == value


def test_the_shortest_exact_unit_is_written() -> None:
    assert [format_bytes(n) for n in (0, 1, 1023, 1024, 1536, 2**30, 3 * 2**39)] == [
        "0", "1", "1023", "1Ki", "1536", "1Gi", "1536Gi",
    ]  # fmt: skip
    assert [format_milli(n) for n in (0, 1, 1000, 7500)] == ["0", "1m", "1", "7500m"]

"""Durations are Go's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import BadInput, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0), ("0s", 0.0), (0, 0.0), ("30s", 30.0), ("1m30s", 90.0), ("1h", 3600.0), ("100ms", 0.1),
        ("1.5h", 5400.0), ("-1m", -60.0), ("+1m", 60.0), ("250us", 0.00025), ("1µs", 1e-6), ("1μs", 1e-6),
        ("5ns", 5e-9), (".5s", 0.5), ("1.s", 1.0), ("000000000000000000000000001s", 1.0),
        ("0.3000000000000000000000000000001s", 0.3), ("1.9ns", 1e-9),
        ("1h1m1s1ms", 3661.001), (" 5m ", 300.0), ("1m1m", 120.0),
    ],
)  # fmt: skip
def test_a_duration_has_its_seconds(text: str | int, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "5",
        "5x",
        "s",
        "m5",
        "1 m",
        "--5s",
        "+-5s",
        "5s5",
        "1d",
        "nan",
        "inf",
        5,
        1.5,
        True,
        False,
        "٣s",
        "1e3s",
        ".s",
        "0.",
        "0x1s",
        "1" * 201 + "s",
    ],
)
def test_what_is_no_duration_is_refused(text: str | float) -> None:
    with pytest.raises(BadInput) as reported:
        parse_duration(text)
    assert reported.value.remedy


def test_a_duration_that_go_cannot_hold_is_refused() -> None:
    with pytest.raises(BadInput, match="too long"):
        parse_duration("3000000h")
    assert parse_duration("2562047h47m16.854775807s") == (2**63 - 1) / 10**9
    with pytest.raises(BadInput, match="too long"):
        parse_duration("2562047h47m16.854775808s")


@pytest.mark.parametrize("milliseconds", [1, 100, 300, 700, 1100])
def test_the_seconds_of_a_duration_are_those_that_a_person_would_write(milliseconds: int) -> None:
    assert parse_duration(f"{milliseconds}ms") == milliseconds / 1000


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (90, "1m30s"), (3600, "1h"), (5400, "1h30m"), (0.1, "100ms"), (0.00025, "250µs"), (-60, "-1m"),
     (1.5, "1.5s"), (3661, "1h1m1s"), (5e-9, "5ns")],
)  # fmt: skip
def test_durations_are_written_in_gos_notation_without_zeros_at_the_end(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(-(10**12), 10**12))
def test_whole_milliseconds_read_back(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-6)

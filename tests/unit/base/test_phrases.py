from __future__ import annotations

import pytest

from outlive.base import count_of, join_parts


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "host", "0 hosts"),
        (1, "host", "1 host"),
        (1_213, "VM", "1,213 VMs"),
        (1, "unit of failure", "1 unit of failure"),
        (2, "unit of failure", "2 units of failure"),
    ],
)
def test_a_noun_agrees_with_its_number(number: int, noun: str, text: str) -> None:
    assert count_of(number, noun) == text


def test_a_listing_reads_as_in_a_sentence() -> None:
    assert [join_parts(parts) for parts in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_a_listing_of_too_many_counts_the_rest() -> None:
    names = [f"h{number}" for number in range(1_005)]
    assert join_parts(names, most=2) == "h0, h1 and 1,003 more"
    assert join_parts(names[:2], most=2) == "h0 and h1"

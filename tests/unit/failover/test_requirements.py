from __future__ import annotations

import pytest

from outlive.failover import Demands, required_slots
from outlive.placement import VmView


def of_flavor(flavor: str) -> VmView:
    return VmView(id="v", host="h1", flavor=flavor)


@pytest.mark.parametrize(
    ("flavor", "patterns", "count"),
    [
        ("std_c8_m16", {"*": 2}, 2),
        ("std_c8_m16", {"*": 2, "std_*": 1}, 2),
        ("std_c8_m16", {"*": 1, "std_*": 3, "std_c8_m16": 2}, 3),
        ("", {"*": 2}, 0),
        ("std", {}, 0),
        ("std", {"db_*": 2}, 0),
        ("Std", {"std": 2}, 0),
        ("a/b", {"*": 2}, 0),
        ("a/b", {"*/*": 2}, 2),
        ("hana_1", {"hana_[0-9]": 1}, 1),
        ("hana_x", {"hana_[^0-9]": 1}, 1),
        ("hana_x", {"hana_[!0-9]": 1}, 0),
        ("a*b", {r"a\*b": 4}, 4),
        ("std", {"s": 2}, 0),
        ("std", {"*": -3}, 0),
        ("std", {"*": 0}, 0),
    ],
)
def test_the_largest_count_of_any_matching_pattern_counts(flavor: str, patterns: dict[str, int], count: int):
    assert required_slots(flavor, patterns) == count


def test_a_malformed_pattern_is_skipped_and_named_and_the_others_still_count():
    demands = Demands({"[": 9, "std*": 1, "x\\": 9})
    assert demands.required_slots(of_flavor("std_1")) == 1
    assert sorted(demands.malformed) == ["[", "x\\"]

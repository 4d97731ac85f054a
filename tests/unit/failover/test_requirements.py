from __future__ import annotations

import pytest

from outlive.failover.protection import Demands, required
from outlive.placement.vms import VmView


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
    assert required(flavor, patterns) == count


def test_a_malformed_pattern_is_skipped_and_named_and_the_others_still_count():
    demands = Demands({"[": 9, "std*": 1, "x\\": 9})
    assert demands.required(of_flavor("std_1")) == 1
    assert sorted(demands.malformed) == ["[", "x\\"]


def test_counts_are_remembered_without_bound_problems():
    demands = Demands({"*": 1})
    assert all(demands.required(of_flavor(f"f{i}")) == 1 for i in range(20_005))

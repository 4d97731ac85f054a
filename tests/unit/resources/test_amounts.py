"""Amounts add up, compare and read back, whatever resources an inventory brings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.base import BadInput
from outlive.resources import Amounts

NAMES = st.sampled_from(["cpu", "memory", "gpu", "disk"])
AMOUNTS = st.dictionaries(NAMES, st.integers(-(10**12), 10**12), max_size=4).map(Amounts)


@given(AMOUNTS)
def test_amounts_read_back(amounts: Amounts) -> None:
    assert Amounts.parse(amounts.to_wire()) == amounts
    assert Amounts.parse(dict(amounts.to_wire())) == amounts


@given(AMOUNTS, AMOUNTS)
def test_missing_names_count_as_zero_in_sums(a: Amounts, b: Amounts) -> None:
    for name in ("cpu", "memory", "gpu", "disk"):
        assert (a + b).get(name, 0) == a.get(name, 0) + b.get(name, 0)
        assert (a - b).get(name, 0) == a.get(name, 0) - b.get(name, 0)
    assert a + b == b + a


@given(AMOUNTS)
def test_equal_amounts_have_equal_hashes(a: Amounts) -> None:
    again = Amounts(dict(reversed(list(a.items()))))
    assert a == again
    assert hash(a) == hash(again)


def test_cpu_and_memory_come_first_on_the_wire() -> None:
    assert list(Amounts({"z": 1, "memory": 2, "a": 3, "cpu": 4}).to_wire()) == ["cpu", "memory", "a", "z"]


def test_named_amounts_and_properties() -> None:
    amounts = Amounts({"gpu": 1}, cpu=1500, memory=2**30)
    assert (amounts.cpu_milli, amounts.memory_bytes, len(amounts)) == (1500, 2**30, 3)
    assert (Amounts().cpu_milli, Amounts().memory_bytes) == (0, 0)
    assert amounts != {"gpu": 1}
    assert "1500m" in repr(amounts)


def test_a_shared_instance_is_not_mistaken_for_another_value() -> None:
    assert Amounts.parse({"cpu": "1"}) == Amounts.parse({"cpu": 1}) == Amounts(cpu=1000)
    with pytest.raises(BadInput):
        Amounts.parse({"cpu": True})


@pytest.mark.parametrize("raw", [None, [], "cpu=1", {"cpu": []}, {"cpu": ""}, {1: "1"}, {"memory": "1GiB"}])
def test_what_is_no_map_of_quantities_is_refused(raw: object) -> None:
    with pytest.raises(BadInput) as refused:
        Amounts.parse(raw)
    assert refused.value.remedy

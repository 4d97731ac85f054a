"""Whole numbers that no other store reads are refused, wherever they stand; those in texts are texts."""

from __future__ import annotations

import pytest

from outlive.base import Invalid, LoopClock, Random, SeededIds
from outlive.resources import Flavor, FlavorSpec, ObjectMeta
from outlive.runtime import run_virtual
from outlive.store import MemoryStore


def create(spec: FlavorSpec) -> None:
    store = MemoryStore(LoopClock(), SeededIds(Random(1)))
    run_virtual(store.create(Flavor(metadata=ObjectMeta(name="m1"), spec=spec)))


@pytest.mark.parametrize("number", [10**400, 2**63, -(2**63) - 1])
def test_a_number_beyond_64_bits_is_refused(number: int) -> None:
    with pytest.raises(Invalid, match="whole number of"):
        create(FlavorSpec(flavor_name="m1", disk_gib=number))


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_the_largest_and_smallest_numbers_are_kept(number: int) -> None:
    create(FlavorSpec(flavor_name="m1", disk_gib=number))


def test_digits_in_a_text_are_no_number() -> None:
    create(FlavorSpec(flavor_name="m1", extra_specs={"a": f":{10**30},[{10**30}"}))

"""After a failure the most exposed are protected first, and so fewer slots are missing for less long."""

from __future__ import annotations

import pytest
from bench.exposure import K, Order, after_failure, course, exposures, held

from outlive.failover import CheckInput
from outlive.failover.check import check

SEEDS = range(6)


@pytest.mark.slow
def test_exposure_after_a_failure_is_never_higher_than_with_the_largest_memory_first_and_lower_on_average() -> None:
    slots, bare = [0, 0], [0, 0]
    for seed in SEEDS:
        ours, theirs = exposures(after_failure(seed), limit=5)
        assert ours.slot_steps <= theirs.slot_steps, f"seed {seed}: {ours} and {theirs}"
        assert ours.bare_steps <= theirs.bare_steps, f"seed {seed}: {ours} and {theirs}"
        slots = [slots[0] + ours.slot_steps, slots[1] + theirs.slot_steps]
        bare = [bare[0] + ours.bare_steps, bare[1] + theirs.bare_steps]
    assert slots[0] < 0.97 * slots[1]
    assert bare[0] < 0.5 * bare[1]


@pytest.mark.slow
def test_what_is_measured_is_a_fleet_after_a_failure_under_the_same_rules() -> None:
    fleet = after_failure(1)
    assert check(CheckInput(vms=fleet.vms, slots=fleet.slots)).violations == ()
    has = held(fleet)
    assert {0, 1, K} <= set(has.values())
    for order in Order:
        found = course(fleet, order, limit=10)
        assert found[0] == (sum(K - one for one in has.values()), sum(one == 0 for one in has.values()))
        assert [slots for slots, _ in found] == sorted((slots for slots, _ in found), reverse=True)

"""Planning a whole fleet, and what a plan is worth: the theorem by brute force."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import fleets

from outlive.base import Random
from outlive.failover import CheckInput, SlotView
from outlive.failover.check import check
from outlive.failover.planner import Fail, Join, Open, PlanResult
from outlive.failover.planner.plan import plan
from outlive.placement import VmView

SEEDS = st.integers(0, 2**32)
GIB = 2**30


def planned(vms: list[VmView], on: list[str], k: int, *, slots: tuple[SlotView, ...] = ()) -> PlanResult:
    return plan(fleets.plan_input(vms, on, k, slots=slots))


def random_plan(seed: int, k: int) -> tuple[list[VmView], list[str], PlanResult]:
    random = Random(seed)
    on = fleets.hosts(random.randint(3, 8))
    vms = fleets.vms(random, random.randint(1, 14), on, sizes=(1, 2))
    return vms, on, planned(vms, on, k)


@pytest.mark.slow
@given(SEEDS, st.integers(1, 3))
def test_every_plan_obeys_the_rules_and_every_vm_is_served_or_told_why(seed: int, k: int) -> None:
    vms, _, result = random_plan(seed, k)
    assert check(CheckInput(vms=tuple(vms), slots=result.slots)).holds
    failed = {action.vm for action in result.actions if isinstance(action, Fail)}
    for vm in vms:
        mine = [slot for slot in result.slots if vm.id in slot.members]
        assert len(mine) == k or vm.id in failed
    assert result.reused == sum(isinstance(action, Join) for action in result.actions)
    assert result.created == sum(isinstance(action, Open) for action in result.actions) == len(result.slots)


@pytest.mark.slow
@given(SEEDS, st.integers(1, 3))
def test_after_any_k_failures_each_affected_vm_has_a_slot_that_nobody_competes_for(seed: int, k: int) -> None:
    vms, on, result = random_plan(seed, k)
    location = {vm.id: vm.host for vm in vms}
    for vm in vms:
        mine = [slot for slot in result.slots if vm.id in slot.members]
        if len(mine) < k:
            continue
        others = [host for host in on if host != vm.host]
        for size in range(k):
            for more in combinations(others, size):
                down = {vm.host, *more}
                assert any(
                    slot.host not in down
                    and not any(location[other] in down for other in slot.members if other != vm.id)
                    for slot in mine
                )


@pytest.mark.parametrize("salt", ["a", "b", "c", "d", "e"])
def test_equal_vms_with_one_slot_each_come_close_to_the_bound(salt: str) -> None:
    on = fleets.hosts(60)
    vms = [fleets.vm(f"{salt}{number:04}", on[number % 60]) for number in range(600)]
    result = planned(vms, on, 1)
    assert result.failed == 0
    assert len(result.slots) <= 1.1 * -(-600 // 59) + 1


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "on_each", "plain", "packed"), [(40, 10, 126, 104), (20, 5, 52, 43)])
def test_packing_needs_fewer_slots_than_the_greedy_plan_of_a_cycle(
    hosts: int, on_each: int, plain: int, packed: int
) -> None:
    on = fleets.hosts(hosts)
    vms = [fleets.vm(f"v{n:04}", on[n % hosts]) for n in range(hosts * on_each)]
    given_fleet = fleets.plan_input(vms, on, 2, packing=False)
    assert len(plan(given_fleet).slots) <= plain
    better = plan(msgspec.structs.replace(given_fleet, packing=True))
    assert len(better.slots) <= packed
    assert check(CheckInput(vms=tuple(vms), slots=better.slots)).holds


@pytest.mark.slow
@given(SEEDS)
def test_packing_never_fails_more_vms_nor_reserves_more_memory(seed: int) -> None:
    random = Random(seed)
    on = fleets.hosts(random.randint(3, 8))
    vms = fleets.vms(random, random.randint(1, 14), on, sizes=(1, 2))
    free = {host: (random.randint(0, 6) * 1000, 12 * GIB) for host in on}
    given_fleet = fleets.plan_input(vms, on, 2, free=free)

    def cost(packing: bool) -> tuple[int, int]:
        result = plan(msgspec.structs.replace(given_fleet, packing=packing))
        return result.failed, sum(slot.memory_bytes for slot in result.slots)

    assert cost(True) <= cost(False)


def test_a_plan_is_the_same_twice_and_does_not_depend_on_the_order_of_its_input() -> None:
    on = fleets.hosts(9)
    vms = fleets.vms(Random(4), 30, on, sizes=(1, 2, 4))
    assert planned(vms, on, 2) == planned(list(reversed(vms)), on, 2)

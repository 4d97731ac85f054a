"""Few moves make an uneven fleet even, each with its figures, and nobody's coverage falls."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import fleets

from outlive.base import Random
from outlive.failover import (
    BalancedHost,
    BalanceReason,
    CheckInput,
    FleetIndex,
    RebalanceInput,
    RebalanceResult,
    SlotView,
)
from outlive.failover.check import check
from outlive.failover.planner.plan import plan
from outlive.failover.rebalance import rebalance
from outlive.placement import VmConstraints, VmView, amounts_of
from outlive.resources import CPU, MEMORY, AffinityRule

GIB = 2**30
CAPACITY = {CPU: 10_000, MEMORY: 20 * GIB}


def vm(name: str, host: str, size: int = 1) -> VmView:
    return VmView(id=name, host=host, cpu_milli=size * 1000, memory_bytes=size * 2 * GIB)


def asked(vms: list[VmView], on: list[str], slots: tuple[SlotView, ...] = (), **more: object) -> RebalanceInput:
    made = RebalanceInput(
        hosts=tuple(BalancedHost(name=name, capacity=CAPACITY) for name in on),
        vms=tuple(vms),
        slots=slots,
        free=free(vms, on, slots),
        destinations={one.id: tuple(name for name in on if name != one.host) for one in vms},
    )
    return msgspec.structs.replace(made, **more)


def free(vms: list[VmView], on: list[str], slots: tuple[SlotView, ...]) -> dict[str, dict[str, int]]:
    left = {name: dict(CAPACITY) for name in on}
    for one in (*vms, *slots):
        left[one.host][CPU] -= one.cpu_milli
        left[one.host][MEMORY] -= one.memory_bytes
    return left


def applied(given: RebalanceInput, result: RebalanceResult) -> RebalanceInput:
    where = {move.vm: move.host for move in result.moves}
    left = {name: dict(amounts) for name, amounts in given.free.items()}
    for one in given.vms:
        for resource, amount in amounts_of(one).items() if one.id in where else ():
            left[one.host][resource] += amount
            left[where[one.id]][resource] -= amount
    vms = tuple(msgspec.structs.replace(one, host=where.get(one.id, one.host)) for one in given.vms)
    slots = tuple(
        msgspec.structs.replace(slot, members={name: where.get(name, host) for name, host in slot.members.items()})
        for slot in given.slots
    )
    on = [host.name for host in given.hosts]
    destinations = {one.id: tuple(name for name in on if name != one.host) for one in vms if one.id in given.demands}
    destinations |= {one.id: tuple(name for name in on if name != one.host) for one in vms}
    return msgspec.structs.replace(given, vms=vms, slots=slots, free=left, destinations=destinations)


def test_an_empty_host_gets_as_much_as_it_takes_in_few_moves() -> None:
    uneven = [vm(f"v{n}", "h1") for n in range(8)]
    result = rebalance(asked(uneven, ["h1", "h2"], moves=10))
    assert (result.before, result.after, result.why) == (0.8, 0.0, BalanceReason.BALANCED)
    first = result.moves[0]
    assert (first.source, first.host, first.source_before, first.source_after) == ("h1", "h2", 0.8, 0.7)
    assert (first.host_before, first.host_after) == (0.0, 0.1)
    assert len(result.moves) == 4


def test_the_vm_that_helps_most_goes_first() -> None:
    result = rebalance(asked([vm("small", "h1", 1), vm("large", "h1", 4), vm("rest", "h1", 4)], ["h1", "h2"]))
    assert [move.vm for move in result.moves] == ["large"]


def test_nothing_moves_below_the_threshold_and_the_number_of_moves_is_a_limit() -> None:
    slightly = [vm(f"v{n}", "h1") for n in range(2)]
    assert rebalance(asked(slightly, ["h1", "h2"])) == RebalanceResult(before=0.2, after=0.2, why=BalanceReason.EVEN)
    limited = rebalance(asked([vm(f"v{n}", "h1") for n in range(8)], ["h1", "h2"], moves=1))
    assert limited.why is BalanceReason.LIMIT
    assert len(limited.moves) == 1


def test_no_vm_goes_where_its_slot_is_or_where_room_is_kept_for_others() -> None:
    uneven = [vm(f"v{n}", "h1") for n in range(8)]
    own = tuple(
        SlotView(name=f"s{n}", host="h2", cpu_milli=1000, memory_bytes=2 * GIB, members={f"v{n}": "h1"}, ready=True)
        for n in range(8)
    )
    given = asked(uneven, ["h1", "h2"], own, required={one.id: 1 for one in uneven})
    assert rebalance(given).why is BalanceReason.NOTHING_HELPS
    kept = (SlotView(name="s", host="h2", cpu_milli=9_500, memory_bytes=GIB, ready=True),)
    assert rebalance(asked(uneven, ["h1", "h2"], kept)).moves == ()


def test_rules_and_preferences_of_vms_are_obeyed() -> None:
    uneven = [vm(f"v{n}", "h1", 4) for n in range(2)]
    apart = (AffinityRule(group="g", policy="anti-affinity"),)
    together = (AffinityRule(group="g", policy="affinity"),)
    there = vm("w", "h2")

    def moved(**demands: VmConstraints) -> list[str]:
        return [move.vm for move in rebalance(asked([*uneven, there], ["h1", "h2"], demands=demands)).moves]

    assert moved() == ["v0"]
    assert moved(v0=VmConstraints(id="v0", rules=apart), w=VmConstraints(id="w", rules=apart)) == ["v1"]
    assert moved(v0=VmConstraints(id="v0", rules=together), v1=VmConstraints(id="v1", rules=together)) == []
    assert moved(v0=VmConstraints(id="v0", host_limit=("h1",))) == ["v1"]
    assert moved(v0=VmConstraints(id="v0", preferred={"h1": 5})) == ["v1"]


@pytest.mark.slow
@given(
    st.integers(0, 2**32), st.integers(2, 7), st.integers(0, 30), st.integers(0, 2), st.sampled_from((0.1, 0.2, 0.4))
)
def test_what_was_balanced_stays_and_nobody_is_worse_off(
    seed: int, hosts: int, count: int, need: int, threshold: float
) -> None:
    random, on = Random(seed), fleets.hosts(hosts)
    vms = fleets.vms(random, count, on[: 1 + random.randrange(hosts)], sizes=(1, 1, 2, 3))
    required = {one.id: need for one in vms if random.random() < 0.7}
    made = plan(fleets.plan_input(vms, on, required, packing=False))
    slots = tuple(msgspec.structs.replace(slot, ready=True) for slot in made.slots)
    given_ = asked(vms, on, slots, required=required, threshold=threshold, moves=1000)
    result = rebalance(given_)
    after = applied(given_, result)
    again = rebalance(after)
    assert again.moves == ()
    assert again.before == result.after <= result.before
    assert all(move.source_after < move.source_before for move in result.moves)
    assert len({move.vm for move in result.moves}) == len(result.moves)
    fleet, before = (FleetIndex.build(one.slots, one.vms, required) for one in (after, given_))
    assert all(misses <= before.missing_slots().get(name, 0) for name, misses in fleet.missing_slots().items())
    assert set(fleet.list_faulty()) <= set(before.list_faulty())
    if check(CheckInput(vms=given_.vms, slots=given_.slots)).holds:
        assert check(CheckInput(vms=after.vms, slots=after.slots)).holds
    for count_ in range(len(result.moves)):
        part = applied(given_, msgspec.structs.replace(result, moves=result.moves[: count_ + 1]))
        there = FleetIndex.build(part.slots, part.vms, required)
        assert all(misses <= before.missing_slots().get(name, 0) for name, misses in there.missing_slots().items())
        assert set(there.list_faulty()) <= set(before.list_faulty()), "nor while they move, one after the other"
    touched = {move.host for move in result.moves}
    assert all(amount >= 0 for name in touched for amount in after.free[name].values())

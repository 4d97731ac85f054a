"""Hosts that hold too much: which slot leaves, when, and that evictions come to an end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.loops import run_by
from tests.support.placement import commitment, fleet_of, host, in_flight, slot
from tests.support.sales import Market, in_market
from tests.support.sales import host as sold_host

from outlive.commitments import (
    AVOIDED_S,
    CheckOutcome,
    HostCheck,
    HostVerdict,
    HostWatch,
    LeftHosts,
    check_host,
    evict_slot,
    slot_to_evict,
)
from outlive.placement import Fleet
from outlive.resources import MEMORY, Reservation

GIB = 2**30
TOO_MUCH = {MEMORY: GIB}


def checked(watch: HostWatch | None = None, now: float = 1000, **fields: Any) -> HostVerdict:
    given = {"excess": TOO_MUCH, "slots": (commitment("s"),), "grace_s": 120, "min_interval_s": 30, **fields}
    return check_host(HostCheck(host="h1", watch=watch or HostWatch(), now=now, **given))


def chosen(*slots: Reservation, excess: dict[str, int] = TOO_MUCH) -> str | None:
    found = slot_to_evict("h1", slots, excess)
    return found.name if found is not None else None


def test_empty_slots_leave_first_the_smallest_of_them() -> None:
    used = commitment("used", memory="2Gi", meant={"v": ("1", "1Gi")}, seen=("v",))
    assert chosen(used, commitment("large"), commitment("small", memory="4Gi")) == "small"
    assert chosen(commitment("b", cpu="2"), commitment("a", cpu="1"), commitment("c", cpu="1")) == "a"


def test_of_used_slots_the_one_leaves_of_which_most_is_idle_then_the_largest() -> None:
    busy = commitment("busy", meant={"v": ("1", "12Gi")}, seen=("v",))
    idle = commitment("idle", meant={"w": ("1", "2Gi")}, seen=("w",))
    assert chosen(busy, idle) == "idle"
    small = commitment("small", memory="8Gi", cpu="2", meant={"x": ("1", "1Gi")}, seen=("x",))
    large = commitment("large", memory="16Gi", cpu="4", meant={"y": ("2", "2Gi")}, seen=("y",))
    assert chosen(small, large) == "large"


def test_nothing_leaves_that_would_not_help_or_is_somebody_elses() -> None:
    whole = commitment("whole", meant={"v": ("4", "16Gi")}, seen=("v",))
    going = commitment("going", "h1", target="h2")
    assert chosen(whole, going, slot("failover")) is None
    assert chosen(commitment("s", cpu="0"), excess={"cpu": 1}) is None


def test_a_host_has_time_before_a_slot_leaves_and_between_two_that_leave() -> None:
    first = checked()
    assert (first.outcome, first.again_s) == (CheckOutcome.WAITING, 120)
    soon = checked(first.watch, 1010)
    assert (soon.outcome, soon.again_s, soon.watch) == (CheckOutcome.TOO_SOON, 20, first.watch)
    due = checked(first.watch, 1120)
    assert (due.outcome, due.slot, due.again_s) == (CheckOutcome.EVICTED, "s", 120)
    assert checked(due.watch, 1180).outcome is CheckOutcome.WAITING


def test_what_fits_again_or_cannot_be_helped_is_told_apart() -> None:
    late = HostWatch(checked=0, since=0)
    assert checked(late, excess={}).watch == HostWatch(checked=1000)
    assert checked(late, known=False).outcome is CheckOutcome.UNKNOWN
    assert checked(late, slots=()).outcome is CheckOutcome.STUCK
    assert checked(late, evicts=False).outcome is CheckOutcome.STUCK


def test_a_slot_that_leaves_is_wanted_nowhere_and_expects_nobody() -> None:
    gone = evict_slot(commitment("s", meant={"v": ("1", "1Gi")}, seen=("v",)))
    details = gone.spec.committed_resource_reservation
    assert details is not None
    assert (gone.spec.target_host, details.allocations) == ("", {})


def test_a_slot_avoids_a_host_that_it_left_longer_each_time_and_not_for_ever() -> None:
    once = LeftHosts().add_left("s", "h1", 0)
    assert once.avoided_hosts("s", AVOIDED_S - 1) == ("h1",)
    assert once.avoided_hosts("s", AVOIDED_S) == ()
    twice = once.add_left("s", "h1", AVOIDED_S)
    assert twice.avoided_hosts("s", 2.9 * AVOIDED_S) == ("h1",)
    assert twice.avoided_hosts("s", 3 * AVOIDED_S) == ()
    assert twice.avoided_hosts("other", 0) == ()
    assert twice.remove_slot("s") == LeftHosts()


def _place(fleet: Fleet, made: Reservation, left: LeftHosts) -> Reservation:
    """Any other host that looks free of memory, as if nobody else did the same at this moment."""
    free = dict(zip(fleet.names, fleet.free_amounts()[:, 1].tolist(), strict=True))
    avoided = left.avoided_hosts(made.name, 0)
    fits = [name for name in fleet.names if name not in avoided and free[name] >= 0]
    where = max(fits, key=lambda name: (free[name], name), default="")
    return replace(made, spec=replace(made.spec, target_host=where), status=replace(made.status, host=where))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(8, 64), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 24)), max_size=8),
)
def test_evictions_end_even_if_placement_puts_slots_where_they_do_not_fit(
    sizes: list[int], given: list[tuple[int, int]]
) -> None:
    names = [f"h{number}" for number in range(len(sizes))]
    fleet = fleet_of(
        *(host(name, capacity={"cpu": "99", "memory": f"{size}Gi"}, effectiveCapacity=None)
          for name, size in zip(names, sizes, strict=True)),
    )  # fmt: skip
    slots = {
        f"s{number}": commitment(f"s{number}", names[at % len(names)], cpu="1", memory=f"{size}Gi")
        for number, (at, size) in enumerate(given)
    }
    left, evictions = LeftHosts(), 0
    while True:
        for one in slots.values():
            fleet.upsert_reservation(one)
        full = [(name, dict(fleet.overbooked_amounts(name))) for name in names if fleet.overbooked_amounts(name)]
        choices = [(name, slot_to_evict(name, slots.values(), excess)) for name, excess in full]
        leaving = next(((name, one) for name, one in choices if one is not None), None)
        if leaving is None:
            break
        evictions += 1
        assert evictions <= len(names) * len(slots)
        left = left.add_left(leaving[1].name, leaving[0], 0)
        fleet.remove_reservation(leaving[1].name)
        slots[leaving[1].name] = _place(fleet, evict_slot(leaving[1]), left)
    assert all(not fleet.overbooked_amounts(name) for name in names)


@pytest.mark.slow
@run_by(in_market, [sold_host("h1")])
async def test_no_slot_leaves_for_a_vm_that_is_in_flight_and_may_never_come(market: Market) -> None:
    """Room in flight of a VM lies in slots of its own project, on each of the hosts that the answer named."""
    await market.sell("aaaaaa", 8)
    await market.store.create(in_flight("i", "h1", vm="never-comes", cpu="2", memory="8Gi"))
    await asyncio.sleep(400)
    assert {one.spec.target_host for one in (await market.slots()).values()} == {"h1"}
    assert await market.ready("aaaaaa") == "Accepted"
    assert market.role.fleet.overbooked_amounts("h1") == {MEMORY: 8 * GIB}, "the room is held meanwhile"

"""How many more VMs fit: exact where each needs one slot, and bounded from both sides where it needs more."""

from __future__ import annotations

from itertools import combinations, combinations_with_replacement, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from outlive.failover.analysis import FitInput, FitUnit, count_fitting_vms, fit_in_grids, limit_vms


def literal(given: FitInput) -> int:
    """All ways to place new slots; then each unit has as many VMs as have room, and a slot elsewhere."""
    best = 0
    for placed in product(*(range(unit.slots + unit.slots_beside + 1) for unit in given.units)):
        total = 0
        for unit, here in zip(given.units, placed, strict=True):
            room = unit.vms - given.weight * max(0, here - unit.slots_beside)
            total += max(0, min(room, sum(placed) - here + unit.joinable))
        best = max(best, total)
    return best


@st.composite
def inputs(draw: st.DrawFn, needed: int = 1) -> FitInput:
    weight = draw(st.integers(1, 3))
    units = []
    for _ in range(draw(st.integers(0, 4))):
        vms = draw(st.integers(0, 8))
        units.append(
            FitUnit(
                vms=vms,
                slots=draw(st.integers(0, vms // weight)),
                slots_beside=draw(st.integers(0, 2)),
                joinable=draw(st.integers(0, 3)),
            )
        )
    return FitInput(units=tuple(units), weight=weight, needed=needed)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(inputs())
def test_the_count_is_that_of_all_ways_to_place_slots(given: FitInput) -> None:
    assert count_fitting_vms(given).vms == literal(given)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(inputs(), st.integers(0, 5))
def test_the_bounds_of_one_slot_hold_the_count_between_them(given: FitInput, there: int) -> None:
    """Slots that are there already are on further units, which have no room."""
    joinable = max((unit.joinable for unit in given.units), default=0)
    everywhere = replace(given, units=(*given.units, *(FitUnit() for _ in range(joinable + 1))))
    assert (
        fit_in_grids(given).vms
        <= count_fitting_vms(given).vms
        <= limit_vms(everywhere, slots_there=joinable + there).vms
    )


def finds_places(given: FitInput, count: int) -> bool:
    """Whether so many VMs can each have a home and two slots, by the rules of failover, trying everything."""
    hosts = range(len(given.units))
    homes = [min(unit.vms // given.weight, unit.slots) for unit in given.units]
    for chosen in combinations_with_replacement(hosts, count):
        if any(chosen.count(host) > homes[host] for host in hosts):
            continue
        left = [unit.slots + unit.slots_beside - chosen.count(at) for at, unit in enumerate(given.units)]
        if _serve(list(chosen), [], left):
            return True
    return False


def _serve(homes: list[int], slots: list[tuple[int, tuple[int, ...]]], left: list[int], done: int = 0) -> bool:
    """Give the next VM two slots, joined or new; a slot is its host and its members."""
    if done == len(homes):
        return True
    new = [(host, ()) for host in range(len(left)) if left[host] > 0]
    open_slots = [*range(len(slots)), *new]
    for pair in combinations(open_slots, 2):
        then, room = list(slots), list(left)
        for one in pair:
            if isinstance(one, tuple):
                then.append((one[0], (done,)))
                room[one[0]] -= 1
            else:
                then[one] = (then[one][0], (*then[one][1], done))
        if min(room) >= 0 and _holds(homes, then, done) and _serve(homes, then, room, done + 1):
            return True
    return False


def _holds(homes: list[int], slots: list[tuple[int, tuple[int, ...]]], last: int) -> bool:
    """The counters of the rules: no host counts twice for any VM."""
    for vm in range(last + 1):
        met = [homes[vm]]
        for host, members in slots:
            if vm in members:
                met += [host, *(homes[other] for other in members if other != vm)]
        if len(met) != len(set(met)):
            return False
    return True


@settings(max_examples=100, deadline=None)
@given(inputs(needed=2).filter(lambda one: sum(unit.slots for unit in one.units) <= 10))
def test_vms_with_two_slots_find_places_for_as_many_as_is_said(given: FitInput) -> None:
    count = fit_in_grids(given).vms
    assert count > 3 or finds_places(given, count)
    assert count <= limit_vms(given, slots_there=0).vms


def test_a_grid_of_four_vms_with_two_slots_each_fits_on_eight_hosts_with_one_place_each() -> None:
    given = FitInput(units=(FitUnit(vms=1, slots=1),) * 8, needed=2)
    result = fit_in_grids(given)
    assert (result.vms, result.slots) == (4, 4)
    slots = [(4, (0, 1)), (5, (2, 3)), (6, (0, 2)), (7, (1, 3))]
    assert _holds([0, 1, 2, 3], slots, 3)


def test_forty_hosts_of_96_vms_each_take_3744_with_96_slots() -> None:
    result = count_fitting_vms(FitInput(units=(FitUnit(vms=96, slots=96),) * 40))
    assert (result.vms, result.slots) == (3744, 96)


def test_without_slots_everything_is_for_vms() -> None:
    assert count_fitting_vms(FitInput(units=(FitUnit(vms=96, slots=96),) * 40, needed=0)).vms == 3840


def test_a_vm_with_two_slots_needs_three_units() -> None:
    two = FitInput(units=(FitUnit(vms=9, slots=9),) * 2, needed=2)
    assert limit_vms(two, slots_there=0).vms == 0
    three = FitInput(units=(FitUnit(vms=9, slots=9),) * 3, needed=2)
    assert 0 < fit_in_grids(three).vms <= limit_vms(three, slots_there=0).vms


def test_many_slots_are_searched_and_not_all_tried() -> None:
    result = count_fitting_vms(FitInput(units=(FitUnit(vms=100_000, slots=100_000),) * 40))
    assert (result.vms, result.slots) == (3_900_000, 100_000)

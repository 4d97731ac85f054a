"""What survives: named cases and every set of K units, against the definition taken literally."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, permutations

import pytest
from tests.support import fleets
from tests.unit.failover.test_tolerance import broken_fleet, located

from outlive.base import BadInput, LimitExceeded, Random
from outlive.failover import HostView, SlotView, TopologyChoice, is_large_enough
from outlive.failover.analysis import (
    FailuresInput,
    FailuresResult,
    LostReason,
    Method,
    SurvivalMatrix,
    ToleranceInput,
    compute_tolerance,
    iter_cases,
    match_slots,
    survive,
)
from outlive.placement import VmView


class Fleet:
    """A broken state and the definition of surviving, word by word."""

    def __init__(self, seed: int, by: str) -> None:
        random = Random(seed)
        self.hosts, self.vms, self.slots = broken_fleet(random)
        self.units = TopologyChoice(unit=by).topology_of(self.hosts).units
        self.required = {vm.id: random.randint(0, 2) for vm in self.vms}
        self.priorities = {vm.id: random.randint(0, 2) for vm in self.vms if random.random() < 0.5}
        self.location = located(self.vms, self.slots)

    def unit(self, host: str) -> str:
        return self.units.get(host, host)

    def all_units(self) -> list[str]:
        hosts = [*(host.name for host in self.hosts), *self.location.values(), *(slot.host for slot in self.slots)]
        return sorted({self.unit(host) for host in hosts})

    def affected(self, down: Sequence[str]) -> list[VmView]:
        return [vm for vm in self.vms if self.required[vm.id] and self.unit(vm.host) in down]

    def counting(self, vm: VmView) -> list[SlotView]:
        return [
            s for s in self.slots if s.ready is not False and s.members.get(vm.id) == vm.host and is_large_enough(vm, s)
        ]

    def own_slots(self, vm: VmView, down: Sequence[str]) -> list[str]:
        return sorted(
            slot.name
            for slot in self.counting(vm)
            if self.unit(slot.host) not in down
            and not any(self.unit(self.location[other]) in down for other in slot.members if other != vm.id)
        )

    def asked(self, **what: object) -> FailuresInput:
        return FailuresInput(
            vms=tuple(self.vms),
            required=self.required,
            slots=tuple(self.slots),
            hosts=tuple(self.hosts),
            units=self.units,
            priorities=self.priorities,
            **what,  # type: ignore[arg-type]
        )


@pytest.mark.slow
@pytest.mark.parametrize("by", ["host", "rack"])
@pytest.mark.parametrize("failures", [1, 2, 3])
def test_every_set_of_failures_loses_exactly_those_without_a_slot_of_their_own(by: str, failures: int) -> None:
    for seed in range(60):
        fleet = Fleet(seed, by)
        units = fleet.all_units()
        expected = {
            (vm.id, case)
            for case in combinations(units, min(failures, len(units)))
            for vm in fleet.affected(case)
            if not fleet.own_slots(vm, case)
        }
        result = survive(fleet.asked(failures=failures, enumerate=True))
        assert {(one.vm, one.case) for one in result.lost} == expected, seed
        assert result.holds == (not expected)
        assert (result.lost_count, result.lost_vms) == (len(expected), len({vm for vm, _ in expected}))
        assert result.method is Method.ENUMERATION
        assert result.unprotected == sum(1 for vm in fleet.vms if not fleet.required[vm.id])
        for worst in result.worst:
            assert worst.lost == sum(case == worst.case for _, case in expected)
        assert max((one.lost for one in result.worst), default=0) == most_lost(expected)


def most_lost(pairs: set[tuple[str, tuple[str, ...]]]) -> int:
    return max((sum(case == one for _, case in pairs) for one in {case for _, case in pairs}), default=0)


@pytest.mark.slow
def test_whether_it_holds_is_known_from_tolerance_without_looking_at_the_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlive.failover.analysis.survival.PAIRS_UNASKED", 0)
    for seed in range(150):
        fleet = Fleet(seed, "rack")
        least = compute_tolerance(
            ToleranceInput(vms=tuple(fleet.vms), required=fleet.required, slots=tuple(fleet.slots), units=fleet.units)
        )
        for failures in (1, 2, 3):
            reported = survive(fleet.asked(failures=failures))
            looked = survive(fleet.asked(failures=failures, enumerate=True))
            clamped = min(failures, len(fleet.all_units()))
            assert reported.holds == looked.holds == (min(least.vms.values(), default=failures) >= clamped)
            assert reported.method is Method.TOLERANCE
            assert {one.vm for one in reported.lost} == {one.vm for one in looked.lost}
            assert (reported.cases, reported.affected) == (looked.cases, looked.affected)
            for one in reported.lost:
                vm = next(vm for vm in fleet.vms if vm.id == one.vm)
                assert len(one.case) <= clamped
                assert vm in fleet.affected(one.case)
                assert not fleet.own_slots(vm, one.case)


def test_in_a_named_case_survivors_land_on_their_own_slots_and_the_rest_share_by_priority() -> None:
    for seed in range(300):
        random = Random(seed)
        fleet = Fleet(seed, "host")
        units = fleet.all_units()
        case = tuple(sorted(random.sample(units, random.randint(1, len(units)))))
        result = survive(fleet.asked(cases=(case,)))
        landed = {one.vm: one for one in result.landing or ()}
        slots = {slot.name: slot for slot in fleet.slots}
        assert len({one.slot for one in landed.values()}) == len(landed)
        for vm in fleet.affected(case):
            own = fleet.own_slots(vm, case)
            lost = next((one for one in result.lost if one.vm == vm.id), None)
            assert (lost is None) == bool(own)
            if lost is None:
                assert (landed[vm.id].slot, landed[vm.id].contested) == (own[0], False)
                continue
            living = [slot.name for slot in fleet.counting(vm) if slot.host not in case]
            assert lost.reason == (
                LostReason.CONTESTED
                if living
                else LostReason.SLOTS_FAILED
                if fleet.counting(vm)
                else LostReason.NO_SLOT
            )
            taken = landed.get(vm.id)
            assert lost.takes == (taken.slot if taken else "")
            if taken:
                assert taken.contested
                assert taken.slot in living
                assert (taken.source, taken.host) == (vm.host, slots[taken.slot].host)
            assert bool(lost.rivals) == bool(living)
        assert result.affected == len(fleet.affected(case))
        assert {one.vm for one in result.lost} | {vm.id for vm in fleet.affected(case)} == {
            vm.id for vm in fleet.affected(case)
        }


@pytest.mark.slow
def test_contested_slots_go_to_the_most_important_and_serve_as_many_as_they_can() -> None:
    for seed in range(300):
        random = Random(seed)
        wanted = [random.sample(range(5), random.randint(0, 3)) for _ in range(random.randint(0, 6))]
        taken = match_slots(wanted)
        used = [slot for slot in taken if slot is not None]
        assert len(set(used)) == len(used)
        assert all(slot is None or slot in wanted[at] for at, slot in enumerate(taken))
        assert tuple(slot is not None for slot in taken) == best_by_order(wanted)


def best_by_order(wanted: Sequence[Sequence[int]]) -> tuple[bool, ...]:
    """Who is served in the division that is best for the first, then for the second, …; by brute force."""
    slots = [*range(5), *[None] * len(wanted)]
    return max(
        tuple(slot is not None for slot in division)
        for division in set(permutations(slots, len(wanted)))
        if all(slot is None or slot in wanted[at] for at, slot in enumerate(division))
    )


def test_each_case_told_one_by_one_adds_up_to_the_totals() -> None:
    for seed in range(40):
        fleet = Fleet(seed, "rack")
        given = fleet.asked(failures=2, enumerate=True)
        result = survive(given)
        cases = list(iter_cases(given))
        assert len(cases) == result.cases
        assert sum(len(answer.lost) for _, answer in cases) == result.lost_count
        own = sum(1 for _, answer in cases for one in answer.landing if not one.contested)
        assert own == result.affected - result.lost_count


def test_an_enumeration_does_not_rely_on_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = next(fleet for seed in range(60) if not survive((fleet := Fleet(seed, "host")).asked(failures=2)).holds)
    lost = survive(fleet.asked(failures=2, enumerate=True)).lost
    monkeypatch.setattr(SurvivalMatrix, "compute_levels", lambda matrix: ([9] * len(matrix.vms), []))
    assert survive(fleet.asked(failures=2)).holds
    assert survive(fleet.asked(failures=2, enumerate=True)).lost == lost


def test_a_vm_in_many_slots_that_share_a_member_is_counted_without_looking_at_all_sets_of_slots() -> None:
    members = {"a": "h1", "b": "h2"}
    slots = tuple(SlotView(name=f"s{at:02}", host=f"s{at:02}", members=members) for at in range(60))
    vms = tuple(VmView(id=vm, host=host) for vm, host in members.items())
    given = FailuresInput(vms=vms, required={"a": 1}, slots=slots, failures=2, enumerate=True)
    result = survive(given)
    assert (result.lost_count, [one.case for one in result.lost]) == (1, [("h1", "h2")])


def test_lists_are_cut_and_counts_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlive.failover.analysis.survival.LOST_LISTED", 40)
    names = fleets.hosts(30)
    vms = fleets.vms(Random(3), 30, names)
    result = all_fail(vms, names, failures=2)
    assert (result.lost_count, len(result.lost), result.lost_vms) == (30 * 29, 40, 30)
    assert {one.vm for one in result.lost} == {vm.id for vm in vms}
    assert not result.holds


def all_fail(vms: Sequence[VmView], names: Sequence[str], *, failures: int) -> FailuresResult:
    return survive(
        FailuresInput(
            vms=tuple(vms),
            required={vm.id: 1 for vm in vms},
            hosts=tuple(HostView(name=name) for name in names),
            failures=failures,
            enumerate=True,
        )
    )


def test_nonsense_and_too_much_are_refused_with_what_to_do() -> None:
    vms = (VmView(id="a", host="h1"),)
    required: Mapping[str, int] = {"a": 1}
    hosts = tuple(HostView(name=f"h{number}") for number in range(4000))
    given = FailuresInput(vms=vms, required=dict(required), hosts=hosts)
    with pytest.raises(BadInput, match="nothing fails"):
        survive(given)
    with pytest.raises(BadInput, match="no 'h9999'"):
        survive(FailuresInput(vms=vms, required=dict(required), hosts=hosts, cases=(("h9999",),)))
    with pytest.raises(LimitExceeded, match="too many to look at"):
        survive(FailuresInput(vms=vms, required=dict(required), hosts=hosts, failures=4, enumerate=True))
    with pytest.raises(LimitExceeded, match="too many to list"):
        list(iter_cases(FailuresInput(vms=vms, required=dict(required), hosts=hosts, failures=2)))

"""Slots: they add up to the commitment, a second plan changes nothing, and VMs that run are covered first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.commitments import GIB, GROUP, HOUR, MIB, MIXED, NOW, at, commitment, group_of, slot_of
from tests.support.placement import host

from outlive.base import BadInput
from outlive.commitments import (
    Candidate,
    Commitment,
    DeletionReason,
    SlotLimitExceeded,
    SlotOptions,
    SlotPlan,
    payg_candidates,
    plan_slots,
    reservation_of,
    slot_allocations,
)
from outlive.placement import VmView, unused_amounts
from outlive.resources import Reservation


def gibs(plan: SlotPlan) -> list[float]:
    """Sizes of the new slots."""
    return [slot.memory_bytes / GIB for slot in plan.create]


def after(plan: SlotPlan, owner: Commitment) -> list[Reservation]:
    """The slots that are there when the plan has been carried out."""
    return [*plan.keep, *(reservation_of(new, owner, now=NOW) for new in plan.create)]


def total(slots: Sequence[Reservation]) -> int:
    return sum(slot.spec.resources.memory_bytes for slot in slots)


def vm(name: str, gib: int, on: str = "h1") -> Candidate:
    return Candidate(vm=name, host=on, flavor=f"g_c{gib // 4}_m{gib * 1024}", memory_bytes=gib * GIB)


@pytest.mark.parametrize(
    ("wanted", "sizes"), [(100, [32, 32, 32, 4]), (12, [8, 4]), (3, [3]), (56, [32, 16, 8]), (40, [32, 8]), (0, [])]
)
def test_the_largest_flavor_that_fits_comes_first(wanted: int, sizes: list[float]) -> None:
    plan = plan_slots(commitment(gib=wanted), [], GROUP)
    assert gibs(plan) == sizes
    assert [slot.name for slot in plan.create] == [f"commitment-commit-a-{n}" for n in range(len(sizes))]
    assert all(slot.host == slot.vm == "" for slot in plan.create)


def test_a_remainder_is_a_slot_of_its_own_size_on_the_smallest_flavor() -> None:
    (new,) = plan_slots(commitment(gib=3), [], GROUP).create
    assert (new.flavor, new.cpu_milli, new.resources.memory_bytes) == ("g_c2_m8192", 2000, 3 * GIB)
    made = reservation_of(new, commitment(gib=3, generation=4), now=NOW, request_id="r")
    assert made.spec.resources == new.resources
    assert made.metadata.labels == {"reservations.outlive.dev/type": "committed-resource"}
    assert made.metadata.annotations == {"reservations.outlive.dev/creator-request-id": "r"}
    details = made.spec.committed_resource_reservation
    assert details is not None
    assert (details.commitment_uuid, details.parent_generation, details.resource_group) == ("commit-a", 4, "g")


def test_growth_keeps_what_is_there_and_numbers_on() -> None:
    owner = commitment(gib=72)
    plan = plan_slots(owner, [slot_of(owner, 4, 32)], GROUP)
    assert [slot.name for slot in plan.keep] == ["commitment-commit-a-4"]
    assert [(slot.name, slot.memory_bytes // GIB) for slot in plan.create] == [
        ("commitment-commit-a-5", 32),
        ("commitment-commit-a-6", 8),
    ]
    assert plan.total == 3


def test_shrinking_takes_slots_without_host_then_empty_ones_then_the_last() -> None:
    owner = commitment()
    slots = [
        slot_of(owner, 0, vms={"a": 16}),
        slot_of(owner, 1),
        slot_of(owner, 2, host="", judged=None),
        slot_of(owner, 3, vms={"b": 16}),
    ]
    gone = [
        [one.name[-1] for one in plan_slots(replace(owner, memory_bytes=gib * GIB), slots, GROUP).delete]
        for gib in (64, 48, 32, 16, 0)
    ]
    assert gone == [[], ["2"], ["2", "1"], ["2", "1", "3"], ["2", "1", "3", "0"]]


def test_what_a_slot_that_goes_leaves_over_stays_on_its_host() -> None:
    owner = commitment(gib=8)
    plan = plan_slots(owner, [slot_of(owner, 0), slot_of(owner, 1, host="h2")], GROUP)
    assert [one.why for one in plan.delete] == [DeletionReason.TOO_MUCH] * 2
    assert [(new.name[-1], new.memory_bytes // GIB, new.host) for new in plan.create] == [("2", 8, "h2")]


def test_a_host_is_chosen_anew_where_vms_use_what_the_slot_left() -> None:
    owner = commitment(gib=8)
    (new,) = plan_slots(owner, [slot_of(owner, 0, vms={"a": 16})], GROUP).create
    assert new.host == ""
    (new,) = plan_slots(owner, [slot_of(owner, 0, judged="False")], GROUP).create
    assert new.host == ""


def test_slots_of_another_project_group_or_zone_are_replaced() -> None:
    owner = commitment(gib=48)
    slots = [
        slot_of(replace(owner, project="q"), 0),
        slot_of(replace(owner, group="h"), 1),
        slot_of(replace(owner, zone="z2"), 2),
        slot_of(replace(owner, domain="other"), 3),
    ]
    plan = plan_slots(owner, slots, GROUP)
    assert [one.why.value for one in plan.delete] == ["foreign-project", "foreign-group", "foreign-zone"]
    assert gibs(plan) == [32]
    assert plan.patched == ("commitment-commit-a-3",)


def test_a_slot_without_host_whose_flavor_is_gone_is_cut_anew() -> None:
    owner = commitment(gib=32)
    gone = group_of("g", (4, 16384), (2, 8192))
    assert gibs(plan_slots(owner, [slot_of(owner, 0, 32, host="")], gone)) == [16, 16]
    assert not plan_slots(owner, [slot_of(owner, 0, 32)], gone).changes


def test_slots_read_as_the_commitment_does_and_what_it_leaves_open_stays() -> None:
    owner = commitment(gib=16, generation=2, end=at(HOUR))
    (slot,) = plan_slots(owner, [slot_of(commitment(gib=16, generation=1, start=None))], GROUP).keep
    details = slot.spec.committed_resource_reservation
    assert details is not None
    assert (details.parent_generation, slot.spec.start_time, slot.spec.end_time) == (2, at(), at(HOUR))
    plain = commitment(gib=16, start=None, domain="", generation=0)
    assert not plan_slots(plain, [slot], GROUP).changes


@given(st.integers(0, 300 * 1024), st.integers(0, 300 * 1024), st.lists(st.integers(1, 5), max_size=4))
def test_slots_add_up_and_a_second_plan_changes_nothing(first: int, then: int, sizes: list[int]) -> None:
    slots = [
        slot_of(commitment(), 9 + n, 8 * size, vms={f"v{n}": 8} if size % 2 else {}) for n, size in enumerate(sizes)
    ]
    for mib in (first, then):
        owner = commitment(memory_bytes=mib * MIB, generation=1)
        plan = plan_slots(owner, slots, GROUP)
        kept = total(slots) - sum(total([s for s in slots if s.name == one.name]) for one in plan.delete)
        slots = after(plan, owner)
        assert total(slots) == owner.memory_bytes
        assert kept <= owner.memory_bytes
        assert len({slot.name for slot in slots}) == len(slots) == plan.total
        assert not plan_slots(owner, slots, GROUP).changes


@given(st.integers(0, 10**6), st.integers(0, 40))
def test_a_limit_of_slots_counts_only_what_is_placed_blindly(gib: int, limit: int) -> None:
    options = SlotOptions(max_slots=limit)
    count = len(plan_slots(commitment(gib=gib % 400), [], GROUP).create)
    if count > limit:
        text = f"commitment would create {count} new reservation slots, exceeds limit of {limit}"
        with pytest.raises(SlotLimitExceeded, match=text):
            plan_slots(commitment(gib=gib % 400), [], GROUP, options=options)
    else:
        assert plan_slots(commitment(gib=gib % 400), [], GROUP, options=options).total == count
    with pytest.raises(SlotLimitExceeded):
        plan_slots(commitment(memory_bytes=2**63 - 1), [], GROUP)


def test_covered_vms_do_not_count_against_the_limit() -> None:
    plan = plan_slots(commitment(gib=40), [], GROUP, options=SlotOptions(max_slots=1), candidates=[vm("a", 32)])
    assert gibs(plan) == [32, 8]


def test_vms_that_run_become_slots_where_they_are() -> None:
    plan = plan_slots(commitment(gib=40), [], GROUP, candidates=[vm("c", 8, "h3"), vm("b", 16, "h2"), vm("a", 32)])
    assert [(new.vm, new.host, new.memory_bytes // GIB, new.flavor, new.cpu_milli) for new in plan.create] == [
        ("a", "h1", 32, "g_c8_m32768", 8000),
        ("c", "h3", 8, "g_c2_m8192", 2000),
    ]
    made = reservation_of(plan.create[0], commitment(), now=NOW)
    allocation = slot_allocations(made)["a"]
    assert (allocation.creation_timestamp, allocation.resources) == (at(), plan.create[0].resources)
    assert made.spec.target_host == "h1"


def test_the_smallest_vm_that_is_too_large_is_covered_in_part() -> None:
    plan = plan_slots(commitment(gib=4), [], GROUP, candidates=[vm("a", 32), vm("b", 16)])
    assert [(new.vm, new.memory_bytes // GIB, new.flavor) for new in plan.create] == [("b", 4, "g_c4_m16384")]
    odd = commitment(memory_bytes=4 * GIB + 5)
    parts = plan_slots(odd, [], GROUP, candidates=[vm("a", 32)]).create
    assert [(new.vm, new.memory_bytes) for new in parts] == [("a", 4 * GIB), ("", 5)]


def test_vms_are_covered_largest_first_and_by_id() -> None:
    plan = plan_slots(commitment(gib=16), [], GROUP, candidates=[vm("b", 8), vm("c", 8), vm("a", 8)])
    assert [new.vm for new in plan.create] == ["a", "b"]


def test_a_vm_in_a_slot_that_stays_is_not_covered_again() -> None:
    owner = commitment(gib=32)
    plan = plan_slots(owner, [slot_of(owner, 0, vms={"a": 16})], GROUP, candidates=[vm("a", 16), vm("b", 16)])
    assert [new.vm for new in plan.create] == ["b"]


def test_nothing_is_covered_without_a_zone_and_no_unknown_flavor_is() -> None:
    assert [new.vm for new in plan_slots(commitment(zone=""), [], GROUP, candidates=[vm("a", 32)]).create] == [""]
    strange = Candidate(vm="a", host="h1", flavor="other", memory_bytes=GIB)
    assert [new.vm for new in plan_slots(commitment(), [], GROUP, candidates=[strange]).create] == [""]


@settings(max_examples=60)
@given(st.integers(0, 200 * 1024), st.lists(st.sampled_from([8, 16, 32]), max_size=8))
def test_a_commitment_that_is_covered_by_vms_needs_no_placement(mib: int, sizes: list[int]) -> None:
    candidates = [vm(f"v{n}", size) for n, size in enumerate(sizes)]
    plan = plan_slots(commitment(memory_bytes=mib * MIB), [], GROUP, candidates=candidates)
    assert total(after(plan, commitment())) == mib * MIB
    covered = [new for new in plan.create if new.vm]
    assert len({new.vm for new in covered}) == len(covered)
    if mib <= sum(sizes) * 1024:
        assert all(new.vm for new in plan.create)


def test_candidates_run_in_the_zone_on_a_flavor_of_the_group_and_are_in_no_slot() -> None:
    instances = [{"id": "ok"}, {"id": "taken"}, {"id": "idle", "active": False}, {"id": "other"}, {"id": "theirs"}]
    hosts = [host("h1", instances=instances), host("h2", zone="z2", instances=[{"id": "far"}])]
    vms = [
        VmView(id=name, host=on, project=project, flavor=flavor)
        for name, on, project, flavor in (
            ("ok", "h1", "p", "g_c8_m32768"),
            ("taken", "h1", "p", "g_c8_m32768"),
            ("idle", "h1", "p", "g_c8_m32768"),
            ("other", "h1", "p", "v_c4_m4096"),
            ("theirs", "h1", "q", "g_c8_m32768"),
            ("far", "h2", "p", "g_c8_m32768"),
            ("gone", "h9", "p", "g_c8_m32768"),
        )
    ]
    assert payg_candidates(commitment(), GROUP, vms, hosts, {"taken"}) == (vm("ok", 32),)


def test_a_group_without_flavors_or_without_memory_does_not_run_for_ever() -> None:
    with pytest.raises(BadInput, match="flavor group g has no flavors"):
        plan_slots(commitment(), [], replace(GROUP, flavors=()))
    assert gibs(plan_slots(commitment(), [], group_of("n", (0, 0)))) == [32]
    assert gibs(plan_slots(commitment(gib=20), [], MIXED)) == [16, 4]


def test_names_of_slots_that_went_to_others_are_not_used_again() -> None:
    options = SlotOptions(taken=frozenset({"commitment-commit-a-0", "commitment-commit-a-1"}))
    (new,) = plan_slots(commitment(), [], GROUP, options=options).create
    assert new.name == "commitment-commit-a-2"


def held(slots: Sequence[Reservation]) -> int:
    return sum(unused_amounts(slot).memory_bytes for slot in slots)


@given(st.integers(1, 4), st.integers(0, 4), st.integers(0, 64))
def test_a_smaller_commitment_never_holds_more_on_its_hosts(empty: int, full: int, gib: int) -> None:
    owner = commitment()
    slots = [slot_of(owner, n) for n in range(empty)]
    slots += [slot_of(owner, empty + n, vms={f"v{n}": 8}) for n in range(full)]
    smaller = replace(owner, memory_bytes=min(gib * GIB, total(slots)))
    plan = plan_slots(smaller, slots, GROUP)
    on_hosts = [*plan.keep, *(reservation_of(new, smaller, now=NOW) for new in plan.create if new.host)]
    assert held(on_hosts) <= held(slots)

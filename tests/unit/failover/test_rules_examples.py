"""Worked examples of docs/design/failover.md#eligibility, and the edge cases of the single question."""

from __future__ import annotations

import pytest
from tests.support.literal_rules import DependencyGraph

from outlive.base import BadInput
from outlive.failover import (
    SlotView,
    find_eligible_reservations,
    find_removals,
    is_large_enough,
    is_vm_eligible_for_reservation,
    validate_failover_reservation_resources,
)
from outlive.placement import VmView
from outlive.resources import Amounts, ObjectMeta, Reservation, ReservationSpec


def check_vms_still_eligible(now: dict[str, VmView], slots: list[SlotView]) -> dict[str, list[str]]:
    return find_removals(slots, {vm: view.host for vm, view in now.items()})


RA = SlotView(name="ra", host="h5", members={"p": "h1"})
RB = SlotView(name="rb", host="h6", members={"p": "h1", "q": "h2"})
RC = SlotView(name="rc", host="h7", members={"q": "h2"})
STATE = [RA, RB, RC]
JOINED = [SlotView(name="ra", host="h5", members={"p": "h1", "t": "h3"}), RB, RC]
HOSTS = [f"h{number}" for number in range(1, 9)]


def vm(name: str, host: str, **size: int) -> VmView:
    return VmView(id=name, host=host, **size)


@pytest.mark.parametrize(
    ("who", "slot", "state", "answer"),
    [
        (vm("t", "h3"), RA, STATE, True),
        (vm("t", "h3"), RB, STATE, True),
        (vm("q", "h2"), RA, STATE, False),
        (vm("u", "h2"), RA, STATE, False),
        (vm("u", "h6"), RA, STATE, False),
        (vm("u", "h1"), RC, STATE, False),
        (vm("t", "h3"), RB, JOINED, False),
        (vm("t", "h3"), RC, JOINED, True),
    ],
)
def test_worked_example_of_joining_a_slot(who: VmView, slot: SlotView, state: list[SlotView], answer: bool) -> None:
    assert is_vm_eligible_for_reservation(who, slot, state) is answer


@pytest.mark.parametrize(
    ("who", "hosts"), [(vm("t", "h3"), ["h2", "h4", "h6", "h7", "h8"]), (vm("p", "h1"), ["h4", "h7", "h8"])]
)
def test_worked_example_of_hosts_for_a_new_slot(who: VmView, hosts: list[str]) -> None:
    allowed = [host for host in HOSTS if is_vm_eligible_for_reservation(who, SlotView(name="", host=host), JOINED)]
    assert allowed == hosts


def test_worked_example_of_cleaning_up() -> None:
    now = {"p": vm("p", "h1"), "q": vm("q", "h2"), "t": vm("t", "h3")}
    assert check_vms_still_eligible(now, JOINED) == {}
    assert check_vms_still_eligible(now | {"t": vm("t", "h5")}, JOINED) == {"ra": ["t"]}
    assert check_vms_still_eligible(now | {"q": vm("q", "h6")}, JOINED) == {"rb": ["q"], "rc": ["q"]}


def test_member_of_the_candidate_is_never_eligible() -> None:
    assert not is_vm_eligible_for_reservation(vm("p", "h1"), RA, STATE)
    assert not is_vm_eligible_for_reservation(vm("p", "h1"), RA, [])


def test_candidate_outside_the_list_counts_with_its_own_members() -> None:
    outside = SlotView(name="rd", host="h8", members={"w": "h3"})
    assert is_vm_eligible_for_reservation(vm("t", "h4"), outside, STATE)
    assert not is_vm_eligible_for_reservation(vm("t", "h3"), outside, STATE)


def test_members_of_the_list_win_over_those_of_the_candidate() -> None:
    stale = SlotView(name="ra", host="h5", members={})
    assert not is_vm_eligible_for_reservation(vm("u", "h1"), stale, STATE)


def test_host_of_the_candidate_wins_for_the_trial() -> None:
    elsewhere = SlotView(name="ra", host="h3", members={"p": "h1"})
    assert not is_vm_eligible_for_reservation(vm("t", "h3"), elsewhere, STATE)


def test_empty_slot_host_is_a_host_like_any_other() -> None:
    first, second = SlotView(name="a", members={"v": "h1"}), SlotView(name="b")
    assert is_vm_eligible_for_reservation(vm("w", "h2"), first, [first, second])
    assert not is_vm_eligible_for_reservation(vm("v", "h1"), second, [first, second])


def test_breaches_elsewhere_do_not_matter() -> None:
    broken = SlotView(name="x", host="h1", members={"a": "h1", "b": "h1"})
    assert is_vm_eligible_for_reservation(vm("t", "h3"), RA, [*STATE, broken])


def test_slot_whose_members_clash_admits_nobody() -> None:
    broken = SlotView(name="x", host="h4", members={"a": "h1", "b": "h1"})
    assert not is_vm_eligible_for_reservation(vm("t", "h3"), broken, [broken])


def test_current_location_wins_over_the_recorded_one() -> None:
    old = SlotView(name="old", host="h3", members={"t": "h9"})
    assert not is_vm_eligible_for_reservation(vm("t", "h3"), RA, [*STATE, old])
    assert is_vm_eligible_for_reservation(vm("t", "h9"), RA, [*STATE, old])


def test_find_all_keeps_the_order_and_skips_slots_that_are_too_small() -> None:
    slots = [
        SlotView(name="c", host="h1", cpu_milli=4000, memory_bytes=8),
        SlotView(name="a", host="h2", cpu_milli=1000, memory_bytes=8),
        SlotView(name="b", host="h3", cpu_milli=2000, memory_bytes=4),
    ]
    found = find_eligible_reservations(vm("v", "h9", cpu_milli=2000, memory_bytes=4), slots)
    assert [slot.name for slot in found] == ["c", "b"]


def test_vm_that_declares_nothing_fits_anywhere() -> None:
    assert is_large_enough(vm("v", "h1"), SlotView(name="s"))
    assert not is_large_enough(vm("v", "h1", cpu_milli=1), SlotView(name="s", memory_bytes=9))


def test_unknown_member_is_kept_and_counts() -> None:
    slot = SlotView(name="s", host="h5", members={"a": "h1", "ghost": "h1"})
    assert check_vms_still_eligible({"a": vm("a", "h1")}, [slot]) == {"s": ["a"]}


def test_graph_equals_another_whose_leftovers_are_empty() -> None:
    graph = DependencyGraph.build(STATE)
    graph.add("t", "h3", "ra", "h5")
    graph.remove("t", "ra", "h5")
    assert graph == DependencyGraph.build(STATE)
    assert graph != DependencyGraph.build(JOINED)


def reservation(**amounts: int) -> Reservation:
    spec = ReservationSpec(type="FailoverReservation", resources=Amounts(amounts))
    return Reservation(metadata=ObjectMeta(name="s"), spec=spec)


def test_slot_may_hold_cpu_and_memory_of_any_amount() -> None:
    validate_failover_reservation_resources(reservation())
    validate_failover_reservation_resources(reservation(cpu=0, memory=-1))


def test_illegal_resource_of_a_slot_is_named() -> None:
    with pytest.raises(BadInput, match="vcpus"):
        validate_failover_reservation_resources(reservation(vcpus=4, memory=1))

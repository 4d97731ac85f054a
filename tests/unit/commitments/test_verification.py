"""Which VMs are in a slot: confirmed where they run, kept while they move, followed, dropped when they are gone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.placement import commitment, slot

from outlive.commitments import DropReason, VerificationInput, VerificationResult, verify_slot, without_vms
from outlive.placement import unused_amounts
from outlive.resources import Amounts, Reservation

NOW, GRACE = 100_000.0, 900.0


def aged(made: Reservation, ages: dict[str, float]) -> Reservation:
    """The slot with its allocations made so many seconds ago."""
    details = made.spec.committed_resource_reservation
    assert details is not None
    allocations = {
        vm: replace(one, creation_timestamp=datetime.fromtimestamp(NOW - ages.get(vm, 5000), UTC))
        for vm, one in details.allocations.items()
    }
    spec = replace(made.spec, committed_resource_reservation=replace(details, allocations=allocations))
    return replace(made, spec=spec)


def with_vms(*expected: str, seen: tuple[str, ...] = (), ages: dict[str, float] | None = None) -> Reservation:
    meant = dict.fromkeys((*seen, *expected), ("1", "4Gi"))
    return aged(commitment("s", "h1", meant=meant, seen=seen), ages or {})


def verified(made: Reservation, reported: dict[str, tuple[str, ...]], **fields: Any) -> VerificationResult:
    return verify_slot(
        VerificationInput(slot=made, reported=reported, now=fields.pop("now", NOW), grace_s=GRACE, **fields)
    )


def vms_of(made: Reservation) -> tuple[set[str], dict[str, str]]:
    details, seen = made.spec.committed_resource_reservation, made.status.committed_resource_reservation
    assert details is not None
    return set(details.allocations), seen.allocations if seen is not None else {}


def test_a_vm_that_its_host_reports_is_confirmed_at_once() -> None:
    result = verified(with_vms("new", ages={"new": 1}), {"new": ("h1",)})
    assert vms_of(result.slot) == ({"new"}, {"new": "h1"})
    assert result.confirmed_first == ("new",)
    assert not result.expects


def test_a_vm_that_was_resized_leaves_the_rest_of_its_slot_held() -> None:
    made = with_vms(seen=("vm",))
    before = unused_amounts(made)
    smaller = verified(made, {"vm": ("h1",)}, sizes={"vm": Amounts(cpu=500, memory=2 * 2**30)}).slot
    assert before.memory_bytes + 2 * 2**30 == unused_amounts(smaller).memory_bytes
    assert before.cpu_milli + 500 == unused_amounts(smaller).cpu_milli


def test_a_vm_that_is_expected_keeps_its_place_for_its_time_and_not_longer() -> None:
    waiting = verified(with_vms("new", ages={"new": GRACE - 1}), {"new": ("h2",)}, roomy=("h2",))
    assert vms_of(waiting.slot) == ({"new"}, {})
    assert waiting.expects
    over = verified(with_vms("new", ages={"new": GRACE}), {"new": ("h2",)}, roomy=("h2",))
    assert over.dropped == {"new": DropReason.NEVER_CAME}
    assert vms_of(over.slot) == (set(), {})


def test_a_slot_follows_its_only_vm_to_a_host_with_room() -> None:
    result = verified(with_vms(seen=("a",)), {"a": ("h2",)}, roomy=("h2",))
    assert (result.slot.spec.target_host, result.slot.status.host) == ("h2", "h2")
    assert vms_of(result.slot) == ({"a"}, {"a": "h2"})


def test_a_slot_stays_where_others_are_in_it_or_there_is_no_room() -> None:
    shared = verified(with_vms(seen=("a", "b")), {"a": ("h2",), "b": ("h1",)}, roomy=("h2",))
    assert shared.dropped == {"a": DropReason.ELSEWHERE}
    assert shared.slot.status.host == "h1"
    full = verified(with_vms(seen=("a",)), {"a": ("h2",)})
    assert full.dropped == {"a": DropReason.ELSEWHERE}
    assert full.slot.status.host == "h1"


def test_a_vm_between_two_hosts_keeps_its_place_and_the_slot_holds_it_again() -> None:
    between = verified(with_vms(seen=("a",)), {})
    assert vms_of(between.slot) == ({"a"}, {})
    assert between.missing == {"a": NOW}
    assert unused_amounts(between.slot).memory_bytes == 16 * 2**30
    arrived = verified(between.slot, {"a": ("h2",)}, roomy=("h2",), missing=between.missing, now=NOW + 30)
    assert vms_of(arrived.slot) == ({"a"}, {"a": "h2"})
    assert arrived.missing == {}
    assert arrived.confirmed_first == ()


def test_a_vm_that_no_host_reports_for_long_is_gone_unless_it_is_moving() -> None:
    missing = {"a": NOW - GRACE}
    between = verified(with_vms(seen=("a",)), {}, missing={"a": NOW - 1}).slot
    assert verified(between, {}, missing=missing).dropped == {"a": DropReason.GONE}
    assert verified(between, {}, missing=missing, moving=("a",)).dropped == {}


def test_after_a_restart_a_missed_vm_counts_as_one_that_is_expected() -> None:
    between = verified(with_vms(seen=("a",)), {}).slot
    later = verified(between, {}, now=NOW + GRACE - 1)
    assert vms_of(later.slot) == ({"a"}, {})
    back = verified(between, {"a": ("h1",)}, now=NOW + 60)
    assert vms_of(back.slot) == ({"a"}, {"a": "h1"})
    assert verified(between, {}, now=NOW + GRACE).dropped == {"a": DropReason.NEVER_CAME}


def test_other_slots_lose_a_vm_that_was_confirmed_and_other_reservations_are_left_alone() -> None:
    made = with_vms(seen=("a", "b"))
    assert vms_of(without_vms(made, frozenset({"a"}))) == ({"b"}, {"b": "h1"})
    assert without_vms(made, frozenset({"x"})) is made
    failover = slot("f", members=("a",))
    assert verified(failover, {"a": ()}).slot is failover


vms = st.sampled_from(["a", "b", "c"])
hosts = st.sampled_from(["h1", "h2", "h3"])


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    st.lists(vms, unique=True),
    st.sets(vms),
    st.dictionaries(vms, st.lists(hosts, unique=True, max_size=2).map(tuple)),
    st.sets(hosts),
    st.sets(vms),
    st.dictionaries(vms, st.floats(NOW - 2 * GRACE, NOW)),
    st.dictionaries(vms, st.integers(0, int(2 * GRACE))),
)
def test_verifying_twice_changes_nothing_the_second_time(
    listed: list[str],
    seen: set[str],
    reported: dict[str, tuple[str, ...]],
    roomy: set[str],
    moving: set[str],
    missing: dict[str, float],
    ages: dict[str, int],
) -> None:
    made = aged(
        commitment("s", "h1", meant=dict.fromkeys(listed, ("1", "4Gi")), seen=tuple(seen & set(listed))), dict(ages)
    )
    fields: dict[str, Any] = {"roomy": tuple(sorted(roomy)), "moving": tuple(sorted(moving))}
    missing = {vm: since for vm, since in missing.items() if vm in listed and vm not in seen}
    first = verified(made, reported, missing=missing, **fields)
    second = verified(first.slot, reported, missing=first.missing, **fields)
    assert second.slot is first.slot
    assert (second.missing, second.expects, second.dropped, second.confirmed_first) == (
        first.missing,
        first.expects,
        {},
        (),
    )
    kept, confirmed = vms_of(first.slot)
    assert kept | set(first.dropped) == set(listed)
    assert all(first.slot.status.host in reported[vm] for vm in confirmed)

"""Which slot a placed VM takes, and how its placement counts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from tests.support.placement import commitment

from outlive.commitments import (
    BookkeepingInput,
    BookkeepingResult,
    PlacedVm,
    SlotOutcome,
    add_vm,
    pick_slot,
    record,
    unused_memory,
)

GIB = 2**30
VM = PlacedVm(id="vm", memory_bytes=8 * GIB, cpu_milli=2000)


def recorded(*, found: bool = True, **fields: Any) -> BookkeepingResult:
    given = {"commitments": 1, "committed_bytes": 64 * GIB, "hosts": ("h1", "h2"), **fields}
    return record(BookkeepingInput(vm=VM, found=found, **given))


def test_the_slot_that_covers_most_is_taken_then_the_one_with_least_left_then_by_name() -> None:
    small, fits = commitment("small", memory="4Gi"), commitment("fits", memory="10Gi")
    large, full = commitment("large", memory="32Gi"), commitment("full", meant={"x": ("4", "16Gi")})
    assert pick_slot(8 * GIB, [small, large, fits, full]) == "fits"
    assert pick_slot(8 * GIB, [small, full]) == "small"
    assert pick_slot(8 * GIB, [commitment("b", memory="10Gi"), commitment("a", memory="10Gi")]) == "a"
    assert pick_slot(8 * GIB, [full]) == ""


def test_only_a_slot_on_the_chosen_host_is_taken_and_none_twice() -> None:
    assert recorded(slots=(commitment("s", "h1"),)) == BookkeepingResult(outcome=SlotOutcome.USED, slot="s")
    assert recorded(slots=(commitment("s", "h2"),)) == BookkeepingResult(outcome=SlotOutcome.USED)
    listed = commitment("s", "h1", meant={"vm": ("2", "8Gi")})
    assert recorded(slots=(listed, commitment("t", "h1"))) == BookkeepingResult(outcome=SlotOutcome.USED)


def test_a_placement_without_a_slot_with_room_is_missed() -> None:
    full = commitment("s", "h1", meant={"x": ("4", "16Gi")})
    assert recorded(slots=(full, commitment("t", "h3"))).outcome is SlotOutcome.MISSED


def test_projects_without_commitments_or_with_used_ones_count_as_such() -> None:
    assert recorded(commitments=0).outcome is SlotOutcome.NO_COMMITMENT
    assert recorded(used_bytes=64 * GIB, slots=(commitment("s"),)).outcome is SlotOutcome.NO_COMMITMENT
    assert recorded(found=False, used_bytes=64 * GIB).outcome is SlotOutcome.EXHAUSTED
    assert recorded(found=False, commitments=0).outcome is SlotOutcome.NO_COMMITMENT


def test_a_vm_that_runs_in_a_slot_is_not_subtracted_from_its_host_a_second_time() -> None:
    """Host of 64 GiB: 8 GiB run in a slot of 16 GiB, 40 GiB elsewhere. The slot holds 8, so 8 GiB are free."""
    used = commitment("s", "h1", meant={"x": ("2", "8Gi")}, seen=("x",))
    assert recorded(found=False, slots=(used,), free_bytes={"h1": 8 * GIB}).outcome is SlotOutcome.BLOCKED
    assert recorded(found=False, slots=(used,), free_bytes={"h1": 0}).outcome is SlotOutcome.BLOCKED
    assert recorded(found=False, slots=(used,), free_bytes={"h1": -1}).outcome is SlotOutcome.SLOT_EXHAUSTED
    assert recorded(found=False, slots=(used,)).outcome is SlotOutcome.SLOT_EXHAUSTED


def test_the_slot_expects_the_vm_with_its_flavors_size() -> None:
    made = add_vm(commitment("s"), VM, datetime(2026, 1, 1, tzinfo=UTC))
    details = made.spec.committed_resource_reservation
    assert details is not None
    assert details.allocations["vm"].resources.to_wire() == {"cpu": "2", "memory": "8Gi"}
    assert unused_memory(made) == 8 * GIB

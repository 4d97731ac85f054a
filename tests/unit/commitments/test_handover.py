"""Moving, splitting, merging and converting: slots stay where they are with the VMs in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.commitments import GIB, GROUP, NOW, commitment, slot_of, vms_of

from outlive.commitments import Commitment, Handover, from_spec, hand_over, plan_slots, spec_of
from outlive.placement import unused_amounts
from outlive.resources import CommitmentStep, Reservation

Slots = Mapping[str, Sequence[Reservation]]


def step(before: Commitment | None, after: Commitment | None) -> CommitmentStep:
    uuid = (before or after or commitment()).uuid
    return CommitmentStep(
        uuid=uuid,
        before=spec_of(before) if before is not None else None,
        after=spec_of(after) if after is not None else None,
    )


def ends(before: Commitment) -> CommitmentStep:
    return step(before, commitment(before.uuid, 0, state="superseded", project=before.project))


def begins(uuid: str, gib: int, **fields: Any) -> CommitmentStep:
    return step(None, commitment(uuid, gib, **fields))


def names(found: Handover) -> dict[str, list[str]]:
    return {uuid: [slot.name.removeprefix("commitment-") for slot in slots] for uuid, slots in found.slots.items()}


def size(slots: Sequence[Reservation]) -> int:
    return sum(slot.spec.resources.memory_bytes for slot in slots)


def held(slots: Sequence[Reservation]) -> dict[str, tuple[int, int]]:
    """Host → memory and CPU that these slots hold on it."""
    found: dict[str, tuple[int, int]] = {}
    for slot in slots:
        memory, cpu = found.get(slot.spec.target_host, (0, 0))
        left = unused_amounts(slot)
        found[slot.spec.target_host] = (memory + left.memory_bytes, cpu + left.cpu_milli)
    return found


OLD = commitment("commit-a", 64)
SLOTS = {
    "commit-a": [slot_of(OLD, 0, 32, vms={"v": 32}), slot_of(OLD, 1, 16, host="h2", vms={"w": 8}), slot_of(OLD, 2, 16)]
}


def test_a_renewed_commitment_has_the_slots_of_the_old_one() -> None:
    found = hand_over([ends(OLD), begins("commit-b", 64)], SLOTS, NOW)
    assert names(found) == {"commit-b": ["commit-a-0", "commit-a-1", "commit-a-2"]}
    assert found.moved == ("commitment-commit-a-0", "commitment-commit-a-1", "commitment-commit-a-2")
    assert (found.released, found.cut) == ((), ())
    (first, *_) = found.slots["commit-b"]
    assert first.status == SLOTS["commit-a"][0].status
    assert vms_of(found.slots["commit-b"]) == {"v", "w"}
    assert not plan_slots(commitment("commit-b", 64), found.slots["commit-b"], GROUP).create


def test_a_split_leaves_vms_where_they_are() -> None:
    rest = step(OLD, commitment("commit-a", 32))
    found = hand_over([rest, begins("commit-b", 32)], SLOTS, NOW)
    assert names(found) == {"commit-a": ["commit-a-0"], "commit-b": ["commit-a-1", "commit-a-2"]}
    assert found.moved == ("commitment-commit-a-1", "commitment-commit-a-2")


def test_a_split_across_a_slot_cuts_it_on_its_host() -> None:
    old = commitment("commit-a", 32)
    slots = {"commit-a": [slot_of(old, 0, 32, vms={"v": 8})]}
    found = hand_over([step(old, commitment("commit-a", 24)), begins("commit-b", 8)], slots, NOW)
    assert names(found) == {"commit-a": ["commit-a-0"], "commit-b": ["commit-b-0"]}
    assert found.cut == ("commitment-commit-b-0",)
    (kept,), (new,) = found.slots["commit-a"], found.slots["commit-b"]
    assert (kept.spec.resources.memory_bytes, kept.spec.resources.cpu_milli) == (24 * GIB, 6000)
    assert (new.spec.resources.memory_bytes, new.spec.resources.cpu_milli) == (8 * GIB, 2000)
    assert (new.spec.target_host, new.status.host) == ("h1", "")


def test_a_merge_takes_the_slots_of_all_parts() -> None:
    olds = [commitment(f"commit-{n}", 16) for n in range(3)]
    slots = {old.uuid: [slot_of(old, vms={f"v-{old.uuid}": 16})] for old in olds}
    found = hand_over([*map(ends, olds), begins("merged", 48)], slots, NOW)
    assert len(found.moved) == 3
    assert vms_of(found.slots["merged"]) == vms_of([slot for each in slots.values() for slot in each])
    assert found.released == ()


def test_a_move_to_another_project_takes_empty_slots_only() -> None:
    moved = step(OLD, commitment("commit-a", 64, project="q"))
    found = hand_over([moved], SLOTS, NOW)
    assert names(found) == {"commit-a": ["commit-a-2"]}
    assert found.released == ("commitment-commit-a-0", "commitment-commit-a-1")
    plan = plan_slots(commitment("commit-a", 64, project="q"), found.slots["commit-a"], GROUP)
    assert not plan.delete
    assert sum(new.memory_bytes for new in plan.create) == 48 * GIB


def test_an_empty_slot_goes_to_another_project_whole() -> None:
    old = commitment("commit-a", 32)
    found = hand_over([step(old, commitment("commit-a", 32, project="q"))], {"commit-a": [slot_of(old, 0, 32)]}, NOW)
    (slot,) = found.slots["commit-a"]
    details = slot.spec.committed_resource_reservation
    assert details is not None
    assert (details.project_id, slot.spec.target_host, slot.status.host) == ("q", "h1", "h1")


def test_nothing_passes_to_another_group_or_zone() -> None:
    for fields in ({"group": "h"}, {"zone": "z2"}):
        found = hand_over([ends(OLD), begins("commit-b", 64, **fields)], SLOTS, NOW)
        assert names(found) == {"commit-b": []}
        assert len(found.released) == 3


def test_a_commitment_alone_is_left_to_its_own_plan() -> None:
    found = hand_over([step(OLD, commitment("commit-a", 8))], SLOTS, NOW)
    assert list(found.slots["commit-a"]) == SLOTS["commit-a"]
    assert (found.moved, found.released) == ((), ())


def test_slots_of_what_is_deleted_planned_or_over_are_released() -> None:
    for after in (None, commitment("commit-a", 0, state="planned"), commitment("commit-a", 0, state="expired")):
        assert len(hand_over([step(OLD, after)], SLOTS, NOW).released) == 3


def test_a_confirmed_commitment_comes_before_a_pending_one() -> None:
    old = commitment("commit-z", 16)
    wait = begins("commit-a", 16, state="pending")
    found = hand_over([ends(old), wait, begins("commit-b", 16)], {"commit-z": [slot_of(old)]}, NOW)
    assert names(found) == {"commit-a": [], "commit-b": ["commit-z-0"]}


def test_slots_that_came_from_others_do_not_take_names_twice() -> None:
    old = commitment("commit-a", 32)
    slots = {"commit-a": [slot_of(old, 0, 32)]}
    found = hand_over(
        [step(old, commitment("commit-a", 16)), begins("commit-b", 16)], slots, NOW, taken={"commitment-commit-b-0"}
    )
    assert found.cut == ("commitment-commit-b-1",)


@st.composite
def relabellings(draw: st.DrawFn) -> tuple[list[CommitmentStep], Slots]:
    """Commitments of one project and other ones with the same sum, as multiples of 4 GiB."""
    olds = [commitment(f"old-{n}00", 0) for n in range(draw(st.integers(1, 3)))]
    slots: dict[str, list[Reservation]] = {}
    count = 0
    for old in olds:
        for _ in range(draw(st.integers(0, 4))):
            gib = draw(st.sampled_from([4, 8, 16, 32]))
            vms = {f"v{count}": draw(st.sampled_from([4, gib]))} if draw(st.booleans()) else {}
            slots.setdefault(old.uuid, []).append(slot_of(old, count, gib, host=f"h{count % 3}", vms=vms))
            count += 1
    left = sum(size(each) for each in slots.values()) // (4 * GIB)
    cuts = sorted(draw(st.lists(st.integers(0, left), max_size=4)))
    amounts = [4 * (end - start) for start, end in zip([0, *cuts], [*cuts, left], strict=True)]
    kept = draw(st.booleans())
    steps = [begins(f"new-{n}00", gib) for n, gib in enumerate(amounts)]
    for n, old in enumerate(olds):
        if kept and n == 0:
            steps[0] = step(old, commitment(old.uuid, amounts[0]))
        else:
            steps.append(ends(old))
    return steps, slots


@pytest.mark.slow
@settings(max_examples=300)
@given(relabellings())
def test_relabelling_keeps_every_slot_and_every_allocation(given_: tuple[list[CommitmentStep], Slots]) -> None:
    steps, slots = given_
    found = hand_over(steps, slots, NOW)
    before = [slot for each in slots.values() for slot in each]
    after = [slot for each in found.slots.values() for slot in each]
    assert found.released == ()
    assert {slot.name for slot in before} <= {slot.name for slot in after}
    assert len({slot.name for slot in after}) == len(after)
    assert vms_of(after) == vms_of(before)


@pytest.mark.slow
@settings(max_examples=300)
@given(relabellings())
def test_relabelling_never_holds_more_on_any_host(given_: tuple[list[CommitmentStep], Slots]) -> None:
    steps, slots = given_
    found = hand_over(steps, slots, NOW)
    before = held([slot for each in slots.values() for slot in each])
    for host, (memory, cpu) in held([slot for each in found.slots.values() for slot in each]).items():
        assert memory <= before[host][0]
        assert cpu <= before[host][1]
    for one in steps:
        after = from_spec(one.after) if one.after is not None else None
        if after is not None and one.uuid in found.slots:
            assert size(found.slots[one.uuid]) <= after.memory_bytes
            plan = plan_slots(after, found.slots[one.uuid], GROUP)
            assert plan.delete == ()

"""Whether there is what a commitment asks for: judged slots, and cores that nobody else was promised."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.commitments import NOW, at, commitment, ready, resource, slot_of

from outlive.commitments import Commitment, HeadroomOutcome, SlotsOutcome, check_headroom, evaluate
from outlive.resources import Amounts, FlavorGroupCapacity, FlavorGroupCapacitySpec, FlavorGroupCapacityStatus

OWNER = commitment(gib=48, generation=2)


def cores(uuid: str = "cores-a", count: int = 10, **fields: Any) -> Commitment:
    return commitment(uuid, type="cores", memory_bytes=0, cores=count, **fields)


def accepted(given: Commitment) -> Any:
    return resource(given, accepted=given)


def capacity(free: int | None, *, status: str = "True") -> FlavorGroupCapacity:
    amounts = Amounts() if free is None else Amounts(cores=free)
    return FlavorGroupCapacity(
        spec=FlavorGroupCapacitySpec(flavor_group="g", availability_zone="z1"),
        status=FlavorGroupCapacityStatus(
            conditions=ready(status), exclusively_free_capacity=amounts, total_capacity=Amounts(cores=10**6)
        ),
    )


def test_all_slots_of_the_generation_have_to_be_ready() -> None:
    slots = [slot_of(OWNER, n) for n in range(3)]
    assert evaluate(OWNER, slots, 3).outcome is SlotsOutcome.READY
    assert evaluate(OWNER, slots, 4).outcome is SlotsOutcome.PENDING
    assert evaluate(OWNER, [], 0).outcome is SlotsOutcome.READY


@pytest.mark.parametrize(
    "slot", [slot_of(OWNER, 1, judged=None), slot_of(OWNER, 1, judged="Unknown"), slot_of(commitment(generation=1), 1)]
)
def test_a_slot_that_is_not_judged_yet_is_waited_for(slot: Any) -> None:
    assert evaluate(OWNER, [slot_of(OWNER), slot], 2).outcome is SlotsOutcome.PENDING


def test_one_slot_that_failed_counts_more_than_others_that_are_awaited() -> None:
    slots = [slot_of(OWNER, 10, judged="False"), slot_of(OWNER, 2, judged=None), slot_of(OWNER, 9, judged="False")]
    verdict = evaluate(OWNER, [slot_of(OWNER), *slots], 4)
    assert verdict.outcome is SlotsOutcome.FAILED
    assert verdict.failed == ("commitment-commit-a-9", "commitment-commit-a-10")
    assert verdict.message == "insufficient capacity: 1/4 reservation slots could be placed"


def test_cores_that_others_were_promised_are_not_free() -> None:
    others = [
        accepted(cores("cores-b", 3, project="q")),
        accepted(cores("cores-c", 4)),
        accepted(cores("cores-a", 99)),
        accepted(cores("cores-d", 99, zone="z2")),
        accepted(cores("cores-e", 99, group="h")),
        accepted(cores("cores-f", 99, state="pending")),
        accepted(cores("cores-h", 99, end=at())),
        accepted(commitment("memory-a")),
        resource(cores("cores-i", 99)),
    ]
    found = check_headroom(cores(count=13), capacity(20), others, now=NOW)
    assert (found.outcome, found.available) == (HeadroomOutcome.ACCEPTED, 13)
    found = check_headroom(cores(count=14), capacity(20), others, now=NOW)
    assert found.outcome is HeadroomOutcome.REFUSED
    assert found.message == "insufficient CPU cores: 13 available, 14 requested"


def test_what_a_project_holds_serves_its_own_commitments() -> None:
    held = {"p": 12, "q": 5}
    assert check_headroom(cores(), capacity(0), [], now=NOW, held=held).available == 12
    more = [accepted(cores("cores-b", 4)), accepted(cores("cores-c", 7, project="q"))]
    assert check_headroom(cores(), capacity(0), more, now=NOW, held=held).available == 12 - 4 - (7 - 5)


def test_capacity_that_is_missing_or_not_ready_is_waited_for() -> None:
    for given in (None, capacity(99, status="False"), capacity(99, status="Unknown")):
        found = check_headroom(cores(), given, [], now=NOW)
        assert (found.outcome, found.message) == (HeadroomOutcome.WAITING, "waiting for capacity data")
    found = check_headroom(cores(), capacity(None), [], now=NOW)
    assert (found.outcome, found.message) == (HeadroomOutcome.WAITING, "waiting for CPU capacity data")
    assert check_headroom(cores(), capacity(0), [], now=NOW).outcome is HeadroomOutcome.REFUSED

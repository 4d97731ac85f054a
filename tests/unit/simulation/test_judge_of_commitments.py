"""What is sold: the judge finds half batches, answers that are not true, and room that is sold twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

import pytest
from msgspec.structs import replace
from tests.support import judges
from tests.support.judges import make_holder, make_member, make_vm
from tests.support.virtual_hosts import GIB, Bench

from outlive.base import LoopClock, as_datetime
from outlive.resources import (
    COMMITTED,
    Amounts,
    CommitmentChange,
    CommitmentStep,
    CommittedResource,
    CommittedResourceSpec,
    CommittedResourceStatus,
    CommittedSpec,
    Condition,
    Hypervisor,
    HypervisorStatus,
    Instance,
    ObjectMeta,
    Reservation,
    ReservationSpec,
    ReservationStatus,
    SpecAllocation,
)
from outlive.simulation import Author
from outlive.simulation.judges import IN_FLIGHT_S
from outlive.simulation.stores import _author

NAMES = ("aaaa-1", "aaaa-2")


def spec(uuid: str, project: str = "p1") -> CommittedResourceSpec:
    return CommittedResourceSpec(
        commitment_uuid=uuid,
        flavor_group_name="g",
        resource_type="memory",
        amount="8Gi",
        availability_zone="a",
        project_id=project,
        state="confirmed",
    )


def commitment(uuid: str, project: str = "p1", *, ready: bool = False) -> CommittedResource:
    status = CommittedResourceStatus(conditions=(Condition(type="Ready", status="True"),) if ready else ())
    return CommittedResource(metadata=ObjectMeta(name=f"commitment-{uuid}"), spec=spec(uuid, project), status=status)


def change(*uuids: str, name: str = "change-1", phase: str = "decided", parts: int = 0) -> CommitmentChange:
    return CommitmentChange(
        metadata=ObjectMeta(name=name),
        nonce=name,
        parts=parts,
        request_id="batch-1",
        phase=phase,  # type: ignore[arg-type]
        steps=tuple(CommitmentStep(uuid=one, after=spec(one)) for one in uuids),
    )


def slot(name: str, uuid: str, *vms: str, project: str = "p1", host: str = "h1") -> Reservation:
    size = Amounts(cpu=4000, memory=8 * GIB)
    details = CommittedSpec(
        commitment_uuid=uuid,
        resource_group="g",
        project_id=project,
        allocations={vm: SpecAllocation(resources=size) for vm in vms},
    )
    return Reservation(
        metadata=ObjectMeta(name=name),
        spec=ReservationSpec(type=COMMITTED, target_host=host, resources=size, committed_resource_reservation=details),
        status=ReservationStatus(host=host),
    )


def host(*vms: str, gib: int = 16) -> Hypervisor:
    size = Amounts(cpu=32000, memory=gib * GIB)
    return Hypervisor(
        metadata=ObjectMeta(name="h1"),
        status=HypervisorStatus(
            capacity=size,
            allocation=Amounts(cpu=4000 * len(vms), memory=8 * GIB * len(vms)),
            instances=tuple(Instance(id=one) for one in vms),
        ),
    )


def judged(story: Callable[[Bench], Awaitable[None]]) -> list[str]:
    """What is found of a story that a controller writes."""

    async def written(bench: Bench) -> None:
        _author.set(Author("ctl-1", "", ("commitments",)))
        await story(bench)

    return judges.judged(written)


finds = partial(judges.finds, by=judged)


async def applied(bench: Bench, *uuids: str) -> None:
    head = await bench.store.create(change(*NAMES))
    for uuid in uuids:
        await bench.store.create(commitment(uuid))
    await bench.store.replace(replace(head, phase="applied"))


@finds()
async def test_a_batch_that_is_there_as_a_whole_is_right(bench: Bench) -> None:
    await applied(bench, *NAMES)
    bench.judge.judge_answer("batch-1", True, dict.fromkeys(NAMES, ("p1", "confirmed", "memory", 8 * GIB)))
    bench.judge.judge_rest()


@finds("S4")
async def test_half_a_batch_is_found(bench: Bench) -> None:
    await applied(bench, NAMES[0])
    bench.judge.judge_rest()


@finds("S4")
async def test_a_batch_that_nobody_applies_is_found(bench: Bench) -> None:
    await bench.store.create(change())
    bench.judge.judge_rest()


@finds("S4")
async def test_a_batch_that_counts_without_all_of_its_documents_is_found(bench: Bench) -> None:
    await bench.store.create(change(parts=1))


@finds("S4")
async def test_a_commitment_that_no_batch_says_is_found(bench: Bench) -> None:
    await bench.store.create(commitment("bbbb-1"))


@finds("S4")
async def test_an_older_batch_that_is_applied_over_a_newer_one_is_found(bench: Bench) -> None:
    await applied(bench, *NAMES)
    newer = replace(change(name="change-2"), steps=(CommitmentStep(uuid=NAMES[0], after=spec(NAMES[0], "p2")),))
    await bench.store.create(newer)
    kept = await bench.store.get(CommittedResource, f"commitment-{NAMES[0]}")
    moved = await bench.store.replace(replace(kept, spec=spec(NAMES[0], "p2")))
    await bench.store.replace(replace(moved, spec=spec(NAMES[0])))


@pytest.mark.parametrize("accepted", [True, False])
@finds("S4")
async def test_an_answer_that_is_not_true_is_found(bench: Bench, *, accepted: bool) -> None:
    if not accepted:
        await applied(bench, *NAMES)
    bench.judge.judge_answer("batch-1", accepted, {NAMES[0]: ("p1", "confirmed", "memory", 8 * GIB)})


def test_a_vm_in_two_slots_and_a_slot_of_another_project_or_of_nobody_are_found() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load(
            [slot("s1", NAMES[0], "vm-1"), slot("s2", NAMES[1], "vm-1", project="p2"), slot("s3", "bbbb-1")]
        )
        await applied(bench, *NAMES)
        bench.judge.judge_rest()

    assert judged(story) == ["S4"] * 3


@finds("S4")
async def test_a_commitment_that_is_called_ready_without_its_slots_is_found(bench: Bench) -> None:
    bench.store.load([commitment(NAMES[0], ready=True), commitment(NAMES[1], ready=True), slot("s1", NAMES[1])])
    bench.judge.judge_rest()


@pytest.mark.parametrize("wrong_s", [-7200.0, 0.0, 7200.0])
@pytest.mark.parametrize(("ago_s", "found"), [(0.0, []), (121.0, ["room"])])
def test_slots_of_commitments_may_be_too_many_for_their_time_of_grace_after_a_vm_came_whatever_its_host_s_clock_says(
    ago_s: float, found: list[str], wrong_s: float
) -> None:
    async def story(bench: Bench) -> None:
        there = host("vm-1", "vm-2")
        since = as_datetime(LoopClock().now()) + timedelta(seconds=wrong_s - ago_s)
        vm = make_vm(replace(make_holder(there.name), since=since))
        bench.judge.truth.began_s[there.name, "vm-1"] = LoopClock().monotonic() - ago_s
        sold = [commitment(NAMES[0]), commitment(NAMES[1]), slot("s1", NAMES[0], "vm-1"), slot("s2", NAMES[1])]
        bench.store.load([there, vm, make_member(there.name), *sold])
        bench.judge.judge_rest()

    assert [one for one in judged(story) if one == "room"] == found


@finds("room")
async def test_room_that_a_vm_has_and_that_is_sold_is_found_unless_the_vm_uses_what_was_sold(bench: Bench) -> None:
    there = [host("vm-1", "vm-2"), commitment(NAMES[0]), commitment(NAMES[1]), slot("s1", NAMES[0], "vm-1")]
    bench.store.load(there)
    bench.judge.judge_rest()
    assert bench.broken() == []
    bench.store.load([*there, slot("s2", NAMES[1])])
    bench.judge.judge_rest()


@finds("S4")
async def test_after_a_backup_was_put_back_what_it_says_counts(bench: Bench) -> None:
    bench.store.make_backup()
    await applied(bench, *NAMES)
    bench.store.restore()
    bench.judge.batches.handle_restore()
    bench.judge.judge_rest()
    assert bench.broken() == []
    await bench.store.create(commitment(NAMES[0]))  # it was on its way
    assert bench.broken() == []
    await asyncio.sleep(IN_FLIGHT_S + 1)
    await bench.store.create(commitment(NAMES[1]))


@pytest.mark.parametrize(
    "wanted", [("p2", "confirmed", "memory", 8 * GIB), ("p1", "confirmed", "memory", 16 * GIB), None], ids=str
)
@finds("S4")
async def test_a_batch_that_says_otherwise_than_limes_wanted_is_found(
    bench: Bench, *, wanted: tuple[str, str, str, int] | None
) -> None:
    await applied(bench, *NAMES)
    bench.judge.judge_answer("batch-1", True, {NAMES[0]: wanted})


@finds("S4")
async def test_a_slot_that_is_not_ready_fills_no_commitment(bench: Bench) -> None:
    waits = slot("s1", NAMES[0])
    status = replace(waits.status, conditions=(Condition(type="Ready", status="False"),))
    bench.store.load([commitment(NAMES[0], ready=True), replace(waits, status=status)])
    bench.judge.judge_rest()

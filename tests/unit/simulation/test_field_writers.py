"""Each field has one writer, and the check finds who is not."""

from __future__ import annotations

import pytest
from tests.conformance.objects import change, election, slot, vm, with_meta, with_phase, with_project
from tests.support.field_writers import (
    Violation,
    WriterStore,
    WriterViolation,
    changed_paths,
)
from tests.support.loops import run

from outlive.base import Conflict, LoopClock, Random, SeededIds
from outlive.resources import (
    HOST_LABEL,
    Assigned,
    Consumer,
    Hypervisor,
    ObjectMeta,
    Reservation,
    ReservationStatus,
    VirtualMachine,
)
from outlive.store import MemoryStore


def stores(*writers: str) -> list[WriterStore]:
    inner = MemoryStore(LoopClock(), SeededIds(Random(1)))
    return [WriterStore(inner, writer=writer) for writer in writers]


async def test_the_owner_writes_and_a_stranger_does_not() -> None:
    users, mirror, failover = stores("users", "mirror", "failover")
    made = await users.create(vm())
    made = await users.replace(with_project(made, "q"))
    made = await mirror.replace_status(with_phase(made, "ACTIVE"))
    with pytest.raises(WriterViolation, match=r"spec\.project.*users or import"):
        await failover.replace(with_project(made, "r"))
    with pytest.raises(WriterViolation, match=r"status\.phase"):
        await users.replace_status(with_phase(made, "ERROR"))
    assert await users.get(VirtualMachine, "vm-1") == made


async def test_the_longest_declared_path_decides() -> None:
    failover, recovery = stores("failover", "recovery")
    made = await failover.create(slot())
    made = await failover.replace_status(change(made, status=ReservationStatus(host="h1")))
    taken = change(made, status=change(made.status, consumer=Consumer(vm="vm-1", fence="f-1")))
    with pytest.raises(WriterViolation, match=r"status\.consumer.*recovery"):
        await failover.replace_status(taken)
    taken = await recovery.replace_status(taken)
    with pytest.raises(WriterViolation, match=r"status\.host"):
        await recovery.replace_status(change(taken, status=change(taken.status, host="h2")))


async def test_nobody_but_a_writer_of_the_kind_creates_or_deletes() -> None:
    failover, users, candidate = stores("failover", "users", "candidate")
    made = await failover.create(slot())
    with pytest.raises(WriterViolation):
        await users.create(slot("slot-2"))
    with pytest.raises(WriterViolation):
        await users.delete(made.ref)
    await failover.delete(made.ref)
    await candidate.create(election())


async def test_the_host_label_belongs_to_who_assigns() -> None:
    users, daemon = stores("users", "daemon")
    made = await users.create(vm(labels={"a": "1"}))
    made = await users.replace(with_meta(made, labels={"a": "2"}))
    labelled = with_meta(made, labels={"a": "2", HOST_LABEL: "h1"})
    with pytest.raises(WriterViolation, match=HOST_LABEL):
        await users.replace(labelled)
    made = await daemon.replace(labelled)
    moved = change(made, status=change(made.status, assigned=Assigned(hypervisor="h1")))
    await daemon.replace_status(moved)
    with pytest.raises(WriterViolation):
        await users.patch_metadata(made.ref, labels={HOST_LABEL: None})
    await users.patch_metadata(made.ref, labels={"b": "3"})


async def test_metadata_belongs_to_the_owners_of_the_spec() -> None:
    users, daemon = stores("users", "daemon")
    made = await users.create(Hypervisor(metadata=ObjectMeta(name="h1")))
    made = await users.replace(change(made, metadata=change(made.metadata, finalizers=("outlive.dev/x",))))
    for metadata in ({"labels": {"a": "b"}}, {"finalizers": ()}):
        with pytest.raises(WriterViolation):
            await daemon.replace(change(made, metadata=change(made.metadata, **metadata)))


async def test_a_swap_that_cannot_succeed_is_left_to_the_store() -> None:
    users, failover = stores("users", "failover")
    made = await users.create(vm())
    await users.replace(with_project(made, "q"))
    with pytest.raises(Conflict):
        await failover.replace(with_project(made, "r"))


def test_violations_can_be_reported_instead() -> None:
    async def scene() -> list[Violation]:
        reported: list[Violation] = []
        inner = MemoryStore(LoopClock(), SeededIds(Random(1)))
        store = WriterStore(inner, writer="recovery", report=reported.append)
        made = await store.create(slot())
        await store.delete(made.ref)
        assert (await inner.list(Reservation)).items == ()
        return reported

    assert [str(one).partition(":")[0] for one in run(scene())] == [
        "recovery may not create Reservation/slot-1",
        "recovery may not delete Reservation/slot-1",
    ]


def test_changed_paths_are_leaves_and_lists_are_whole() -> None:
    before = {"a": {"b": 1, "same": 1}, "list": [1, 2], "gone": {"x": 1}, "none": None}
    after = {"a": {"b": 2, "same": 1}, "list": [1, 3], "new": {}, "none": {"deep": {"er": 1}}}
    assert list(changed_paths(before, after)) == ["a.b", "gone.x", "list", "new", "none.deep.er"]
    assert not list(changed_paths(before, before))

"""Each field has one writer, the check finds who is not, and the table of all kinds is complete."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conformance.objects import change, election, slot, vm, with_meta, with_phase, with_project
from tests.support.field_writers import (
    Violation,
    WriterStore,
    WriterViolation,
    changed_paths,
    owners_of,
    writers_table,
)
from tests.support.loops import run

from outlive.base.clock import LoopClock
from outlive.base.errors import Conflict
from outlive.base.ids import SeededIds
from outlive.base.random import Random
from outlive.resources import (
    HOST_LABEL,
    KINDS,
    Assigned,
    Consumer,
    Hypervisor,
    ObjectMeta,
    Reservation,
    ReservationStatus,
    VirtualMachine,
)
from outlive.store.memory import MemoryStore

DOCS = Path(__file__).parents[3] / "docs/reference/store.md"


def stores(*writers: str) -> list[WriterStore]:
    inner = MemoryStore(LoopClock(), SeededIds(Random(1)))
    return [WriterStore(inner, writer=writer) for writer in writers]


def test_the_owner_writes_and_a_stranger_does_not() -> None:
    async def scene() -> None:
        users, mirror, failover = stores("users", "mirror", "failover")
        made = await users.create(vm())
        made = await users.replace(with_project(made, "q"))
        made = await mirror.replace_status(with_phase(made, "ACTIVE"))
        with pytest.raises(WriterViolation, match=r"spec\.project.*users or import"):
            await failover.replace(with_project(made, "r"))
        with pytest.raises(WriterViolation, match=r"status\.phase"):
            await users.replace_status(with_phase(made, "ERROR"))
        assert await users.get(VirtualMachine, "vm-1") == made

    run(scene())


def test_the_longest_declared_path_decides() -> None:
    async def scene() -> None:
        failover, recovery = stores("failover", "recovery")
        made = await failover.create(slot())
        made = await failover.replace_status(change(made, status=ReservationStatus(host="h1")))
        taken = change(made, status=change(made.status, consumer=Consumer(vm="vm-1", fence="f-1")))
        with pytest.raises(WriterViolation, match=r"status\.consumer.*recovery"):
            await failover.replace_status(taken)
        taken = await recovery.replace_status(taken)
        with pytest.raises(WriterViolation, match=r"status\.host"):
            await recovery.replace_status(change(taken, status=change(taken.status, host="h2")))

    run(scene())


def test_nobody_but_a_writer_of_the_kind_creates_or_deletes() -> None:
    async def scene() -> None:
        failover, users, candidate = stores("failover", "users", "candidate")
        made = await failover.create(slot())
        with pytest.raises(WriterViolation):
            await users.create(slot("slot-2"))
        with pytest.raises(WriterViolation):
            await users.delete(made.ref)
        await failover.delete(made.ref)
        await candidate.create(election())

    run(scene())


def test_the_host_label_belongs_to_who_assigns() -> None:
    async def scene() -> None:
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

    run(scene())


def test_any_writer_of_the_kind_sets_its_finalizer() -> None:
    async def scene() -> None:
        users, daemon = stores("users", "daemon")
        made = await users.create(Hypervisor(metadata=ObjectMeta(name="h1")))
        made = await daemon.replace(change(made, metadata=change(made.metadata, finalizers=("outlive.dev/daemon",))))
        with pytest.raises(WriterViolation):
            await daemon.replace(change(made, metadata=change(made.metadata, labels={"a": "b"})))

    run(scene())


def test_a_swap_that_cannot_succeed_is_left_to_the_store() -> None:
    async def scene() -> None:
        users, failover = stores("users", "failover")
        made = await users.create(vm())
        await users.replace(with_project(made, "q"))
        with pytest.raises(Conflict):
            await failover.replace(with_project(made, "r"))

    run(scene())


def test_violations_can_be_reported_instead() -> None:
    async def scene() -> list[Violation]:
        reported: list[Violation] = []
        inner = MemoryStore(LoopClock(), SeededIds(Random(1)))
        store = WriterStore(inner, writer="recovery", report=reported.append)
        made = await store.create(slot())
        await store.delete(made.ref)
        assert (await inner.list(Reservation)).items == ()
        return reported

    (*created,) = run(scene())
    assert {violation.path.partition(".")[0] for violation in created} == {"spec"}
    assert all(violation.writer == "recovery" for violation in created)


def test_changed_paths_are_leaves_and_lists_are_whole() -> None:
    before = {"a": {"b": 1, "same": 1}, "list": [1, 2], "gone": {"x": 1}, "none": None}
    after = {"a": {"b": 2, "same": 1}, "list": [1, 3], "new": {}, "none": {"deep": {"er": 1}}}
    assert list(changed_paths(before, after)) == ["a.b", "gone.x", "list", "new", "none.deep.er"]
    assert not list(changed_paths(before, before))


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_field_of_every_kind_has_a_writer(kind: type) -> None:
    fields = [name for name in kind.__struct_fields__ if name not in ("api_version", "metadata")]
    for field in fields:
        if field != "status" or kind.has_status() or not kind.info.halves:
            assert owners_of(kind, field), f"{kind.__name__}.{field} has no writer"
    for path in kind.info.writers.fields:
        top = path.partition(".")[0]
        assert top in ("", "metadata", *fields), f"{kind.__name__} declares a writer of {path}, which it does not have"


def test_the_table_in_the_documentation_is_current() -> None:
    assert writers_table() in DOCS.read_text()


def test_the_table_holds_what_safety_rests_on() -> None:
    rows = {tuple(cell.strip() for cell in line.strip("|").split("|")) for line in writers_table().splitlines()}
    for row in (
        ("Election", "`record`", "candidate", "refused"),
        ("Cluster", "`status`", "controller", "–"),
        ("VirtualMachine", "`spec`", "users, import", "all but `outlive.dev/host`"),
        ("VirtualMachine", "`status.holders`", "daemon, recovery", "–"),
        ("Reservation", "`spec`", "failover, commitments, placement", "refused"),
        ("Reservation", "`status`", "failover, commitments, placement", "–"),
        ("Reservation", "`status.consumer`", "recovery", "–"),
        ("Hypervisor", "`spec`", "users, import", "labels and annotations"),
        ("HypervisorUsage", "`usage`", "daemon, mirror, import", "refused"),
    ):
        assert row in rows
    assert {row[0] for row in rows} >= set(KINDS)

"""Who writes what, how much, and what is kept of it: judges find what was planted."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.support.judges import (
    DEAD,
    finds,
    join_slot,
    judged,
    make_holder,
    make_member,
    make_slot,
    make_vm,
    put_domain,
    with_home,
    write_as,
)
from tests.support.virtual_hosts import Bench, author

from outlive.api import Identity, Role, check_write
from outlive.base import Forbidden, LoopClock, as_datetime
from outlive.resources import (
    RUN_FINALIZER,
    Fault,
    FenceRecord,
    Holder,
    Membership,
    ObjectRef,
    Recovery,
    RecoveryStep,
    VirtualMachine,
)
from outlive.resources.reasons import FaultCode
from outlive.runtime import LOOK_S, ActiveFault, FaultRecorder
from outlive.simulation import ADMINISTRATOR, OUTSIDE, Author, set_author
from outlive.simulation.judges import FINDINGS_LIMIT, HOLDERS_LIMIT, PACE_WRITES, REFUSED_S

_replace = msgspec.structs.replace


def with_holder(epoch: int) -> Any:
    later = (make_holder("h1", epoch=epoch),)
    return lambda vm: _replace(vm, status=_replace(vm.status, holders=later))


def held(*epochs: int) -> tuple[Holder, ...]:
    return tuple(make_holder("h1", epoch=one) for one in epochs)


@finds("one-writer")
async def test_field_of_another_writer_is_refused_and_found_at_once(bench: Bench) -> None:
    bench.store.load([make_vm(), make_member("h1")])
    with pytest.raises(Forbidden, match=r"the token of host h1 may not write status.home of VirtualMachine/vm-1"):
        await write_as(bench, author("h1", "fencer"), with_home("h2"))
    found = bench.store.find(VirtualMachine, "vm-1")
    assert found is not None
    assert found.status.home == ""
    assert [one.loud for one in bench.history.events if one.kind == "refused"] == [True]


@finds("one-writer")
async def test_refusal_has_the_words_of_the_server(bench: Bench) -> None:
    bench.store.load([before := make_vm(), make_member("h1")])
    with pytest.raises(Forbidden) as of_the_server:
        check_write(Identity("node-h1", Role.HOST, host="h1"), before, from_source("x")(before))
    with pytest.raises(Forbidden) as of_the_simulation:
        await write_as(bench, author("h1", "daemon"), from_source("x"))
    assert str(of_the_simulation.value) == str(of_the_server.value)


def from_source(name: str) -> Any:
    return lambda vm: _replace(vm, status=_replace(vm.status, source=name))


def test_host_enters_itself_in_a_later_epoch_only_once_its_membership_has_it() -> None:
    def story_of(*members: Membership) -> Any:
        async def story(bench: Bench) -> None:
            bench.store.load([make_vm(*held(1)), *members])
            for _ in range(3):
                with pytest.raises(Forbidden, match="no entry of its present membership"):
                    await write_as(bench, author("h1", "daemon"), with_holder(2))
                await asyncio.sleep(1)
            assert not any(one.loud for one in bench.history.events if one.kind == "refused")

        return story

    async def registered(bench: Bench) -> None:
        bench.store.load([make_vm(*held(1)), make_member("h1", epoch=2, incarnation=bench.store.incarnation)])
        await write_as(bench, author("h1", "daemon"), with_holder(2))
        found = bench.store.find(VirtualMachine, "vm-1")
        assert found is not None
        assert found.status.holders == held(2)

    for members in ((make_member("h1"),), ()):
        assert judged(story_of(*members)) == []
    assert judged(registered) == []


@pytest.mark.parametrize(
    ("every_s", "for_s", "hears", "found"),
    [
        (LOOK_S, REFUSED_S - LOOK_S, True, []),
        (LOOK_S, 2.5 * REFUSED_S, True, ["one-writer"]),
        (LOOK_S, 2.5 * REFUSED_S, False, []),
        (2 * REFUSED_S, 10 * REFUSED_S, True, []),
    ],
)
def test_host_reports_a_fault_of_a_vm_that_is_not_its_own_only_until_it_may_know_better(
    every_s: float, for_s: float, hears: bool, found: list[str]
) -> None:
    """It has left the host, or the host was condemned while it stood still, or a backup lacks it."""

    async def story(bench: Bench) -> None:
        bench.store.load([make_vm(make_holder("h2")), make_member("h3")])
        subject = ObjectRef(kind="VirtualMachine", name="vm-1")
        lost = ActiveFault(FaultCode.VM_STORAGE_LOST, subject, {"host": "h3", "why": "x", "then": ""})
        recorder = FaultRecorder(bench.store, LoopClock(), role="daemon", host="h3")
        with set_author(author("h3", "daemon")._replace(hears=hears)):
            for _ in range(int(for_s / every_s)):
                await recorder.record([lost])
                await asyncio.sleep(every_s)
        assert bench.store.list_all(Fault) == []
        assert any(one.kind == "refused" for one in bench.history.events)

    assert judged(story) == found


@finds("one-writer")
async def test_process_that_marks_what_it_may_not_delete_is_refused(bench: Bench) -> None:
    vm = make_vm(*held(1))
    bench.store.load([_replace(vm, metadata=_replace(vm.metadata, finalizers=(RUN_FINALIZER,)))])
    with (
        set_author(author("ctl", "recovery")),
        pytest.raises(Forbidden, match="may not delete VirtualMachine/vm-1"),
    ):
        await bench.store.delete(vm.ref)


def test_operator_is_never_refused_and_one_who_does_what_only_administrators_may_is_found() -> None:
    def story_by(by: Author) -> Any:
        async def story(bench: Bench) -> None:
            bench.store.load([make_vm(*held(1)), make_member("h1")])
            await write_as(bench, by, with_home("h2"))
            found = bench.store.find(VirtualMachine, "vm-1")
            assert found is not None
            assert found.status.home == "h2"

        return story

    assert judged(story_by(OUTSIDE)) == ["one-writer"]
    assert judged(story_by(ADMINISTRATOR)) == []


@finds("limits")
async def test_lists_beyond_their_limits_are_found(bench: Bench) -> None:
    step = RecoveryStep(at=as_datetime(LoopClock().now()), what="x")
    long = Recovery(fence="f", steps=(step,) * 33)
    vm = make_vm()  # which a store that is full of older objects takes, and no new one
    bench.store.load([_replace(vm, status=_replace(vm.status, recovery=long))])
    longer = _replace(long, message="m")
    await write_as(
        bench, author("ctl", "recovery"), lambda vm: _replace(vm, status=_replace(vm.status, recovery=longer))
    )


@finds("S5")
async def test_answer_that_the_store_does_not_have_is_found(bench: Bench) -> None:
    bench.store.load([make_vm()])
    kept = await bench.store.get(VirtualMachine, "vm-1")
    bench.judge.judge_acknowledged(kept)
    assert bench.broken() == []
    bench.judge.judge_acknowledged(_replace(kept, metadata=_replace(kept.metadata, resource_version="99")))


async def test_violation_says_what_happened_before_and_how_to_see_it_again() -> None:
    bench = Bench()
    bench.boot()
    put_domain(bench, "h1")
    put_domain(bench, "h2", "r2")
    text = str(bench.judge.violations[0])
    assert "h1 and h2 write its disks" in text
    assert "on h1: running" in text
    assert "outlive simulate --seed 1" in text


@finds("limits")
async def test_process_that_writes_one_object_without_a_pause_is_found(bench: Bench) -> None:
    bench.store.load([make_vm()])
    for number in range(PACE_WRITES - 1):
        await write_as(bench, author("ctl", "recovery"), with_home(str(number)))
    assert "limits" not in bench.broken()
    await write_as(bench, author("ctl", "recovery"), with_home("h1"))


def test_slot_that_many_join_one_after_the_other_is_no_loop_until_nobody_joins_any_more() -> None:
    members = PACE_WRITES

    async def story(bench: Bench) -> None:
        bench.store.load([make_slot("slot", "h2", {})])
        joined = {f"vm-{number}": "h1" for number in range(members)}
        for number in range(members):
            await join_slot(bench, dict(list(joined.items())[: number + 1]), number)
            await join_slot(bench, dict(list(joined.items())[: number + 1]), number + 1)
        for number in range(PACE_WRITES - 1):
            await join_slot(bench, joined, number)
        assert "limits" not in bench.broken()
        await join_slot(bench, joined, PACE_WRITES)

    assert judged(story) == ["limits"]


@finds("limits", "limits")
async def test_entries_and_findings_beyond_their_limits_are_found(bench: Bench) -> None:
    bench.store.load([make_vm(), make_member("h1")])
    many = tuple(make_holder("h1", f"r{number}") for number in range(HOLDERS_LIMIT + 1))
    await write_as(bench, author("h1", "daemon"), lambda vm: _replace(vm, status=_replace(vm.status, holders=many)))
    found = FenceRecord(id="f", epoch=1, findings=(DEAD,) * (FINDINGS_LIMIT + 1))
    await write_as(
        bench,
        author("h2", "fencer"),
        lambda one: _replace(one, record=_replace(one.record, fence=found)),
        kind=Membership,
        name="h1",
    )

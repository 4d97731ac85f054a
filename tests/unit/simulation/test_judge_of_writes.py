"""Who writes what, how much, and what is kept of it: judges find what was planted."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from tests.support.judges import (
    DEAD,
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
from tests.support.loops import run
from tests.support.virtual_hosts import Bench, author

from outlive.base.clock import LoopClock, as_datetime
from outlive.resources import Membership, ObjectRef, VirtualMachine
from outlive.resources.memberships import FenceRecord, MemberState
from outlive.resources.reasons.faults import FaultCode
from outlive.resources.vms import Recovery, RecoveryStep
from outlive.runtime.faults import ActiveFault, FaultRecorder
from outlive.simulation.judges.judge import PACE_WRITES
from outlive.simulation.judges.writes import FINDINGS_LIMIT, HOLDERS_LIMIT, REPORTS_TRAIL_S
from outlive.simulation.stores import _author

_replace = msgspec.structs.replace


def test_field_of_another_writer_is_found() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load([make_vm(), make_member("h1")])
        await write_as(bench, author("h1", "fencer"), lambda vm: _replace(vm, status=_replace(vm.status, home="h2")))

    assert judged(story) == ["one-writer"]


def test_host_enters_itself_in_a_later_epoch_only_where_the_store_went_back_behind_that() -> None:
    def story_of(restored: bool, *members: Membership) -> Any:
        async def story(bench: Bench) -> None:
            bench.store.load([make_vm(make_holder("h1")), *members])
            bench.judge.truth.restored = restored
            bench.store.incarnation = "anew"
            later = (make_holder("h1", epoch=2),)
            await write_as(
                bench, author("h1", "daemon"), lambda vm: _replace(vm, status=_replace(vm.status, holders=later))
            )

        return story

    for members in ((make_member("h1"),), ()):
        assert judged(story_of(False, *members)) == ["one-writer"]
        assert judged(story_of(True, *members)) == []


def test_host_reports_a_fault_of_a_vm_that_is_not_its_own_only_while_it_does_not_know_better() -> None:
    def story_of(state: MemberState, restored: bool = False) -> Any:
        async def story(bench: Bench) -> None:
            bench.judge.truth.restored, bench.store.incarnation = restored, "anew"
            bench.store.load([make_vm(make_holder("h2")), make_member("h3", state=state)])
            subject = ObjectRef(kind="VirtualMachine", name="vm-1")
            lost = ActiveFault(FaultCode.VM_STORAGE_LOST, subject, {"host": "h3", "why": "x", "then": ""})
            token = _author.set(author("h3", "daemon"))
            try:
                await FaultRecorder(bench.store, LoopClock(), role="daemon", host="h3").record([lost])
            finally:
                _author.reset(token)

        return story

    assert judged(story_of("Held")) == ["one-writer"]
    assert judged(story_of("Revoked")) == judged(story_of("Held", restored=True)) == []


def test_host_may_report_a_fault_of_a_vm_that_has_only_just_left_it() -> None:
    def story_of(later_s: float) -> Any:
        async def story(bench: Bench) -> None:
            bench.store.load([make_vm(make_holder("h2")), make_member("h3")])
            bench.judge.truth.vm_left_s["h3", "vm-1"] = asyncio.get_running_loop().time()
            await asyncio.sleep(later_s)
            subject = ObjectRef(kind="VirtualMachine", name="vm-1")
            lost = ActiveFault(FaultCode.VM_STORAGE_LOST, subject, {"host": "h3", "why": "x", "then": ""})
            token = _author.set(author("h3", "daemon"))
            try:
                await FaultRecorder(bench.store, LoopClock(), role="daemon", host="h3").record([lost])
            finally:
                _author.reset(token)

        return story

    assert judged(story_of(1)) == []
    assert judged(story_of(REPORTS_TRAIL_S + 1)) == ["one-writer"]


def test_lists_beyond_their_limits_are_found() -> None:
    async def story(bench: Bench) -> None:
        step = RecoveryStep(at=as_datetime(LoopClock().now()), what="x")
        long = Recovery(fence="f", steps=(step,) * 33)
        vm = make_vm()  # which a store that is full of older objects takes, and no new one
        bench.store.load([_replace(vm, status=_replace(vm.status, recovery=long))])
        longer = _replace(long, message="m")
        await write_as(
            bench, author("ctl", "recovery"), lambda vm: _replace(vm, status=_replace(vm.status, recovery=longer))
        )

    assert judged(story) == ["limits"]


def test_answer_that_the_store_does_not_have_is_found() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load([make_vm()])
        kept = await bench.store.get(VirtualMachine, "vm-1")
        bench.judge.acknowledged(kept)
        assert bench.broken() == []
        bench.judge.acknowledged(_replace(kept, metadata=_replace(kept.metadata, resource_version="99")))

    assert judged(story) == ["S5"]


def test_violation_says_what_happened_before_and_how_to_see_it_again() -> None:
    async def reported() -> str:
        bench = Bench()
        bench.boot()
        put_domain(bench, "h1")
        put_domain(bench, "h2", "r2")
        return str(bench.judge.violations[0])

    text = run(reported())
    assert "h1 and h2 write its disks" in text
    assert "on h1: running" in text
    assert "outlive simulate --seed 1" in text


def test_process_that_writes_one_object_without_a_pause_is_found() -> None:
    async def story(bench: Bench) -> None:
        bench.store.load([make_vm()])
        for number in range(PACE_WRITES - 1):
            await write_as(bench, author("ctl", "recovery"), with_home(str(number)))
        assert "limits" not in bench.broken()
        await write_as(bench, author("ctl", "recovery"), with_home("h1"))

    assert judged(story) == ["limits"]


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


def test_entries_and_findings_beyond_their_limits_are_found() -> None:
    async def story(bench: Bench) -> None:
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

    assert judged(story) == ["limits", "limits"]

"""A VM that a host may still run is only marked when somebody deletes it, and nothing runs whose name could be free."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec
import pytest
from tests.support.loops import run_by
from tests.support.node_worlds import at, cluster_of, condemn, faults, holders, play, vm_of, without_finalizer

from outlive.base import Random, Refused, SeededIds, as_datetime
from outlive.node import HostWriter, host_refusal, request_vm
from outlive.node.membership import ENTER, HOLD, HoldView, Me, MoveView
from outlive.node.vm import deletion_of, shown_state, undefine_vm
from outlive.placement import view_of_resource
from outlive.recovery import REMOVE, RemoveView
from outlive.resources import (
    HOST_LABEL,
    RUN_FINALIZER,
    Assigned,
    Fault,
    Holder,
    MemberRecord,
    Membership,
    Migration,
    ObjectMeta,
    ObjectRef,
    Pause,
    VirtualMachine,
    VirtualMachineStatus,
    VmState,
    is_to_run,
    state_of,
)
from outlive.simulation import World
from outlive.store import Upsert, find_vm

IDS = SeededIds(Random(1))
ME = Me(host="kvm-1", uid="uid-1", epoch=1)
HELD = (Holder(hypervisor="kvm-1", member_uid="uid-1", epoch=1, run_id="r1"),)
_replace = msgspec.structs.replace


def deleted(vm: VirtualMachine) -> VirtualMachine:
    return _replace(vm, metadata=_replace(vm.metadata, deletion_timestamp=datetime(2026, 1, 1, tzinfo=UTC)))


VM = VirtualMachine(
    metadata=ObjectMeta(name="vm-1", finalizers=(RUN_FINALIZER,)),
    status=VirtualMachineStatus(phase="start", assigned=Assigned(hypervisor="kvm-1"), holders=HELD),
)


# The rules


def test_no_host_enters_itself_for_what_is_deleted_or_could_be_gone_meanwhile() -> None:
    view = HoldView(vm="vm-1", me=ME, assigned="kvm-1", run_id="r2")
    assert HOLD.attempt(view).refused is None
    for wrong, why in (({"deleting": True}, "not-deleted"), ({"guarded": False}, "deletion-waits")):
        refused = HOLD.attempt(_replace(view, **wrong)).refused
        assert refused is not None
        assert refused.precondition == why


def test_no_target_enters_itself_for_a_move_of_what_is_deleted() -> None:
    source = Holder(hypervisor="kvm-2", member_uid="uid-2", epoch=1, run_id="r1")
    view = MoveView(vm="vm-1", me=ME, id="m", source="kvm-2", target="kvm-1", holders=(source,), run_id="r2")
    assert ENTER.attempt(view).refused is None
    refused = ENTER.attempt(_replace(view, deleting=True)).refused
    assert refused is not None
    assert refused.precondition == "not-deleted"


def test_what_is_deleted_goes_only_without_holders_and_not_while_the_cluster_is_paused() -> None:
    assert REMOVE.attempt(RemoveView(vm="vm-1")).refused is None
    held = REMOVE.attempt(RemoveView(vm="vm-1", holders=HELD)).refused
    assert held is not None
    assert held.why == "kvm-1 may still run vm-1"
    assert REMOVE.attempt(RemoveView(vm="vm-1", paused=True)).refused is not None


def test_what_is_deleted_is_to_stop_whatever_its_phase_says_but_ends_its_move_first() -> None:
    for phase in ("start", "restart", "shutdown", "fail", "disable", "migrate"):
        gone = deleted(_replace(VM, status=_replace(VM.status, phase=phase)))
        assert state_of(gone) == VmState.STOP
        assert not is_to_run(gone)
    move = Migration(id="m", source="kvm-1", target="kvm-2", mode="live")
    moving = deleted(_replace(VM, status=_replace(VM.status, phase="migrate-live", migration=move)))
    assert state_of(moving) == "migrate-live"
    assert not is_to_run(moving)


def test_what_is_deleted_needs_no_slots_and_says_what_it_waits_for() -> None:
    view = view_of_resource(deleted(VM))
    assert (view.unprotected, view.stopped, view.due, view.deleting) == (True, True, False, True)
    said = deletion_of(deleted(VM))
    assert said.text.startswith("VM vm-1 is being deleted: kvm-1 may still run it; it goes, and its name is free, once")
    assert said.remedy == "wait; if kvm-1 does not answer: outlive fence kvm-1 --reason ..."
    assert shown_state(deleted(VM)) == "deleting"
    nobody = deletion_of(deleted(_replace(VM, status=_replace(VM.status, holders=()))))
    assert "no host runs it" in nobody.text


def test_a_host_adds_our_finalizer_and_touches_no_other_one() -> None:
    who, plain = HostWriter("kvm-1"), _replace(VM, metadata=ObjectMeta(name="vm-1", finalizers=("a.example/b",)))

    def refusal(before: VirtualMachine, *finalizers: str) -> str:
        after = _replace(before, metadata=_replace(before.metadata, finalizers=finalizers))
        return host_refusal(who, before, after)

    assert refusal(plain, "a.example/b", RUN_FINALIZER) == ""
    assert refusal(plain, RUN_FINALIZER) != ""
    assert "a host adds outlive.dev/may-run, and removes none" in refusal(VM)
    assert "a host adds" in refusal(plain)
    assert "a host adds" in refusal(plain, "a.example/b", "c.example/d")


# What daemons do


@run_by(play)
async def test_the_finalizer_is_there_before_the_first_entry(world: World) -> None:
    seen: list[tuple[bool, int]] = []

    async def watch() -> None:
        async for change in world.store.observe(VirtualMachine):
            if isinstance(change, Upsert) and change.object.name == "vm-2":
                seen.append((change.object.guarded, len(change.object.status.holders)))

    watching = asyncio.ensure_future(watch())
    await world.do("create-vm", {"vm": "vm-2", "host": "kvm-2"})
    await at(world, 20)
    watching.cancel()
    assert world.running_hosts("vm-2") == ("kvm-2",)
    assert (False, 1) not in seen
    assert seen.index((False, 0)) < seen.index((True, 0)) < seen.index((True, 1))


@run_by(play)
async def test_a_vm_of_an_earlier_version_that_runs_gets_the_finalizer(world: World) -> None:
    await without_finalizer(world)
    assert not vm_of(world).guarded
    await at(world, 5)
    assert vm_of(world).guarded
    assert len(holders(world)) == 1


@run_by(play)
async def test_a_vm_that_was_deleted_before_its_host_started_it_is_not_started(world: World) -> None:
    await world.do("stop-daemon", {"hosts": ["kvm-1"]})
    await at(world, 5)
    await world.do("delete-vm", {"vm": "vm-1"})
    await world.do("start-daemon", {"hosts": ["kvm-1"]})
    await at(world, 60)
    assert world.running_hosts("vm-1") == ()


@run_by(play)
async def test_a_vm_that_is_deleted_while_its_daemon_is_away_is_stopped_by_the_next_one(world: World) -> None:
    await world.do("stop-daemon", {"hosts": ["kvm-1"], "leaveVms": True})
    await at(world, 5)
    await world.do("delete-vm", {"vm": "vm-1"})
    assert holders(world) != []
    await world.do("start-daemon", {"hosts": ["kvm-1"]})
    await at(world, 60)
    assert (world.running_hosts("vm-1"), holders(world), faults(world)) == ((), [], set())


@run_by(play)
async def test_nothing_is_requested_of_what_is_being_deleted(world: World) -> None:
    await world.do("stop-daemon", {"hosts": ["kvm-1"], "leaveVms": True})
    await at(world, 5)
    await world.do("delete-vm", {"vm": "vm-1"})
    with pytest.raises(Refused, match="is being deleted: kvm-1 may still run it"):
        await request_vm(world.store, world.clock, IDS, "vm-1", "start")
    vm = await find_vm(world.store, "vm-1")
    said = await undefine_vm(world.store, world.clock, IDS, vm, print)
    assert "kvm-1 may still run it" in said


# A name that somebody runs already


async def runs_unknown(world: World, host: str) -> Fault:
    """That host has reported a domain of the name vm-2, as a host is shown it that has nothing to do with that."""
    now = as_datetime(world.clock.now())
    return await world.store.create(
        Fault(
            metadata=ObjectMeta(name="unknown-vm.vm-2", labels={HOST_LABEL: host, "outlive.dev/reporter": "daemon"}),
            code="unknown-vm",
            subject=ObjectRef(kind="VirtualMachine", name="vm-2"),
            message="",
            delta=10,
            first_seen=now,
            last_seen=now,
        )
    )


@pytest.mark.slow
@run_by(play, violations=True)
async def test_a_name_that_runs_elsewhere_is_not_started_also_where_the_text_of_the_fault_is_not_shown(
    world: World,
) -> None:
    fault = await runs_unknown(world, "kvm-9")
    await world.do("create-vm", {"vm": "vm-2", "host": "kvm-2"})
    await at(world, 60)
    assert world.running_hosts("vm-2") == ()
    assert vm_of(world, "vm-2").status.reason == "name-runs"
    await world.store.replace(_replace(fault, ended=True))
    await at(world, 150)
    assert world.running_hosts("vm-2") == ("kvm-2",)


@run_by(play, violations=True)
async def test_a_name_that_is_reported_to_run_only_once_a_host_had_looked_is_not_started_when_the_pause_ends(
    world: World,
) -> None:
    pause = Pause(waits_for=("kvm-9",))
    await world.store.replace_status(
        _replace(cluster_of(world), status=_replace(cluster_of(world).status, pause=pause))
    )
    await world.do("create-vm", {"vm": "vm-2", "host": "kvm-2"})
    await at(world, 20)
    assert vm_of(world, "vm-2").status.reason == "cluster-paused"
    await runs_unknown(world, "kvm-9")
    silent = MemberRecord(machine_id="m", boot_id="b", epoch=1, incarnation=cluster_of(world).status.store_incarnation)
    await world.store.create(Membership(metadata=ObjectMeta(name="kvm-9"), record=silent))
    await at(world, 120)
    assert not cluster_of(world).paused
    assert world.running_hosts("vm-2") == ()
    assert vm_of(world, "vm-2").status.reason == "name-runs"


@run_by(play, violations=True)
async def test_a_name_is_free_once_the_host_that_reported_it_is_proven_dead(world: World) -> None:
    silent = MemberRecord(machine_id="m", boot_id="b", epoch=1)
    await world.store.create(Membership(metadata=ObjectMeta(name="kvm-9"), record=silent))
    await runs_unknown(world, "kvm-9")
    await world.do("create-vm", {"vm": "vm-2", "host": "kvm-2"})
    await at(world, 60)
    assert world.running_hosts("vm-2") == ()
    await condemn(world, "kvm-9", dead="operator")
    await at(world, 150)
    assert world.running_hosts("vm-2") == ("kvm-2",)


@run_by(play, violations=True)
async def test_the_report_of_an_unknown_domain_outlasts_the_daemon_that_made_it(world: World) -> None:
    await world.do("stop-daemon", {"hosts": ["kvm-1"], "leaveVms": True})
    await without_finalizer(world)
    await world.do("delete-vm", {"vm": "vm-1"})
    await world.do("start-daemon", {"hosts": ["kvm-1"]})
    await at(world, 40)
    assert "unknown-vm.vm-1" in faults(world)
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    await world.do("start-daemon", {"hosts": ["kvm-1"]})
    for second in range(41, 100):
        await at(world, second)
        assert "unknown-vm.vm-1" in faults(world)
    assert world.running_hosts("vm-1") == ("kvm-1",)

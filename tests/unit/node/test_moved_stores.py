"""A cluster whose objects were moved to another store: every uid is another one, and no guest notices."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from tests.support.loops import run_by
from tests.support.node_worlds import cluster_of, holders, play, record, vm_of, waits

from outlive.base import LoopClock, Random, Refused, SeededIds
from outlive.drivers import StoreMove, check_at_rest, move_object, move_objects, read_objects
from outlive.resources import (
    Cluster,
    ClusterSpec,
    ClusterStatus,
    Condition,
    GuardRecord,
    Holder,
    Hypervisor,
    MemberRecord,
    Membership,
    ObjectMeta,
    SilentPeer,
    Token,
    VirtualMachine,
    VirtualMachineStatus,
    cluster_id,
)
from outlive.simulation import VmSpec, World
from outlive.store import MemoryStore

SINCE = datetime(2026, 1, 1, tzinfo=UTC)
MOVE = StoreMove(incarnation="new", since=SINCE, over=False)
OLD, NEW = "10000000-0000-4000-8000-000000000001", "20000000-0000-4000-8000-000000000002"
GONE = "30000000-0000-4000-8000-000000000003"
_replace = msgspec.structs.replace


def moved(obj: Any) -> Any:
    return move_object(obj, {OLD: NEW}, MOVE)


def member(name: str = "kvm-1", **changes: Any) -> Membership:
    return Membership(
        metadata=ObjectMeta(name=name, uid=OLD), record=MemberRecord(machine_id="m", boot_id="b", **changes)
    )


async def move_beneath(world: World) -> None:
    """Have the world's store be another one, into which its objects were moved."""
    target = MemoryStore(LoopClock(), SeededIds(Random(99)))
    await move_objects(await read_objects(world.store), target, MOVE, LoopClock())
    world.store._backup = {kind: dict(table.list_all()) for kind, table in target._tables}
    world.store.restore()


@run_by(play, vms=(VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-2", host="kvm-2")))
async def test_hosts_take_over_what_they_run_and_no_guest_is_started_or_ended(world: World) -> None:
    runs = {vm: vm_of(world, vm).status.holders[0].run_id for vm in ("vm-1", "vm-2")}
    before = {one.metadata.uid for one in world.store.list_all(Membership)}
    await move_beneath(world)
    assert not before & {one.metadata.uid for one in world.store.list_all(Membership)}
    assert cluster_of(world).paused
    assert waits(world) == ("kvm-1", "kvm-2")
    await world.clock.sleep(30.0)
    assert waits(world) == ()
    assert {vm: vm_of(world, vm).status.holders[0].run_id for vm in runs} == runs
    for number in (1, 2):
        found = record(world, f"kvm-{number}")
        assert (found.state, found.dead_through) == ("Held", found.epoch - 1)
        assert holders(world, f"vm-{number}") == [(f"kvm-{number}", found.epoch, "running")]


async def test_a_move_that_is_repeated_changes_nothing_and_what_another_wrote_is_refused() -> None:
    source, target = (MemoryStore(LoopClock(), SeededIds(Random(seed))) for seed in (1, 2))
    host = await source.create(Hypervisor(metadata=ObjectMeta(name="kvm-1")))
    await source.create(member())
    vm = await source.create(VirtualMachine(metadata=ObjectMeta(name="vm-1", finalizers=("outlive.dev/run",))))
    named = (await source.get(Membership, "kvm-1")).metadata.uid
    status = VirtualMachineStatus(holders=(Holder(hypervisor="kvm-1", member_uid=named, epoch=1),))
    await source.replace_status(_replace(vm, status=status))
    await source.delete(vm.ref)
    objects = await read_objects(source)
    counts = await move_objects(objects, target, MOVE, LoopClock())
    assert counts == {"Cluster": 1, "Hypervisor": 1, "Membership": 1, "VirtualMachine": 1}
    first = await read_objects(target)
    there = await target.get(VirtualMachine, "vm-1")
    assert there.deleting, "it goes once nobody may run it"
    assert there.status.holders[0].member_uid == (await target.get(Membership, "kvm-1")).metadata.uid
    await move_objects(objects, target, MOVE, LoopClock())
    assert await read_objects(target) == first
    await target.delete((await target.get(Hypervisor, "kvm-1")).ref)
    await move_objects(objects, target, MOVE, LoopClock())
    assert (await target.get(Hypervisor, "kvm-1")).metadata.uid != host.metadata.uid
    await target.create(Hypervisor(metadata=ObjectMeta(name="stranger")))
    with pytest.raises(Refused, match="Hypervisor/stranger"):
        await move_objects(objects, target, MOVE, LoopClock())


def test_what_names_an_object_names_it_by_its_new_uid_and_what_is_gone_stays_gone() -> None:
    entries = tuple(Holder(hypervisor="kvm-1", member_uid=uid, epoch=2) for uid in (OLD, GONE))
    vm = moved(VirtualMachine(metadata=ObjectMeta(name="vm-1"), status=VirtualMachineStatus(holders=entries)))
    assert [one.member_uid for one in vm.status.holders] == [NEW, GONE]
    host = Hypervisor(metadata=ObjectMeta(name="kvm-1"))
    fencing = _replace(host.spec.fencing, requested=f"3@{OLD}|ann|smoke")
    wanted = moved(_replace(host, spec=_replace(host.spec, fencing=fencing)))
    assert wanted.spec.fencing.requested == f"3@{NEW}|ann|smoke"
    assert moved(member(silent=(SilentPeer(host="kvm-2", uid=GONE),))).record.silent == ()


def test_the_cluster_is_paused_and_knows_the_store_that_it_was_in() -> None:
    status = ClusterStatus(store_incarnation="old", former_incarnations=("older",))
    found = moved(Cluster(metadata=ObjectMeta(name="default"), status=status)).status
    assert (found.store_incarnation, found.former_incarnations) == ("new", ("old", "older"))
    assert found.pause.since == SINCE


def test_others_know_the_cluster_by_what_they_knew_it_before() -> None:
    first = Cluster(metadata=ObjectMeta(name="default", uid="11111111-1111-4111-8111-111111111111"))
    uids = {first.metadata.uid: "22222222-2222-4222-8222-222222222222"}
    once = move_object(first, uids, MOVE)
    assert cluster_id(once) == cluster_id(first) == first.metadata.uid
    again = msgspec.structs.replace(once, metadata=msgspec.structs.replace(once.metadata, uid=uids[first.metadata.uid]))
    assert cluster_id(move_object(again, {}, MOVE)) == first.metadata.uid


def test_times_and_generations_that_count_are_kept() -> None:
    meta = ObjectMeta(name="t", generation=7, creation_timestamp=SINCE)
    token = Token(metadata=meta, role="viewer", digest="sha256:" + "0" * 64)
    assert moved(token).issued == SINCE
    seen = tuple(Condition(type=str(n), status="True", observed_generation=n) for n in (7, 3))
    host = Hypervisor(metadata=meta)
    found = moved(_replace(host, status=_replace(host.status, conditions=seen)))
    assert [one.observed_generation for one in found.status.conditions] == [1, 0], "it was up to date, and behind"


def test_nothing_is_moved_while_a_host_could_be_fenced_or_end_its_vms_for_it() -> None:
    disarmed = Cluster(metadata=ObjectMeta(name="default"), spec=ClusterSpec(disarmed="freeze"))
    check_at_rest([Cluster(metadata=ObjectMeta(name="default")), member(state="Released")])
    check_at_rest([disarmed, member()])
    with pytest.raises(Refused, match="disarm --cluster --mode freeze"):
        check_at_rest([Cluster(metadata=ObjectMeta(name="default")), member()])
    with pytest.raises(Refused, match="still armed"):
        check_at_rest([disarmed, member(guard=GuardRecord(armed=True, timeout_s=5.0))])

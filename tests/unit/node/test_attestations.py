"""Speaking for a membership that is lost: one write, about what entries of VMs name, and told by why."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.field_writers import WriterStore
from tests.support.loops import run
from tests.support.sights import SEEN

from outlive.base import LoopClock, NotFound, Random, Refused, SeededIds
from outlive.node import confirm_off, find_host
from outlive.node.fencing import lost_memberships
from outlive.recovery.why import explain
from outlive.resources import (
    Cluster,
    ClusterStatus,
    Holder,
    HostUsage,
    Hypervisor,
    HypervisorSpec,
    HypervisorUsage,
    MemberRecord,
    Membership,
    ObjectMeta,
    Pause,
    Resource,
    VirtualMachine,
    VirtualMachineStatus,
)
from outlive.store import MemoryStore, Store

CLOCK = LoopClock()
META = ObjectMeta(name="h1")
HELD = MemberRecord(machine_id="m", boot_id="b", epoch=1, nonce="n")
USAGE = HypervisorUsage(metadata=META, usage=HostUsage(present=()))


def vm(name: str, *entries: tuple[str, int]) -> VirtualMachine:
    holders = tuple(Holder(hypervisor="h1", member_uid=uid, epoch=epoch, run_id="r") for uid, epoch in entries)
    return VirtualMachine(metadata=ObjectMeta(name=name), status=VirtualMachineStatus(holders=holders))


def store_of(*objects: Resource) -> MemoryStore:
    store = MemoryStore(CLOCK, SeededIds(Random(1)))
    store.load([*objects])
    return store


def said(store: Store, membership: str = "") -> tuple[str, MemberRecord]:
    async def scene() -> tuple[str, MemberRecord]:
        told = await confirm_off(store, CLOCK, "h1", name="eve", reason="unplugged", membership=membership)
        return told, (await store.get(Membership, "h1")).record

    return run(scene())


def refused(store: MemoryStore, membership: str = "") -> Refused:
    with pytest.raises(Refused) as caught:
        said(store, membership)
    return caught.value


def test_all_lost_memberships_that_vms_name_are_spoken_for_through_their_highest_epochs() -> None:
    told, record = said(store_of(vm("a", ("u1", 2)), vm("b", ("u1", 4)), vm("c", ("u2", 1))))
    assert {one.uid: one.dead_through for one in record.former} == {"u1": 4, "u2": 1}
    assert "u1 through epoch 4" in told
    assert all(one.proof.at is not None for one in record.former)


def test_one_of_them_may_be_named() -> None:
    _, record = said(store_of(vm("a", ("u1", 2)), vm("c", ("u2", 1))), "u2")
    assert [one.uid for one in record.former] == ["u2"]


def test_of_a_living_host_it_has_to_be_said_which_membership_is_meant() -> None:
    store = store_of(Hypervisor(metadata=META), Membership(metadata=META, record=HELD), vm("a", ("u1", 2)), USAGE)
    error = refused(store)
    assert "not condemned" in str(error)
    assert "--membership u1" in error.remedy
    _, record = said(store, "u1")
    assert msgspec.structs.replace(record, former=()) == HELD
    assert [one.uid for one in record.former] == ["u1"]


def test_what_a_living_host_says_that_it_runs_is_not_spoken_for() -> None:
    figures = msgspec.structs.replace(USAGE, usage=HostUsage(present=("a",)))
    store = store_of(Hypervisor(metadata=META), Membership(metadata=META, record=HELD), vm("a", ("u1", 2)), figures)
    assert "says that a is on it" in str(refused(store, "u1"))


def test_of_a_host_that_a_restored_store_lacks_only_all_of_it_is_spoken_for() -> None:
    status = ClusterStatus(store_incarnation="i", pause=Pause(waits_for=("h1",)))
    store = store_of(Cluster(metadata=ObjectMeta(name="default"), status=status), vm("a", ("u1", 2)))
    assert "may run more than u1 ran" in str(refused(store, "u1"))
    _, record = said(store)
    assert record.incarnation == "i"


def test_a_second_word_in_a_restored_store_writes_nothing_that_is_not_for_people_to_write() -> None:
    _, first = said(store_of(vm("a", ("u1", 2))))
    status = ClusterStatus(store_incarnation="i", pause=Pause(waits_for=("h1",)))
    cluster = Cluster(metadata=ObjectMeta(name="default"), status=status)
    store = store_of(cluster, Membership(metadata=META, record=first), vm("a", ("u2", 3)))
    _, record = said(WriterStore(store, writer="users"))
    assert record.incarnation == "i"


def test_nothing_is_recorded_where_nobody_waits() -> None:
    assert "no VM is held" in str(refused(store_of(Hypervisor(metadata=META))))
    assert "no VM is held" in str(refused(store_of(vm("a", ("u1", 2))), "u9"))


async def test_a_host_whose_document_is_gone_is_known_by_the_entries_that_name_it() -> None:
    store = store_of(vm("a", ("u1", 2)))
    await find_host(store, "h1")
    assert await lost_memberships(store, "h1") == {"u1": 2}
    with pytest.raises(NotFound):
        await find_host(store, "h2")


async def test_nobody_is_asked_about_a_host_that_others_manage_unless_a_vm_waits_for_it() -> None:
    novas = Hypervisor(metadata=META, spec=HypervisorSpec(management="nova"))
    with pytest.raises(Refused) as caught:
        await find_host(store_of(novas), "h1")
    assert str(caught.value).startswith("h1 is managed by nova")
    await find_host(store_of(novas, vm("a", ("u1", 2))), "h1")


async def test_why_says_what_to_do_and_afterwards_who_said_what() -> None:
    store = store_of(vm("a", ("u1", 2)))
    with pytest.raises(NotFound) as caught:
        await explain(store, "h1", SEEN)
    assert "outlive fence h1 --confirm-off" in caught.value.remedy
    await confirm_off(store, CLOCK, "h1", name="eve", reason="unplugged")
    told = [one.text for one in (await explain(store, "h1", SEEN)).chain]
    assert "its lost membership u1 is over through epoch 2, by operator: eve: unplugged, recorded by eve" in told

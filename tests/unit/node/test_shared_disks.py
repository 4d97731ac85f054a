"""Virtual machines that share a disk, and others that have the same one alone or under another id."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.loops import run_by
from tests.support.node_worlds import at, condemn, holders, play, vm_of

from outlive.node.ports import DiskLock
from outlive.node.vm import list_conflicts
from outlive.resources import SHARES_LABEL, ObjectMeta, VirtualMachine, VirtualMachineSpec
from outlive.simulation import VmSpec, World
from outlive.simulation.verbs import change_spec

SHARED = "rbd:vms/asm"
PAIR = (VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-2", host="kvm-2"))


async def _stopped(world: World, *names: str) -> None:
    for name in names:
        await world.do("request", {"vm": name, "verb": "stop"})
    await at(world, 20)
    assert not any(world.running_hosts(name) for name in names)


async def _has(world: World, name: str, disk: str, *, shared: bool) -> None:
    """Past the server, which would refuse what some of these have in common."""
    only = (disk,)
    await change_spec(
        world,
        VirtualMachine,
        name,
        lambda spec: msgspec.structs.replace(spec, disks=only, shared_disks=only if shared else ()),
    )


def _without_locks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an image of Ceph without ``exclusive-lock``, or a block device."""
    monkeypatch.setattr(world.disks, "lock", lambda volume, by: None)


@pytest.mark.slow
@pytest.mark.parametrize("host", ["kvm-1", "kvm-2"])
def test_vm_that_shares_a_disk_waits_while_another_has_it_alone(host: str) -> None:
    async def story(world: World) -> None:
        (disk,) = vm_of(world, "vm-2").spec.disks
        await _stopped(world, "vm-1")
        await _has(world, "vm-1", disk, shared=True)
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 100)
        assert (world.running_hosts("vm-1"), world.running_hosts("vm-2")) == ((), (host,))
        vm = vm_of(world)
        assert (vm.status.phase, vm.status.reason) == ("start", "disk-not-shared")
        assert f"disk {disk} is that of vm-2 as well, and not both share it" in vm.status.message
        await world.do("request", {"vm": "vm-2", "verb": "stop"})
        await at(world, 140)
        assert world.running_hosts("vm-1") == (), "vm-2 may start at any time"
        await change_spec(world, VirtualMachine, "vm-2", lambda spec: msgspec.structs.replace(spec, disks=("d2",)))
        await world.do("request", {"vm": "vm-2", "verb": "start"})
        await at(world, 180)
        assert (world.running_hosts("vm-1"), world.running_hosts("vm-2")) == (("kvm-1",), (host,))
        assert vm_of(world).status.reason == ""

    play(story, vms=(PAIR[0], VmSpec(name="vm-2", host=host)))


@pytest.mark.parametrize("host", ["kvm-1", "kvm-2"])
def test_vm_that_has_a_disk_alone_waits_while_one_runs_that_shares_it(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    async def story(world: World) -> None:
        _without_locks(world, monkeypatch)
        await _stopped(world, "vm-1", "vm-2")
        await _has(world, "vm-2", SHARED, shared=True)
        await world.do("request", {"vm": "vm-2", "verb": "start"})
        await at(world, 40)
        await _has(world, "vm-1", SHARED, shared=False)
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 100)
        assert (world.running_hosts("vm-1"), world.running_hosts("vm-2")) == ((), (host,))
        assert (vm_of(world).status.phase, vm_of(world).status.reason) == ("start", "disk-not-shared")
        await world.do("request", {"vm": "vm-2", "verb": "stop"})
        await at(world, 140)
        assert holders(world) == [("kvm-1", 1, "running")]

    play(story, vms=(PAIR[0], VmSpec(name="vm-2", host=host)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_of_one_that_shares_a_disk_and_one_that_has_it_alone_never_both_start(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Both begin in the same moment, and each looks after its own hold."""

    async def story(world: World) -> None:
        _without_locks(world, monkeypatch)
        await _stopped(world, "vm-1", "vm-2")
        await _has(world, "vm-1", SHARED, shared=True)
        await _has(world, "vm-2", SHARED, shared=False)
        for name in ("vm-1", "vm-2"):
            await world.do("request", {"vm": name, "verb": "start"})
        await at(world, 120)
        assert (world.running_hosts("vm-1"), world.running_hosts("vm-2")) == ((), ("kvm-2",))

    play(story, vms=PAIR, seed=seed)


@run_by(play, vms=PAIR)
async def test_vms_that_share_a_disk_run_together_and_move_though_nobody_had_labelled_them(world: World) -> None:
    await _stopped(world, "vm-1", "vm-2")
    for name in ("vm-1", "vm-2"):
        await _has(world, name, SHARED, shared=True)
        assert SHARES_LABEL not in vm_of(world, name).metadata.labels
        await world.do("request", {"vm": name, "verb": "start"})
    await at(world, 40)
    assert (world.running_hosts("vm-1"), world.running_hosts("vm-2")) == (("kvm-1",), ("kvm-2",))
    assert all(vm_of(world, name).metadata.labels[SHARES_LABEL] for name in ("vm-1", "vm-2"))
    await world.do("request", {"vm": "vm-1", "verb": "move", "target": "kvm-2"})
    await at(world, 80)
    assert (world.running_hosts("vm-1"), world.running_hosts("vm-2")) == (("kvm-2",), ("kvm-2",))


@run_by(play, vms=PAIR)
async def test_vm_is_not_received_with_a_disk_that_it_shares_now_and_another_has_alone(world: World) -> None:
    (disk,) = vm_of(world, "vm-2").spec.disks
    await _has(world, "vm-1", disk, shared=True)
    await world.do("request", {"vm": "vm-1", "verb": "move", "target": "kvm-2"})
    await at(world, 60)
    assert (world.running_hosts("vm-1"), world.running_hosts("vm-2")) == (("kvm-1",), ("kvm-2",))


@run_by(play, vms=(PAIR[0], VmSpec(name="vm-2", host="kvm-1")), violations=True)
async def test_guest_here_without_a_document_keeps_a_vm_waiting_that_shares_its_disk(
    world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_locks(world, monkeypatch)
    (disk,) = vm_of(world, "vm-2").spec.disks
    await _stopped(world, "vm-1")
    world.hosts["kvm-1"].hypervisor.faults.unkillable["vm-2"] = True
    found = vm_of(world, "vm-2")
    await world.store.delete(found.ref, uid=found.metadata.uid, version=found.metadata.resource_version)
    await _has(world, "vm-1", disk, shared=True)
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 60)
    assert (world.running_hosts("vm-1"), vm_of(world).status.reason) == ((), "disk-not-shared")


@run_by(play, vms=PAIR, violations=True)
async def test_vm_that_shares_a_disk_keeps_nobody_waiting_once_its_host_is_proven_dead(
    world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_locks(world, monkeypatch)
    await _stopped(world, "vm-1", "vm-2")
    await _has(world, "vm-2", SHARED, shared=True)
    await world.do("request", {"vm": "vm-2", "verb": "start"})
    await at(world, 40)
    await _has(world, "vm-1", SHARED, shared=False)
    await world.do("power-off", {"hosts": ["kvm-2"]})
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 80)
    assert (world.running_hosts("vm-1"), len(holders(world, "vm-2"))) == ((), 1)
    await condemn(world, "kvm-2", dead="power")
    await at(world, 110)
    assert (world.running_hosts("vm-1"), len(holders(world, "vm-2"))) == (("kvm-1",), 1)


def test_a_disk_is_in_conflict_where_one_of_both_shares_it() -> None:
    def vm(name: str, *disks: str, shared: tuple[str, ...] = ()) -> VirtualMachine:
        return VirtualMachine(metadata=ObjectMeta(name=name), spec=VirtualMachineSpec(disks=disks, shared_disks=shared))

    others = (vm("alone", "a", "b"), vm("shares", "a", "c", shared=("a",)), vm("both", "a", "d", shared=("a", "d")))

    def found(one: VirtualMachine) -> list[tuple[str, str]]:
        return [(disk, other.name) for disk, other in list_conflicts(one, others, str.__eq__)]

    assert found(vm("v", "a", shared=("a",))) == [("a", "alone")]
    assert found(vm("v", "a", "b")) == [("a", "shares"), ("a", "both")]
    assert found(vm("v", "c", "x")) == []


# One image under two ids


def _one_image(world: World, *ids: str) -> list[str]:
    """Storage has the same locks on all of these; the ids of locks that are removed."""
    disks, first, removed = world.disks, ids[0], list[str]()
    locks, lock, release = disks.read_locks, disks.lock, disks.release

    def all_locks(volumes: tuple[str, ...]) -> tuple[DiskLock, ...]:
        return tuple(
            msgspec.structs.replace(one, volume=volume)
            for volume in volumes
            for one in locks((first if volume in ids else volume,))
        )

    def remove(one: DiskLock) -> None:
        removed.append(one.id)
        release(msgspec.structs.replace(one, volume=first) if one.volume in ids else one)

    disks.read_locks, disks.release = all_locks, remove  # type: ignore[method-assign]
    disks.lock = lambda volume, by: lock(first if volume in ids else volume, by)  # type: ignore[method-assign]
    return removed


@pytest.mark.slow
@pytest.mark.parametrize("other", ["rbd+mon-1:vms/x", "rbd+mon-1,mon-2:vms/x"])
@pytest.mark.parametrize("host", ["kvm-1", "kvm-2"])
def test_lock_stays_where_a_running_vm_may_have_the_image_under_another_id(host: str, other: str) -> None:
    async def story(world: World) -> None:
        removed = _one_image(world, "rbd:vms/x", other)
        await _stopped(world, "vm-1", "vm-2")
        await _has(world, "vm-1", other, shared=False)
        await _has(world, "vm-2", "rbd:vms/x", shared=False)
        await world.do("request", {"vm": "vm-2", "verb": "start"})
        await at(world, 40)
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 200)
        assert (world.running_hosts("vm-1"), world.running_hosts("vm-2"), removed) == ((), (host,), [])
        assert "may be that of vm-2, which has the same disk" in vm_of(world).status.message

    play(story, vms=(PAIR[0], VmSpec(name="vm-2", host=host)))


@run_by(play, vms=PAIR)
async def test_vm_that_shares_an_image_waits_while_another_has_it_alone_under_another_id(
    world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    _without_locks(world, monkeypatch)
    await _stopped(world, "vm-1", "vm-2")
    await _has(world, "vm-1", "rbd+mon-1:vms/x", shared=True)
    await _has(world, "vm-2", "rbd:vms/x", shared=False)
    await world.do("request", {"vm": "vm-2", "verb": "start"})
    await at(world, 40)
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 100)
    assert (world.running_hosts("vm-1"), vm_of(world).status.reason) == ((), "disk-not-shared")

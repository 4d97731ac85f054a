"""Locks of hosts on the disks of a virtual machine that is to start: the second line of defence."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.loops import run_by
from tests.support.node_worlds import at, faults, holders, play, record, vm_of

from outlive.node.ports import DomainState
from outlive.resources import VirtualMachine
from outlive.simulation import StorageClient, VmSpec, World, domain_of
from outlive.simulation.verbs import change_spec


async def _reboot(world: World, host: str) -> None:
    await world.do("power-off", {"hosts": [host]})
    await world.do("power-on", {"hosts": [host]})


@pytest.mark.slow
@run_by(play, violations=True)
async def test_lock_of_a_host_that_lives_is_kept_though_an_earlier_epoch_of_it_is_dead(world: World) -> None:
    """It runs what the store does not know of: nothing but its lock speaks of that."""
    await _reboot(world, "kvm-2")
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 110)
    assert (record(world, "kvm-2").state, record(world, "kvm-2").dead_through) == ("Held", 1)
    hypervisor = world.hosts["kvm-2"].hypervisor
    hypervisor.faults.unkillable["vm-1"] = True
    hypervisor.add_domain(domain_of(vm_of(world), "unknown-run", 2, DomainState.RUNNING))
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 260)
    assert world.running_hosts("vm-1") == ("kvm-2",)
    assert vm_of(world).status.phase == "fail"
    assert "says that somebody else may be writing" in vm_of(world).status.message


@run_by(play)
async def test_lock_of_a_host_that_says_nothing_and_is_not_proven_dead_stays(world: World) -> None:
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 5)
    await world.do("pause-daemon", {"hosts": ["kvm-2"]})
    world.disks.lock(vm_of(world).spec.disks[0], "kvm-2")
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 200)
    assert (world.running_hosts("vm-1"), vm_of(world).status.phase) == ((), "start")
    assert "kvm-2 lives, and its figures have yet to say" in vm_of(world).status.message


@run_by(play, vms=(VmSpec(name="vm-1", host="kvm-1", disks=()),), cuts="all")
async def test_vm_without_disks_waits_until_it_is_known_that_all_have_heard_who_is_isolated_from_its_network(
    world: World,
) -> None:
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 5)
    await world.do("cut", {"network": "storage", "hosts": ["kvm-1"]})
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 6)
    assert (world.running_hosts("vm-1"), vm_of(world).status.reason) == ((), "isolation-unconfirmed")
    await world.do("heal", {"network": "storage", "hosts": ["kvm-1"]})
    await at(world, 40)
    assert holders(world) == [("kvm-1", 1, "running")]
    assert vm_of(world).status.reason == ""


@run_by(play, hosts=3, vms=(VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-3", host="kvm-3")))
async def test_lock_at_an_address_that_two_hosts_report_waits_for_both(world: World) -> None:
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    world.disks._addresses["kvm-3"] = world.disks.address_of("kvm-2")
    await at(world, 5)
    await world.do("guest-crash", {"vms": ["vm-3"]})  # so that it reports
    await at(world, 30)
    await world.do("pause-daemon", {"hosts": ["kvm-3"]})
    world.disks.lock(vm_of(world).spec.disks[0], "kvm-2")
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 150)
    assert (world.running_hosts("vm-1"), vm_of(world).status.phase) == ((), "start")
    assert "kvm-3 lives, and its figures have yet to say" in vm_of(world).status.message


@run_by(play, vms=(VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-2", host="kvm-2")))
async def test_lock_at_the_own_address_waits_for_another_host_that_reports_the_same(world: World) -> None:
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    world.disks._addresses["kvm-2"] = world.disks.address_of("kvm-1")
    await at(world, 5)
    await world.do("guest-crash", {"vms": ["vm-2"]})  # so that it reports
    await at(world, 30)
    await world.do("pause-daemon", {"hosts": ["kvm-2"]})
    world.disks.lock(vm_of(world).spec.disks[0], "kvm-2")
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 32)
    assert (world.running_hosts("vm-1"), vm_of(world).status.phase) == ((), "start")
    assert "kvm-2 lives, and its figures have yet to say" in vm_of(world).status.message


@pytest.mark.parametrize("shared", [True, False])
@run_by(play, vms=(VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-2", host="kvm-2")))
async def test_lock_at_the_own_address_is_left_alone_by_a_stop_where_another_host_reports_the_same(
    world: World, *, monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    disk = vm_of(world).spec.disks[0]
    if shared:
        world.disks._addresses["kvm-2"] = world.disks.address_of("kvm-1")
        await world.do("guest-crash", {"vms": ["vm-2"]})  # so that it reports
    await at(world, 30)
    await world.do("pause-daemon", {"hosts": ["kvm-2"]})
    monkeypatch.setattr(world.disks, "close_disks", lambda host, disks: None)  # locks stay where guests end
    world.disks.lock(disk, "kvm-2" if shared else "kvm-1")
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 60)
    assert (world.running_hosts("vm-1"), holders(world)) == ((), [])
    assert bool(world.disks.read_locks((disk,))) is shared


# Disks that another virtual machine has as well


async def _shares_the_disk_of(world: World, other: str) -> str:
    """vm-1, which is stopped, is defined with the disk of the other one as well; that disk."""
    await _stopped(world)
    (disk,) = vm_of(world, other).spec.disks
    await change_spec(world, VirtualMachine, "vm-1", lambda spec: msgspec.structs.replace(spec, disks=(disk,)))
    assert len(world.disks.read_locks((disk,))) == 1
    return disk


@pytest.mark.parametrize("verb", ["start", "flush-locks"])
@pytest.mark.parametrize("host", ["kvm-1", "kvm-2"])
def test_lock_of_a_living_host_stays_where_another_vm_has_the_disk(host: str, verb: str) -> None:
    """That its figures do not name the one virtual machine says nothing of the other."""

    async def story(world: World) -> None:
        disk = await _shares_the_disk_of(world, "vm-2")
        locks = world.disks.read_locks((disk,))
        await world.do("request", {"vm": "vm-1", "verb": verb})
        await at(world, 200)
        assert (world.running_hosts("vm-1"), world.running_hosts("vm-2")) == ((), (host,))
        assert world.disks.read_locks((disk,)) == locks
        answer, status = vm_of(world).status.answered, vm_of(world).status
        assert answer is not None
        said = status.message if verb == "start" else answer.message
        assert "may be that of vm-2, which has the same disk" in said

    play(story, vms=(VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-2", host=host)))


@pytest.mark.slow
@pytest.mark.parametrize("host", ["kvm-1", "kvm-2"])
def test_lock_stays_although_it_is_of_a_guest_whose_document_is_gone(host: str) -> None:
    async def story(world: World) -> None:
        disk = await _shares_the_disk_of(world, "vm-2")
        locks, daemon = world.disks.read_locks((disk,)), world.hosts[host].hypervisor
        daemon.faults.unkillable["vm-2"] = True
        found = vm_of(world, "vm-2")
        await world.store.delete(found.ref, uid=found.metadata.uid, version=found.metadata.resource_version)
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 200)
        assert (world.running_hosts("vm-1"), world.running_hosts("vm-2")) == ((), (host,))
        assert world.disks.read_locks((disk,)) == locks

    play(story, vms=(VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-2", host=host)), violations=True)


@run_by(play, vms=(VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-2", host="kvm-1")))
async def test_lock_at_the_own_address_stays_where_a_guest_here_has_a_disk_that_its_definition_lacks(
    world: World,
) -> None:
    disk = await _shares_the_disk_of(world, "vm-2")
    locks = world.disks.read_locks((disk,))
    await change_spec(world, VirtualMachine, "vm-2", lambda spec: msgspec.structs.replace(spec, disks=()))
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 60)
    assert world.running_hosts("vm-1") == ()
    assert world.disks.read_locks((disk,)) == locks
    assert "may be that of vm-2, which has the same disk" in vm_of(world).status.message


@pytest.mark.slow
@run_by(play, vms=(VmSpec(name="vm-1", host="kvm-1", disks=("d1", "d2")),))
async def test_lock_that_was_seen_later_than_another_of_its_host_is_reported_on_by_itself(world: World) -> None:
    await _reboot(world, "kvm-2")
    await _stopped(world)
    await at(world, 110)
    first, second = vm_of(world).spec.disks
    world.disks.lock(first, "kvm-2")
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    for second_s in range(111, 300):
        await at(world, second_s)
        world.disks.unlock(second)
        world.disks.lock(second, "kvm-2")  # always a new one, of which no figures were written yet
        assert world.running_hosts("vm-1") == ()
        assert len(world.disks.read_locks((second,))) == 1


@run_by(play, vms=(VmSpec(name="vm-1", host="kvm-1", disks=("d1", "d2")),))
async def test_lock_stays_although_a_stale_one_on_another_disk_has_the_same_id(world: World) -> None:
    """A client numbers its locks by itself, on each image anew."""
    await _stopped(world)
    first, second = vm_of(world).spec.disks
    world.disks.lock(first, "kvm-1")
    world.disks.lock(second, "192.0.2.9:0/1")
    (lock,) = world.disks.read_locks((second,))
    world.disks._locks[second] = msgspec.structs.replace(lock, id=world.disks.read_locks((first,))[0].id)
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 30)
    assert (world.disks.read_locks((first,)), len(world.disks.read_locks((second,)))) == ((), 1)
    assert (world.running_hosts("vm-1"), vm_of(world).status.phase) == ((), "fail")


# Locks that a user asks to be removed


async def _flush(world: World, *, force: bool = False, at_s: float) -> tuple[str, str]:
    """Code and message of the answer by that moment, empty where there is none yet."""
    await world.do("request", {"vm": "vm-1", "verb": "flush-locks", "force": force})
    await at(world, at_s)
    vm = vm_of(world)
    assert vm.spec.request is not None
    answer = vm.status.answered
    return (answer.code, answer.message) if answer is not None and answer.id == vm.spec.request.id else ("", "")


async def _stopped(world: World) -> str:
    """Its disk, once it is stopped."""
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 5)
    assert (vm_of(world).status.phase, world.running_hosts("vm-1")) == ("stop", ())
    return vm_of(world).spec.disks[0]


@run_by(play)
async def test_the_lock_of_a_client_that_is_no_host_goes_by_force_alone_and_the_vm_stays_stopped(world: World) -> None:
    disk = await _stopped(world)
    world.disks.lock(disk, "192.0.2.9:0/1")
    code, message = await _flush(world, at_s=20)
    assert (code, "somebody else may be writing" in message) == ("failed", True)
    assert len(world.disks.read_locks((disk,))) == 1
    assert await _flush(world, force=True, at_s=30) == ("accepted", "")
    assert (world.disks.read_locks((disk,)), vm_of(world).status.phase) == ((), "stop")
    assert await _flush(world, at_s=40) == ("accepted", ""), "there is none any more"


@pytest.mark.slow
@run_by(play)
async def test_a_lock_that_a_living_host_left_behind_goes_once_its_figures_say_that_the_vm_is_not_there(
    world: World,
) -> None:
    await _reboot(world, "kvm-2")
    disk = await _stopped(world)
    await at(world, 110)
    world.disks.lock(disk, "kvm-2")
    assert await _flush(world, at_s=115) == ("", "")
    await at(world, 200)
    answer = vm_of(world).status.answered
    assert answer is not None
    assert (answer.code, world.disks.read_locks((disk,))) == ("accepted", ())


@pytest.mark.slow
@run_by(play, violations=True)
async def test_a_lock_of_a_host_that_runs_the_vm_stays_although_the_store_knows_of_no_run(world: World) -> None:
    disk = await _stopped(world)
    hypervisor = world.hosts["kvm-2"].hypervisor
    hypervisor.faults.unkillable["vm-1"] = True
    hypervisor.add_domain(domain_of(vm_of(world), "unknown-run", 2, DomainState.RUNNING))
    code, message = await _flush(world, force=True, at_s=150)
    assert (code, "somebody else may be writing" in message) == ("failed", True)
    assert len(world.disks.read_locks((disk,))) == 1


@run_by(play)
async def test_locks_of_a_vm_that_runs_stay(world: World) -> None:
    assert await _flush(world, force=True, at_s=5) == ("not_stopped", "")
    assert len(world.disks.read_locks(vm_of(world).spec.disks)) == 1


@run_by(play)
async def test_while_locks_are_waited_for_a_user_may_ask_for_something_else(world: World) -> None:
    disk = await _stopped(world)
    await world.do("pause-daemon", {"hosts": ["kvm-2"]})
    world.disks.lock(disk, "kvm-2")
    assert await _flush(world, at_s=20) == ("", "")
    await world.do("request", {"vm": "vm-1", "verb": "disable"})
    await at(world, 30)
    assert vm_of(world).status.phase == "disable"
    assert len(world.disks.read_locks((disk,))) == 1


@run_by(play)
async def test_a_daemon_that_ends_while_it_removes_locks_leaves_the_request_to_the_next_one(world: World) -> None:
    disk = await _stopped(world)
    await world.do("pause-daemon", {"hosts": ["kvm-2"]})
    world.disks.lock(disk, "kvm-2")
    assert await _flush(world, at_s=12) == ("", "")
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    world.disks.unlock(disk)
    await at(world, 60)
    answer = vm_of(world).status.answered
    assert answer is not None
    assert (answer.code, vm_of(world).status.phase) == ("accepted", "stop")


@run_by(play, violations=True)
async def test_locks_stay_while_something_of_the_vm_is_on_its_host(world: World) -> None:
    disk = await _stopped(world)
    hypervisor = world.hosts["kvm-1"].hypervisor
    hypervisor.faults.unkillable["vm-1"] = True
    hypervisor.add_domain(domain_of(vm_of(world), "unknown-run", 1, DomainState.RUNNING))
    code, message = await _flush(world, at_s=30)
    assert (code, "is still on kvm-1" in message) == ("failed", True)
    assert len(world.disks.read_locks((disk,))) == 1


@run_by(play)
async def test_lock_without_an_address_is_not_this_hosts_though_its_own_address_is_unknown_too(
    world: World, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 5)
    monkeypatch.setattr(StorageClient, "own_address", lambda self: "")
    world.disks.lock(vm_of(world).spec.disks[0], "")
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 30)
    assert (world.running_hosts("vm-1"), vm_of(world).status.phase) == ((), "fail")
    assert "says that somebody else may be writing" in vm_of(world).status.message
    assert not any(one.startswith("worker-crashed") for one in faults(world))

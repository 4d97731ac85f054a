"""Locks of hosts on the disks of a virtual machine that is to start: the second line of defence."""

from __future__ import annotations

import pytest
from tests.support.node_worlds import at, holders, play, record, vm_of

from outlive.node.ports import DomainState
from outlive.simulation.hypervisors import domain_of
from outlive.simulation.spec import VmSpec
from outlive.simulation.world import World


async def _reboot(world: World, host: str) -> None:
    await world.do("power-off", {"hosts": [host]})
    await world.do("power-on", {"hosts": [host]})


@pytest.mark.slow
def test_lock_of_a_host_that_lives_is_kept_though_an_earlier_epoch_of_it_is_dead() -> None:
    """It runs what the store does not know of: nothing but its lock speaks of that."""

    async def story(world: World) -> None:
        await _reboot(world, "kvm-2")
        await world.do("request", {"vm": "vm-1", "verb": "stop"})
        await at(world, 110)
        assert (record(world, "kvm-2").state, record(world, "kvm-2").dead_through) == ("Held", 1)
        hypervisor = world.hosts["kvm-2"].hypervisor
        hypervisor.faults.unkillable["vm-1"] = True
        hypervisor.has(domain_of(vm_of(world), "unknown-run", 2, DomainState.RUNNING))
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 260)
        assert world.running("vm-1") == ("kvm-2",)
        assert vm_of(world).status.phase == "fail"
        assert "says that somebody else may be writing" in vm_of(world).status.message

    play(story, violations=True)


def test_lock_that_a_host_left_behind_in_a_dead_epoch_goes_once_its_figures_say_that_nothing_is_on_it() -> None:
    async def story(world: World) -> None:
        await _reboot(world, "kvm-2")
        await world.do("request", {"vm": "vm-1", "verb": "stop"})
        await at(world, 110)
        world.disks.lock(vm_of(world).spec.disks[0], "kvm-2")
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 115)
        assert (world.running("vm-1"), vm_of(world).status.phase) == ((), "start")
        assert "kvm-2 lives, and its figures have yet to say" in vm_of(world).status.message
        await at(world, 200)
        assert holders(world) == [("kvm-1", 1, "running")]
        assert vm_of(world).status.reason == ""

    play(story)


def test_lock_of_a_host_that_says_nothing_and_is_not_proven_dead_stays() -> None:
    async def story(world: World) -> None:
        await world.do("request", {"vm": "vm-1", "verb": "stop"})
        await at(world, 5)
        await world.do("pause-daemon", {"hosts": ["kvm-2"]})
        world.disks.lock(vm_of(world).spec.disks[0], "kvm-2")
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 200)
        assert (world.running("vm-1"), vm_of(world).status.phase) == ((), "start")
        assert "kvm-2 lives, and its figures have yet to say" in vm_of(world).status.message

    play(story)


def test_vm_without_disks_waits_until_it_is_known_that_all_have_heard_who_is_isolated_from_its_network() -> None:
    async def story(world: World) -> None:
        await world.do("request", {"vm": "vm-1", "verb": "stop"})
        await at(world, 5)
        await world.do("cut", {"network": "storage", "hosts": ["kvm-1"]})
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 6)
        assert (world.running("vm-1"), vm_of(world).status.reason) == ((), "isolation-unconfirmed")
        await world.do("heal", {"network": "storage", "hosts": ["kvm-1"]})
        await at(world, 40)
        assert holders(world) == [("kvm-1", 1, "running")]
        assert vm_of(world).status.reason == ""

    play(story, vms=(VmSpec(name="vm-1", host="kvm-1", disks=()),), cuts="all")


def test_lock_at_an_address_that_two_hosts_report_waits_for_both() -> None:
    async def story(world: World) -> None:
        await world.do("request", {"vm": "vm-1", "verb": "stop"})
        world.disks._addresses["kvm-3"] = world.disks.address("kvm-2")
        await at(world, 5)
        await world.do("guest-crash", {"vms": ["vm-3"]})  # so that it reports
        await at(world, 30)
        await world.do("pause-daemon", {"hosts": ["kvm-3"]})
        world.disks.lock(vm_of(world).spec.disks[0], "kvm-2")
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 150)
        assert (world.running("vm-1"), vm_of(world).status.phase) == ((), "start")
        assert "kvm-3 lives, and its figures have yet to say" in vm_of(world).status.message

    play(story, hosts=3, vms=(VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-3", host="kvm-3")))


def test_lock_at_the_own_address_waits_for_another_host_that_reports_the_same() -> None:
    async def story(world: World) -> None:
        await world.do("request", {"vm": "vm-1", "verb": "stop"})
        world.disks._addresses["kvm-2"] = world.disks.address("kvm-1")
        await at(world, 5)
        await world.do("guest-crash", {"vms": ["vm-2"]})  # so that it reports
        await at(world, 30)
        await world.do("pause-daemon", {"hosts": ["kvm-2"]})
        world.disks.lock(vm_of(world).spec.disks[0], "kvm-2")
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 32)
        assert (world.running("vm-1"), vm_of(world).status.phase) == ((), "start")
        assert "kvm-2 lives, and its figures have yet to say" in vm_of(world).status.message

    play(story, vms=(VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-2", host="kvm-2")))


@pytest.mark.parametrize("shared", [True, False])
def test_lock_at_the_own_address_is_left_alone_by_a_stop_where_another_host_reports_the_same(
    monkeypatch: pytest.MonkeyPatch, shared: bool
) -> None:
    async def story(world: World) -> None:
        disk = vm_of(world).spec.disks[0]
        if shared:
            world.disks._addresses["kvm-2"] = world.disks.address("kvm-1")
            await world.do("guest-crash", {"vms": ["vm-2"]})  # so that it reports
        await at(world, 30)
        await world.do("pause-daemon", {"hosts": ["kvm-2"]})
        monkeypatch.setattr(world.disks, "closed", lambda host, disks: None)  # locks stay where guests end
        world.disks.lock(disk, "kvm-2" if shared else "kvm-1")
        await world.do("request", {"vm": "vm-1", "verb": "stop"})
        await at(world, 60)
        assert (world.running("vm-1"), holders(world)) == ((), [])
        assert bool(world.disks.locks((disk,))) is shared

    play(story, vms=(VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-2", host="kvm-2")))

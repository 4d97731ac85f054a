"""Hosts that run on in a store that was restored from a backup which does not know them."""

from __future__ import annotations

import pytest
from tests.support.loops import run_by
from tests.support.node_worlds import at, faults, play, record, vm_of, waits

from outlive.resources import Membership
from outlive.simulation import VmSpec, World


async def _not_in_the_backup(world: World) -> None:
    """``kvm-2`` runs on in a store that was restored and does not know it."""
    await world.do("store-snapshot", {})
    await at(world, 5)
    await _restored_without(world)
    await at(world, 30)


async def _restored_without(world: World) -> None:
    await world.do("store-restore", {})
    await world.do("delete-host", {"host": "kvm-2"})


@run_by(play)
async def test_nothing_starts_once_a_host_that_is_not_in_the_backup_has_spoken_until_somebody_attests(
    world: World,
) -> None:
    await _not_in_the_backup(world)
    assert waits(world) == ("kvm-2",)
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 40)
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 80)
    assert world.running_hosts("vm-1") == ()
    await world.do("confirm-incarnation", {})
    await at(world, 100)
    assert world.running_hosts("vm-1") == ("kvm-1",)


@pytest.mark.slow
@run_by(play)
async def test_host_that_joined_a_moment_before_the_store_went_back_to_a_backup_without_it_registers_anew(
    world: World,
) -> None:
    """It had no time to write down where it had registered, and runs what it had begun to start."""
    for _ in range(2):  # a store that has had a name
        await world.do("store-snapshot", {})
        await world.do("store-restore", {})
        await world.clock.sleep(30.0)
    await world.do("power-off", {"hosts": ["kvm-2"]})
    await world.do("delete-membership", {"host": "kvm-2"})
    await world.do("forget-membership", {"host": "kvm-2"})
    await world.do("create-vm", {"vm": "vm-2", "host": "kvm-2"})
    await world.do("store-snapshot", {})
    await world.do("power-on", {"hosts": ["kvm-2"]})
    for _ in range(1000):
        if world.running_hosts("vm-2"):
            break
        await world.clock.sleep(0.1)
    await world.do("store-restore", {})
    await world.clock.sleep(60.0)
    assert not faults(world)
    assert record(world, "kvm-2").state == "Held"
    assert world.running_hosts("vm-2") == ("kvm-2",)


@run_by(play)
async def test_host_that_was_not_in_the_backup_is_missed_though_its_daemon_was_away_when_that_was_put_back(
    world: World,
) -> None:
    await at(world, 10)  # it writes down where it is registered when it reads its desired state
    await world.do("store-snapshot", {})
    await world.do("stop-daemon", {"hosts": ["kvm-2"], "leaveVms": True})
    await at(world, 15)
    await _restored_without(world)
    await at(world, 30)
    assert waits(world) == ()
    await world.do("start-daemon", {"hosts": ["kvm-2"]})
    await at(world, 60)
    assert waits(world) == ("kvm-2",)
    await world.do("apply-host", {"host": "kvm-2"})
    await at(world, 100)
    assert record(world, "kvm-2").incarnation == world.store.incarnation
    assert waits(world) == ()


@pytest.mark.slow
@run_by(play, vms=(VmSpec(name="vm-1", host="kvm-1", disks=()), VmSpec(name="vm-2", host="kvm-1")))
async def test_nothing_starts_before_a_host_that_was_not_in_the_backup_has_registered_what_it_runs(
    world: World,
) -> None:
    """Though all others had settled before it spoke, and it has its membership again."""
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 15)
    await world.do("store-snapshot", {})
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": False})
    await at(world, 30)
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 40)
    assert world.running_hosts("vm-1") == ("kvm-2",)
    await world.do("cut", {"network": "store", "hosts": ["kvm-2"]})
    await _restored_without(world)
    await at(world, 70)
    await world.do("guest-crash", {"vms": ["vm-2"]})
    await at(world, 90)
    assert world.running_hosts("vm-2") == ("kvm-1",), "for the others the store is settled"
    await world.do("heal", {"network": "store", "hosts": ["kvm-2"]})
    await at(world, 110)
    assert waits(world) == ("kvm-2",)
    await world.do("laggy-hypervisor", {"hosts": ["kvm-2"], "by": 3.0})
    await world.do("apply-host", {"host": "kvm-2"})
    for _ in range(400):
        found = world.store.find(Membership, "kvm-2")
        if found is not None and found.record.incarnation == world.store.incarnation:
            break
        assert waits(world) == ("kvm-2",)
        await world.clock.sleep(0.1)
    assert [one.hypervisor for one in vm_of(world).status.holders] == ["kvm-2"]
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 160)
    assert waits(world) == ()
    assert len(world.running_hosts("vm-1")) == 1


@run_by(play)
async def test_host_that_was_not_in_the_backup_registers_anew_though_its_daemon_was_restarted_meanwhile(
    world: World,
) -> None:
    await at(world, 10)  # it writes down where it is registered when it reads its desired state
    await _not_in_the_backup(world)
    await world.do("kill-daemon", {"hosts": ["kvm-2"]})
    await at(world, 60)
    assert world.store.find(Membership, "kvm-2") is None
    await world.do("apply-host", {"host": "kvm-2"})
    await at(world, 100)
    assert record(world, "kvm-2").state == "Held"
    assert "host-unknown.kvm-2" not in faults(world)


@run_by(play)
async def test_membership_that_is_deleted_in_a_store_that_was_not_restored_holds_up_nobody(world: World) -> None:
    await world.do("delete-membership", {"host": "kvm-2"})
    await at(world, 30)
    assert waits(world) == ()


# Moves that a restored store has under way, and that were over.

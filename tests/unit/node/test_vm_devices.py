"""Devices that a virtual machine gets or loses while it runs, by its host and its definition."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.support.node_worlds import at, play, vm_of

from outlive.base.errors import Refused
from outlive.base.ids import SeededIds
from outlive.base.random import Random
from outlive.node.vm.operator import attach_device, detach_device
from outlive.resources import VirtualMachine
from outlive.resources.definitions import completed, parse
from outlive.simulation.hypervisors import SimDomain
from outlive.simulation.spec import VmSpec
from outlive.simulation.verbs.operations import change_spec
from outlive.simulation.world import World

_replace = msgspec.structs.replace
UUID = "7b0a2c5e-0000-4000-8000-00000000d0d0"
VDA = "<disk type='file'><source file='/a.raw'/><target dev='vda'/></disk>"
VDB = "<disk type='file'><source file='/b.raw'/><target dev='vdb'/></disk>"
DEFINITION = (
    f"<domain type='kvm'><name>web</name><uuid>{UUID}</uuid><memory unit='MiB'>96</memory><vcpu>1</vcpu>"
    f"<features><acpi/></features><devices>{VDA}</devices></domain>"
)
IDS = SeededIds(Random(3))


async def _defined(world: World) -> None:
    """vm-1 runs by a definition."""

    def changed(spec: Any) -> Any:
        return completed(_replace(vm_of(world), spec=_replace(spec, definition=DEFINITION))).spec

    await change_spec(world, VirtualMachine, "vm-1", changed)
    await world.do("request", {"vm": "vm-1", "verb": "restart"})
    await at(world, 30)
    assert (world.running("vm-1"), vm_of(world).spec.disks) == (("kvm-1",), ("file:/a.raw",))


def _domain(world: World) -> SimDomain:
    return world.hosts["kvm-1"].hypervisor.domains["vm-1"]


async def _attach(world: World) -> str:
    """What an operator is told, or why it was refused."""
    try:
        return await attach_device(world.store, world.clock, IDS, vm_of(world), VDB)
    except Refused as error:
        return str(error)


def test_a_disk_is_in_the_definition_and_in_the_guest_until_it_is_taken_away() -> None:
    async def story(world: World) -> None:
        await _defined(world)
        assert await _attach(world) == "web has vdb"
        assert vm_of(world).spec.disks == ("file:/a.raw", "file:/b.raw")
        assert _domain(world).disks == ("file:/a.raw", "file:/b.raw")
        await world.do("request", {"vm": "vm-1", "verb": "migrate"})
        await at(world, 60)
        assert world.running("vm-1") == ("kvm-2",)
        assert world.hosts["kvm-2"].hypervisor.domains["vm-1"].devices == {"vda": "file:/a.raw", "vdb": "file:/b.raw"}
        said = await detach_device(world.store, world.clock, IDS, vm_of(world), "vdb")
        assert "has vdb no more" in said
        assert (parse(vm_of(world).spec.definition).disk_ids, vm_of(world).spec.disks) == (
            ("file:/a.raw",),
            ("file:/a.raw",),
        )
        assert world.hosts["kvm-2"].hypervisor.domains["vm-1"].disks == ("file:/a.raw",)

    play(story)


@pytest.mark.parametrize("lock", ["192.0.2.9:0/1", "vm-2"])
def test_a_disk_that_somebody_else_has_is_not_given_and_the_definition_is_as_it_was(lock: str) -> None:
    async def story(world: World) -> None:
        await _defined(world)
        if lock == "vm-2":
            await change_spec(
                world, VirtualMachine, "vm-2", lambda spec: _replace(spec, disks=(*spec.disks, "file:/b.raw"))
            )
            await at(world, 40)
        else:
            world.disks.lock("file:/b.raw", lock)
        said = await _attach(world)
        assert ("belongs to" if lock == "vm-2" else "was not given vdb") in said
        assert (vm_of(world).spec.definition, vm_of(world).spec.disks) == (DEFINITION, ("file:/a.raw",))
        assert _domain(world).disks == ("file:/a.raw",)

    play(story, vms=(VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-2", host="kvm-1")))


def test_what_ends_between_the_definition_and_the_guest_is_done_by_the_next_daemon() -> None:
    async def story(world: World) -> None:
        await _defined(world)
        hypervisor = world.hosts["kvm-1"].hypervisor
        hypervisor.faults.lag_s = 5.0
        asked = world.clock.monotonic()
        task = asyncio.create_task(_attach(world))
        await world.clock.sleep(2.0)
        assert (vm_of(world).spec.disks, _domain(world).disks) == (("file:/a.raw", "file:/b.raw"), ("file:/a.raw",))
        await world.do("kill-daemon", {"hosts": ["kvm-1"]})
        hypervisor.faults.lag_s = 0.0
        assert "has vdb" in await task
        assert _domain(world).disks == ("file:/a.raw", "file:/b.raw")
        assert world.clock.monotonic() - asked < 120

    play(story)


def test_a_guest_that_keeps_a_disk_keeps_it_in_its_definition_and_a_user_may_ask_again() -> None:
    async def story(world: World) -> None:
        await _defined(world)
        await _attach(world)
        defined, ignores = vm_of(world).spec.definition, world.hosts["kvm-1"].hypervisor.faults.ignores_shutdown
        ignores["vm-1"] = True
        with pytest.raises(Refused, match="does not let go of vdb"):
            await detach_device(world.store, world.clock, IDS, vm_of(world), "vdb")
        assert vm_of(world).spec.definition == defined
        ignores.clear()
        await detach_device(world.store, world.clock, IDS, vm_of(world), "vdb")
        assert (_domain(world).disks, vm_of(world).spec.disks) == (("file:/a.raw",), ("file:/a.raw",))

    play(story)


def test_a_definition_never_lists_less_than_the_guest_may_have() -> None:
    """Somebody asks for something else before the command reads the answer: nobody knows what the guest was given."""

    async def story(world: World) -> None:
        await _defined(world)
        world.hosts["kvm-1"].hypervisor.faults.lag_s = 3.0
        task = asyncio.create_task(_attach(world))
        await world.clock.sleep(1.5)
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        assert "something else is requested" in await task
        assert vm_of(world).spec.disks == ("file:/a.raw", "file:/b.raw")
        await world.clock.sleep(30.0)
        assert await _attach(world) == "web has vdb"
        assert _domain(world).disks == ("file:/a.raw", "file:/b.raw")

    play(story)


def test_a_guest_that_ends_while_a_lock_is_waited_for_is_started_again_at_once() -> None:
    async def story(world: World) -> None:
        await _defined(world)
        await world.do("pause-daemon", {"hosts": ["kvm-2"]})
        world.disks.lock("file:/b.raw", "kvm-2")
        task = asyncio.create_task(_attach(world))
        await world.clock.sleep(12.0)
        assert not task.done()
        await world.do("guest-crash", {"vms": ["vm-1"]})
        assert "was not given vdb" in await task
        await world.clock.sleep(10.0)
        assert (world.running("vm-1"), _domain(world).disks) == (("kvm-1",), ("file:/a.raw",))

    play(story)


def test_what_does_not_run_gets_nothing() -> None:
    async def story(world: World) -> None:
        await _defined(world)
        await world.do("request", {"vm": "vm-1", "verb": "stop"})
        await at(world, 40)
        assert "does not run" in await _attach(world)
        assert vm_of(world).spec.definition == DEFINITION

    play(story)

"""Devices that a virtual machine gets or loses while it runs, by its host and its definition."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.support.loops import run_by
from tests.support.node_worlds import at, play, vm_of

from outlive.api import Neighbours
from outlive.base import Invalid, Random, Refused, SeededIds
from outlive.node import request_vm
from outlive.node.vm import attach_device, detach_device
from outlive.resources import VirtualMachine, complete_vm, parse, with_device, without_device
from outlive.simulation import SimDomain, VmSpec, World
from outlive.simulation.verbs import change_spec

_replace = msgspec.structs.replace
UUID = "7b0a2c5e-0000-4000-8000-00000000d0d0"
MAC = "52:54:00:00:00:0b"
VDA = "<disk type='file'><source file='/a.raw'/><target dev='vda'/></disk>"
VDB = (
    "<disk type='file'><source file='/b.raw'/><target dev='vdb'/>"
    "<address type='pci' domain='0x0000' bus='0x00' slot='0x10' function='0x0'/></disk>"
)
PORT = f"<interface type='bridge'><mac address='{MAC}'/><source bridge='br0'/></interface>"
DEFINITION = (
    f"<domain type='kvm'><name>web</name><uuid>{UUID}</uuid><memory unit='MiB'>96</memory><vcpu>1</vcpu>"
    f"<features><acpi/></features><devices>{VDA}{VDB}</devices></domain>"
)
DISKS = ("file:/a.raw", "file:/b.raw")
IDS = SeededIds(Random(3))


async def _define(world: World, definition: str) -> None:
    def changed(spec: Any) -> Any:
        return complete_vm(_replace(vm_of(world), spec=_replace(spec, definition=definition))).spec

    await change_spec(world, VirtualMachine, "vm-1", changed)


async def _defined(world: World) -> None:
    """vm-1 runs by a definition."""
    await _define(world, DEFINITION)
    await world.do("request", {"vm": "vm-1", "verb": "restart"})
    await at(world, 30)
    assert (world.running_hosts("vm-1"), vm_of(world).spec.disks) == (("kvm-1",), DISKS)


def _domain(world: World, host: str = "kvm-1") -> SimDomain:
    return world.hosts[host].hypervisor.domains["vm-1"]


async def _attach(world: World, device: str = PORT) -> str:
    """What an operator is told, or why it was refused."""
    said: list[str] = []
    try:
        done = await attach_device(world.store, world.clock, IDS, vm_of(world), device, said.append)
    except Refused as error:
        return str(error)
    assert "kvm-1 answers" in said[0]
    return done


async def _detach(world: World) -> str:
    return await detach_device(world.store, world.clock, IDS, vm_of(world), "vdb", lambda line: None)


@run_by(play)
async def test_an_interface_is_in_the_definition_and_in_the_guest_and_a_disk_until_it_is_taken_away(
    world: World,
) -> None:
    await _defined(world)
    assert await _attach(world) == f"web has {MAC}"
    assert await _attach(world) == f"web has {MAC}"
    assert MAC in _domain(world).ports
    await world.do("request", {"vm": "vm-1", "verb": "migrate"})
    await at(world, 60)
    assert world.running_hosts("vm-1") == ("kvm-2",)
    assert {*_domain(world, "kvm-2").devices} == {"vda", "vdb", MAC}
    assert "has vdb no more" in await _detach(world)
    assert (parse(vm_of(world).spec.definition).disk_ids, vm_of(world).spec.disks) == (DISKS[:1], DISKS[:1])
    assert _domain(world, "kvm-2").disks == DISKS[:1]


@pytest.mark.parametrize("by", ["the command", "the store"])
@run_by(play)
async def test_a_disk_is_not_given_to_a_guest_that_runs(world: World, *, by: str) -> None:
    """Two hosts would have to agree that neither guest has it open, while each of them may be late."""
    await _defined(world)
    disk = "<disk type='file'><source file='/c.raw'/><target dev='vdc'/></disk>"
    if by == "the command":
        assert "a disk is not given to a guest that runs" in await _attach(world, disk)
        assert vm_of(world).spec.definition == DEFINITION
    else:
        after, name = with_device(DEFINITION, disk)
        await request_vm(world.store, world.clock, IDS, "vm-1", "attach", device=name, definition=(DEFINITION, after))
        await world.clock.sleep(10.0)
        answer = vm_of(world).status.answered
        assert answer is not None
        assert (answer.code, "a disk is not given" in answer.message) == ("failed", True)
    assert _domain(world).disks == DISKS


@run_by(play)
async def test_what_ends_between_the_definition_and_the_guest_is_done_by_the_next_daemon(world: World) -> None:
    await _defined(world)
    hypervisor = world.hosts["kvm-1"].hypervisor
    hypervisor.faults.lag_s = 5.0
    asked = world.clock.monotonic()
    task = asyncio.create_task(_attach(world))
    await world.clock.sleep(2.0)
    assert (MAC in vm_of(world).spec.definition, MAC in _domain(world).devices) == (True, False)
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    hypervisor.faults.lag_s = 0.0
    assert f"has {MAC}" in await task
    assert MAC in _domain(world).devices
    assert world.clock.monotonic() - asked < 120


@run_by(play)
async def test_a_guest_that_keeps_a_disk_keeps_it_in_its_definition_and_a_user_may_ask_again(world: World) -> None:
    await _defined(world)
    ignores = world.hosts["kvm-1"].hypervisor.faults.ignores_shutdown
    ignores["vm-1"] = True
    with pytest.raises(Refused, match=r"web still has vdb, as its definition has; .* does not let go of vdb"):
        await _detach(world)
    assert vm_of(world).spec.definition == DEFINITION
    ignores.clear()
    await _detach(world)
    assert (_domain(world).disks, vm_of(world).spec.disks) == (DISKS[:1], DISKS[:1])


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["attach", "detach"])
@run_by(play)
async def test_a_hypervisor_that_does_not_answer_holds_a_vm_up_for_two_minutes_and_the_definition_keeps_all(
    world: World, *, verb: str
) -> None:
    """Nobody knows whether it was done; the request is over, and its host goes on with the virtual machine."""
    await _defined(world)
    faults = world.hosts["kvm-1"].hypervisor.faults
    faults.lag_s = 100.0  # longer than any call is waited for
    began_s = world.clock.monotonic()
    said = await _attach(world) if verb == "attach" else ""
    if verb == "detach":
        with pytest.raises(Refused, match="may still have vdb, as its definition has"):
            await _detach(world)
    else:
        assert f"may have been given {MAC}, and its definition keeps it" in said
    assert 100 < world.clock.monotonic() - began_s < 240
    answer, definition = vm_of(world).status.answered, vm_of(world).spec.definition
    assert answer is not None
    assert (answer.code, MAC in definition) == ("unknown", verb == "attach")
    assert vm_of(world).spec.disks == DISKS
    faults.lag_s = 0.0
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await world.clock.sleep(90.0)
    assert world.running_hosts("vm-1") == ()


@run_by(play)
async def test_a_definition_never_lists_less_than_the_guest_may_have(world: World) -> None:
    """Somebody asks for something else before the command reads the answer: nobody knows what the guest was given."""
    await _defined(world)
    world.hosts["kvm-1"].hypervisor.faults.lag_s = 3.0
    task = asyncio.create_task(_attach(world))
    await world.clock.sleep(1.5)
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    assert "its definition keeps it" in await task
    assert MAC in vm_of(world).spec.definition
    await world.clock.sleep(30.0)
    assert await _attach(world) == f"web has {MAC}"
    assert MAC in _domain(world).devices


@run_by(play, violations=True)
async def test_a_guest_that_was_started_anew_before_the_definition_lost_a_disk_keeps_it_in_there(world: World) -> None:
    await _defined(world)
    task = asyncio.create_task(_detach(world))
    for _ in range(100):
        await world.clock.sleep(0.05)
        answer, request = vm_of(world).status.answered, vm_of(world).spec.request
        if answer is not None and request is not None and (request.verb, answer.id) == ("detach", request.id):
            break
    assert _domain(world).disks == DISKS[:1]
    vm = vm_of(world)
    others = tuple(_replace(one, run_id="another-run") for one in vm.status.holders)
    await world.store.replace_status(_replace(vm, status=_replace(vm.status, holders=others)))
    with pytest.raises(Refused, match="was started again meanwhile"):
        await task
    assert vm_of(world).spec.disks == DISKS


@run_by(play)
async def test_a_definition_loses_no_disk_while_a_guest_may_have_it_open(world: World) -> None:
    await _defined(world)
    fewer = complete_vm(
        _replace(vm_of(world), spec=_replace(vm_of(world).spec, definition=without_device(DEFINITION, "vdb")))
    )
    with pytest.raises(Invalid, match=r"its guest may have file:/b.raw open"):
        await Neighbours(world.store).check(fewer)
    await Neighbours(world.store).check(vm_of(world))
    await request_vm(world.store, world.clock, IDS, "vm-1", "detach", device="vdb")
    await world.clock.sleep(20.0)
    after = _replace(vm_of(world), spec=_replace(vm_of(world).spec, definition=fewer.spec.definition))
    await Neighbours(world.store).check(complete_vm(after))
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await world.clock.sleep(20.0)
    assert vm_of(world).status.holders == ()
    await Neighbours(world.store).check(_replace(fewer, metadata=vm_of(world).metadata))


@run_by(play, vms=(VmSpec(name="vm-1", host="kvm-1"),))
async def test_what_does_not_run_gets_nothing(world: World) -> None:
    await _defined(world)
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 60)
    assert "does not run" in await _attach(world)
    assert vm_of(world).spec.definition == DEFINITION

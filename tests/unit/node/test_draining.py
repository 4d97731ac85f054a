"""Emptying a host, taking its virtual machines back, and stopping its daemon."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.loops import run_by
from tests.support.node_worlds import at, faults, host_of, play, record, vm_of

from outlive.resources import VirtualMachine, state_of
from outlive.simulation import HostSpec, VmSpec, World, WorldSpec
from outlive.simulation.verbs import change_spec

TWO = (VmSpec(name="vm-1", host="kvm-1"), VmSpec(name="vm-2", host="kvm-1"))


def test_vm_that_asks_for_the_least_load_goes_where_guests_compute_least() -> None:
    async def story(world: World) -> None:
        await change_spec(world, VirtualMachine, "vm-1", lambda spec: msgspec.structs.replace(spec, selector="load"))
        await at(world, 40)
        await world.do("drain", {"hosts": ["kvm-1"]})
        await at(world, 60)
        assert world.running_hosts("vm-1") == ("kvm-3",)

    busy = VmSpec(name="vm-2", host="kvm-2", cpu="8", memory="1Gi")
    idle = VmSpec(name="vm-3", host="kvm-3", cpu="1", memory="16Gi")
    play(story, hosts=3, vms=(TWO[0], busy, idle))


@pytest.mark.slow
@run_by(play, hosts=3, vms=(VmSpec(name="vm-1", host="kvm-1", migration_method="shutdown"),))
async def test_host_that_is_drained_again_fetches_no_vm_that_it_had_to_wait_for(world: World) -> None:
    await world.do("drain", {"hosts": ["kvm-1"]})
    await at(world, 30)
    (away,) = world.running_hosts("vm-1")
    await world.do("guest-ignores-shutdown", {"vms": ["vm-1"]})
    await world.do("request", {"vm": "vm-1", "verb": "restart"})
    await world.do("ready", {"hosts": ["kvm-1"]})
    await at(world, 35)
    assert state_of(vm_of(world)) == "restart", "and kvm-1 waits for the end of that"
    await world.do("drain", {"hosts": ["kvm-1"]})
    await at(world, 400)
    assert state_of(vm_of(world)) == "start"
    moves = [event.text for event in world.history.events if event.kind == "move" and "requested" in event.text]
    assert moves == [f"vm-1 moves cold from kvm-1 to {away}: requested"]


@pytest.mark.slow
@run_by(play, hosts=3, vms=(VmSpec(name="vm-1", host="kvm-1", migration_method="shutdown"),))
async def test_host_is_not_empty_while_a_vm_is_on_its_way_to_it(world: World) -> None:
    await world.do("guest-ignores-shutdown", {"vms": ["vm-1"]})
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": False})
    await at(world, 5)
    await world.do("drain", {"hosts": ["kvm-2"]})
    await at(world, 30)
    assert (world.running_hosts("vm-1"), host_of(world, "kvm-2").status.domain_state) == (("kvm-1",), "flush")
    assert any("drain-incomplete" in name for name in faults(world))
    await at(world, 400)
    assert host_of(world, "kvm-2").status.domain_state == "flushed"
    assert world.running_hosts("vm-1") != ("kvm-2",)


# VMs that a drain stopped.


@pytest.mark.slow
@run_by(play, hosts=2)
async def test_vm_that_a_drain_stopped_away_from_home_starts_again_when_both_hosts_are_ready(world: World) -> None:
    """Rolling maintenance: kvm-1 is emptied into kvm-2, then kvm-2 has to be emptied too, then both are ready."""
    await world.do("drain", {"hosts": ["kvm-1"]})
    await at(world, 40)
    assert world.running_hosts("vm-1") == ("kvm-2",)
    await world.do("drain", {"hosts": ["kvm-2"]})
    await at(world, 80)
    assert (world.running_hosts("vm-1"), vm_of(world).status.phase) == ((), "stop")
    await world.do("ready", {"hosts": ["kvm-1"]})
    await at(world, 160)
    await world.do("ready", {"hosts": ["kvm-2"]})
    await at(world, 600)
    assert host_of(world, "kvm-1").status.domain_state == host_of(world, "kvm-2").status.domain_state == "ready"
    vm = vm_of(world)
    assert len(world.running_hosts("vm-1")) == 1, vm.status.reason


@pytest.mark.slow
@run_by(play, hosts=1)
async def test_vm_that_a_drain_shuts_down_slowly_starts_again_though_the_daemon_is_started_anew_meanwhile(
    world: World,
) -> None:
    await world.do("guest-ignores-shutdown", {"vms": ["vm-1"]})
    await world.do("drain", {"hosts": ["kvm-1"]})
    await at(world, 10)
    assert vm_of(world).status.phase == "shutdown"
    await world.do("ready", {"hosts": ["kvm-1"]})
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    await at(world, 600)
    vm = vm_of(world)
    assert host_of(world, "kvm-1").status.domain_state == "ready"
    assert world.running_hosts("vm-1") == ("kvm-1",), vm.status.reason


# A host that dies while it is drained: what was being stopped for that starts again.


@pytest.mark.slow
async def test_vm_whose_host_dies_while_a_drain_shuts_it_down_starts_once_its_host_is_ready_again() -> None:
    spec = WorldSpec(
        hosts=(
            HostSpec(name="kvm-1", rack="r1"),
            HostSpec(name="kvm-2", rack="r2", mode="coordinator", memory="8Gi"),
            HostSpec(name="kvm-3", rack="r3", mode="coordinator", memory="8Gi"),
        ),
        vms=(VmSpec(name="vm-1", host="kvm-1", memory="64Gi"),),
        controllers=1,
    )
    world = World(spec, seed=1)
    await world.build()
    await world.start()
    await world.clock.sleep(20)
    await world.do("guest-ignores-shutdown", {"vms": ["vm-1"]})
    await world.do("drain", {"hosts": ["kvm-1"]})
    await world.clock.sleep(10)
    assert vm_of(world).status.phase == "shutdown"
    await world.do("power-off", {"hosts": ["kvm-1"]})
    await world.clock.sleep(60)
    assert record(world).dead_through == 1
    print(vm_of(world).status)
    await world.do("ready", {"hosts": ["kvm-1"]})
    await world.do("power-on", {"hosts": ["kvm-1"]})
    await world.clock.sleep(300)
    assert host_of(world).status.domain_state == "ready"
    print(vm_of(world).status, faults(world))
    assert world.running_hosts("vm-1") == ("kvm-1",), vm_of(world).status
    await world.stop()


@pytest.mark.slow
@pytest.mark.parametrize("tenths", range(0, 10, 2))
@run_by(play, hosts=3, vms=TWO)
async def test_vm_whose_move_has_just_ended_is_not_moved_on_by_the_drain_of_the_host_that_it_left(
    world: World, *, tenths: int
) -> None:
    """Its domain there is still to be destroyed."""
    await world.do("move", {"vm": "vm-1", "to": "kvm-2"})
    await at(world, 0.5 + tenths / 10)
    await world.do("drain", {"hosts": ["kvm-1"]})
    await at(world, 60)
    moves = [event.text for event in world.history.events if event.kind == "move" and event.subject == "vm-1"]
    assert any("to kvm-2" in text for text in moves)
    assert not [text for text in moves if "from kvm-2" in text]

"""VMs that a drain stopped."""

from __future__ import annotations

from tests.support.node_worlds import at, faults, host_of, tell, vm_of

from outlive.simulation.world import World


def test_vm_that_a_drain_stopped_away_from_home_starts_again_when_both_hosts_are_ready() -> None:
    """Rolling maintenance: kvm-1 is emptied into kvm-2, then kvm-2 has to be emptied too, then both are ready."""

    async def story(world: World) -> None:
        await world.do("drain", {"hosts": ["kvm-1"]})
        await at(world, 40)
        assert world.running("vm-1") == ("kvm-2",)
        await world.do("drain", {"hosts": ["kvm-2"]})
        await at(world, 80)
        assert (world.running("vm-1"), vm_of(world).status.phase) == ((), "stop")
        await world.do("ready", {"hosts": ["kvm-1"]})
        await at(world, 160)
        await world.do("ready", {"hosts": ["kvm-2"]})
        await at(world, 600)
        assert host_of(world, "kvm-1").status.domain_state == host_of(world, "kvm-2").status.domain_state == "ready"
        vm = vm_of(world)
        print(vm.status.phase, vm.status.reason, vm.status.assigned, vm.status.home, faults(world))
        assert len(world.running("vm-1")) == 1, vm.status.reason

    tell(story, hosts=2)


def test_vm_that_a_drain_shuts_down_slowly_starts_again_though_the_daemon_is_started_anew_meanwhile() -> None:
    async def story(world: World) -> None:
        await world.do("guest-ignores-shutdown", {"vms": ["vm-1"]})
        await world.do("drain", {"hosts": ["kvm-1"]})
        await at(world, 10)
        assert vm_of(world).status.phase == "shutdown"
        await world.do("ready", {"hosts": ["kvm-1"]})
        await world.do("kill-daemon", {"hosts": ["kvm-1"]})
        await at(world, 600)
        vm = vm_of(world)
        print(vm.status.phase, vm.status.reason, vm.status.assigned, vm.status.home, faults(world))
        assert host_of(world, "kvm-1").status.domain_state == "ready"
        assert world.running("vm-1") == ("kvm-1",), vm.status.reason

    tell(story, hosts=1)

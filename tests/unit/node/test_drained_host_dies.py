"""A host that dies while it is drained: what was being stopped for that starts again."""

from __future__ import annotations

from tests.support.loops import run
from tests.support.node_worlds import faults, host_of, record, vm_of

from outlive.simulation.spec import HostSpec, VmSpec, WorldSpec
from outlive.simulation.world import World


def test_vm_whose_host_dies_while_a_drain_shuts_it_down_starts_once_its_host_is_ready_again() -> None:
    async def told() -> None:
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
        assert world.running("vm-1") == ("kvm-1",), vm_of(world).status
        await world.stop()

    run(told())

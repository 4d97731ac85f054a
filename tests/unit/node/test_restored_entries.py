"""Entries that a restored store brings back are taken back again by their host."""

from __future__ import annotations

from tests.support.loops import run
from tests.support.node_worlds import faults, holders, record, vm_of

from outlive.simulation.spec import HostSpec, VmSpec, WorldSpec
from outlive.simulation.world import World


def test_vm_is_recovered_though_a_restored_store_has_brought_back_an_entry_that_its_host_had_taken_back() -> None:
    """The store loses its last second: the source of a move had taken its entry back, and had not renewed since."""

    async def told() -> None:
        hosts = tuple(
            HostSpec(name=f"kvm-{n}", rack=f"r{n}", mode="coordinator", profile="steady") for n in range(1, 5)
        )
        spec = WorldSpec(hosts=hosts, vms=(VmSpec(name="vm-1", host="kvm-1"),), controllers=1)
        world = World(spec, seed=1)
        await world.build()
        await world.start()
        await world.clock.sleep(20)
        seq = record(world).seq
        while record(world).seq == seq:
            await world.clock.sleep(0.01)
        await world.clock.sleep(START)
        await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
        while not (len(holders(world)) == 2 and vm_of(world).status.migration is None):
            await world.clock.sleep(0.001)
        await world.do("store-snapshot", {})
        seq = record(world).seq
        while len(holders(world)) == 2:
            await world.clock.sleep(0.001)
        await world.clock.sleep(0.1)
        assert record(world).seq == seq
        await world.do("store-restore", {})
        await world.clock.sleep(60)
        await world.do("power-off", {"hosts": ["kvm-2"]})
        await world.clock.sleep(600)
        assert record(world, "kvm-2").dead_through == record(world, "kvm-2").epoch
        assert world.running("vm-1"), (holders(world), vm_of(world).status.recovery, faults(world))
        await world.stop()

    run(told())


START = 1.0

"""Moves that a restored store has under way, and that were over."""

from __future__ import annotations

from tests.support.node_worlds import at, tell, told_of, vm_of

from outlive.simulation.spec import VmSpec
from outlive.simulation.world import World


def test_guest_that_runs_where_it_was_moved_cold_is_not_ended_because_a_restored_store_has_it_on_the_way() -> None:
    async def story(world: World) -> None:
        await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": False})
        while (move := vm_of(world).status.migration) is None or move.phase != "stopping":
            await world.clock.sleep(0.001)
        await world.do("store-snapshot", {})
        await at(world, 40)
        assert world.running("vm-1") == ("kvm-2",)
        before = len(told_of(world, "vm-1", "domain"))
        await world.do("store-restore", {})
        await at(world, 300)
        assert len(world.running("vm-1")) == 1
        assert told_of(world, "vm-1", "domain")[before:] == []

    tell(story, vms=(VmSpec(name="vm-1", host="kvm-1", migration_method="shutdown"),))

"""Entries that a daemon left which was killed are taken back by the next one."""

from __future__ import annotations

from tests.support.node_worlds import faults, holders, tell, vm_of

from outlive.simulation.history import HistoryEvent
from outlive.simulation.spec import VmSpec
from outlive.simulation.world import World


def test_entry_that_a_killed_daemon_left_is_taken_back_though_the_first_listing_comes_late() -> None:
    """The guest of a cold move has ended, and its source's daemon is killed before it takes its entry back."""

    async def story(world: World) -> None:
        def destroyed(event: HistoryEvent) -> None:
            if event.kind == "domain" and event.text == "on kvm-1: destroyed":
                world.hosts["kvm-1"].daemon.kill()

        world.history.listen(destroyed)
        await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": False})
        for _ in range(3000):
            if not world.hosts["kvm-1"].daemon.alive:
                break
            await world.clock.sleep(0.01)
        await world.do("store-faults", {"rates": {"observer_delay": 1.0}})
        await world.clock.sleep(20)
        await world.do("store-faults", {"rates": {}})
        await world.clock.sleep(600)
        assert world.hosts["kvm-1"].daemon.alive
        assert not faults(world)
        assert world.running("vm-1") == ("kvm-2",), (holders(world), vm_of(world).status.migration)

    tell(story, vms=(VmSpec(name="vm-1", host="kvm-1", migration_method="shutdown"),))

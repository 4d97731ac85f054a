"""A VM that is to be disabled is, whatever happens to its daemon meanwhile."""

from __future__ import annotations

import msgspec
from tests.support.node_worlds import at, faults, tell, vm_of

from outlive.resources import VirtualMachine
from outlive.resources.vms import Request
from outlive.simulation.history import HistoryEvent
from outlive.simulation.verbs.operating import change_spec
from outlive.simulation.world import World


def test_vm_is_disabled_though_its_daemon_is_killed_after_it_was_stopped_for_that() -> None:
    async def story(world: World) -> None:
        def destroyed(event: HistoryEvent) -> None:
            if event.kind == "domain" and event.text == "on kvm-1: destroyed":
                world.hosts["kvm-1"].daemon.kill()

        world.history.listen(destroyed)
        made = Request(id="asked", verb="disable", force=True)
        await change_spec(world, VirtualMachine, "vm-1", lambda spec: msgspec.structs.replace(spec, request=made))
        await at(world, 200)
        assert (vm_of(world).status.phase, vm_of(world).status.reason) == ("disable", ""), faults(world)

    tell(story)

"""Who asks to have a VM stopped while it moves is obeyed, wherever it arrives."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.node_worlds import at, tell, vm_of

from outlive.resources import VirtualMachine
from outlive.resources.vms import Answer, Request
from outlive.simulation.verbs.operating import change_spec
from outlive.simulation.world import World


@pytest.mark.parametrize("verb", ["stop", "disable"])
def test_vm_that_is_stopped_while_it_moves_live_does_not_run_on(verb: str) -> None:
    """As ``outlive request`` asks for it: nothing but the request is written."""

    async def story(world: World) -> None:
        await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
        while (move := vm_of(world).status.migration) is None or move.phase != "transferring":
            await world.clock.sleep(0.01)
        made = Request(id="asked", verb=verb)  # type: ignore[arg-type]
        await change_spec(world, VirtualMachine, "vm-1", lambda spec: msgspec.structs.replace(spec, request=made))
        await at(world, 60)
        vm = vm_of(world)
        assert vm.status.answered == Answer(id="asked", code="accepted")
        assert (world.running("vm-1"), vm.status.phase) == ((), verb)

    tell(story)

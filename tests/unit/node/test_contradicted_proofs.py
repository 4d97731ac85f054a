"""Whether a proof was wrong is judged by what is there after it, and not by what ran when the daemon was started."""

from __future__ import annotations

import pytest
from tests.support.node_worlds import at, condemn, faults, record, tell

from outlive.simulation.world import World


@pytest.mark.parametrize("restarted", [False, True])
def test_host_that_its_guard_emptied_does_not_distrust_the_proof_though_its_daemon_was_restarted_before(
    restarted: bool,
) -> None:
    async def story(world: World) -> None:
        if restarted:
            await world.do("kill-daemon", {"hosts": ("kvm-1",)})
        await at(world, 40)
        assert (record(world).epoch, record(world).guard.armed) == (1, True)
        assert world.running("vm-1") == ("kvm-1",)
        await world.do("cut", {"network": "store", "hosts": ["kvm-1"]})
        await at(world, 100)
        assert world.running("vm-1") == ()  # its guard saw to that
        await condemn(world, dead="watchdog")  # after T + W + g: rightly so
        await world.do("heal", {"network": "store", "hosts": ["kvm-1"]})
        await at(world, 130)
        found = record(world)
        assert (found.state, found.epoch) == ("Held", 2)
        assert found.distrusted == ()
        assert "proof-contradicted.kvm-1" not in faults(world)

    tell(story, armed=True)

"""Creates that outlive whoever asked for them: nothing is decided about a virtual machine that may yet run."""

from __future__ import annotations

import pytest
from tests.support.node_worlds import at, condemn, faults, holders, record, tell, told_of, vm_of

from outlive.node.ports.hypervisor import DomainState
from outlive.simulation.world import World


async def _starting_slowly(world: World, *, for_s: float) -> str:
    """The guest is being started, and that takes so long; the run."""
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 5)
    await world.do("slow-starts", {"hosts": ["kvm-1"], "for": for_s})
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 8)
    (shown,) = await world.hosts["kvm-1"].hypervisor.look()
    assert shown.state is DomainState.STARTING
    return shown.run_id


@pytest.mark.parametrize("for_s", [6.0, 40.0, 200.0])
def test_create_of_a_killed_daemon_is_waited_for_and_its_run_taken_over(for_s: float) -> None:
    async def story(world: World) -> None:
        run_id = await _starting_slowly(world, for_s=for_s)
        await world.do("kill-daemon", {"hosts": ["kvm-1"]})
        await at(world, 15 + for_s)
        assert [one.run_id for one in vm_of(world).status.holders] == [run_id]
        assert holders(world) == [("kvm-1", 1, "running")]
        assert world.running("vm-1") == ("kvm-1",)

    tell(story)


def test_create_that_takes_longer_than_its_limit_keeps_its_entry_until_it_has_ended() -> None:
    async def story(world: World) -> None:
        run_id = await _starting_slowly(world, for_s=20.0)
        await at(world, 20)
        assert [one.run_id for one in vm_of(world).status.holders] == [run_id]
        await at(world, 40)
        assert [one.run_id for one in vm_of(world).status.holders] == [run_id]
        assert world.running("vm-1") == ("kvm-1",)

    tell(story, node={"createLimit": "3s"})


def test_host_does_not_say_that_its_old_epoch_is_empty_while_a_create_of_a_killed_daemon_is_under_way() -> None:
    async def story(world: World) -> None:
        await _starting_slowly(world, for_s=20.0)
        await world.do("kill-daemon", {"hosts": ["kvm-1"]})
        await condemn(world)
        await at(world, 20)
        assert record(world).epoch == 2
        assert record(world).dead_through == 0
        await at(world, 40)
        assert record(world).dead_through == 1
        assert holders(world) == [("kvm-1", 2, "running")]

    tell(story)


def test_host_that_was_proven_dead_waits_for_a_create_of_a_killed_daemon_before_it_comes_back() -> None:
    async def story(world: World) -> None:
        await _starting_slowly(world, for_s=20.0)
        await world.do("kill-daemon", {"hosts": ["kvm-1"]})
        await condemn(world, dead="operator")
        await at(world, 20)
        assert record(world).epoch == 1
        await at(world, 80)
        assert record(world).epoch == 2
        assert "proof-contradicted.kvm-1" in faults(world)
        assert "destroyed" in " ".join(told_of(world, "vm-1", "domain"))

    tell(story, violations=True)

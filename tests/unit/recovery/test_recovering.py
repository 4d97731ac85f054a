"""Recovery on virtual time: hosts die, and their VMs run again in the slots that were promised to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.loops import run
from tests.support.recovery import RecoveryCloud

from outlive.runtime.tasks import OrderedTaskGroup

Story = Callable[[RecoveryCloud], Awaitable[None]]


def play(story: Story, **how: Any) -> None:
    """The story, with hosts and recovery running."""

    async def main() -> None:
        cloud = RecoveryCloud(**how)
        async with OrderedTaskGroup() as group:
            hosts = group.create_task(cloud.live(), name="hosts")
            recovery = group.create_task(cloud.manager().run(), name="recovery")
            await story(cloud)
            hosts.cancel()
            recovery.cancel()

    run(main())


def test_vm_of_a_dead_host_runs_again_in_its_slot() -> None:
    async def story(cloud: RecoveryCloud) -> None:
        await cloud.hosts("h1", "h2", "h3")
        await cloud.vm("a", "h1")
        await cloud.slot("s1", "h2", {"a": "h1"})
        await cloud.clock.sleep(5)
        assert await cloud.recovery("a") is None
        await cloud.die("h1")
        await cloud.clock.sleep(3)
        record = await cloud.recovery("a")
        assert (record.phase, record.slot, record.host, record.promised) == ("recovered", "s1", "h2", True)
        assert [one.kind for one in record.proofs] == ["power"]
        assert [one.what for one in record.steps] == ["mute", "claimed", "assigned", "running"]
        assert cloud.running["a"] == {"h2"}
        assert await cloud.consumers() == {"s1": "a"}

    play(story)

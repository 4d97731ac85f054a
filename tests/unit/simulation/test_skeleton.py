"""The walking skeleton: hosts, one VM and its slots; its host dies, and it runs where it was promised to."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.loops import run

from outlive.resources import FencingPolicy, Timing
from outlive.simulation import HostsSpec, VmSpec, World, WorldSpec


def _world(seed: int = 1, **hosts: Any) -> World:
    spec = WorldSpec(
        hosts=HostsSpec(count=3, coordinators=3, **hosts),
        vms=(VmSpec(name="vm-1", host="kvm-1"),),
        controllers=1,
        settings={"failover": {"flavorFailoverRequirements": {"*": 2}}},
    )
    return World(spec, seed=seed)


def _asked_to_renew(cas_per_s: float | None, **timing: float) -> list[str]:
    """What daemons of 4 hosts have said when they were started on a store of that speed; empty: they run."""

    async def story() -> list[str]:
        settings = {"node": {} if cas_per_s is None else {"storeCasPerS": cas_per_s}}
        policy = FencingPolicy(timings={"fast": Timing(**timing)})
        world = World(WorldSpec(hosts=HostsSpec(count=4, coordinators=3), settings=settings, policy=policy), seed=1)
        await world.build()
        await world.start()
        await world.clock.sleep(5.0)
        reported = [event.text for event in world.history.events if event.kind == "process"]
        await world.stop()
        return [text for text in reported if "renew" in text]

    return run(story())


@pytest.mark.slow
async def test_an_outage_that_is_over_before_the_next_look_gives_the_leader_time_to_report_anew() -> None:
    world = _world()
    await world.build()
    await world.start()
    assert await world.wait_settled(30.0)
    before = world._find_leader()
    assert before is not None
    await world.do("store-outage", {"for": 0.1})
    assert world._find_leader() is None
    await world.clock.sleep(0.2)
    after = world._find_leader()
    assert after is not None
    assert after != before
    assert after[:2] == before[:2]
    await world.stop()


@pytest.mark.slow
def test_daemon_that_is_to_renew_more_often_than_the_store_bears_ends_and_names_the_shortest_interval() -> None:
    assert _asked_to_renew(20.0) == []
    reported = _asked_to_renew(19.9)
    assert len(set(reported)) == 4
    assert all("cannot renew every 1 s" in text and "1.1 s with 4 hosts" in text for text in reported)


@pytest.mark.slow
def test_daemon_starts_with_a_timing_that_is_only_doubtful() -> None:
    assert _asked_to_renew(None, guard_timeout_s=4.0) == []
    assert _asked_to_renew(1000.0, guard_timeout_s=4.0) == []

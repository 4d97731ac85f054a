from __future__ import annotations

from tests.support.failover import Cloud
from tests.support.loops import run

from outlive.failover.graph import DependencyGraph


async def six_hosts(cloud: Cloud) -> None:
    await cloud.hosts("h1", "h2", "h3", "h4", "h5", "h6")


async def check_rules(cloud: Cloud) -> None:
    slots = list((await cloud.slots()).values())
    graph = DependencyGraph.build(slots)
    assert all(graph.holds_in(slot.name) for slot in slots)


def test_an_empty_cloud_gets_a_quiet_cycle():
    async def story() -> None:
        cloud = Cloud()
        assert await cloud.cycle() == 30.0
        assert cloud.metric("failover_reconciliation_runs_total") == 1
        assert cloud.store.calls == []

    run(story())


def test_every_vm_gets_the_slots_it_needs_and_is_told_so():
    async def story() -> None:
        cloud = Cloud()
        await six_hosts(cloud)
        for number in range(6):
            await cloud.vm(f"vm{number}", f"h{number % 3 + 1}")
        await cloud.cycle()
        slots = await cloud.slots()
        for number in range(6):
            mine = [slot for slot in slots.values() if f"vm{number}" in slot.members]
            assert len({slot.host for slot in mine}) == 2
            status = await cloud.coverage(f"vm{number}")
            assert (status.covered, status.required, status.host) == (True, 2, f"h{number % 3 + 1}")
            assert list(status.slots) == sorted(slot.name for slot in mine)
        await check_rules(cloud)

    run(story())


def test_a_second_cycle_writes_nothing():
    async def story() -> None:
        cloud = Cloud()
        await six_hosts(cloud)
        await cloud.vm("a", "h1")
        await cloud.vm("b", "h2")
        await cloud.cycle()
        cloud.store.calls.clear()
        await cloud.cycle()
        assert cloud.store.calls == []

    run(story())

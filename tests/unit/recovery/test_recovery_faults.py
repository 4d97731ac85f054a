"""Faults of recovery stand as long as what they say is so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from tests.support.field_writers import WriterStore
from tests.support.loops import run, run_by
from tests.support.recovery import RecoveryCloud, join_before

from outlive.resources import AffinityRule, Cluster, Fault
from outlive.runtime import FaultRecorder, OrderedTaskGroup
from outlive.store import list_all

APART = AffinityRule(group="g", policy="anti-affinity")
Story = Callable[[RecoveryCloud, Callable[[], Any]], Awaitable[None]]


def play(story: Story) -> None:
    """The story, with faults as they are really written; it starts each leader of recovery itself."""

    async def main() -> None:
        cloud: Any = RecoveryCloud()
        cloud.faults = FaultRecorder(WriterStore(cloud.memory, writer="recovery"), cloud.clock, "recovery")
        async with OrderedTaskGroup() as group:
            tasks = [group.create_task(cloud.run(), name="hosts")]

            def lead() -> Any:
                tasks.append(group.create_task(cloud.manager().run(), name="recovery"))
                return tasks[-1]

            await story(cloud, lead)
            for task in tasks:
                task.cancel()

    run(main())


async def faults(cloud: RecoveryCloud) -> set[str]:
    return {one.name async for one in list_all(cloud.memory, Fault) if not one.ended}


async def held(cloud: RecoveryCloud) -> None:
    """b has lost its host, and nobody has room for it."""
    await cloud.hosts("h1")
    await cloud.hosts("h2", cpu=4_000, memory=5 * 2**30)
    await cloud.vm("a", "h1")
    await cloud.vm("b", "h1")
    await cloud.clock.sleep(5)
    await cloud.die("h1")
    await cloud.clock.sleep(4)
    assert (await cloud.recovery("b")).phase == "held"


@run_by(play)
async def test_vm_that_is_held_and_then_deleted_is_not_reported_as_held_any_more(
    cloud: RecoveryCloud, lead: Callable[[], Any]
) -> None:
    lead()
    await held(cloud)
    assert "vm-held.b" in await faults(cloud)
    await cloud.memory.delete((await cloud.get("b")).ref)
    await cloud.clock.sleep(60)
    assert "vm-held.b" not in await faults(cloud)


@run_by(play)
async def test_vm_that_is_held_since_maintenance_is_reported_as_held_once_that_is_over(
    cloud: RecoveryCloud, lead: Callable[[], Any]
) -> None:
    await cloud.cluster(maintenance=True, confirmed_incarnation=cloud.memory.incarnation)
    lead()
    await held(cloud)
    assert "vm-held.b" not in await faults(cloud)
    cluster = await cloud.memory.get(Cluster, "default")
    spec = msgspec.structs.replace(cluster.spec, maintenance=False)
    await cloud.memory.replace(msgspec.structs.replace(cluster, spec=spec))
    await cloud.clock.sleep(120)
    assert (await cloud.recovery("b")).phase == "held"
    assert "vm-held.b" in await faults(cloud)


@run_by(play)
async def test_that_the_store_was_restored_is_reported_no_more_though_another_leads_when_the_last_host_has_joined(
    cloud: RecoveryCloud, lead: Callable[[], Any]
) -> None:
    first = lead()
    await cloud.cluster()
    await cloud.hosts("h1", "h2")
    await join_before(cloud, "h1", "h2")
    await cloud.clock.sleep(5)
    assert "store-restored.default" in await faults(cloud)
    first.cancel()
    cluster = await cloud.memory.get(Cluster, "default")
    spec = msgspec.structs.replace(cluster.spec, confirmed_incarnation=cloud.memory.incarnation)
    await cloud.memory.replace(msgspec.structs.replace(cluster, spec=spec))
    lead()
    await cloud.clock.sleep(120)
    assert "store-restored.default" not in await faults(cloud)


@run_by(play)
async def test_rules_that_contradict_each_other_are_a_fault_until_one_of_them_is_changed(
    cloud: RecoveryCloud, lead: Callable[[], Any]
) -> None:
    lead()
    await cloud.hosts("h1", "h2")
    rules = tuple(AffinityRule(group=policy, policy=policy) for policy in ("affinity", "anti-affinity"))
    await cloud.vm("a", "h1", affinity=rules)
    await cloud.vm("b", "h1", affinity=rules)
    await cloud.clock.sleep(30)
    assert "rules-contradict.a" in await faults(cloud)
    vm = await cloud.get("b")
    await cloud.memory.replace(msgspec.structs.replace(vm, spec=msgspec.structs.replace(vm.spec, affinity=())))
    await cloud.clock.sleep(30)
    assert "rules-contradict.a" not in await faults(cloud)


@run_by(play)
async def test_that_no_coordinator_lives_is_a_fault_once_hosts_have_joined(
    cloud: RecoveryCloud, lead: Callable[[], Any]
) -> None:
    lead()
    await cloud.clock.sleep(300)
    assert "no-coordinator.default" not in await faults(cloud), "there are no hosts yet"
    await cloud.hosts("h1", mode="coordinator")
    await cloud.hosts("h2")
    await cloud.clock.sleep(300)
    assert "no-coordinator.default" not in await faults(cloud)
    cloud.lose_power("h1")
    await cloud.clock.sleep(50)
    assert "no-coordinator.default" not in await faults(cloud), "it may come back by itself"
    await cloud.clock.sleep(100)
    assert "no-coordinator.default" in await faults(cloud)
    cloud.alive.add("h1")
    await cloud.clock.sleep(30)
    assert "no-coordinator.default" not in await faults(cloud)


@run_by(play)
async def test_that_no_coordinator_lives_stays_one_fault_when_another_one_leads(
    cloud: RecoveryCloud, lead: Callable[[], Any]
) -> None:
    first = lead()
    await cloud.hosts("h1", mode="coordinator")
    await cloud.hosts("h2")
    await cloud.clock.sleep(5)
    cloud.lose_power("h1")
    await cloud.clock.sleep(150)
    before = await cloud.memory.get(Fault, "no-coordinator.default")
    first.cancel()
    lead()
    for _ in range(12):
        await cloud.clock.sleep(10)
        assert "no-coordinator.default" in await faults(cloud)
    after = await cloud.memory.get(Fault, "no-coordinator.default")
    assert after.first_seen == before.first_seen


@pytest.mark.slow
@run_by(play)
async def test_vm_whose_only_host_refuses_it_again_and_again_is_one_fault_until_it_runs(
    cloud: RecoveryCloud, lead: Callable[[], Any]
) -> None:
    lead()
    await cloud.hosts("h1", "h2", mode="coordinator")
    await cloud.vm("a", "h1", host_limit=("h1", "h2"))
    cloud.refuses["h2"] = "broken"
    await cloud.clock.sleep(5)
    await cloud.die("h1")
    await cloud.clock.sleep(20)
    first = (await cloud.memory.get(Fault, "vm-held.a")).first_seen
    tries = 0
    for _ in range(1200):
        await cloud.clock.sleep(1)
        tries += (await cloud.recovery("a")).phase == "assigned"
        assert "vm-held.a" in await faults(cloud)
    assert tries > 1, "it is asked again"
    assert (await cloud.memory.get(Fault, "vm-held.a")).first_seen == first
    cloud.refuses.clear()
    await cloud.clock.sleep(700)
    assert cloud.running["a"] == {"h2"}
    assert "vm-held.a" not in await faults(cloud)


@pytest.mark.slow
@run_by(play)
async def test_of_two_vms_that_exclude_each_other_one_is_asked_of_their_host_again(
    cloud: RecoveryCloud, lead: Callable[[], Any]
) -> None:
    """A rule was added while both ran; their host rejected both, and no other one has room."""
    lead()
    await cloud.hosts("h1", cpu=4_000, memory=8 * 2**30, mode="coordinator")
    await cloud.hosts("h2", cpu=1, memory=1)
    cloud.refuses["h1"] = "its storage is away"
    for name in "ab":
        await cloud.vm(name, "h1", affinity=(APART,), status={"holders": ()})
    await cloud.clock.sleep(60)
    cloud.refuses.clear()
    await cloud.clock.sleep(600)
    assert sorted(name for name, hosts in cloud.running.items() if hosts) == ["a"]
    assert "vm-held.b" in await faults(cloud)

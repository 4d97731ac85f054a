"""Upkeep answers changes while a long cycle runs, and neither undoes what the other did."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.support.cycles import check_rules
from tests.support.failover import GIB
from tests.support.live_failover import LiveCloud, live

from outlive.base import Unavailable
from outlive.failover.reconciler import FleetCache
from outlive.resources import Amounts, VirtualMachine


async def while_a_cycle_asks_placement(cloud: LiveCloud, seconds: float = 20.0) -> asyncio.Task[float]:
    """A cycle that serves VM ``slow``, whose placement takes so long; it has looked at everything already."""
    cloud.ranker.takes_s = lambda request: seconds if request.resource_id == "slow" else 0.0
    cycle = asyncio.create_task(cloud.reconciler.tick())
    await cloud.settle(1)
    assert not cycle.done()
    cloud.ranker.takes_s = lambda request: 0.0
    return cycle


async def slow_vm(cloud: LiveCloud, host: str) -> None:
    """A VM that upkeep could not place, so that it is left to the cycle."""
    cloud.ranker.error = Unavailable("away")
    cloud.ranker.fail_when = lambda request: request.resource_id == "slow"
    await cloud.vm("slow", host, memory=2 * GIB)
    await cloud.settle()
    cloud.ranker.error = None


async def test_changes_are_answered_within_a_second_while_a_cycle_runs():
    async with live() as cloud:
        await cloud.vm("a", "h1")
        await slow_vm(cloud, "h3")
        cycle = await while_a_cycle_asks_placement(cloud)
        await cloud.vm("b", "h2")
        await cloud.move("a", "h4")
        await cloud.settle()
        assert not cycle.done()
        assert await cloud.covered() == {"a": True, "b": True, "slow": False}
        assert (await cloud.coverage("a")).host == "h4"
        await cycle
        await cloud.settle()
        assert await cloud.covered() == {"a": True, "b": True, "slow": True}
        assert (await cloud.coverage("a")).host == "h4"
        await check_rules(cloud)
        assert cloud.metric("failover_audit_differences_total") == 0


async def test_a_cycle_leaves_a_vm_alone_that_moved_since_it_looked():
    async with live() as cloud:
        await slow_vm(cloud, "h3")
        cycle = await while_a_cycle_asks_placement(cloud)
        await cloud.move("slow", "h5")
        await cloud.settle()
        assert not cycle.done()
        status = await cloud.coverage("slow")
        assert (status.covered, status.host) == (True, "h5")
        await cycle
        assert list((await cloud.members()).values()) == [{"slow": "h5"}]
        status = await cloud.coverage("slow")
        assert (status.covered, status.host) == (True, "h5")


async def test_a_cycle_does_not_join_a_slot_whose_members_changed_since_it_looked():
    async with live() as cloud:
        await cloud.vm("a", "h1")
        await slow_vm(cloud, "h3")
        (slot,) = (await cloud.slots()).values()
        cycle = await while_a_cycle_asks_placement(cloud)
        await cloud.vm("b", "h3")
        await cloud.settle()
        assert set((await cloud.members())[slot.name]) == {"a", "b"}, "the slot that the cycle would choose for slow"
        await cycle
        await cloud.settle()
        assert await cloud.covered() == {"a": True, "b": True, "slow": True}
        await check_rules(cloud)


async def test_room_that_upkeep_took_meanwhile_is_not_given_again():
    cloud = LiveCloud()
    async with cloud.running():
        await cloud.host("h1", memory=GIB)
        await cloud.host("h2", memory=GIB)
        await cloud.host("h3", memory=4 * GIB)
        await cloud.settle(5)
        await slow_vm(cloud, "h1")
        cycle = await while_a_cycle_asks_placement(cloud)
        await cloud.vm("b", "h1", memory=3 * GIB)
        await cloud.settle()
        await cycle
        await cloud.settle()
        held = sum(slot.memory_bytes for slot in (await cloud.slots()).values() if slot.host == "h3")
        assert held == 3 * GIB
        assert await cloud.covered() == {"b": True, "slow": False}


async def test_a_cycle_does_not_take_out_a_vm_that_has_come_back_since_it_looked():
    async with live(vms={"a": "h1"}) as cloud:
        (name,) = await cloud.slots()
        settings = cloud.reconciler._context.settings
        cloud.reconciler._context.settings = msgspec.structs.replace(settings, events_react=False)
        await cloud.stop("a")
        await cloud.settle()
        cloud.reconciler._context.settings = settings
        async with cloud.failover_run.lock:
            cycle = asyncio.create_task(cloud.reconciler.tick())
            await cloud.settle()
            assert not cycle.done()
            await cloud.instances("h1", lambda there: (msgspec.structs.replace(i, active=True) for i in there))
            await cloud.settle(0)
        await cycle
        await cloud.settle()
        assert list(await cloud.members()) == [name]
        assert await cloud.covered() == {"a": True}


async def test_what_changes_while_the_cache_is_built_is_reacted_to(monkeypatch: pytest.MonkeyPatch):
    cloud = LiveCloud({"shortReconcileInterval": "30s"})
    for number in range(6):
        await cloud.host(f"h{number}")
    cache = cloud.failover_run.cache
    built = FleetCache._build

    async def slowly(self: FleetCache, *args: Any) -> None:
        await built(self, *args)
        for _ in range(50):
            await cloud.clock.sleep(0)

    monkeypatch.setattr(FleetCache, "_build", slowly)
    async with cloud.running():
        while cache._missed is None:
            await cloud.settle(0)
        await cloud.vm("a", "h1")
        await cloud.settle(0)
        assert not cache.active
        await cloud.settle()
        assert cache.active
        assert await cloud.covered() == {"a": True}
        assert cloud.metric("failover_reconciliation_runs_total") == 0


async def resize(cloud: LiveCloud, name: str, size: Amounts) -> None:
    vm = await cloud.memory.get(VirtualMachine, name)
    await cloud.memory.replace(msgspec.structs.replace(vm, spec=msgspec.structs.replace(vm.spec, resources=size)))


async def test_a_vm_that_outgrew_its_slot_has_another_within_a_second():
    async with live(vms={"a": "h1", "b": "h2"}) as cloud:
        await resize(cloud, "a", Amounts(cpu=8_000, memory=32 * GIB))
        await cloud.settle()
        assert await cloud.covered() == {"a": True, "b": True}
        (mine,) = [slot for slot in (await cloud.slots()).values() if "a" in slot.members]
        assert (mine.cpu_milli, mine.memory_bytes) == (8_000, 32 * GIB)
        (event,) = [event for event in cloud.events.of("MemberRemoved") if "outgrown" in event.note]
        assert "VM a left: outgrown; VM a needs 8 cpu and 32Gi memory" in event.note


async def test_an_outgrown_slot_that_cannot_be_replaced_is_told():
    cloud = LiveCloud()
    async with cloud.running():
        await cloud.hosts("h1", "h2", memory=8 * GIB)
        await cloud.settle(5)
        await cloud.vm("a", "h1")
        await cloud.settle()
        await resize(cloud, "a", Amounts(cpu=2_000, memory=16 * GIB))
        await cloud.settle()
        status = await cloud.coverage("a")
        assert (status.covered, status.reason) == (False, "no-capacity")

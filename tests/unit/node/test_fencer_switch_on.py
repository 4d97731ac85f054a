"""Hosts that were proven dead are switched on again once nothing is held there."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fencing import BEFORE_S, Interposed, Site, four_hosts, site

from outlive.resources import ObjectRef, VirtualMachine


async def test_host_is_switched_on_again_only_when_nothing_is_held_there():
    async with site() as s:
        await s.policy(power_on_after=True)
        await four_hosts(s)
        vm = await s.vm("vm1", holder="d")
        s.silence("d")
        await s.until_dead("d")
        await asyncio.sleep(30)
        assert s.power.controllers["d"].ons == []
        await s.release(vm)
        await asyncio.sleep(10)
        assert len(s.power.controllers["d"].ons) == 1


async def _off_and_held(s):
    """Host d is proven dead, and something is still held there."""
    await s.policy(power_on_after=True)
    await four_hosts(s)
    vm = await s.vm("vm1", holder="d")
    s.silence("d")
    await s.until_dead("d")
    await asyncio.sleep(10)
    assert s.power.controllers["d"].ons == []
    return vm


async def test_host_is_switched_on_again_by_the_next_fencer_where_the_first_one_died():
    async with site() as s:
        vm = await _off_and_held(s)
        s.watch("b")
        await asyncio.sleep(10)
        s.silence("a")
        s.kill("a")
        await s.release(vm)
        await s.until("d", lambda record: record.fence.power_on.result == "ok", limit_s=60)
        assert len(s.power.controllers["d"].ons) == 1
        assert (await s.record("d")).fence.power_on.tries == 1


@pytest.mark.slow
async def test_host_that_was_switched_on_once_and_off_by_hand_is_left_alone():
    async with site() as s:
        await s.release(await _off_and_held(s))
        await s.until("d", lambda record: record.fence.power_on.result == "ok")
        s.power.controllers["d"].on = False
        s.kill("a")
        s.watch("a")
        await asyncio.sleep(900)
        assert len(s.power.controllers["d"].ons) == 1


@pytest.mark.slow
async def test_switching_on_is_tried_a_few_times_by_any_coordinator_and_then_reported():
    async with site() as s:
        vm = await _off_and_held(s)
        s.power.controllers["d"].mode = "dead"
        await s.release(vm)
        await s.until("d", lambda record: record.fence.power_on.tries == 2, limit_s=120)
        assert "power-unreachable.d" not in await s.faults()
        s.kill("a")
        s.watch("a")
        await s.until("d", lambda record: record.fence.power_on.tries == 3, limit_s=400)
        await asyncio.sleep(900)
        record = await s.record("d")
        assert record.fence.power_on.tries == 3
        assert "does not answer" in record.fence.power_on.result
        assert "3 tries" in (await s.faults())["power-unreachable.d"].message


async def test_host_is_not_switched_on_again_in_maintenance():
    async with site() as s:
        vm = await _off_and_held(s)
        await s.policy(cluster={"maintenance": True}, power_on_after=True)
        await s.release(vm)
        await asyncio.sleep(60)
        assert s.power.controllers["d"].ons == []
        await s.policy(power_on_after=True)
        await asyncio.sleep(10)
        assert len(s.power.controllers["d"].ons) == 1


async def test_switching_on_does_not_count_as_one_more_fence():
    async with site() as s:
        vm = await _off_and_held(s)
        before = dict(s.fencers["a"].fencer.context.rules.rate._at)
        await s.release(vm)
        await s.until("d", lambda record: record.fence.power_on.result == "ok")
        await asyncio.sleep(1)
        assert s.fencers["a"].fencer.context.rules.rate._at == before != {}


async def _two_off(s: Site) -> Interposed:
    """Hosts d and e are proven dead; the store of the fencer, which looks for hosts to be switched on only later."""
    await s.hosts("a", "b", "c", "f", "g", "d", "e")
    store = Interposed(s.store)
    s.watch("a", store=store)
    await asyncio.sleep(BEFORE_S)
    for name in ("d", "e"):
        s.silence(name)
        await s.until_dead(name)
    await asyncio.sleep(10)
    return store


@pytest.mark.slow
async def test_error_in_switching_one_host_on_ends_neither_that_of_another_nor_the_fencer():
    async with site() as s:
        store = await _two_off(s)
        store.fail("d", RuntimeError("nobody foresaw this"))
        await s.policy(power_on_after=True)
        await asyncio.sleep(10)
        assert len(s.power.controllers["e"].ons) == 1
        store.reading = None
        await asyncio.sleep(10)
        assert len(s.power.controllers["d"].ons) == 1


async def test_slow_controller_does_not_keep_another_host_off():
    async with site() as s:
        await _two_off(s)
        vm = await s.vm("vm1", holder="e")
        s.power.controllers["d"].delay_s = 9.5
        await s.policy(power_on_after=True)
        await s.until("d", lambda record: record.fence.power_on.tries == 1)
        await s.release(vm)
        await s.until("e", lambda record: record.fence.power_on.result == "ok", limit_s=7)
        assert s.power.controllers["d"].ons == []
        await s.until("d", lambda record: record.fence.power_on.result == "ok", limit_s=20)
        assert (await s.record("d")).fence.power_on.tries == 1


async def test_host_that_is_found_to_be_held_right_before_it_is_switched_on_stays_off():
    async with site() as s:
        store = await _two_off(s)
        held = []

        async def listed(kind) -> None:
            if kind is VirtualMachine and not held:
                held.append(await s.vm("vm1", holder="d"))

        store.listed = listed
        await s.policy(power_on_after=True)
        await asyncio.sleep(30)
        assert s.power.controllers["d"].ons == []
        assert (await s.record("d")).fence.power_on.tries == 0
        await s.release(held[0])
        await asyncio.sleep(10)
        assert len(s.power.controllers["d"].ons) == 1


async def test_dead_host_that_is_registered_no_more_is_not_looked_after():
    async with site() as s:
        store = await _two_off(s)
        listed = []

        async def count(kind) -> None:
            listed.append(kind)

        for name in ("d", "e"):
            await s.store.delete(ObjectRef(kind="Hypervisor", name=name))
        await s.policy(power_on_after=True)
        await asyncio.sleep(10)
        store.listed = count
        await asyncio.sleep(60)
        assert VirtualMachine not in listed

"""Whatever the way to the store does, a fence proves only what is true, and comes to its end when the faults do."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.support.fencing import four_hosts, site
from tests.support.loops import run

from outlive.base import LoopClock, Random
from outlive.resources import GuardRecord
from outlive.store import FaultRates, FaultStore

rates = st.builds(
    FaultRates,
    delay=st.floats(0, 0.5),
    refuse=st.floats(0, 0.3),
    lose_applied=st.floats(0, 0.3),
    lose_dropped=st.floats(0, 0.3),
    lose_late=st.floats(0, 0.3),
    observer_delay=st.floats(0, 0.3),
    drop=st.floats(0, 0.1),
    stale_relist=st.floats(0, 1),
    coalesce=st.floats(0, 0.5),
)


@pytest.mark.slow
@settings(max_examples=8, phases=(Phase.generate,))
@given(rates, st.integers(0, 1000), st.booleans())
def test_living_hosts_are_never_proven_dead_and_the_dead_one_is_in_the_end(
    faults: FaultRates, seed: int, controller: bool
):
    async def story():
        async with site() as s:
            await s.hosts("a", "b", "c", "e")
            guard = GuardRecord(armed=True, timeout_s=5, watchdog_s=10)
            await s.host("d", bmc="ok" if controller else "", guard=guard, profile="fast")
            stores = [FaultStore(s.store, clock=LoopClock(), random=Random(seed + n)) for n in range(2)]
            s.watch("a", store=stores[0])
            s.watch("b", store=stores[1])
            await asyncio.sleep(20)
            for store in stores:
                store.network.rates = faults
            await asyncio.sleep(5)
            s.silence("d")
            silent = s.now() - 1.0  # it renewed within the last second
            for _ in range(60):
                await asyncio.sleep(1)
                record = await s.record("d")
                if record.dead_through and record.proof.kind == "watchdog":
                    assert s.now() - silent >= 17.17
                if record.dead_through and record.proof.kind == "power":
                    assert not s.power.controllers["d"].on
            for store in stores:
                store.network.rates = FaultRates()
            await s.until_dead("d", limit_s=400)
            for name in ("a", "b", "c", "e"):
                assert (await s.record(name)).dead_through == 0

    run(story())


async def test_fencer_whose_store_is_away_says_nothing_and_goes_on_afterwards():
    async with site() as s:
        await s.hosts("a", "b", "c", "d")
        store = FaultStore(s.store, clock=LoopClock(), random=Random(3))
        s.watch("a", store=store)
        await asyncio.sleep(20)
        s.silence("d")
        await s.until("d", lambda record: record.state == "Revoked")
        store.network.cut()
        await asyncio.sleep(120)
        assert (await s.record("d")).dead_through == 0
        store.network.heal()
        await s.until_dead("d", limit_s=60)
        for name in ("b", "c"):
            assert (await s.record(name)).state == "Held"


async def test_request_to_fence_outlives_answers_that_are_lost():
    async with site() as s:
        await s.hosts("a", "b", "c", "d")
        store = FaultStore(s.store, clock=LoopClock(), random=Random(3))
        s.watch("a", store=store)
        await asyncio.sleep(20)
        store.network.rates = FaultRates(lose_dropped=1.0)
        await s.change_fencing("d", requested="1|ann|its disk hangs")
        await asyncio.sleep(30)
        assert (await s.record("d")).state == "Held"
        store.network.rates = FaultRates()
        await s.until("d", lambda record: record.state == "Revoked", limit_s=10)
        assert (await s.record("d")).fence.reason == "ann: its disk hangs"


async def test_request_to_fence_waits_for_the_end_of_maintenance():
    async with site() as s:
        await four_hosts(s)
        await s.policy(cluster={"maintenance": True})
        await s.change_fencing("d", requested="1|ann|its disk hangs")
        await asyncio.sleep(30)
        assert (await s.record("d")).state == "Held"
        await s.policy()
        await s.until("d", lambda record: record.state == "Revoked", limit_s=10)

from __future__ import annotations

from tests.support.loops import run

from outlive.base.clock import LoopClock
from outlive.base.ids import SeededIds
from outlive.base.random import Random
from outlive.failover.keeping.covering import REREAD_S, CoverageWriter
from outlive.resources import Coverage, CoverageStatus
from outlive.store.faults import FaultRates, FaultStore
from outlive.store.memory import MemoryStore

YES = CoverageStatus(required=1, slots=("s",), covered=True, host="h1")
NO = CoverageStatus(required=1, covered=False, reason="no-capacity", host="h1")


def test_who_leads_again_tells_what_another_leader_told_otherwise():
    async def story() -> None:
        clock = LoopClock()
        store = MemoryStore(clock, SeededIds(Random(1)))
        first, second = CoverageWriter(store, clock), CoverageWriter(store, clock)
        await first.tell({"v": NO})
        await second.tell({"v": YES})
        first.forget()
        await first.tell({"v": NO})
        assert not (await store.get(Coverage, "v")).status.covered

    run(story())


def test_what_somebody_deleted_is_told_again_after_a_while():
    async def story() -> None:
        clock = LoopClock()
        store = MemoryStore(clock, SeededIds(Random(1)))
        writer = CoverageWriter(store, clock)
        await writer.tell({"v": YES})
        await store.delete((await store.get(Coverage, "v")).ref)
        await clock.sleep(REREAD_S + 1)
        await writer.tell({"v": YES})
        assert (await store.get(Coverage, "v")).status.covered

    run(story())


def test_what_did_not_get_through_is_known_until_it_is_told():
    async def story() -> None:
        clock = LoopClock()
        store = FaultStore(MemoryStore(clock, SeededIds(Random(1))), clock=clock, random=Random(1))
        writer = CoverageWriter(store, clock)
        await writer.tell({"v": YES, "w": YES})
        assert writer.untold == ()
        store.network.rates = FaultRates(refuse=1.0)
        assert await writer.tell({"v": NO, "w": YES}) == 1
        assert writer.untold == ("v",)
        store.network.rates = FaultRates()
        await writer.tell({"v": NO})
        assert writer.untold == ()
        assert not (await store.get(Coverage, "v")).status.covered

    run(story())

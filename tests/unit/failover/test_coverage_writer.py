from __future__ import annotations

from typing import Any, cast

from outlive.base import LoopClock, Random, SeededIds
from outlive.failover.reconciler import REREAD_S, CoverageWriter
from outlive.resources import Coverage, CoverageStatus, CoveredBy
from outlive.store import FaultRates, FaultStore, MemoryStore, Store

YES = CoverageStatus(required=1, slots=("s",), covered=True, host="h1")
MOVED = CoverageStatus(required=1, slots=("t",), covered=True, host="h2")
NO = CoverageStatus(required=1, covered=False, reason="no-capacity", host="h1")


class Restorable:
    """A store that is replaced by an older one."""

    def __init__(self, now: MemoryStore) -> None:
        self.now = now

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)


async def test_who_leads_again_tells_what_another_leader_told_otherwise():
    clock = LoopClock()
    store = MemoryStore(clock, SeededIds(Random(1)))
    first, second = CoverageWriter(store, clock), CoverageWriter(store, clock)
    await first.publish({"v": NO})
    await second.publish({"v": YES})
    first.forget()
    await first.publish({"v": NO})
    assert not (await store.get(Coverage, "v")).status.covered


async def test_coverage_says_by_what_and_says_it_anew_when_that_changes():
    clock = LoopClock()
    store = MemoryStore(clock, SeededIds(Random(1)))
    grounds = {"h1": CoveredBy.RECOVERABLE}
    writer = CoverageWriter(store, clock, covered_by=grounds.get)
    await writer.publish({"v": YES, "w": NO})
    assert (await store.get(Coverage, "v")).status.covered_by is CoveredBy.RECOVERABLE
    assert (await store.get(Coverage, "w")).status.covered_by is None
    grounds["h1"] = CoveredBy.UNPROVEN
    await writer.publish({"v": YES})
    assert (await store.get(Coverage, "v")).status.covered_by is CoveredBy.UNPROVEN


async def test_what_somebody_deleted_is_told_again_after_a_while():
    clock = LoopClock()
    store = MemoryStore(clock, SeededIds(Random(1)))
    writer = CoverageWriter(store, clock)
    await writer.publish({"v": YES})
    await store.delete((await store.get(Coverage, "v")).ref)
    await clock.sleep(REREAD_S + 1)
    await writer.publish({"v": YES})
    assert (await store.get(Coverage, "v")).status.covered


async def test_what_a_restored_store_says_otherwise_is_told_again_at_once():
    clock = LoopClock()
    past, present = MemoryStore(clock, SeededIds(Random(1))), MemoryStore(clock, SeededIds(Random(2)))
    await CoverageWriter(past, clock).publish({"v": YES, "gone": YES})
    store = Restorable(present)
    writer = CoverageWriter(cast("Store", store), clock, store_is=lambda: store.now.incarnation)
    await writer.publish({"v": NO})
    store.now = past
    assert await writer.publish({"v": NO}) == 0
    assert not (await past.get(Coverage, "v")).status.covered
    assert await writer.published_vms() == ("gone", "v")


async def test_of_whom_a_restored_store_says_otherwise_than_was_told_is_known_until_it_is_told_again():
    clock = LoopClock()
    past, present = MemoryStore(clock, SeededIds(Random(1))), MemoryStore(clock, SeededIds(Random(2)))
    await CoverageWriter(past, clock).publish({"v": YES, "same": YES})
    store = Restorable(present)
    writer = CoverageWriter(cast("Store", store), clock, store_is=lambda: store.now.incarnation)
    assert not writer.outdated, "nothing was told"
    await writer.publish({"v": NO, "same": YES, "missing": YES})
    assert not writer.outdated
    store.now = past
    assert writer.outdated
    await writer.publish({})
    assert not writer.outdated
    assert writer.unreported == ("missing", "v")
    await writer.publish({"v": NO, "missing": YES})
    assert writer.unreported == ()


async def test_what_did_not_get_through_is_known_until_it_is_told():
    clock = LoopClock()
    store = FaultStore(MemoryStore(clock, SeededIds(Random(1))), clock=clock, random=Random(1))
    writer = CoverageWriter(store, clock)
    await writer.publish({"v": YES, "w": YES})
    assert writer.unreported == ()
    store.network.rates = FaultRates(refuse=1.0)
    assert await writer.publish({"v": NO, "w": YES}) == 1
    assert writer.unreported == ("v",)
    store.network.rates = FaultRates()
    await writer.publish({"v": NO})
    assert writer.unreported == ()
    assert not (await store.get(Coverage, "v")).status.covered


async def test_who_stood_still_does_not_overwrite_what_another_leader_has_told_since():
    clock = LoopClock()
    store = MemoryStore(clock, SeededIds(Random(1)))
    late, leader = CoverageWriter(store, clock), CoverageWriter(store, clock)
    await late.publish({"v": NO})
    await leader.publish({"v": MOVED, "w": MOVED})
    assert await late.publish({"v": YES, "w": YES}) == 2
    for vm in ("v", "w"):
        assert (await store.get(Coverage, vm)).status.slots == MOVED.slots
    assert late.unreported == ("v", "w")
    assert await late.publish({"v": YES, "w": YES}) == 0, "it reads what is there, and tells again"
    assert late.unreported == ()
    assert (await store.get(Coverage, "v")).status.slots == YES.slots

"""Decisions of the protocol that were acted on can be read, and replayed, later."""

from __future__ import annotations

import msgspec

from outlive.base import LoopClock, Random, SeededIds
from outlive.node.fencing import CONDEMN, CondemnView
from outlive.node.membership import RENEW, RenewView
from outlive.resources import DecisionRecord, MemberRecord
from outlive.runtime import DecisionLog, DecisionTable, Trail, trail_sweeper
from outlive.store import FaultRates, FaultStore, MemoryStore, list_all

RECORD = MemberRecord(machine_id="m", boot_id="b", epoch=3, nonce="abcdefgh")


def silent(unchanged_s: float) -> CondemnView:
    return CondemnView(host="h1", record=RECORD, unchanged_s=unchanged_s, silence_s=7.0, observer="h2")


async def recorded(store: MemoryStore) -> list[DecisionRecord]:
    return [one async for one in list_all(store, DecisionRecord)]


async def test_what_was_acted_on_is_recorded_and_replays_to_the_same_answer() -> None:
    clock = LoopClock()
    store = MemoryStore(clock, SeededIds(Random(1)))
    log, trail = DecisionLog(clock), Trail(store, by="h2", clock=clock)
    trail.follow(log)
    log.use(CONDEMN.decision, silent(7.5), subject="h1")
    await trail.flush()
    (record,) = await recorded(store)
    assert (record.decision, record.subject, record.by) == ("safety.condemn", "h1", "h2")
    again = DecisionTable((CONDEMN.decision,)).decide(record.decision, record.input.encode())
    assert msgspec.json.decode(again) == msgspec.json.decode(record.output.encode())


async def test_refusals_and_renewals_are_not_recorded() -> None:
    clock = LoopClock()
    store = MemoryStore(clock, SeededIds(Random(1)))
    log, trail = DecisionLog(clock), Trail(store, by="h2", clock=clock)
    trail.follow(log)
    log.use(CONDEMN.decision, silent(6.5), subject="h1")
    log.use(RENEW.decision, RenewView(host="h1", record=RECORD, nonce="abcdefgh"), subject="h1")
    await trail.flush()
    assert await recorded(store) == []


async def test_an_absent_store_costs_records_and_nothing_else() -> None:
    clock = LoopClock()
    store = FaultStore(
        MemoryStore(clock, SeededIds(Random(1))), clock=clock, random=Random(2), rates=FaultRates(refuse=1.0)
    )
    log, trail = DecisionLog(clock), Trail(store, by="h2", clock=clock)
    trail.follow(log)
    log.use(CONDEMN.decision, silent(7.5), subject="h1")
    await trail.flush()
    assert trail.dropped == 1


async def test_records_are_swept_after_a_week() -> None:
    clock = LoopClock()
    store = MemoryStore(clock, SeededIds(Random(1)))
    log, trail = DecisionLog(clock), Trail(store, by="h2", clock=clock)
    trail.follow(log)
    log.use(CONDEMN.decision, silent(7.5), subject="h1")
    await trail.flush()
    sweeper = trail_sweeper(store, clock)
    assert await sweeper.sweep() == 0
    await clock.sleep(8 * 86400.0)
    assert await sweeper.sweep() == 1
    assert await recorded(store) == []


async def test_records_of_one_moment_keep_the_order_in_which_they_were_decided() -> None:
    clock = LoopClock()
    store = MemoryStore(clock, SeededIds(Random(1)))
    log, trail = DecisionLog(clock), Trail(store, by="h2", clock=clock)
    trail.follow(log)
    for unchanged_s in (9.0, 8.0, 7.5):
        log.use(CONDEMN.decision, silent(unchanged_s), subject="h1")
    await trail.flush()
    found = sorted(await recorded(store), key=lambda one: one.at)
    assert [msgspec.json.decode(one.input)["unchangedS"] for one in found] == [9.0, 8.0, 7.5]

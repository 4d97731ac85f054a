"""Events: repeats are counted, nothing blocks, and what is old or too much goes."""

from __future__ import annotations

import asyncio

import msgspec
from tests.support.field_writers import WriterStore
from tests.support.loops import running

from outlive.base import LoopClock, Random, SeededIds, as_datetime, limits, request_context
from outlive.resources import Event, ObjectMeta, ObjectRef
from outlive.runtime import (
    FLUSH_S,
    QUEUE_LIMIT,
    SWEEP_STEP,
    EventRecorder,
    Metrics,
    event_name,
    event_sweeper,
)
from outlive.store import FaultRates, FaultStore, MemoryStore, list_all

VM = ObjectRef(kind="VirtualMachine", name="vm-1", uid="u1")
CLOCK = LoopClock()


def _store() -> MemoryStore:
    return MemoryStore(CLOCK, SeededIds(Random(1)))


def _recorder(store, seed: int = 2) -> EventRecorder:
    return EventRecorder(store, clock=CLOCK, ids=SeededIds(Random(seed)), source="failover")


async def _all(store) -> list[Event]:
    return [event async for event in list_all(store, Event)]


async def test_an_event_says_what_happened_to_what_and_in_which_run():
    store = WriterStore(_store(), writer="events")
    recorder = _recorder(store)
    async with running(recorder):
        with request_context(greq="failover-1"):
            recorder.emit(VM, "SlotAssigned", "slot s1 on host h1", action="Assign")
        await asyncio.sleep(1)
        (event,) = await _all(store)
        assert event.regarding == VM
        assert (event.type, event.reason, event.action) == ("Normal", "SlotAssigned", "Assign")
        assert (event.note, event.source, event.request_id) == ("slot s1 on host h1", "failover", "failover-1")
        assert event.count == 1
        assert event.first_seen == event.last_seen
        assert event.name.startswith("vm-1.")


async def test_repeats_are_one_event_with_a_count_even_from_two_processes():
    store = _store()
    one, two = _recorder(store, 2), _recorder(store, 3)
    async with running(one, two):
        for _ in range(10):
            one.emit(VM, "NoHost", "no host fits", type="Warning")
            one.emit(VM, "NoHost", "no host fits", type="Warning")
            two.emit(VM, "NoHost", "no host fits", type="Warning")
            one.emit(VM, "NoHost", "another note", type="Warning")
            await asyncio.sleep(60)
    events = {event.note: event for event in await _all(store)}
    assert {note: event.count for note, event in events.items()} == {"no host fits": 30, "another note": 10}
    assert (events["no host fits"].last_seen - events["no host fits"].first_seen).total_seconds() == 540


async def test_after_an_hour_a_repeat_begins_anew():
    store = _store()
    recorder = _recorder(store)
    async with running(recorder):
        recorder.emit(VM, "NoHost", "no host fits")
        await asyncio.sleep(3600)
        recorder.emit(VM, "NoHost", "no host fits")
        await asyncio.sleep(1)
        (event,) = await _all(store)
        assert event.count == 1
        assert event.first_seen == event.last_seen


async def test_a_full_queue_drops_and_counts_and_repeats_need_no_room():
    metrics = Metrics()
    recorder = _recorder(_store())
    recorder.expose(metrics)
    for number in range(QUEUE_LIMIT + 5):
        recorder.emit(VM, "Much", f"note {number}")
    recorder.emit(VM, "Much", "note 0")
    assert recorder.dropped == 5
    assert b"outlive_events_dropped_total 5.0" in metrics.render()


async def test_lost_answers_do_not_count_twice():
    inner = _store()
    store = FaultStore(inner, clock=CLOCK, random=Random(5), rates=FaultRates(lose_applied=0.4, refuse=0.1))
    recorder = _recorder(store)
    async with running(recorder):
        for _ in range(30):
            recorder.emit(VM, "NoHost", "no host fits")
            await asyncio.sleep(60)
    (event,) = await _all(inner)
    assert event.count + recorder.dropped == 30
    assert recorder.dropped < 5


async def test_a_store_that_is_away_costs_events_and_nothing_else():
    store = FaultStore(_store(), clock=CLOCK, random=Random(5), rates=FaultRates(refuse=1.0))
    recorder = _recorder(store)
    async with running(recorder):
        recorder.emit(VM, "A", "a")
        await asyncio.sleep(60)
        assert recorder.dropped == 1
        store.network.rates = FaultRates()
        recorder.emit(VM, "B", "b")
        await asyncio.sleep(1)
    assert recorder.written == 1


async def test_flush_writes_what_waits():
    store = _store()
    recorder = _recorder(store)
    for number in range(3):
        recorder.emit(VM, "A", f"{number}")
    await recorder.flush()
    assert len(await _all(store)) == 3


async def test_the_end_of_a_process_does_not_wait_for_ever_for_a_store_that_is_away():
    store = FaultStore(_store(), clock=CLOCK, random=Random(3), rates=FaultRates(refuse=1.0))
    recorder = _recorder(store)
    for number in range(50):
        recorder.emit(VM, "Reason", f"note {number}")
    began = CLOCK.monotonic()
    await recorder.flush()
    assert CLOCK.monotonic() - began == FLUSH_S
    assert (recorder.written, recorder.dropped) == (0, 50)


async def test_names_are_fixed_by_what_is_said_and_always_valid():
    assert event_name(VM, "Normal", "A", "n", "") == event_name(VM, "Normal", "A", "n", "")
    assert event_name(VM, "Normal", "A", "n", "") != event_name(VM, "Warning", "A", "n", "")
    other = msgspec.structs.replace(VM, uid="u2")
    assert event_name(VM, "Normal", "A", "n", "") != event_name(other, "Normal", "A", "n", "")
    store = _store()
    recorder = _recorder(store)
    for name in ("x" * 253, "Not A Name", "a." + "b" * 197 + "-.c", ""):
        recorder.emit(ObjectRef(kind="VirtualMachine", name=name), "A", "a")
    await recorder.flush()
    assert recorder.dropped == 0
    assert len(await _all(store)) == 4


async def _put(store, name: str, seen: float) -> None:
    moment = as_datetime(seen)
    event = Event(metadata=ObjectMeta(name=name), regarding=VM, reason="R", first_seen=moment, last_seen=moment)
    await store.create(event)


async def test_the_sweeper_removes_what_is_older_than_an_hour():
    store = _store()
    await _put(store, "old", CLOCK.now() - 3601)
    await _put(store, "young", CLOCK.now() - 3500)
    sweeper = event_sweeper(store, CLOCK)
    async with running(sweeper):
        await asyncio.sleep(1)
        assert [event.name for event in await _all(store)] == ["young"]
        await asyncio.sleep(200)
        assert await _all(store) == []
    assert sweeper.deleted == 2


async def test_the_sweeper_removes_the_oldest_beyond_the_limit_in_bounded_steps(monkeypatch):
    monkeypatch.setattr(limits, "EVENTS_KEPT", 100)
    store = _store()
    for number in range(100 + SWEEP_STEP + 20):
        await _put(store, f"e{number:05}", CLOCK.now() - 3000 + number)
    sweeper = event_sweeper(store, CLOCK)
    assert await sweeper.sweep() == SWEEP_STEP
    assert await sweeper.sweep() == 20
    assert await sweeper.sweep() == 0
    kept = [event.name for event in await _all(store)]
    assert len(kept) == 100
    assert kept[0] == "e00520"

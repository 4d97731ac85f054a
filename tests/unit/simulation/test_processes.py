"""A simulated process is halted and killed as an operating system does it."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loops import run

from outlive.base import LoopClock, Random, SeededIds, Unavailable, gather_defects
from outlive.resources import Election, ObjectMeta
from outlive.simulation import (
    Author,
    History,
    HostClock,
    Process,
    ProcessStore,
    Program,
    SimService,
    StoreLink,
    WorldStore,
    go,
)
from outlive.store import FaultRates


def _store(process: Process, rates: FaultRates = FaultRates()) -> tuple[WorldStore, ProcessStore, StoreLink]:
    clock = LoopClock()
    store = WorldStore(clock, SeededIds(Random(1)), lambda write, by: None, lambda write, by, refusal: None)
    way = StoreLink(store, process, clock=clock, random=Random(5), acknowledged=lambda answer: None)
    way.faults.network.rates = rates
    return store, ProcessStore(way, Author("p", "h1", ("candidate",))), way


def _election(name: str) -> Election:
    return Election(metadata=ObjectMeta(name=name))


async def test_killed_process_writes_nothing_in_its_clean_up() -> None:
    process = Process("daemon")
    store, mine, _ = _store(process)

    async def main() -> None:
        try:
            await asyncio.sleep(100.0)
        finally:
            await mine.create(_election("last-words"))

    process.start(main, lambda ended: None)
    await asyncio.sleep(1.0)
    process.kill()
    await asyncio.sleep(1.0)
    assert len(store.list_all(Election)) == 0


async def test_call_that_was_sent_takes_effect_though_its_sender_is_killed() -> None:
    process = Process("daemon")
    store, mine, _ = _store(process, FaultRates(delay=1.0, delay_max_s=2.0))

    async def main() -> None:
        await mine.create(_election("sent"))
        await mine.create(_election("never-sent"))

    process.start(main, lambda ended: None)
    await asyncio.sleep(0.01)
    process.kill()
    await asyncio.sleep(10.0)
    assert [one.name for one in store.list_all(Election)] == ["sent"]


async def test_halted_process_gets_no_answer_until_it_goes_on() -> None:
    process = Process("daemon")
    store, mine, _ = _store(process, FaultRates(delay=1.0, delay_max_s=0.5))
    reported: list[float] = []

    async def main() -> None:
        await mine.create(_election("one"))
        reported.append(asyncio.get_running_loop().time())

    process.start(main, lambda ended: None)
    await asyncio.sleep(0.001)
    process.halt()
    await asyncio.sleep(5.0)
    assert [one.name for one in store.list_all(Election)] == ["one"]
    assert reported == []
    process.go_on()
    await asyncio.sleep(0.1)
    assert reported[0] >= 5.0


async def test_process_that_fails_is_reported_and_its_tasks_end() -> None:
    reported: list[str] = []
    process = Process("daemon")

    async def forever() -> None:
        while True:
            await asyncio.sleep(1.0)
            reported.append("still there")

    async def main() -> None:
        kept = asyncio.create_task(forever())
        await asyncio.sleep(1.5)
        assert not kept.done()
        raise Unavailable("no more")

    process.start(main, lambda ended: reported.append(str(ended.error)))
    await asyncio.sleep(10.0)
    assert reported == ["still there", "no more"]


async def test_one_way_cuts_lose_the_request_or_the_answer() -> None:
    process = Process("daemon")
    process.alive = True
    store, mine, way = _store(process)
    errors: list[str] = []

    async def tried(name: str) -> None:
        try:
            await mine.create(_election(name))
        except Exception as error:
            errors.append(type(error).__name__)

    way.set(sends=False, hears=True)
    await tried("request-lost")
    way.set(sends=True, hears=False)
    await tried("answer-lost")
    way.set(sends=True, hears=True)
    await tried("heard")
    there, errors = [one.name for one in store.list_all(Election)], errors
    assert there == ["answer-lost", "heard"]
    assert errors[0] in ("Unknown", "Unavailable")
    assert errors[1:] == ["Unknown"]


async def test_clock_of_a_host_has_its_own_rate_and_jumps_only_its_wall_clock() -> None:
    clock = HostClock()
    await clock.sleep(10.0)
    clock.boot()
    clock.set_rate(2.0)
    await asyncio.sleep(5.0)
    assert clock.monotonic() == 20.0
    assert clock.read_clocks() == (10.0, 10.0)
    before = clock.now()
    clock.jump(-3600.0)
    assert clock.now() == before - 3600.0
    assert clock.monotonic() == 20.0
    await clock.sleep(2.0)
    assert asyncio.get_running_loop().time() == 16.0


async def test_steered_clock_of_a_host_leaves_its_crystal_and_the_slower_one_is_what_is_measured_by() -> None:
    clock = HostClock()
    clock.boot()
    clock.set_slew(1.25)
    await asyncio.sleep(8.0)
    assert clock.read_clocks() == (10.0, 8.0)
    assert clock.monotonic() == 8.0
    clock.set_slew(0.5)
    await clock.sleep(2.0)
    assert asyncio.get_running_loop().time() == 12.0
    assert clock.read_clocks() == (12.0, 12.0)
    assert clock.monotonic() == 10.0


@given(st.lists(st.tuples(st.floats(0.9, 1.1), st.floats(0.001, 30.0)), min_size=1, max_size=20))
def test_who_waits_by_a_host_clock_until_a_moment_gets_there(waits: list[tuple[float, float]]) -> None:
    async def story() -> None:
        clock = HostClock()
        for slew, seconds in waits:
            clock.set_slew(slew)
            until = clock.monotonic() + seconds
            while clock.monotonic() < until:
                await clock.sleep(until - clock.monotonic())

    run(story(), steps=2000)


async def test_host_that_sleeps_counts_on_one_of_its_clocks_only() -> None:
    clock = HostClock()
    clock.boot()
    clock.set_asleep(True)
    await asyncio.sleep(60.0)
    clock.set_asleep(False)
    await asyncio.sleep(2.0)
    assert clock.read_clocks() == (62.0, 2.0)
    assert clock.monotonic() == 2.0


async def test_work_outside_goes_on_when_nobody_waits() -> None:
    reported: list[str] = []

    async def work() -> None:
        await asyncio.sleep(1.0)
        reported.append("done")
        raise Unavailable("nobody hears this")

    process = Process("daemon")

    async def main() -> None:
        await process.call(go(work(), name="work"))

    process.start(main, lambda ended: None)
    await asyncio.sleep(0.5)
    process.kill()
    await asyncio.sleep(2.0)
    assert reported == ["done"]


def test_a_defect_in_what_is_asked_of_a_program_is_a_defect_of_the_run_and_no_answer() -> None:
    class Broken:
        async def run(self) -> None:
            await asyncio.Event().wait()

    async def fails(role: Program) -> None:
        raise KeyError(role.__class__.__name__)

    async def story() -> None:
        service = SimService("ctl-1", lambda process: Broken(), History(), 2.0)
        service.start()
        await asyncio.sleep(1)
        with pytest.raises(Unavailable, match="ctl-1 failed"):
            await service.ask(fails, name="r", limit_s=5.0)
        service.kill(again=False)
        with pytest.raises(Unavailable, match="does not run"):
            await service.ask(fails, name="r", limit_s=5.0)

    with gather_defects() as defects:
        run(story())
    assert [one.event for one in defects] == ["request.failed"]

"""The work queue: one worker a key, nothing lost, back-off that is bounded, delays by the clock."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loops import run

from outlive.base import LimitExceeded, LoopClock, Random
from outlive.runtime import OrderedTaskGroup, QueueClosed, WorkQueue
from outlive.simulation import HostClock


def _queue(**options) -> WorkQueue:
    return WorkQueue(LoopClock(), Random(1), **{"base_s": 1.0, "cap_s": 60.0, **options})


def _now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_key_stands_in_the_queue_once_and_keys_come_in_order():
    queue = _queue()
    for key in ("b", "a", "b", "c", "a"):
        queue.add(key)
    assert len(queue) == 3
    assert [await queue.get() for _ in range(3)] == ["b", "a", "c"]


async def test_a_key_added_while_a_worker_has_it_comes_back_when_that_is_done():
    queue = _queue()
    queue.add("k")
    assert await queue.get() == "k"
    queue.add("k")
    queue.add("k")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 5)
    queue.finish("k")
    assert await queue.get() == "k"
    queue.finish("k")
    assert len(queue) == 0
    assert queue.working == 0


async def test_a_key_comes_though_a_clock_of_another_rate_has_not_quite_come_to_its_time_after_the_sleep():
    clock, random = HostClock(), Random(3)
    queue = WorkQueue(clock, Random(1))
    clock.set_rate(0.95)
    await clock.sleep(125.0)  # the loop's numbers are coarser than the clock's by now
    clock.set_rate(1.05)
    for _ in range(1_000):
        queue.add_after("k", random.uniform(0.001, 0.002))
        assert await queue.get() == "k"
        queue.finish("k")


async def test_a_delay_too_short_for_the_clock_to_move_is_made_longer():
    queue = _queue()
    await asyncio.sleep(128.0)
    began_s = _now()
    queue.add_after("k", 1e-16)
    assert await queue.get() == "k"
    assert _now() > began_s


async def test_the_earliest_of_several_delays_counts():
    queue = _queue()
    queue.add_after("k", 30)
    queue.add_after("k", 10)
    queue.add_after("k", 20)
    assert await queue.get() == "k"
    queue.finish("k")
    first = _now()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 100)
    assert first == 10.0


async def test_a_delayed_key_that_is_added_comes_now_and_again_when_due():
    queue = _queue()
    queue.add_after("k", 10)
    queue.add("k")
    times = []
    for _ in range(2):
        queue.finish(await queue.get())
        times.append(_now())
    assert times == [0.0, 10.0]


async def test_back_off_doubles_up_to_its_cap_and_is_forgotten():
    queue = _queue()
    waits = []
    for _ in range(12):
        queue.add("k")
        key = await queue.get()
        waits.append(queue.retry(key))
        queue.finish(key)
    queue.forget("k")
    waits.append(queue.retry("k"))
    for count, wait in enumerate(waits[:-1]):
        longest = min(60.0, 2.0**count)
        assert longest / 2 <= wait <= longest
    assert waits[-1] <= 1.0


async def test_a_full_queue_says_so_and_takes_what_it_has_already():
    queue = _queue(limit=2)
    queue.add("a")
    queue.add_after("b", 5)
    queue.add("a")
    with pytest.raises(LimitExceeded, match="2 keys"):
        queue.add("c")
    with pytest.raises(LimitExceeded):
        queue.add_after("d", 1)
    queue.add("b")


async def test_shut_down_ends_those_who_wait_and_takes_nothing_more():
    queue = _queue()
    async with OrderedTaskGroup() as group:

        async def worker() -> str:
            try:
                return await queue.get()
            except QueueClosed:
                return "closed"

        tasks = [group.create_task(worker()) for _ in range(3)]
        await asyncio.sleep(1)
        queue.shut_down()
    queue.add("k")
    queue.add_after("k", 1)
    assert len(queue) == 0
    with pytest.raises(QueueClosed):
        await queue.get()
    assert [task.result() for task in tasks] == ["closed"] * 3


async def test_a_delayed_key_is_not_late_because_the_worker_that_waited_for_it_got_another():
    queue = _queue()
    seen: list[tuple[str, float]] = []

    async def worker() -> None:
        while True:
            key = await queue.get()
            seen.append((key, _now()))
            if key == "long":
                await asyncio.sleep(1000)
            queue.finish(key)

    async with OrderedTaskGroup() as group:
        workers = [group.create_task(worker()) for _ in range(2)]
        await asyncio.sleep(1)
        queue.add_after("due", 10)
        await asyncio.sleep(1)
        queue.add("long")
        await asyncio.sleep(100)
        for task in workers:
            task.cancel()
    assert seen == [("long", 2.0), ("due", 11.0)]


async def test_a_cancelled_worker_passes_its_key_on():
    queue = _queue()
    first = asyncio.create_task(queue.get())
    second = asyncio.create_task(queue.get())
    await asyncio.sleep(1)
    queue.add("k")
    first.cancel()
    assert await asyncio.wait_for(second, 5) == "k"


operations = st.lists(
    st.tuples(st.sampled_from(["add", "after", "pause"]), st.sampled_from("abcd"), st.integers(0, 5)), max_size=40
)


@pytest.mark.slow
@given(operations, st.integers(1, 3), st.integers(0, 2**32))
def test_every_wish_is_followed_by_a_look_and_no_key_is_with_two_workers(steps, workers, seed):
    async def main():
        random = Random(seed)
        queue = WorkQueue(LoopClock(), random, base_s=0.5, cap_s=4.0)
        busy: set[str] = set()
        looks: dict[str, float] = {}

        async def worker() -> None:
            while True:
                key = await queue.get()
                assert key not in busy
                busy.add(key)
                began = _now()
                await asyncio.sleep(random.choice([0.0, 0.5, 3.0]))
                busy.discard(key)
                looks[key] = began
                if random.random() < 0.3:
                    queue.retry(key)
                else:
                    queue.forget(key)
                queue.finish(key)

        async with OrderedTaskGroup() as group:
            tasks = [group.create_task(worker()) for _ in range(workers)]
            wished: dict[str, float] = {}
            for what, key, seconds in steps:
                if what == "add":
                    queue.add(key)
                    wished[key] = _now()
                elif what == "after":
                    queue.add_after(key, seconds)
                    wished[key] = max(wished.get(key, 0.0), _now())
                else:
                    await asyncio.sleep(seconds)
            await asyncio.sleep(300)
            for task in tasks:
                task.cancel()
        assert (len(queue), queue.delayed, queue.working) == (0, 0, 0)
        for key, moment in wished.items():
            assert looks[key] >= moment

    run(main())

"""The virtual loop: time jumps, order holds, nothing real gets in, and what cannot go on says so."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest
from tests.support.loops import run, run_real

from outlive.base import LoopClock
from outlive.runtime import DeadlockError, NoOutside, VirtualLimit


async def test_an_hour_takes_no_time_and_is_exact():
    clock = LoopClock(start=1000.0)
    before = clock.monotonic()
    await clock.sleep(3600)
    assert (clock.monotonic() - before, clock.now()) == (3600.0, 4600.0)


def test_timers_still_fire_when_time_is_large():
    async def main():
        for _ in range(10):
            await asyncio.sleep(1e-3)
        return asyncio.get_running_loop().time()

    assert run(main(), start=1.7e9) == pytest.approx(1.7e9 + 0.01)


def test_timers_of_one_moment_fire_in_the_order_they_were_set():
    fired = []

    async def main():
        loop = asyncio.get_running_loop()
        for number in range(50):
            loop.call_at(5.0, fired.append, number)
        await asyncio.sleep(10)

    run(main())
    assert fired == list(range(50))


async def test_timeout_wait_for_queue_event_and_lock_work():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(7):
            await asyncio.Event().wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Queue().get(), 3)
    queue: asyncio.Queue[int] = asyncio.Queue(1)
    lock = asyncio.Lock()

    async def produce():
        async with lock:
            for number in range(3):
                await queue.put(number)

    task = asyncio.create_task(produce())
    got = [await queue.get() for _ in range(3)]
    await task
    assert (got, asyncio.get_running_loop().time()) == ([0, 1, 2], 10.0)


def test_a_deadlock_names_the_tasks_that_wait():
    async def waits_for_ever(event):
        await event.wait()

    async def main():
        event = asyncio.Event()
        task = asyncio.create_task(waits_for_ever(event), name="stuck-one")
        await task

    with pytest.raises(DeadlockError, match="stuck-one") as caught:
        run(main())
    assert "waits_for_ever" in str(caught.value)
    assert "main" in str(caught.value)


def test_virtual_time_has_a_limit():
    async def main():
        while True:  # noqa: ASYNC110
            await asyncio.sleep(60)

    with pytest.raises(VirtualLimit, match="600 virtual seconds"):
        run(main(), limit_s=600)


def test_a_task_that_spins_is_stopped():
    async def main():
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(VirtualLimit, match="more steps"):
        run(main(), steps=10_000)


@pytest.mark.parametrize(
    "touch",
    [
        lambda loop: loop.run_in_executor(None, print),
        lambda loop: loop.create_connection(asyncio.Protocol, "127.0.0.1", 1),
        lambda loop: loop.create_server(asyncio.Protocol, "127.0.0.1", 0),
        lambda loop: loop.getaddrinfo("localhost", 80),
        lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true"),
        lambda loop: loop.add_signal_handler(2, print),
        lambda loop: loop.sock_recv(None, 1),
    ],
)
def test_the_real_world_is_refused_with_a_reason(touch):
    async def main():
        touch(asyncio.get_running_loop())

    with pytest.raises(NoOutside, match="virtual time"):
        run(main())


def test_to_thread_is_refused_too():
    async def main():
        await asyncio.to_thread(print)

    with pytest.raises(NoOutside):
        run(main())


def test_tasks_left_behind_are_cancelled_in_order_of_creation():
    ended: list[int] = []
    kept: list[asyncio.Task[None]] = []

    async def background(number):
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.append(number)

    async def main():
        kept.extend(asyncio.create_task(background(number)) for number in range(20))
        await asyncio.sleep(1)

    run(main())
    assert ended == list(range(20))


def test_generators_left_open_are_closed_in_order():
    closed = []

    async def numbers(name) -> AsyncIterator[int]:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0)
            closed.append(name)

    kept = []

    async def main():
        for name in range(5):
            generator = numbers(name)
            kept.append(generator)
            await generator.__anext__()

    run(main())
    assert closed == [0, 1, 2, 3, 4]


def test_an_error_that_nobody_awaited_is_not_lost():
    async def fails():
        raise ValueError("lost")

    async def main():
        task = asyncio.create_task(fails())
        await asyncio.sleep(1)
        del task

    with pytest.raises(BaseExceptionGroup) as caught:
        run(main())
    assert [str(error) for error in caught.value.exceptions] == ["lost"]


def test_the_error_of_the_run_itself_is_raised_as_it_is():
    async def main():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(main())


def test_hooks_and_running_loop_are_as_before():
    before = sys.get_asyncgen_hooks()
    run(asyncio.sleep(1))
    assert sys.get_asyncgen_hooks() == before
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_two_runs_are_alike():
    async def worker(name, queue, log):
        while True:
            item = await queue.get()
            await asyncio.sleep(0.1 * (item % 3))
            log.append((asyncio.get_running_loop().time(), name, item, asyncio.current_task().get_name()))

    async def main():
        queue: asyncio.Queue[int] = asyncio.Queue()
        log: list[object] = []
        tasks = [asyncio.create_task(worker(name, queue, log)) for name in "abc"]
        for item in range(50):
            queue.put_nowait(item)
        await asyncio.sleep(60)
        assert len(tasks) == 3
        return log

    assert run(main()) == run(main())


async def test_call_soon_threadsafe_is_allowed():
    done = asyncio.Event()
    asyncio.get_running_loop().call_soon_threadsafe(done.set)
    await done.wait()


def test_a_task_that_will_not_be_cancelled_does_not_hang_the_run():
    async def stubborn():
        while True:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                continue

    async def main():
        task = asyncio.create_task(stubborn(), name="stubborn")
        task._log_destroy_pending = False
        await asyncio.sleep(1)
        assert not task.done()

    with pytest.raises(VirtualLimit, match="stubborn"):
        run(main(), limit_s=3600)


def test_a_real_loop_has_a_limit_in_real_seconds():
    with pytest.raises(TimeoutError):
        run_real(asyncio.sleep(60), limit_s=0.01)

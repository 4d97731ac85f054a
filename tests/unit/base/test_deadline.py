"""A time limit ends a block as ``asyncio.timeout`` does."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.loops import run

from outlive.base import deadline, set_within


async def _for(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


async def test_a_block_that_is_over_in_time_is_left_alone() -> None:
    with deadline(2.0) as limit:
        said = await _for(1.0)
    await asyncio.sleep(5.0)
    assert (said, limit.expired, asyncio.get_running_loop().time()) == ("done", False, 6.0)


async def test_a_block_that_is_not_over_in_time_ends_with_a_timeout() -> None:
    with pytest.raises(TimeoutError), deadline(2.0) as limit:
        await _for(9.0)
    assert limit.expired
    task = asyncio.current_task()
    assert task is not None
    assert (asyncio.get_running_loop().time(), task.cancelling()) == (2.0, 0)


async def test_no_time_at_all_ends_a_block_where_it_first_waits() -> None:
    with pytest.raises(TimeoutError), deadline(-1.0):
        await _for(9.0)
    assert asyncio.get_running_loop().time() == 0.0


def test_a_cancellation_from_outside_stays_one() -> None:
    async def limited() -> None:
        with deadline(2.0):
            await _for(9.0)

    async def story() -> bool:
        task = asyncio.get_running_loop().create_task(limited())
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert run(story())


def test_a_cancellation_at_the_very_moment_of_the_limit_is_not_lost() -> None:
    async def limited() -> None:
        with deadline(2.0):
            await _for(9.0)

    async def story() -> bool:
        loop = asyncio.get_running_loop()
        task = loop.create_task(limited())
        loop.call_at(2.0, task.cancel)
        await asyncio.wait([task])
        return task.cancelled()

    assert run(story())


async def test_the_outer_of_two_limits_ends_both_blocks() -> None:
    reported: list[str] = []
    try:
        with deadline(1.0):
            try:
                with deadline(5.0):
                    await _for(9.0)
            except TimeoutError:
                reported.append("inner")
    except TimeoutError:
        reported.append("outer")
    assert reported == ["outer"]


def test_an_error_of_the_block_is_raised_as_it_is() -> None:
    async def story() -> None:
        with deadline(1.0):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run(story())


def test_a_limit_needs_a_task() -> None:
    with pytest.raises(RuntimeError), deadline(1.0):
        pass


async def test_an_event_is_awaited_at_most_so_long() -> None:
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    late = await set_within(event, 2.0)
    loop.call_later(1.0, event.set)
    assert (late, await set_within(event, 2.0), loop.time()) == (False, True, 3.0)

"""One at a time: whatever callers do, nobody is inside together with another, and the turn is never lost."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loops import run

from outlive.base import Unavailable
from outlive.commitments import BoundedLock, Late

STEPS = st.integers(min_value=0, max_value=6)
CALLERS = st.lists(st.tuples(STEPS, STEPS, STEPS, st.none() | STEPS), min_size=1, max_size=8)
"""When each comes, how long it is inside, how long it would wait, and when it gives up."""


@pytest.mark.slow
@given(CALLERS, st.integers(min_value=1, max_value=8))
def test_the_turn_is_one_callers_and_never_lost(callers: list[tuple[int, int, int, int | None]], limit: int) -> None:
    async def claim() -> None:
        turn, inside, most = BoundedLock(limit), 0, 0

        async def call(comes: int, stays: int, waits: int) -> str:
            nonlocal inside, most
            await asyncio.sleep(comes)
            try:
                async with turn.acquire(waits):
                    inside += 1
                    most = max(most, inside)
                    try:
                        await asyncio.sleep(stays)
                    finally:
                        inside -= 1
            except (Late, Unavailable) as error:
                return error.code
            return "served"

        tasks = [asyncio.create_task(call(*caller[:3])) for caller in callers]
        loop = asyncio.get_running_loop()
        for task, (_, _, _, gives_up) in zip(tasks, callers, strict=True):
            if gives_up is not None:
                loop.call_later(gives_up, task.cancel)
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        assert most <= 1
        assert inside == 0
        async with turn.acquire(1.0):
            pass

    run(claim())


async def test_those_who_wait_are_served_in_the_order_in_which_they_came() -> None:
    turn, served = BoundedLock(8), list[int]()

    async def call(number: int) -> None:
        async with turn.acquire(60.0):
            await asyncio.sleep(1)
            served.append(number)

    await asyncio.gather(*(call(number) for number in range(8)))
    assert served == list(range(8))


async def test_who_comes_late_or_is_one_too_many_is_told_which() -> None:
    turn = BoundedLock(1)
    async with turn.acquire(1.0):
        waiting = asyncio.create_task(_enter(turn, 2.0))
        await asyncio.sleep(1)
        with pytest.raises(Unavailable):
            await _enter(turn, 2.0)
        with pytest.raises(Late):
            await waiting
    await _enter(turn, 0.0)


async def _enter(turn: BoundedLock, within_s: float) -> None:
    async with turn.acquire(within_s):
        pass

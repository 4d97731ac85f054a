"""The ordered task group behaves as the standard one, and cancels in the order of creation."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.loops import run

from outlive.runtime import OrderedTaskGroup

GROUPS = (asyncio.TaskGroup, OrderedTaskGroup)


class Broken(Exception):
    """An error of the test's own."""


async def _child(number: int, delay: float, fails: bool, stubborn: bool, log: list[object]) -> int:
    try:
        await asyncio.sleep(delay)
    except asyncio.CancelledError:
        log.append(("cancelled", number, asyncio.get_running_loop().time()))
        if stubborn:
            await asyncio.sleep(1)
            raise Broken(f"late {number}") from None
        raise
    if fails:
        raise Broken(str(number))
    log.append(("ended", number, asyncio.get_running_loop().time()))
    return number


async def _story(group_class, children, body_delay, body_fails, cancel_at):
    """What a parent with this group does, as a log and an outcome."""
    log: list[object] = []

    async def parent():
        async with group_class() as group:
            for number, (delay, fails, stubborn) in enumerate(children):
                group.create_task(_child(number, delay, fails, stubborn, log))
            await asyncio.sleep(body_delay)
            if body_fails:
                raise Broken("body")
            log.append("body ended")
        log.append("left")

    task = asyncio.create_task(parent())
    if cancel_at is not None:
        asyncio.get_running_loop().call_at(cancel_at, task.cancel)
    try:
        await task
        outcome: object = "ok"
    except asyncio.CancelledError:
        outcome = "cancelled"
    except BaseExceptionGroup as error:
        outcome = sorted(str(each) for each in error.exceptions)
    return sorted(log, key=str), outcome, task.cancelling()


moments = st.sampled_from([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])


@given(
    children=st.lists(st.tuples(moments, st.booleans(), st.booleans()), max_size=5),
    body_delay=moments.map(lambda moment: moment + 0.25),
    body_fails=st.booleans(),
    cancel_at=st.none() | moments.map(lambda moment: moment + 0.5),
)
def test_it_tells_the_same_story_as_the_standard_group(children, body_delay, body_fails, cancel_at):
    stories = [run(_story(group, children, body_delay, body_fails, cancel_at)) for group in GROUPS]
    assert stories[0] == stories[1]


def test_children_are_cancelled_in_the_order_of_their_creation():
    cancelled: list[int] = []

    async def waits(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(number)

    async def main():
        async with OrderedTaskGroup() as group:
            for number in range(100):
                group.create_task(waits(number))
            await asyncio.sleep(1)
            raise Broken

    with pytest.raises(BaseExceptionGroup):
        run(main())
    assert cancelled == list(range(100))

"""A part of a program under virtual time is halted as a whole, like a process."""

from __future__ import annotations

import asyncio

from outlive.runtime import LoopPart, outside_parts


async def _ticks(reported: list[float]) -> None:
    while True:
        await asyncio.sleep(1.0)
        reported.append(asyncio.get_running_loop().time())


async def test_halted_part_runs_nothing_and_goes_on_where_it_was() -> None:
    reported: list[float] = []
    part = LoopPart("daemon")
    task = asyncio.get_running_loop().create_task(_ticks(reported), context=part.make_context())
    await asyncio.sleep(2.5)
    part.halt()
    await asyncio.sleep(5.0)
    part.go_on()
    await asyncio.sleep(1.4)
    task.cancel()
    assert reported == [1.0, 2.0, 7.5, 8.5]


async def test_what_a_part_starts_belongs_to_it_and_answers_wait_outside() -> None:
    reported: list[str] = []
    loop = asyncio.get_running_loop()
    part = LoopPart("daemon")

    async def server() -> str:
        await asyncio.sleep(1.0)
        reported.append("applied")
        return "answer"

    async def client() -> None:
        reported.append(await asyncio.shield(loop.create_task(server(), context=outside_parts())))

    async def main() -> None:
        await loop.create_task(client())

    client_task = loop.create_task(main(), context=part.make_context())
    await asyncio.sleep(0.5)
    part.halt()
    await asyncio.sleep(5.0)
    reported.append("still")
    part.go_on()
    await client_task
    assert reported == ["applied", "still", "answer"]


async def test_cancelled_part_ends_and_a_halted_one_ends_with_the_run() -> None:
    reported: list[float] = []
    first, second = LoopPart("first"), LoopPart("second")
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(_ticks(reported), context=each.make_context()) for each in (first, second)]
    await asyncio.sleep(0.5)
    first.cancel()
    second.halt()
    await asyncio.wait([tasks[0]])
    assert sum(task.done() for task in tasks) == 1


async def test_a_part_forgets_tasks_that_have_ended_and_keeps_the_order_of_the_others() -> None:
    loop = asyncio.get_running_loop()
    part = LoopPart("daemon")
    ended: list[str] = []

    async def lasting(name: str) -> None:
        try:
            await asyncio.sleep(1000.0)
        finally:
            ended.append(name)

    def begin(name: str) -> asyncio.Task[None]:
        return loop.create_task(lasting(name), name=name, context=part.make_context())

    first = begin("first")
    for _ in range(1000):
        await loop.create_task(asyncio.sleep(0), context=part.make_context())
    last = begin("last")
    await asyncio.sleep(1.0)
    kept = part.tasks == (first, last)
    part.cancel()
    await asyncio.sleep(1.0)
    assert (ended, kept) == (["first", "last"], True)

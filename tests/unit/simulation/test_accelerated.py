"""Time of the accelerated loop: it moves on only while the loop waits, and the outside counts as it is."""

from __future__ import annotations

import asyncio
import selectors
import time

import pytest
from tests.support.accelerated import LOOK_S, AcceleratedLoop, outside, run_accelerated

from outlive.runtime.virtual import Part, VirtualLimit


class _OfWall(AcceleratedLoop):
    """A loop for which the wall says what the test wants."""

    def __init__(self, walls: list[float], *, speed: float) -> None:
        self._walls = walls
        super().__init__(speed=speed)

    def wall(self) -> float:
        return self._walls[0]


def now() -> float:
    return asyncio.get_running_loop().time()


def test_time_runs_so_many_times_faster_than_the_wall() -> None:
    async def main() -> float:
        await asyncio.sleep(100.0)
        return now()

    begun = time.monotonic()
    assert run_accelerated(main(), speed=1000) == pytest.approx(100.0, abs=0.01)
    assert 0.09 < time.monotonic() - begun < 50


def test_what_is_computed_takes_no_time() -> None:
    async def main() -> float:
        for _ in range(20):
            sum(range(50_000))
            await asyncio.sleep(0)
        return now()

    assert run_accelerated(main(), speed=1000) < 1.0


def test_an_answer_from_outside_takes_the_time_that_it_takes() -> None:
    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        begun = now()
        with outside():
            await loop.run_in_executor(None, time.sleep, 0.05)
        counted = now() - begun
        begun = now()
        await loop.run_in_executor(None, time.sleep, 0.05)
        return counted, now() - begun

    counted, accelerated = run_accelerated(main(), speed=1000)
    assert counted < 5 < accelerated


def test_no_timer_fires_before_its_moment() -> None:
    """Those who look at the time after a sleep, and sleep again because it was too short, would keep it from moving."""

    async def until(when: float, number: int) -> int:
        await asyncio.sleep(1.0)
        for _ in range(number):
            await asyncio.sleep(0)
        tries = 0
        while now() < when:
            tries += 1
            await asyncio.get_running_loop().create_task(asyncio.sleep(when - now()))
        return tries

    async def main() -> list[int]:
        return await asyncio.gather(*[until(1.0 + 5e-10, number) for number in range(8)])

    assert max(run_accelerated(main(), speed=1000, wall_s=10.0)) == 1


def test_time_reaches_every_moment_exactly() -> None:
    moments = [0.1 + 0.7 * number for number in range(100)]

    async def main() -> list[float]:
        found: list[float] = []
        loop = asyncio.get_running_loop()
        for moment in moments:
            loop.call_at(moment, lambda: found.append(now()))
        await asyncio.sleep(100.0)
        return found

    assert run_accelerated(main(), speed=1000) == moments


def test_a_busy_machine_makes_no_timer_late() -> None:
    """Time in which this process was not let to run is not time that has passed."""

    def select(_timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        walls[0] += 5.0
        return found

    walls = [0.0]
    found: list[tuple[selectors.SelectorKey, int]] = []
    loop = _OfWall(walls, speed=10.0)
    try:
        loop.let_pass(None, select)
        assert loop.time() == LOOK_S * 10.0
        found.append((selectors.SelectorKey(0, 0, 0, None), 0))
        loop.let_pass(2.0, select)
        assert loop.time() == LOOK_S * 10.0 + 2.0
    finally:
        loop.close()


def test_outside_is_nothing_on_other_loops() -> None:
    async def main() -> int:
        with outside():
            return 1

    assert asyncio.run(main()) == 1


def test_sockets_work() -> None:
    async def main() -> bytes:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()
            await writer.wait_closed()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello\n")
            said = await reader.read()
            writer.close()
            await writer.wait_closed()
            return said

    assert run_accelerated(main(), speed=100) == b"hello\n"


def test_a_halted_part_does_nothing_until_it_goes_on() -> None:
    done: list[float] = []

    async def ticks() -> None:
        while True:
            await asyncio.sleep(1.0)
            done.append(now())

    async def main() -> None:
        part = Part("halted")
        asyncio.get_running_loop().create_task(ticks(), context=part.context())
        await asyncio.sleep(2.5)
        part.halt()
        await asyncio.sleep(5.2)
        part.go_on()
        await asyncio.sleep(1.2)
        part.cancel()

    run_accelerated(main(), speed=100)
    assert [round(moment) for moment in done] == [1, 2, 8, 9]


def test_a_part_ends_as_a_whole() -> None:
    async def main() -> list[bool]:
        part, loop = Part("killed"), asyncio.get_running_loop()

        async def both() -> None:
            loop.create_task(asyncio.sleep(50))
            await asyncio.sleep(100)

        first = loop.create_task(both(), context=part.context())
        await asyncio.sleep(1)
        tasks = list(part.tasks)
        part.cancel()
        await asyncio.sleep(0.1)
        assert first in tasks
        return [task.cancelled() for task in tasks]

    assert run_accelerated(main(), speed=100) == [True, True]


def test_a_run_that_takes_too_long_ends() -> None:
    async def for_ever() -> None:
        await asyncio.sleep(1e9)

    with pytest.raises(VirtualLimit, match=r"taken 0\.05 s"):
        run_accelerated(for_ever(), wall_s=0.05)


def test_time_that_never_moves_on_ends_a_run_and_says_who_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.accelerated.STILL_LIMIT", 1000)

    async def spins() -> None:
        for _ in range(100_000):
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.sleep(3.0)
        asyncio.get_running_loop().create_task(spins(), name="who-spins")
        await asyncio.sleep(3.0)

    with pytest.raises(VirtualLimit, match=r"1000 rounds without time moving on from 3 s(?s:.)*who-spins"):
        run_accelerated(main(), speed=1000)


def test_a_run_that_spins_ends() -> None:
    async def spins() -> None:
        loop = asyncio.get_running_loop()

        def again() -> None:
            loop.call_soon(again)

        again()
        await asyncio.sleep(1e9)

    with pytest.raises(VirtualLimit):
        run_accelerated(spins(), wall_s=0.05)


def test_an_error_that_nobody_awaits_is_not_lost() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(0.01)

    with pytest.raises(BaseExceptionGroup) as raised:
        run_accelerated(main())
    assert isinstance(raised.value.exceptions[0], ZeroDivisionError)


def test_time_begins_where_it_is_told_to() -> None:
    loop = AcceleratedLoop(start=7.0)
    try:
        assert loop.time() == 7.0
    finally:
        loop.close()

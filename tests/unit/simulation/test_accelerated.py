"""Time of the accelerated loop: it moves on only while the loop waits, and the outside counts as it is."""

from __future__ import annotations

import asyncio
import selectors
import time

import pytest
from tests.support.accelerated import LOOK_S, AcceleratedLoop, outside, run_accelerated

from outlive.runtime import LoopPart, VirtualLimit


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


def test_a_halted_part_does_nothing_until_it_goes_on() -> None:
    done: list[float] = []

    async def ticks() -> None:
        while True:
            await asyncio.sleep(1.0)
            done.append(now())

    async def main() -> None:
        part = LoopPart("halted")
        asyncio.get_running_loop().create_task(ticks(), context=part.make_context())
        await asyncio.sleep(2.5)
        part.halt()
        await asyncio.sleep(5.2)
        part.go_on()
        await asyncio.sleep(1.2)
        part.cancel()

    run_accelerated(main(), speed=100)
    assert [round(moment) for moment in done] == [1, 2, 8, 9]


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

"""One loop: it runs, waits and runs again, is woken, and goes on after errors that are reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.loops import run

from outlive.base import LoopClock, Unavailable
from outlive.runtime import Periodic, log_errors


class Acts:
    """What a loop did, and when; each run returns or raises what is next in ``answers``."""

    def __init__(self, *answers: float | Exception | None, takes_s: float = 0.0) -> None:
        self.at_s: list[float] = []
        self._answers = list(answers)
        self._takes_s = takes_s

    async def __call__(self) -> float | None:
        self.at_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self._takes_s)
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer


class Log:
    """Remembers warnings."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def warning(self, event: str, **fields: object) -> str:
        """Remember it; returns what some loggers return, which is no pause."""
        self.lines.append((event, fields))
        return "logged"


def play(make: Callable[[], Periodic], wake_at_s: tuple[float, ...] = ()) -> None:
    """Run the loop for ten seconds, and wake it at these times."""

    async def story() -> None:
        loop = make()
        task = asyncio.create_task(loop.run())
        for at_s in wake_at_s:
            await asyncio.sleep(at_s - asyncio.get_running_loop().time())
            loop.wake()
        await asyncio.wait([task], timeout=10.0 - asyncio.get_running_loop().time())
        if task.done():
            task.result()
        task.cancel()
        await asyncio.wait([task])

    run(story())


PAUSES = {
    "it runs at once and then after each pause": (Acts(), 4.0, {}, (), [0.0, 4.0, 8.0]),
    "a pause begins when a run has ended": (Acts(takes_s=1.0), 4.0, {}, (), [0.0, 5.0]),
    "the first run can wait for one pause": (Acts(), 4.0, {"wait_first": True}, (), [4.0, 8.0]),
    "a run names the pause after it": (Acts(1.0, None, 0.5), 4.0, {}, (), [0.0, 1.0, 5.0, 5.5, 9.5]),
    "waking ends a pause": (Acts(), 4.0, {"wakes": True}, (1.0, 2.5), [0.0, 1.0, 2.5, 6.5]),
    "waking while it runs has it run once more": (Acts(takes_s=2.0), 20.0, {"wakes": True}, (0.5, 1.0), [0.0, 2.0]),
    "a report names the pause after an error": (
        Acts(Unavailable("away")), 6.0, {"failed": lambda _error: 1.0}, (), [0.0, 1.0, 7.0],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("act", "pause_s", "how", "wake_at_s", "at_s"), PAUSES.values(), ids=PAUSES)
def test_it_runs_after_pauses(
    act: Acts, pause_s: float, how: dict[str, Any], wake_at_s: tuple[float, ...], at_s: list[float]
) -> None:
    play(lambda: Periodic(act, pause_s, clock=LoopClock(), **how), wake_at_s=wake_at_s)
    assert act.at_s == at_s


def test_the_usual_pause_is_asked_for_after_each_run():
    act, pauses = Acts(), [1.0, 2.0, 3.0, 9.0]
    play(lambda: Periodic(act, lambda: pauses.pop(0), clock=LoopClock()))
    assert act.at_s == [0.0, 1.0, 3.0, 6.0]


def test_what_woke_it_before_it_runs_again_is_forgotten():
    async def story() -> None:
        loop = Periodic(act, 4.0, clock=LoopClock(), wakes=True)
        loop.wake()
        for _ in range(2):
            task = asyncio.create_task(loop.run())
            await asyncio.sleep(3.0)
            task.cancel()
            await asyncio.wait([task])

    act = Acts()
    run(story())
    assert act.at_s == [0.0, 3.0]


def test_it_goes_on_after_an_error_that_is_reported():
    act, log = Acts(Unavailable("the store is away")), Log()
    play(lambda: Periodic(act, 6.0, clock=LoopClock(), failed=log_errors(log, "part.failed", host="a")))
    assert act.at_s == [0.0, 6.0]
    assert log.lines == [("part.failed", {"error": "the store is away", "host": "a"})]


def test_an_error_without_words_is_an_answer_that_did_not_come():
    act, log = Acts(TimeoutError()), Log()
    failed = log_errors(log, "part.failed")
    play(lambda: Periodic(act, 6.0, clock=LoopClock(), failed=failed, errors=(TimeoutError,)))
    assert log.lines == [("part.failed", {"error": "no answer in time"})]


@pytest.mark.parametrize(("least_s", "again_s"), [(1.0, 6.0), (9.0, 9.0)])
def test_a_crash_is_followed_by_the_longer_pause(least_s: float, again_s: float):
    act, seen = Acts(ValueError("a defect")), list[Exception]()

    def crashed(error: Exception) -> float:
        seen.append(error)
        return least_s

    play(lambda: Periodic(act, 6.0, clock=LoopClock(), crashed=crashed))
    assert act.at_s == [0.0, again_s]
    assert [str(error) for error in seen] == ["a defect"]


@pytest.mark.parametrize("error", [Unavailable("away"), ValueError("a defect")])
def test_an_error_that_is_not_reported_ends_it(error: Exception):
    act = Acts(error)
    with pytest.raises(type(error)):
        play(lambda: Periodic(act, 6.0, clock=LoopClock()))
    assert act.at_s == [0.0]

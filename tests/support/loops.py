"""How tests run coroutines: on virtual time, or (sockets, threads, processes) on a real loop; both with a limit."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

from outlive.runtime import OrderedTaskGroup, run_virtual

T = TypeVar("T")

VIRTUAL_LIMIT_S = 30 * 86400.0
"""Virtual seconds that a test may take."""
STEPS_LIMIT = 20_000_000
"""Rounds of the virtual loop that a test may take."""
REAL_LIMIT_S = 120.0
"""Real seconds that a test may take, on a machine that is busy with others."""


def run(
    coro: Coroutine[Any, Any, T], *, start: float = 0.0, limit_s: float = VIRTUAL_LIMIT_S, steps: int = STEPS_LIMIT
) -> T:
    """Run on virtual time. ``outlive.base.clock.LoopClock`` is its clock; errors that nobody awaited fail the test."""
    return run_virtual(coro, start=start, limit_s=limit_s, steps=steps)


def run_real(coro: Coroutine[Any, Any, T], *, limit_s: float = REAL_LIMIT_S) -> T:
    """Run on a real loop, for real I/O; ``TimeoutError`` after ``limit_s`` seconds."""

    async def limited() -> T:
        async with asyncio.timeout(limit_s):
            return await coro

    return asyncio.run(limited())


@asynccontextmanager
async def running(*parts: Any) -> AsyncIterator[None]:
    """Run these parts beside what follows, and end them after it."""
    async with OrderedTaskGroup() as group:
        tasks = [group.create_task(part.run()) for part in parts]
        yield
        for task in tasks:
            task.cancel()


STORY: Final = ("story", "claim", "check")
"""How players call the parameter that is the story."""


def run_by(
    player: Callable[..., Any], *given: Any, **options: Any
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Make a test of a story: ``player`` makes its world and runs it there, with these arguments.

    The player hands in what the story takes by position; what it takes by keyword, pytest hands in.
    """
    place = next(number for number, name in enumerate(inspect.signature(player).parameters) if name in STORY)

    def make_test(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        def test(**fixtures: Any) -> None:
            player(*given[:place], partial(story, **fixtures), *given[place:], **options)

        parameters = inspect.signature(story).parameters.values()
        fixtures = [one for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY]
        test.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined]
        test.__name__, test.__qualname__ = story.__name__, story.__qualname__
        test.__doc__, test.__module__ = story.__doc__, story.__module__
        return test

    return make_test

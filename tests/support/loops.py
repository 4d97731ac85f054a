"""How tests run coroutines: on virtual time, or (sockets, threads, processes) on a real loop; both with a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from outlive.runtime.virtual import run_virtual

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

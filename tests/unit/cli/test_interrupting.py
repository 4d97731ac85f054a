"""Ctrl-C ends a command soon, whatever it is doing."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from outlive.cli import run_interruptible

MUCH = 10**12
"""Turns of a loop that nobody waits for."""


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """A shell that starts tests in the background has them ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_a_computation_that_gives_no_turn_is_interrupted() -> None:
    async def stubborn() -> None:
        signal.raise_signal(signal.SIGINT)
        for _ in range(MUCH):
            pass

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run_interruptible(stubborn()))


def test_what_waits_is_cancelled_and_cleans_up() -> None:
    cleaned: list[bool] = []

    async def waiting() -> None:
        try:
            asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cleaned.append(True)
            raise

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run_interruptible(waiting()))
    assert cleaned == [True]


def test_afterwards_signals_mean_what_they_did() -> None:
    async def answer() -> int:
        return 3

    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGALRM)]
    assert asyncio.run(run_interruptible(answer())) == 3
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGALRM)] == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)

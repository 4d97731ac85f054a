"""The one loop of parts that do something again and again: ``Periodic``.

What it does: run at once or after one pause, wait, run again, until it is cancelled; wait shorter if somebody calls
``wake``; go on after errors that the caller reports. Nothing else waits or draws random numbers in between, so that a
simulation in virtual time repeats itself: a pause is computed right after the run, and one run never overlaps another.

What it is not: a queue of keys (``controller``), a task that restarts (``manager``, ``crashes.keep_running``), or a
loop that ends when something is reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from outlive.base import Clock, OutliveError, set_within

if TYPE_CHECKING:
    from outlive.base.logging import Logger

Report = Callable[[Exception], float | None]
"""Reports an error of one run; returns the pause before the next run, or ``None`` for the usual one."""


class Periodic:
    """Calls ``act``, waits, and calls it again."""

    def __init__(
        self,
        act: Callable[[], Awaitable[float | None]],
        every_s: float | Callable[[], float],
        *,
        clock: Clock,
        wait_first: bool = False,
        wakes: bool = False,
        failed: Report | None = None,
        errors: tuple[type[Exception], ...] = (OutliveError,),
        crashed: Callable[[Exception], float] | None = None,
    ) -> None:
        """``act`` returns the pause after this run in seconds, or ``None`` for ``every_s``.

        ``wait_first``: the first run comes after one pause. ``wakes``: ``wake`` ends a pause. ``failed`` reports
        ``errors``, ``crashed`` all others and returns the least pause after it; the loop goes on after an error that is
        reported, and ends with any other.
        """
        self._act = act
        self._every_s = every_s
        self._clock = clock
        self._wait_first = wait_first
        self._woken = asyncio.Event() if wakes else None
        self._failed = failed
        self._errors = errors
        self._crashed = crashed

    def wake(self) -> None:
        """Have the next run begin at once, or right after the run that is under way."""
        assert self._woken is not None, "only a loop with wakes=True can be woken"
        self._woken.set()

    async def run(self) -> None:
        """Run until cancelled; may be called again afterwards."""
        if self._wait_first:
            await self._pause(self._usual_pause_s())
        while True:
            if self._woken is not None:
                self._woken.clear()
            pause_s = await self._run_once()
            await self._pause(self._usual_pause_s() if pause_s is None else pause_s)

    async def _run_once(self) -> float | None:
        try:
            return await self._act()
        except self._errors as error:
            if self._failed is None:
                raise
            return self._failed(error)
        except Exception as error:
            if self._crashed is None:
                raise
            return max(self._usual_pause_s(), self._crashed(error))

    def _usual_pause_s(self) -> float:
        return self._every_s() if callable(self._every_s) else self._every_s

    async def _pause(self, seconds: float) -> None:
        if self._woken is None:
            await self._clock.sleep(seconds)
        else:
            await set_within(self._woken, seconds)


def log_errors(log: Logger, event: str, **fields: object) -> Report:
    """A report that logs each error as this event and leaves the pause as it is."""

    def report(error: Exception) -> None:
        log.warning(event, error=str(error) or "no answer in time", **fields)

    return report

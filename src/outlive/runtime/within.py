"""Time limits for what a task awaits, cheaper than ``asyncio.timeout``: daemons set one for every call.

``with within(2.0): await …`` raises ``TimeoutError`` where the block is not over in time, as ``async with
asyncio.timeout(2.0)`` does: the block is cancelled, and a cancellation that came from outside stays one. What it does
not give: a limit cannot be moved, and it is for blocks in a task.
"""

from __future__ import annotations

import asyncio
from types import TracebackType


class within:  # noqa: N801 - reads as the function that it stands for
    """See the module. ``seconds`` of the event loop; zero or less is a block that ends where it first waits."""

    __slots__ = ("_cancelling", "_seconds", "_task", "_timer", "expired")

    def __init__(self, seconds: float) -> None:
        self.expired = False
        """Whether the time was over before the block was."""
        self._seconds = seconds

    def __enter__(self) -> within:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit needs a task that it can stop")
        self._task = task
        self._cancelling = task.cancelling()
        loop = asyncio.get_running_loop()
        now = loop.time()
        when = now + self._seconds
        self._timer: asyncio.Handle = loop.call_soon(self._over) if when <= now else loop.call_at(when, self._over)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _over(self) -> None:
        self._task.cancel()
        self.expired = True

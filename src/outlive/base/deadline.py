"""A deadline for what a task awaits, cheaper than ``asyncio.timeout``: daemons set one for every call.

``with deadline(2.0): await …`` raises ``TimeoutError`` if the block has not ended in time, as ``async with
asyncio.timeout(2.0)`` does: the block is cancelled, and a cancellation from outside stays a cancellation. Limits: a
deadline cannot be moved, and it works only inside a task.
"""

from __future__ import annotations

import asyncio
from types import TracebackType


class deadline:  # noqa: N801 - used like the function asyncio.timeout
    """See the module. ``seconds`` are of the event loop; with zero or less the block ends at its first wait."""

    __slots__ = ("_cancelling", "_seconds", "_task", "_timer", "expired")

    def __init__(self, seconds: float) -> None:
        self.expired = False
        """Whether the deadline passed before the block ended."""
        self._seconds = seconds

    def __enter__(self) -> deadline:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        if task is None:
            raise RuntimeError("a deadline needs a task that it can cancel")
        self._task = task
        self._cancelling = task.cancelling()
        now = loop.time()
        when = now + self._seconds
        self._timer: asyncio.Handle = loop.call_soon(self._expire) if when <= now else loop.call_at(when, self._expire)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _expire(self) -> None:
        self._task.cancel()
        self.expired = True


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait until the event is set, at most so long; whether it is."""
    try:
        with deadline(seconds):
            return await event.wait()
    except TimeoutError:
        return False

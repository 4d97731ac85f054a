"""An event loop with an outside whose time runs faster than the wall's: for simulations that use real stores.

``outlive.runtime.virtual`` refuses sockets and threads, because real time has no part in it. Here both are there, and
time is still the loop's own. It moves on only while the loop waits, ``speed`` times as fast as the wall; while somebody
waits for an answer from outside (``outside``) it runs as on the wall, so that a slow disk is as slow as it is, and not
``speed`` times slower. What is computed takes no time, so a busy machine makes a run longer and not another one.

No timer fires before its moment. asyncio's own loops let those fire together that are a nanosecond apart, because time
goes on by itself there. Here it does not while anything is ready: several tasks that sleep until a moment, find that it
is not there yet, and sleep again, would keep each other ready, and time would stand still for ever.

Tasks belong to parts (``outlive.runtime.virtual``) and are halted with them. What is not given: two runs are not alike,
because the outside answers when it likes.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
import selectors
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from outlive.runtime import PART, STILL_LIMIT, VirtualLimit, describe_pending

T = TypeVar("T")

SPEED: Final = 20.0
"""Seconds of the loop for one of the wall, unless asked otherwise."""
WALL_S: Final = 300.0
"""Seconds of the wall that a run may take, unless asked otherwise."""
LOOK_S: Final = 1.0
"""The longest wait, in seconds of the wall: so often is looked whether the run has taken too long."""
END_S: Final = 30.0
"""Seconds of the wall that cancelled tasks get to end in."""

_Events = list[tuple[selectors.SelectorKey, int]]


class _Handle(asyncio.Handle):
    """A callback that its part keeps while it is halted."""

    __slots__ = ()

    def _run(self) -> None:
        mine: Any = self
        part = mine._context.get(PART)
        if part is not None and part.halted:
            part.keep(self)
        else:
            asyncio.Handle._run(self)


class _Timer(asyncio.TimerHandle):
    """The same, with a moment."""

    __slots__ = ()

    def _run(self) -> None:
        mine: Any = self
        _Handle._run(mine)


class _Selector(selectors.DefaultSelector):
    """Waits as the loop says."""

    loop: AcceleratedLoop | None = None

    def select(self, timeout: float | None = None) -> _Events:
        """As every selector; ``timeout`` is in seconds of the loop."""
        if self.loop is None:
            return super().select(timeout)
        self.loop.check_wall()
        if timeout is not None and timeout <= 0:
            self.loop.check_still()
            return super().select(0)
        return self.loop.let_pass(timeout, super().select)


class AcceleratedLoop(asyncio.SelectorEventLoop):
    """The loop; see the module."""

    def __init__(self, *, speed: float = SPEED, wall_s: float = WALL_S, start: float = 0.0) -> None:
        self._speed = speed
        self._still = 0
        """Rounds since time moved on."""
        self._wall_s = wall_s
        self._wall_end_s = self.wall() + wall_s
        self.calls_outside = 0
        """Answers from outside that somebody waits for."""
        selector = _Selector()
        super().__init__(selector)
        self._move_to(start)
        selector.loop = self

    def time(self) -> float:
        """Seconds of this loop."""
        return self._now

    def wall(self) -> float:
        """Seconds of the wall."""
        return super().time()

    def check_wall(self) -> None:
        """``VirtualLimit`` once the run has taken too long."""
        if self.wall() > self._wall_end_s:
            self._wall_end_s = self.wall() + END_S
            raise VirtualLimit(f"the run has taken {self._wall_s:g} s and is not over")

    def check_still(self) -> None:
        """``VirtualLimit`` after too many rounds in which something was always ready, so that time did not move on."""
        self._still += 1
        if self._still > STILL_LIMIT:
            self._still = 0
            raise VirtualLimit(
                f"{STILL_LIMIT} rounds without time moving on from {self._now:g} s: a task spins; pending:\n"
                f"{describe_pending(sorted(asyncio.all_tasks(self), key=lambda task: task.get_name()))}"
            )

    def let_pass(self, timeout: float | None, select: Callable[[float], _Events]) -> _Events:
        """Wait for something from outside, at most ``timeout`` seconds of the loop, and let so much time pass."""
        begun = self.wall()
        pace = 1.0 if self.calls_outside else self._speed
        longest = min(LOOK_S, max(0.0, self._wall_end_s - begun))
        whole = timeout is not None and timeout <= longest * pace
        wait = timeout / pace if timeout is not None and whole else longest
        found = select(wait)
        if whole and not found:
            self._move_to(self._next_moment())
        else:
            # What goes beyond was not waited for: this process was not let to run.
            self._move_to(self._now + min(wait, self.wall() - begun) * pace)
        return found

    def _next_moment(self) -> float:
        """The moment of the first timer, for which the loop has waited: now plus the wait would be rounded."""
        mine: Any = self
        when: float = mine._scheduled[0].when()
        return when

    def _move_to(self, now: float) -> None:
        self._now = now
        self._still = 0
        # What asyncio adds to the present to see which timers fire: exactly those whose moment is there.
        self._clock_resolution = math.ulp(now)

    def _call_soon(
        self, callback: Callable[..., object], args: Any, context: contextvars.Context | None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        mine: Any = self
        mine._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]  # the argument types of the callback are not spelled out
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """As every loop's."""
        mine: Any = self
        mine._check_closed()
        timer: Any = _Timer(when, callback, args, self, context)
        heapq.heappush(mine._scheduled, timer)
        timer._scheduled = True
        return timer  # type: ignore[no-any-return]

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        """As every loop's; the task is one of the part in whose context it begins."""
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        context: contextvars.Context | None = options.get("context")
        part = PART.get() if context is None else context.get(PART)
        if part is not None:
            part.add(task)
        return task


@contextmanager
def outside() -> Iterator[None]:
    """While the block runs, somebody waits for an answer from outside; see the module. On other loops: nothing."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, AcceleratedLoop):
        yield
        return
    loop.calls_outside += 1
    try:
        yield
    finally:
        loop.calls_outside -= 1


def run_accelerated(
    coro: Coroutine[Any, Any, T], *, speed: float = SPEED, wall_s: float = WALL_S, start: float = 0.0
) -> T:
    """Run ``coro`` on a accelerated loop of its own and return its result.

    An error in a task or callback that nobody awaited is not lost: it is raised, in an exception group, when ``coro``
    itself ended well. Raises ``VirtualLimit`` after ``wall_s`` seconds, and whatever ``coro`` raises.
    """
    lost: list[BaseException] = []

    def keep(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            error.add_note(str(context.get("message", "")))
            lost.append(error)
        else:
            loop.default_exception_handler(context)

    def made() -> AcceleratedLoop:
        loop = AcceleratedLoop(speed=speed, wall_s=wall_s, start=start)
        loop.set_exception_handler(keep)
        return loop

    with asyncio.Runner(loop_factory=made) as runner:
        result = runner.run(coro)
    if lost:
        raise BaseExceptionGroup("errors that nobody awaited", lost)
    return result

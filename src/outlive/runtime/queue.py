"""A queue of keys that need a look.

A key stands in the queue at most once, and is with at most one worker: added again while a worker has it, it
comes back when that worker is done. The queue is memory only and promises no order between keys that come due at
the same time except the order of adding; after a restart the informers fill it again.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict
from typing import Final

from outlive.base.clock import Clock
from outlive.base.errors import LimitExceeded
from outlive.base.random import Random

KEYS_LIMIT: Final = 1_000_000
"""Keys that a queue holds at most, waiting, delayed or with a worker, unless asked otherwise."""


class QueueClosed(Exception):
    """The queue was shut down: no more keys."""


class WorkQueue:
    """See the module. ``base_s`` is the first back-off of ``retry``, ``cap_s`` the longest."""

    def __init__(
        self, clock: Clock, random: Random, *, base_s: float = 0.5, cap_s: float = 300.0, limit: int = KEYS_LIMIT
    ) -> None:
        self._clock = clock
        self._random = random
        self._base_s = base_s
        self._cap_s = cap_s
        self._limit = limit
        self._ready: OrderedDict[str, None] = OrderedDict()
        self._working: dict[str, bool] = {}
        """Keys with a worker; true when the key was added again meanwhile."""
        self._due: dict[str, float] = {}
        self._timers: list[tuple[float, int, str]] = []
        self._failures: dict[str, int] = {}
        self._order = itertools.count()
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._closed = False

    def __len__(self) -> int:
        """Keys that wait for a worker now, without the delayed ones."""
        self._admit_due()
        return len(self._ready)

    @property
    def delayed(self) -> int:
        """Keys whose time has not come."""
        return len(self._due)

    @property
    def working(self) -> int:
        """Keys that a worker has."""
        return len(self._working)

    def failures(self, key: str) -> int:
        """How often the key was retried since it was last forgotten."""
        return self._failures.get(key, 0)

    def add(self, key: str) -> None:
        """Have a look at the key soon. ``LimitExceeded`` when the queue is full; nothing after ``shut_down``."""
        if self._closed or key in self._ready:
            return
        if key in self._working:
            self._working[key] = True
            return
        self._check_room(key)
        self._ready[key] = None
        self._wake_one()

    def add_after(self, key: str, seconds: float) -> None:
        """Have a look in ``seconds``; of several such wishes for a key the earliest counts."""
        if seconds <= 0:
            self.add(key)
            return
        if self._closed:
            return
        when = self._clock.monotonic() + seconds
        if key in self._due and self._due[key] <= when:
            return
        self._check_room(key)
        self._due[key] = when
        heapq.heappush(self._timers, (when, next(self._order), key))
        self._wake_one()

    def retry(self, key: str) -> float:
        """Have another look after a back-off that doubles with each retry of the key; returns its seconds.

        Between half of it and all of it is drawn, so that keys that failed together do not come back together.
        """
        count = self._failures.get(key, 0) + 1
        self._failures[key] = count
        longest = min(self._cap_s, self._base_s * 2.0 ** min(count - 1, 60))
        seconds = longest * self._random.uniform(0.5, 1.0)
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: str) -> None:
        """The key is well: the next retry starts with the first back-off again."""
        self._failures.pop(key, None)

    async def get(self) -> str:
        """The next key, which is then the caller's until ``done``. ``QueueClosed`` after ``shut_down``."""
        while True:
            if self._closed:
                raise QueueClosed
            self._admit_due()
            if self._ready:
                key, _ = self._ready.popitem(last=False)
                self._working[key] = False
                if self._ready or self._timers:
                    # This worker slept for the next due key; somebody else has to now.
                    self._wake_one()
                return key
            await self._wait()

    def done(self, key: str) -> None:
        """The worker has finished with the key, however it went."""
        again = self._working.pop(key, False)
        if again and not self._closed:
            self._ready[key] = None
            self._wake_one()

    def shut_down(self) -> None:
        """Drop what waits and let every ``get`` raise; keys with workers are theirs until ``done``."""
        self._closed = True
        self._ready.clear()
        self._due.clear()
        self._timers.clear()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _check_room(self, key: str) -> None:
        if key in self._due or key in self._working:
            return
        if len(self._ready) + len(self._working) + len(self._due) >= self._limit:
            raise LimitExceeded(
                f"the work queue is full: {self._limit} keys wait", remedy="look why the controller is slow"
            )

    def _admit_due(self) -> None:
        now = self._clock.monotonic()
        while self._timers and self._timers[0][0] <= now:
            when, _, key = heapq.heappop(self._timers)
            if self._due.get(key) != when:
                continue
            del self._due[key]
            if key in self._working:
                self._working[key] = True
            else:
                self._ready[key] = None

    def _wake_one(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
                return

    async def _wait(self) -> None:
        """Until something was added, or the next delayed key is due by the clock."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        sleeper: asyncio.Task[None] | None = None
        if self._timers:
            seconds = self._timers[0][0] - self._clock.monotonic()
            sleeper = asyncio.get_running_loop().create_task(_sleep_then(self._clock, seconds, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._waiters.pop(waiter)
                self._wake_one()
            raise
        finally:
            self._waiters.pop(waiter, None)
            if sleeper is not None:
                sleeper.cancel()


async def _sleep_then(clock: Clock, seconds: float, waiter: asyncio.Future[None]) -> None:
    await clock.sleep(seconds)
    if not waiter.done():
        waiter.set_result(None)

"""A fair lock that readers share and a writer has alone, for coroutines of one event loop.

First come, first served: a waiting writer is not overtaken by later readers. The number of waiters is limited.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from outlive.base.errors import LimitExceeded


class ReadWriteLock:
    """See the module."""

    def __init__(self, waiting_limit: int) -> None:
        self._waiting_limit = waiting_limit
        self._readers = 0
        self._writing = False
        self._waiting: deque[tuple[bool, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, *, shared: bool) -> AsyncIterator[None]:
        """Have the lock, alone or with other sharers; ``LimitExceeded`` when too many wait."""
        await self._take(shared)
        try:
            yield
        finally:
            self._give(shared)

    async def _take(self, shared: bool) -> None:
        if not self._waiting and self._fits(shared):
            self._enter(shared)
            return
        if len(self._waiting) >= self._waiting_limit:
            raise LimitExceeded(
                f"{self._waiting_limit} placement calls are waiting", remedy="ask again later, or raise waitingCalls"
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((shared, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give(shared)
            else:
                self._waiting.remove((shared, turn))
                self._wake()
            raise

    def _fits(self, shared: bool) -> bool:
        return not self._writing and (shared or not self._readers)

    def _enter(self, shared: bool) -> None:
        if shared:
            self._readers += 1
        else:
            self._writing = True

    def _give(self, shared: bool) -> None:
        if shared:
            self._readers -= 1
        else:
            self._writing = False
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            shared, turn = self._waiting.popleft()
            self._enter(shared)
            turn.set_result(None)

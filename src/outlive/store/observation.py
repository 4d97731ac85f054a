"""A stream of changes that a task reads ahead: how stores that are elsewhere hand theirs to an observer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Generic

from outlive.resources import R
from outlive.store.contract import Change


class StreamObservation(Generic[R]):
    """One observer's stream, read ahead by a task of its own, so that a cancelled wait loses nothing."""

    def __init__(self, changes: AsyncGenerator[Change[R], None], ahead: int) -> None:
        self._queue: asyncio.Queue[Change[R] | None] = asyncio.Queue(ahead)
        self._failure: BaseException | None = None
        self._closed = False
        self._task = asyncio.create_task(self._read(changes), name="observation")
        self._task.add_done_callback(self._handle_end)

    @property
    def ended(self) -> bool:
        """Whether nothing comes any more."""
        return self._task.done()

    def __aiter__(self) -> StreamObservation[R]:
        return self

    async def __anext__(self) -> Change[R]:
        """The next change; waits for ever if there is none."""
        if self._closed:
            raise StopAsyncIteration
        change = None if self._failure is not None and self._queue.empty() else await self._queue.get()
        if change is not None:
            return change
        if self._failure is not None and not self._closed:
            raise self._failure
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop; a pending wait for a change sees the end of the stream."""
        self._closed = True
        await self._stop()

    async def fail(self, failure: Exception) -> None:
        """Stop; a pending wait for a change raises the failure."""
        self._failure = self._failure or failure
        await self._stop()

    async def _stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(None)

    async def _read(self, changes: AsyncGenerator[Change[R], None]) -> None:
        async with aclosing(changes):
            async for change in changes:
                await self._queue.put(change)

    def _handle_end(self, task: asyncio.Task[None]) -> None:
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self._failure = failure
            if self._queue.empty():
                self._queue.put_nowait(None)

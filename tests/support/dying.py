"""A store whose process dies at one of its writes, for stories of what the next process finds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from outlive.resources import R
from outlive.store import Store
from outlive.store.contract import Change
from outlive.store.memory import MemoryStore
from outlive.store.proxy import StoreProxy
from outlive.store.selectors import Selector

T = TypeVar("T")


class Dead(Exception):
    """The process is gone."""


class Dying(StoreProxy):
    """A store whose process dies at one of its writes: that one arrives or not, and nothing is written any more."""

    embedded = False

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.dies_at: int | None = None
        self.arrives = False
        self.writes = 0
        self.dead = asyncio.Event()
        self.last: Callable[[Store], Awaitable[object]] | None = None
        """The write at which it died."""
        self.incarnation = store.incarnation

    async def _read(self, call: Callable[[Store], Awaitable[T]]) -> T:
        return await call(self._store)

    async def _write(self, call: Callable[[Store], Awaitable[T]]) -> T:
        self.writes += 1
        if self.dies_at is not None and self.writes >= self.dies_at:
            if self.writes == self.dies_at:
                self.last = call
                if self.arrives:
                    await call(self._store)
            self.dead.set()
            await asyncio.Event().wait()  # nobody is there any more to hear the answer
        return await call(self._store)

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> AsyncIterator[Change[R]]:
        return self._store.observe(kind, selector=selector)

    async def close(self) -> None:
        await self._store.close()

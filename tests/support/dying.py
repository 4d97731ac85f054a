"""Stores that a test gets in the way of: one whose process dies at a write, and one that asks the test before each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from outlive.resources import R
from outlive.store import Change, MemoryStore, Selector, Store, StoreProxy

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


class Watched(StoreProxy):
    """A store that calls ``before`` with the name and the object of each write; what that raises, the writer gets."""

    embedded = False

    def __init__(self, store: MemoryStore) -> None:
        self.inner = store
        self.before: Callable[[str, Any], Awaitable[None]] | None = None
        self.incarnation = store.incarnation

    async def _read(self, call: Callable[[Store], Awaitable[T]]) -> T:
        return await call(self.inner)

    async def _write(self, call: Callable[[Store], Awaitable[T]]) -> T:
        return await call(self.inner)

    async def _ask(self, call: str, obj: R) -> R:
        if self.before is not None:
            await self.before(call, obj)
        return obj

    async def create(self, obj: R) -> R:
        return await super().create(await self._ask("create", obj))

    async def replace(self, obj: R) -> R:
        return await super().replace(await self._ask("replace", obj))

    async def replace_status(self, obj: R) -> R:
        return await super().replace_status(await self._ask("replace_status", obj))

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> AsyncIterator[Change[R]]:
        return self.inner.observe(kind, selector=selector)

    async def close(self) -> None:
        await self.inner.close()

"""Following a store in tests: what a careful observer comes to believe, and the contract checked on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic

from outlive.resources import R
from outlive.store import Change, Delete, Malformed, Reset, Selector, Store, Synced, Upsert

PATIENCE_S = 30.0


class Follower(Generic[R]):
    """Applies every change as an informer does."""

    def __init__(self, changes: AsyncIterator[Change[R]]) -> None:
        self.changes = changes
        self.objects: dict[str, R] = {}
        self.seen: list[Change[R]] = []
        self.synced = False
        self._listed: set[str] = set()

    async def until(self, holds: Callable[[dict[str, R]], bool], *, why: str = "") -> None:
        """Follow until it believes what is claimed."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not (self.synced and holds(self.objects)):
                    self.take(await anext(self.changes))
        except TimeoutError:
            raise AssertionError(f"never came to see {why}: {self.objects}") from None

    def take(self, change: Change[R]) -> None:
        self.seen.append(change)
        match change:
            case Upsert(obj):
                self.objects[obj.name] = obj
                self._listed.add(obj.name)
            case Malformed(ref, _):
                self._listed.add(ref.name)
            case Delete(ref, _):
                self.objects.pop(ref.name, None)
            case Reset():
                self._listed = set()
                self.synced = False
            case Synced():
                if not self.synced:
                    self.objects = {name: obj for name, obj in self.objects.items() if name in self._listed}
                self.synced = True

    async def close(self) -> None:
        await self.changes.aclose()  # type: ignore[attr-defined]


async def following(store: Store, kind: type[R], *, selector: Selector | None = None) -> Follower[R]:
    """A follower that has seen the first listing."""
    follower: Follower[Any] = Follower(store.observe(kind, selector=selector))
    await follower.until(lambda _: True)
    return follower

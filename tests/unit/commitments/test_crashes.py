"""A process that dies at any of its writes leaves a batch whole or not at all, whoever starts next.

The caller who heard nothing asks again under the same name: the batch is accepted then, and counts once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import pytest
from tests.support.loops import run
from tests.support.sales import FLAVORS, Market, asked, batch, host, live, project

from outlive.base.clock import LoopClock
from outlive.base.ids import SeededIds
from outlive.base.random import Random
from outlive.resources import R
from outlive.store import Store
from outlive.store.contract import Change
from outlive.store.memory import MemoryStore
from outlive.store.proxy import StoreProxy
from outlive.store.selectors import Selector

T = TypeVar("T")
PROJECTS, EACH = 5, 4
"""The batch has 20 commitments."""


class Dying(StoreProxy):
    """A store whose process dies at one of its writes: that one arrives or not, and nothing is written any more."""

    embedded = False

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.dies_at: int | None = None
        self.arrives = False
        self.writes = 0
        self.dead = asyncio.Event()
        self.incarnation = store.incarnation

    async def _read(self, call: Callable[[Store], Awaitable[T]]) -> T:
        return await call(self._store)

    async def _write(self, call: Callable[[Store], Awaitable[T]]) -> T:
        self.writes += 1
        if self.dies_at is not None and self.writes >= self.dies_at:
            if self.writes == self.dies_at and self.arrives:
                await call(self._store)
            self.dead.set()
            await asyncio.Event().wait()  # nobody is there any more to hear the answer
        return await call(self._store)

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> AsyncIterator[Change[R]]:
        return self._store.observe(kind, selector=selector)

    async def close(self) -> None:
        await self._store.close()


BATCH = batch(*(project(f"p{one}", *(asked(f"aaaa-{one}{two}", 1) for two in range(EACH))) for one in range(PROJECTS)))


async def died(store: MemoryStore, at: int | None, arrives: bool) -> tuple[int, str | None]:
    """A first life that ends at a write of the batch: how many writes that has had, and what Limes was told."""
    dying = Dying(store)
    told: list[str] = []

    async def story(market: Market) -> None:
        before = dying.writes
        dying.dies_at = before + at if at is not None else None
        dying.arrives = arrives
        asking = asyncio.create_task(_ask(market, told))
        await asyncio.wait({asking, asyncio.create_task(dying.dead.wait())}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(2)
        asking.cancel()
        told.append(str(dying.writes - before))
        raise _Dead

    with pytest.raises(_Dead):
        await live(dying, story, ends=False)
    return int(told[-1]), told[0] if len(told) > 1 else None


class _Dead(Exception):
    """The process is gone."""


async def _ask(market: Market, told: list[str]) -> None:
    told.append(await market.ask(BATCH, "r1"))


def fleet() -> list[object]:
    return [*FLAVORS, *(host(f"h{number}") for number in range(3))]


def writes_of_the_batch() -> int:
    async def scene() -> int:
        store = MemoryStore(LoopClock(), SeededIds(Random(2)))
        store.load(fleet())
        return (await died(store, None, False))[0]

    return run(scene())


@pytest.mark.slow
@pytest.mark.parametrize("arrives", [False, True], ids=["the write is lost", "the write arrives"])
def test_a_crash_at_any_write_leaves_no_half_batch(arrives: bool) -> None:
    total = writes_of_the_batch()
    assert total > 3 * PROJECTS * EACH

    async def scene(at: int) -> None:
        store = MemoryStore(LoopClock(), SeededIds(Random(2)))
        store.load(fleet())
        _, told = await died(store, at, arrives)

        async def next_life(market: Market) -> None:
            await asyncio.sleep(5)
            found = await market.commitments()
            assert len(found) in (0, PROJECTS * EACH), f"half a batch after write {at}"
            if told == "":
                assert len(found) == PROJECTS * EACH, f"what was accepted is lost after write {at}"
            assert {await market.ready(uuid) for uuid in found} <= {"Accepted"}
            slots = await market.slots()
            assert len(slots) == len(found)
            assert sum(market.free(f"h{number}") for number in range(3)) == 3 * 64 - 8 * len(found)
            assert all(one.phase != "decided" for one in await market.changes())
            assert await market.ask(BATCH, "r1") == ""
            await asyncio.sleep(5)
            assert len(await market.commitments()) == len(await market.slots()) == PROJECTS * EACH
            assert [(one.phase, one.request_id) for one in await market.changes()] == [("applied", "r1")]

        await live(store, next_life)

    for at in range(1, total + 1):
        run(scene(at))

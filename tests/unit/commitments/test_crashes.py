"""A process that dies at any of its writes leaves a batch whole or not at all for the next process.

The caller who heard nothing asks again under the same name: the batch is accepted then, and counts once.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.support.dying import Dead, Dying
from tests.support.loops import run
from tests.support.sales import FLAVORS, Market, asked, batch, host, live, project

from outlive.base import LoopClock, Random, SeededIds
from outlive.store import MemoryStore

PROJECTS, EACH = 3, 2
"""The batch has 6 commitments, so that each kind of write comes more than once."""


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
        raise Dead

    with pytest.raises(Dead):
        await live(dying, story, ends=False, whole=False)
    return int(told[-1]), told[0] if len(told) > 1 else None


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

        await live(store, next_life, whole=False)

    for at in range(1, total + 1):
        run(scene(at))

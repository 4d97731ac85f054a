"""Slow observers of the local stores: bounded queues, resets, and nothing left behind."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from tests.conformance.objects import vm, with_project
from tests.conformance.observers import Follower, following
from tests.support.loops import run

from outlive.base import LoopClock, Random, SeededIds
from outlive.resources import VirtualMachine
from outlive.store import MemoryStore, ObserverStream, Reset, Synced, Upsert


def memory() -> MemoryStore:
    return MemoryStore(LoopClock(), SeededIds(Random(1)))


def small_queue(store: MemoryStore, queue: int) -> ObserverStream[VirtualMachine]:
    return store._observers.observe(VirtualMachine, None, queue=queue)


async def test_an_observer_that_is_too_slow_is_reset_and_comes_to_see_the_truth() -> None:
    store = memory()
    made = await store.create(vm("stays"))
    gone = await store.create(vm("goes"))
    follower = Follower(small_queue(store, 10))
    await follower.until(lambda objects: len(objects) == 2)
    await store.delete(gone.ref)
    for number in range(20):
        made = await store.replace(with_project(made, str(number)))
    await follower.until(lambda objects: objects == {"stays": made}, why="the truth")
    assert follower.seen[3:] == [Reset(), Upsert(made), Synced()]
    await follower.close()


async def test_an_observer_may_overflow_in_its_first_listing() -> None:
    store = memory()
    made = [await store.create(vm(f"vm-{n:03}")) for n in range(50)]
    follower = Follower(small_queue(store, 10))
    for _ in range(5):
        follower.take(await anext(follower.changes))
    last = [await store.replace(with_project(obj, "new")) for obj in made]
    await follower.until(lambda objects: list(objects.values()) == last, why="all new states")
    assert follower.seen[5] == Reset()
    await follower.close()


async def test_what_fits_the_queue_is_told_change_by_change() -> None:
    store = memory()
    made = await store.create(vm(project="0"))
    follower = Follower(small_queue(store, 100))
    await follower.until(lambda _: True)
    for number in range(1, 100):
        made = await store.replace(with_project(made, str(number)))
    await follower.until(lambda objects: objects["vm-1"] == made)
    states = [int(c.object.spec.project) for c in follower.seen if isinstance(c, Upsert)]
    assert all(later == earlier + 1 for earlier, later in pairwise(states))
    await follower.close()


def test_a_busy_observer_lets_others_run() -> None:
    async def scene() -> None:
        store = memory()
        for number in range(1000):
            await store.create(vm(f"vm-{number}"))
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        running = asyncio.create_task(other())
        await following(store, VirtualMachine)
        await store.list(VirtualMachine, limit=1000)
        running.cancel()
        assert turns >= 12

    run(scene())


async def test_two_tasks_do_not_share_an_observation() -> None:
    store = memory()
    follower = await following(store, VirtualMachine)
    first = asyncio.ensure_future(anext(follower.changes))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="one task"):
        await anext(follower.changes)
    await follower.close()
    with pytest.raises(StopAsyncIteration):
        await first


async def test_an_observation_that_nobody_holds_is_forgotten() -> None:
    store = memory()
    for _ in range(10):
        await following(store, VirtualMachine)
    kept = await following(store, VirtualMachine)
    await store.create(vm())
    assert len(store._observers._all["VirtualMachine"]) == 1
    await kept.close()

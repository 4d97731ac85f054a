"""The store on ZooKeeper: beside a bare loop of transactions, a wake among many objects, an outage of the leader."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time

from kazoo.client import KazooClient
from tests.conformance.objects import change
from tests.support.zookeeper import TestEnsemble, zookeeper_store

from bench.figures import Figure
from bench.kubernetes import padded
from outlive.base import OutliveError
from outlive.resources import VirtualMachine
from outlive.store import Synced, Upsert, list_all
from outlive.store.zookeeper import ENTRY, SCHEMA_PATH, ZooKeeperAccess, ZooKeeperStore

OBJECTS = 10_000
CLIENTS = 16
SECONDS = 2.0
RUNS = 5
KILLS = 3
HEAP_MB = 256
"""Of each server: for that many objects."""
WORKERS = 64
SETTLE_S = 0.3


async def swaps(store: ZooKeeperStore, made: list[VirtualMachine]) -> float:
    """Compare-and-swaps a second."""
    count, stop = 0, time.perf_counter() + SECONDS

    async def client(number: int) -> None:
        nonlocal count
        while time.perf_counter() < stop:
            wanted = change(made[number].spec, display_name=f"n{count}")
            made[number] = await store.replace(change(made[number], spec=wanted))
            count += 1

    began = time.perf_counter()
    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return count / (time.perf_counter() - began)


def bare(kazoo: KazooClient, rows: list[tuple[str, bytes, int]], log: str) -> float:
    """The same transaction, by as many threads on one connection of kazoo."""
    counts = [0] * CLIENTS
    stop = time.perf_counter() + SECONDS

    def client(number: int) -> None:
        path, raw, version = rows[number]
        while time.perf_counter() < stop:
            transaction = kazoo.transaction()
            transaction.check(SCHEMA_PATH, 0)  # that the storage schema has not changed
            transaction.set_data(path, raw, version=version)
            transaction.create(f"{log}/{ENTRY}", b"u,vm-000000,00000000-0000-4000-8000-000000000000", sequence=True)
            version = transaction.commit()[1].version
            counts[number] += 1

    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    began = time.perf_counter()
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return sum(counts) / (time.perf_counter() - began)


async def compare(access: ZooKeeperAccess) -> tuple[list[float], list[float]]:
    """Both, one after the other, several times; which goes first takes turns."""
    store = zookeeper_store(access)
    await store.prepare()
    kazoo = KazooClient(",".join(access.servers) + access.chroot, timeout=access.session_s)
    await asyncio.to_thread(kazoo.start)
    ours, theirs = [], []
    try:
        made = [await store.create(padded(number)) for number in range(CLIENTS)]
        layout = await store.get_layout()
        paths = [layout.object_path(VirtualMachine, one.name, one.metadata.uid) for one in made]
        log = layout.log_path(VirtualMachine)

        async def measure_ours() -> None:
            nonlocal made
            made = [await store.get(VirtualMachine, one.name, fresh=True) for one in made]
            ours.append(await swaps(store, made))

        async def measure_bare() -> None:
            found = [one for one in await store.client.get_many(paths) if one is not None]
            rows = [(path, raw, stat.version) for path, (raw, stat) in zip(paths, found, strict=True)]
            theirs.append(await asyncio.to_thread(bare, kazoo, rows, log))

        for run in range(RUNS):
            for one in (measure_ours, measure_bare) if run % 2 else (measure_bare, measure_ours):
                await one()
    finally:
        await asyncio.to_thread(kazoo.stop)
        await asyncio.to_thread(kazoo.close)
        await store.close()
    return ours, theirs


async def wake(access: ZooKeeperAccess) -> tuple[int, float, float]:
    """Znodes that an observer reads for one write among many objects, seconds of the wake, and of the listing."""
    store, watching = zookeeper_store(access), zookeeper_store(access, 2)
    try:
        await store.prepare()
        numbers = iter(range(OBJECTS))

        async def worker() -> None:
            for number in numbers:
                await store.create(padded(number))

        await asyncio.gather(*(worker() for _ in range(WORKERS)))
        began = time.perf_counter()
        count = 0
        changes = watching.observe(VirtualMachine)
        while not isinstance(await anext(changes), Synced):
            count += 1
        listed_s = time.perf_counter() - began
        assert count == OBJECTS
        assert len([one async for one in list_all(store, VirtualMachine)]) == OBJECTS
        await asyncio.sleep(SETTLE_S)
        one = await store.get(VirtualMachine, padded(4711).name)
        before, began = watching.client.reads, time.perf_counter()
        await store.replace(change(one, spec=change(one.spec, display_name="woken")))
        seen = await anext(changes)
        woken_s = time.perf_counter() - began
        assert isinstance(seen, Upsert)
        assert seen.object.spec.display_name == "woken"
        await asyncio.sleep(SETTLE_S)
        return watching.client.reads - before, woken_s, listed_s
    finally:
        await watching.close()
        await store.close()


async def longest_gap(ensemble: TestEnsemble, access: ZooKeeperAccess) -> float:
    """The longest time between two acknowledged writes while the leader is killed."""
    store = zookeeper_store(access)
    try:
        await store.prepare()
        obj = await store.create(padded(0))
        gap, last, number, over = 0.0, time.perf_counter(), 0, False

        async def kill() -> None:
            nonlocal over
            await asyncio.sleep(1.0)
            leader = await asyncio.to_thread(ensemble.leader)
            await asyncio.to_thread(leader.kill)
            await asyncio.sleep(4.0)
            over = True

        killing = asyncio.create_task(kill())
        while not over:
            number += 1
            try:
                obj = await store.replace(change(obj, spec=change(obj.spec, display_name=f"n{number}")))
            except OutliveError:
                try:
                    obj = await store.get(VirtualMachine, obj.name, fresh=True)
                except OutliveError:
                    await asyncio.sleep(0.01)
                continue
            now = time.perf_counter()
            gap, last = max(gap, now - last), now
            await asyncio.sleep(0.01)
        await killing
        return gap
    finally:
        await store.close()
        await asyncio.to_thread(ensemble.start)


def measure() -> list[Figure]:
    """The figures of the store on ZooKeeper."""
    ensemble = TestEnsemble()
    for one in ensemble.servers:
        one.heap_mb = HEAP_MB
    try:
        ensemble.start()
        ours, theirs = asyncio.run(compare(ensemble.new_chroot()))
        gaps = [asyncio.run(longest_gap(ensemble, ensemble.new_chroot())) for _ in range(KILLS)]
        znodes, woken_s, listed_s = asyncio.run(wake(ensemble.new_chroot()))
    finally:
        ensemble.remove()
    median = statistics.median
    share = 100 * median(mine / other for mine, other in zip(ours, theirs, strict=True))
    both = f"{median(ours):.0f} and {median(theirs):.0f} a second, on tmpfs"
    many = f"among {OBJECTS} objects of 1 KiB"
    return [
        Figure("ZooKeeper store: leader killed, longest gap of writes", max(gaps), "s", 2, "lower", f"{KILLS} kills"),
        Figure("ZooKeeper store: znodes read for a wake after one write", znodes, "znodes", 5, "lower", many),
        Figure("ZooKeeper store: from a write to an observer", woken_s * 1000, "ms", None, "lower", many),
        Figure("ZooKeeper store: compare-and-swaps, 16 clients, of a bare loop", share, "%", 90, "higher", both),
        Figure("ZooKeeper store: an observer's listing", listed_s, "s", None, "lower", many),
    ]


if __name__ == "__main__":
    for figure in measure():
        print(figure)

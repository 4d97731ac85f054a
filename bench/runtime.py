"""The runtime: a large informer, the work queue, elections of virtual time."""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
import tracemalloc

import msgspec

from bench.figures import Figure, median_seconds
from outlive.base import LoopClock, Random, SeededIds, SystemClock, freeze_objects, limit_collections
from outlive.resources import ObjectMeta, VirtualMachine, VirtualMachineSpec
from outlive.runtime import Informer, OrderedTaskGroup, WorkQueue, run_virtual
from outlive.store import MemoryStore

OBJECTS = 100_000
KEYS = 200_000
CHANGES = 300


def _vm(number: int) -> VirtualMachine:
    return VirtualMachine(
        metadata=ObjectMeta(name=f"vm-{number:06}", labels={"outlive.dev/host": f"host-{number % 5000:04}"}),
        spec=VirtualMachineSpec(flavor="m1.large"),
    )


def _host(vm: VirtualMachine) -> list[str]:
    return [vm.metadata.labels["outlive.dev/host"]]


async def _large_informer() -> tuple[float, float, float, float, float]:
    """Seconds to sync, bytes an object, median and p99 of seen-after-write, longest block of the loop (all seconds)."""
    clock = SystemClock()
    store = MemoryStore(clock, SeededIds(Random(1)))
    for number in range(OBJECTS):
        await store.create(_vm(number))
    informer = Informer(store, VirtualMachine, clock=clock, random=Random(2), indexes={"host": _host})
    seen = asyncio.Event()
    longest = 0.0

    async def heartbeat() -> None:
        nonlocal longest
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0)
            longest = max(longest, time.perf_counter() - before)

    async with OrderedTaskGroup() as group:
        tracemalloc.start()
        tasks = [group.create_task(informer.run())]
        await informer.wait_synced()
        memory, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        for task in tasks:
            task.cancel()
    informer = Informer(store, VirtualMachine, clock=clock, random=Random(2), indexes={"host": _host})
    thresholds = gc.get_threshold()
    limit_collections()
    async with OrderedTaskGroup() as group:
        tasks = [group.create_task(heartbeat())]
        began = time.perf_counter()
        tasks.append(group.create_task(informer.run()))
        await informer.wait_synced()
        sync_s = time.perf_counter() - began
        freeze_objects()
        informer.subscribe(lambda _old, _new: seen.set(), replay=False)
        waits: list[float] = []
        for number in range(CHANGES):
            vm = await store.get(VirtualMachine, f"vm-{number:06}")
            seen.clear()
            began = time.perf_counter()
            await store.replace(msgspec.structs.replace(vm, spec=VirtualMachineSpec(flavor=f"m{number}")))
            await seen.wait()
            waits.append(time.perf_counter() - began)
        for task in tasks:
            task.cancel()
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    return sync_s, memory / OBJECTS, statistics.median(waits), sorted(waits)[int(CHANGES * 0.99)], longest


async def _work_through(workers: int) -> None:
    queue = WorkQueue(LoopClock(), Random(1))
    for number in range(KEYS):
        queue.add(f"key-{number}")
    left = KEYS

    async def work() -> None:
        nonlocal left
        while left > 0:
            key = await queue.get()
            left -= 1
            queue.finish(key)
            if left <= 0:
                queue.shut_down()
                return
            await asyncio.sleep(0)

    async with OrderedTaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())


async def _sleepers() -> None:
    async with OrderedTaskGroup() as group:
        for number in range(100):
            group.create_task(_sleep_often(0.5 + number / 100))


async def _sleep_often(seconds: float) -> None:
    for _ in range(1_000):
        await asyncio.sleep(seconds)


def measure() -> list[Figure]:
    """All figures. The only bar is how long nothing may block the event loop (docs/design/architecture.md)."""
    sync_s, object_bytes, median_s, p99_s, longest_s = asyncio.run(_large_informer())
    queue_s = median_seconds(lambda: run_virtual(_work_through(4)), runs=3)
    virtual_s = median_seconds(lambda: run_virtual(_sleepers()), runs=3)
    return [
        Figure("informer, 100,000 VMs with one index: time to sync", sync_s, "s"),
        Figure("the same: memory an object", object_bytes, "bytes", note="decoded object, cache and index"),
        Figure("the same: a change is seen, median", median_s * 1000, "ms"),
        Figure("the same: a change is seen, p99", p99_s * 1000, "ms"),
        Figure(
            "the same: the loop's longest turn",
            longest_s * 1000,
            "ms",
            50,
            note="with the garbage collector as `outlive up` sets it (outlive.base.processes)",
        ),
        Figure("work queue, 4 workers", KEYS / queue_s, "keys/s", better="higher"),
        Figure("virtual time: wake-ups of sleeping tasks", 100_000 / virtual_s, "wake-ups/s", better="higher"),
    ]

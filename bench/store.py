"""The stores: durable writes a second with 16 writers, and how late an observer hears of them among 100,000 objects."""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.objects import change

from bench.figures import Figure
from outlive.base import Random, SeededIds, SystemClock
from outlive.resources import (
    Amounts,
    Assigned,
    ObjectMeta,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
    encode,
)
from outlive.store import MemoryStore, Store, Synced, Upsert
from outlive.store.sqlite import SqliteStore

OBJECTS = 100_000
WRITERS = 16
SECONDS = 4.0
RUNS = 3


@dataclass(frozen=True)
class Run:
    """One run of the writers."""

    writes_per_s: float
    p50_ms: float
    p99_ms: float
    max_ms: float


def machine(number: int) -> VirtualMachine:
    """A VM as an import writes it, about half a kilobyte of JSON."""
    return VirtualMachine(
        metadata=ObjectMeta(
            name=f"6f9619ff-8b86-4011-b42d-{number:012x}",
            labels={
                "outlive.dev/host": f"node-{number % 5000:04}",
                "topology.kubernetes.io/zone": f"zone-{number % 3}",
            },
        ),
        spec=VirtualMachineSpec(
            display_name=f"shop-worker-{number}",
            project="0e4b2f3a7c9d4d5e8f1a2b3c4d5e6f70",
            flavor="general-8x32",
            resources=Amounts(cpu=8000, memory=32 * 2**30),
            disk_gib=64,
            extra_specs={"hw:cpu_policy": "shared", "quota:hw_version": "vmx-20"},
            zone=f"zone-{number % 3}",
        ),
    )


async def fill(store: Store, objects: int) -> list[VirtualMachine]:
    made: dict[int, VirtualMachine] = {}
    numbers = iter(range(objects))

    async def one() -> None:
        for number in numbers:
            made[number] = await store.create(machine(number))

    await asyncio.gather(*(one() for _ in range(256)))
    return [made[number] for number in range(objects)]


async def drive(store: Store, made: list[VirtualMachine], seed: int) -> Run:
    """Sixteen writers swap the status of random objects, each waiting for its answer, while an observer watches."""
    sent: dict[str, float] = {}
    late: list[float] = []
    listed = asyncio.Event()

    async def watch() -> None:
        async for seen in store.observe(VirtualMachine):
            if isinstance(seen, Synced):
                listed.set()
            if isinstance(seen, Upsert) and (began := sent.pop(seen.object.status.reason, None)) is not None:
                late.append(time.perf_counter() - began)

    watching = asyncio.create_task(watch())
    await listed.wait()
    writes = 0
    stop = time.perf_counter() + SECONDS

    async def write(worker: int) -> None:
        nonlocal writes
        random = Random(seed).fork(str(worker))
        while time.perf_counter() < stop:
            at = random.randrange(worker, len(made), WRITERS)
            nonce = f"{seed}-{worker}-{writes}"
            writes += 1
            host = f"node-{random.randrange(5000):04}"
            status = VirtualMachineStatus(
                phase="ACTIVE", reason=nonce, assigned=Assigned(hypervisor=host), home=host, source="bench"
            )
            sent[nonce] = time.perf_counter()
            made[at] = await store.replace_status(change(made[at], status=status))

    began = time.perf_counter()
    await asyncio.gather(*(write(worker) for worker in range(WRITERS)))
    took = time.perf_counter() - began
    await asyncio.sleep(0.2)
    watching.cancel()
    late.sort()
    at_rank = lambda share: late[min(len(late) - 1, int(len(late) * share))] * 1e3  # noqa: E731
    return Run(writes / took, at_rank(0.5), at_rank(0.99), late[-1] * 1e3)


async def runs(opened: Callable[[], Awaitable[Store]]) -> list[Run]:
    store = await opened()
    made = await fill(store, OBJECTS)
    gc.collect()
    gc.freeze()
    try:
        return [await drive(store, made, seed) for seed in range(RUNS)]
    finally:
        gc.unfreeze()
        await store.close()


def sync_ms(directory: str) -> float:
    """What one sync of 64 KiB costs on this disk."""
    path = Path(directory) / "probe"
    with path.open("wb", buffering=0) as file:
        times = []
        for _ in range(200):
            file.seek(0)
            file.write(b"x" * 65536)
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    path.unlink()
    return statistics.median(times) * 1e3


def measure() -> list[Figure]:
    """The figures of the stores."""

    async def memory() -> Store:
        return MemoryStore(SystemClock(), SeededIds(Random(1)))

    with tempfile.TemporaryDirectory(dir=os.environ.get("OUTLIVE_BENCH_DIR")) as directory:

        async def sqlite() -> Store:
            return await SqliteStore.open(Path(directory) / "state", clock=SystemClock(), ids=SeededIds(Random(1)))

        sync = sync_ms(directory)
        durable = asyncio.run(runs(sqlite))
    volatile = asyncio.run(runs(memory))
    size = len(encode(machine(1)))
    median = statistics.median
    note = f"{OBJECTS} objects of {size} bytes when made; one sync of 64 KiB here: {sync:.2f} ms"
    return [
        Figure(
            "SQLite store: durable writes, 16 writers",
            median(r.writes_per_s for r in durable),
            "/s",
            5000,
            "higher",
            note,
        ),
        Figure(
            "SQLite store: observer latency p99, from call to delivery",
            median(r.p99_ms for r in durable),
            "ms",
            20,
            "lower",
            f"p50 {median(r.p50_ms for r in durable):.1f} ms, highest {max(r.max_ms for r in durable):.0f} ms",
        ),
        Figure("memory store: writes, 16 writers", median(r.writes_per_s for r in volatile), "/s", None, "higher"),
    ]


if __name__ == "__main__":
    for figure in measure():
        print(figure)

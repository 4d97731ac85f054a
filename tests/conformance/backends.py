"""The stores that the conformance suite runs against. A new one is one more line in ``BACKENDS``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.conformance.claims import Subject, claims_of
from tests.support.api import TOKENS, api
from tests.support.api_server import shared_server
from tests.support.loops import run
from tests.support.zookeeper import shared_ensemble, zookeeper_store

from outlive.api import Role
from outlive.base import LoopClock, Random, SeededIds, SystemClock
from outlive.store import FaultStore, HttpStore, MemoryStore, Store
from outlive.store.kubernetes import KubernetesStore
from outlive.store.sqlite import SqliteStore

GOODBYE_S = 0.1
"""In which a connection that was being opened when its observer was closed lets go of its socket."""


@asynccontextmanager
async def memory(_: Path) -> AsyncIterator[Store]:
    store = MemoryStore(LoopClock(), SeededIds(Random(1)))
    yield store
    await store.close()


@asynccontextmanager
async def sqlite(path: Path) -> AsyncIterator[Store]:
    store = await SqliteStore.open(path, clock=SystemClock(), ids=SeededIds(Random(1)))
    yield store
    await store.close()


@asynccontextmanager
async def faultless(_: Path) -> AsyncIterator[Store]:
    inner = MemoryStore(LoopClock(), SeededIds(Random(1)))
    store = FaultStore(inner, clock=LoopClock(), random=Random(1))
    yield store
    await store.close()


@asynccontextmanager
async def http(_: Path) -> AsyncIterator[Store]:
    async with api() as server:
        store = server.client()
        yield store
        await store.close()


@asynccontextmanager
async def next_server(_: Path) -> AsyncIterator[Store]:
    """Two servers, of which the first is away."""
    async with api() as server:
        store = HttpStore(f"http://127.0.0.1:1,{server.url}", TOKENS[Role.ADMIN], clock=SystemClock(), random=Random(1))
        yield store
        await store.close()
        await asyncio.sleep(GOODBYE_S)


@asynccontextmanager
async def kubernetes(_: Path) -> AsyncIterator[Store]:
    server = shared_server()
    server.empty()
    store = KubernetesStore(server.access(), clock=SystemClock(), random=Random(1))
    yield store
    await store.close()
    await asyncio.sleep(GOODBYE_S)


@asynccontextmanager
async def zookeeper(_: Path) -> AsyncIterator[Store]:
    store = zookeeper_store(shared_ensemble().new_chroot())
    await store.prepare()
    yield store
    await store.close()


BACKENDS: tuple[Subject[Store], ...] = (
    Subject("memory", memory, run),
    Subject("sqlite", sqlite),
    Subject("faults", faultless, run),
    Subject("http", http),
    Subject("next-server", next_server),
    Subject("kubernetes", kubernetes, component="kubernetes"),
    Subject("zookeeper", zookeeper, component="zookeeper"),
)

claim = claims_of(BACKENDS)

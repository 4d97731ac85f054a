"""The stores that the conformance suite runs against. A new one is one more line in ``BACKENDS``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.api import api
from tests.support.loops import run, run_real

from outlive.base.clock import LoopClock, SystemClock
from outlive.base.ids import SeededIds
from outlive.base.random import Random
from outlive.store import Store
from outlive.store.faults import FaultStore
from outlive.store.memory import MemoryStore
from outlive.store.sqlite import SqliteStore


@dataclass(frozen=True)
class Backend:
    """How to open one store, and on what kind of loop it runs."""

    name: str
    open: Callable[[Path], AbstractAsyncContextManager[Store]]
    """Opens a new, empty store; the path is an empty directory for it to use."""
    run: Callable[[Coroutine[Any, Any, None]], None] = run_real


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


BACKENDS: tuple[Backend, ...] = (
    Backend("memory", memory, run),
    Backend("sqlite", sqlite),
    Backend("faults", faultless, run),
    Backend("http", http),
)

Claim = Callable[[Store], Coroutine[Any, Any, None]]


def claim(function: Claim) -> Callable[[Backend, Path], None]:
    """Turn a coroutine function of a store into a test of every backend."""

    def test(backend: Backend, tmp_path: Path) -> None:
        async def on_open_store() -> None:
            async with backend.open(tmp_path) as store:
                await function(store)

        backend.run(on_open_store())

    test.__name__ = test.__qualname__ = getattr(function, "__name__", "claim")
    return pytest.mark.parametrize("backend", BACKENDS, ids=lambda backend: backend.name)(test)

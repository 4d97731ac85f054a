"""The stores of the product as a simulated cluster reaches them: one more is one more line in ``REAL_STORES``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from outlive.base.clock import LoopClock
from outlive.base.ids import SystemIds
from outlive.simulation.live import Connect
from outlive.store import Store
from outlive.store.sqlite import SqliteStore
from tests.support.api import api


@dataclass(frozen=True)
class RealStore:
    """A store, and how each process of a cluster gets its connection."""

    name: str
    open: Callable[[Path], AbstractAsyncContextManager[Connect]]
    """Opens a new, empty store; the path is an empty directory for it to use."""


@asynccontextmanager
async def sqlite(path: Path) -> AsyncIterator[Connect]:
    """All processes as parts of the one that has the file."""
    store = await SqliteStore.open(path, clock=LoopClock(), ids=SystemIds())
    try:
        yield lambda: store
    finally:
        await store.close()


@asynccontextmanager
async def http(path: Path) -> AsyncIterator[Connect]:
    """Each process with sockets of its own, to the HTTP server before the file."""
    clients: list[Store] = []
    async with sqlite(path) as connect, api(connect()) as server:

        def connected() -> Store:
            client = server.client()
            clients.append(client)
            return client

        try:
            yield connected
        finally:
            for client in clients:
                await client.close()


REAL_STORES: tuple[RealStore, ...] = (RealStore("sqlite", sqlite), RealStore("http", http))

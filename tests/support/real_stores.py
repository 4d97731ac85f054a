"""The stores of the product as a simulated cluster reaches them: one more is one more line in ``REAL_STORES``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yarl import URL

from outlive.api import Role
from outlive.base import LoopClock, Random, SeededIds
from outlive.store import HttpStore, Store
from outlive.store.kubernetes import KubernetesStore
from outlive.store.sqlite import SqliteStore
from tests.support.accelerated import outside
from tests.support.api import TOKENS, api
from tests.support.api_server import shared_server
from tests.support.live_store import TOLERANCE_S, Connect
from tests.support.zookeeper import shared_ensemble, zookeeper_store

UP_S, AWAY_S = 23.0, 3.0
"""Seconds of the loop: away first while a host is silent that has lost power at 20 s, and not yet condemned."""


@dataclass(frozen=True)
class RealStore:
    """A store, and how each process of a cluster gets its connection."""

    name: str
    open: Callable[[Path], AbstractAsyncContextManager[Connect]]
    """Opens a new, empty store; the path is an empty directory for it to use."""
    tolerance_s: float = TOLERANCE_S
    """How much later everything may come."""
    component: str = ""
    """What it needs besides the project (``tests/conftest.py``)."""


@asynccontextmanager
async def sqlite(path: Path) -> AsyncIterator[Connect]:
    """All processes as parts of the one that has the file."""
    store = await SqliteStore.open(path, clock=LoopClock(), ids=SeededIds(Random(1)))
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


@asynccontextmanager
async def kubernetes(path: Path) -> AsyncIterator[Connect]:
    """Each process with sockets of its own, to a real API server."""
    server = shared_server()
    server.empty()
    clients: list[Store] = []

    def connected() -> Store:
        client = KubernetesStore(server.access(), clock=LoopClock(), random=Random(1))
        clients.append(client)
        return client

    try:
        yield connected
    finally:
        for client in clients:
            await client.close()


@asynccontextmanager
async def zookeeper(path: Path) -> AsyncIterator[Connect]:
    """Each process with a session of its own, to three real servers."""
    access = shared_ensemble().new_chroot()
    clients: list[Store] = []

    def connected() -> Store:
        client = zookeeper_store(access, clock=LoopClock())
        clients.append(client)
        return client

    first = zookeeper_store(access, clock=LoopClock())
    clients.append(first)
    try:
        with outside():
            await first.prepare()
        yield connected
    finally:
        for client in clients:
            await client.close()


@asynccontextmanager
async def restarted(path: Path) -> AsyncIterator[Connect]:
    """The same, and the server is away for ``AWAY_S`` after every ``UP_S``; connections break in mid-call."""
    clients: list[Store] = []
    async with sqlite(path) as connect:
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        server = asyncio.ensure_future(_up_and_down(connect(), url))
        begun: list[asyncio.Future[Any]] = [url, server]
        await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
        if server.done():
            await server

        def connected() -> Store:
            client = HttpStore(url.result(), TOKENS[Role.ADMIN], clock=LoopClock(), random=Random(1))
            clients.append(client)
            return client

        try:
            yield connected
        finally:
            for client in clients:
                await client.close()
            server.cancel()
            await asyncio.wait([server])


async def _up_and_down(store: Store, url: asyncio.Future[str]) -> None:
    port = 0
    while True:
        async with api(store, port=port) as server:
            port = URL(server.url).port or 0
            if not url.done():
                url.set_result(server.url)
            await asyncio.sleep(UP_S)
        await asyncio.sleep(AWAY_S)


REAL_STORES: tuple[RealStore, ...] = (
    RealStore("sqlite", sqlite),
    RealStore("http", http),
    RealStore("kubernetes", kubernetes, component="kubernetes"),
    RealStore("zookeeper", zookeeper, component="zookeeper"),
)
RESTARTED = RealStore("http-restarted", restarted, tolerance_s=15.0)
"""An outage that fencers notice costs its time, the clients' pause, and as long again as a host may be silent."""

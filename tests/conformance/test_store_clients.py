"""What clients of one store may rely on when answers are lost, when there are several, and when it is restored."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import pytest
from tests.conformance.claims import Subject, claims_of
from tests.conformance.objects import vm, with_phase, with_project
from tests.support.api import api
from tests.support.loops import run

from outlive.base import Conflict, LoopClock, NotFound, Random, SeededIds, SystemClock, SystemIds, Unavailable, Unknown
from outlive.resources import Cluster, ObjectMeta, ObjectRef, VirtualMachine
from outlive.simulation import WorldStore
from outlive.store import FaultRates, FaultStore, MemoryStore, Store, StoreProxy
from outlive.store.sqlite import SqliteStore, copy_of
from outlive.store.sqlite.restore import restore

T = TypeVar("T")
REF = ObjectRef(kind="VirtualMachine", name="vm-1")


class Clients(Protocol):
    """Clients of one store, and the way between."""

    writes: int
    """That have arrived at the store."""

    def client(self) -> Store:
        """One more."""
        ...

    def lose_answers(self, lose: bool) -> None:
        """What clients ask for arrives, and the answer does not; or does again."""
        ...


class _Counted(StoreProxy):
    """The store, which counts the writes that arrive."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.writes = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def _read(self, call: Callable[[Store], Awaitable[T]]) -> T:
        return await call(self._inner)

    async def _write(self, call: Callable[[Store], Awaitable[T]]) -> T:
        self.writes += 1
        return await call(self._inner)


class _Faulty:
    """Clients behind ``FaultStore``."""

    def __init__(self) -> None:
        self._store = _Counted(MemoryStore(LoopClock(), SeededIds(Random(1))))
        self._clients: list[FaultStore] = []

    @property
    def writes(self) -> int:
        return self._store.writes

    def client(self) -> Store:
        client = FaultStore(self._store, clock=LoopClock(), random=Random(len(self._clients)))  # type: ignore[arg-type]
        self._clients.append(client)
        return client

    def lose_answers(self, lose: bool) -> None:
        for one in self._clients:
            one.network.rates = FaultRates(lose_applied=1.0 if lose else 0.0)


class _Remote:
    """Clients of an HTTP server, through a relay that hangs up in place of the answer."""

    def __init__(self, server, counted: _Counted) -> None:
        self._server = server
        self._counted = counted
        self._lose = False
        self.port = 0
        self.clients: list[Store] = []

    @property
    def writes(self) -> int:
        return self._counted.writes

    def client(self) -> Store:
        url, self._server.serving.url = self._server.serving.url, f"http://127.0.0.1:{self.port}"
        client = self._server.client()
        self._server.serving.url = url
        self.clients.append(client)
        return client

    def lose_answers(self, lose: bool) -> None:
        self._lose = lose

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._server.url.removeprefix("http://").partition(":")
        there, out = await asyncio.open_connection(host, int(port))

        async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter, *, answers: bool) -> None:
            with contextlib.suppress(ConnectionError):
                while some := await source.read(65536):
                    if answers and self._lose:
                        break
                    to.write(some)
                    await to.drain()
            for one in (writer, out):
                one.close()

        await asyncio.gather(copy(reader, out, answers=False), copy(there, writer, answers=True))


@asynccontextmanager
async def _faulty(_: Path) -> AsyncIterator[Clients]:
    yield _Faulty()


@asynccontextmanager
async def _http(_: Path) -> AsyncIterator[Clients]:
    counted = _Counted(MemoryStore(SystemClock(), SystemIds()))
    async with api(counted) as server:  # type: ignore[arg-type]
        remote = _Remote(server, counted)
        listener = await asyncio.start_server(remote.relay, "127.0.0.1", 0)
        remote.port = listener.sockets[0].getsockname()[1]
        yield remote
        for client in remote.clients:
            await client.close()
        listener.close()


CLIENTS: tuple[Subject[Clients], ...] = (Subject("faults", _faulty, run), Subject("http", _http))
claim = claims_of(CLIENTS)
"""A store that others reach over a network is one more line."""


WRITES: dict[str, Callable[[Store, VirtualMachine], Awaitable[object]]] = {
    "create": lambda store, made: store.create(vm("vm-2")),
    "replace": lambda store, made: store.replace(with_project(made, "lost")),
    "replace_status": lambda store, made: store.replace_status(with_phase(made, "lost")),
    "patch_metadata": lambda store, made: store.patch_metadata(REF, labels={"lost": "yes"}),
    "delete": lambda store, made: store.delete(REF, uid=made.metadata.uid),
}


@claim
async def test_a_write_whose_answer_is_lost_is_unknown_and_arrives_once(clients: Clients) -> None:
    store = clients.client()
    for name, write in WRITES.items():
        with contextlib.suppress(NotFound):
            await store.delete(REF)
        made = await store.create(vm())
        before = clients.writes
        clients.lose_answers(True)
        with pytest.raises(Unknown):
            await write(store, made)
        clients.lose_answers(False)
        await asyncio.sleep(0.1)
        assert clients.writes == before + 1, f"{name} was sent again"


@claim
async def test_after_a_lost_answer_a_fresh_read_shows_what_became_of_it(clients: Clients) -> None:
    store, other = clients.client(), clients.client()
    made = await store.create(vm())
    clients.lose_answers(True)
    with pytest.raises(Unknown):
        await store.replace(with_project(made, "lost"))
    clients.lose_answers(False)
    now = await store.get(VirtualMachine, "vm-1", fresh=True)
    assert now.spec.project == "lost"
    assert await other.get(VirtualMachine, "vm-1", fresh=True) == now
    with pytest.raises(Conflict):
        await store.replace(with_project(made, "once more"))


@claim
async def test_a_read_whose_answer_is_lost_is_unavailable_or_answered_after_all(clients: Clients) -> None:
    store = clients.client()
    await store.create(vm())
    clients.lose_answers(True)
    with contextlib.suppress(Unavailable):
        assert (await store.get(VirtualMachine, "vm-1", fresh=True)).name == "vm-1"
    clients.lose_answers(False)


@claim
async def test_a_fresh_read_of_any_client_sees_what_was_acknowledged_to_any_other(clients: Clients) -> None:
    one, two = clients.client(), clients.client()
    made = await one.create(vm())
    for number in range(20):
        writer, reader = (one, two) if number % 2 else (two, one)
        made = await writer.replace(with_project(made, f"p{number}"))
        assert await reader.get(VirtualMachine, "vm-1", fresh=True) == made


@claim
async def test_of_two_swaps_on_one_version_one_counts(clients: Clients) -> None:
    one, two = clients.client(), clients.client()
    made = await one.create(vm())
    for number in range(10):
        swaps = [client.replace(with_project(made, f"{name}{number}")) for name, client in (("a", one), ("b", two))]
        answers = await asyncio.gather(*swaps, return_exceptions=True)
        won = [each for each in answers if isinstance(each, VirtualMachine)]
        assert len(won) == 1
        assert [type(each) for each in answers if each is not won[0]] == [Conflict]
        made = won[0]


# Restoring


class Restorable(Protocol):
    """A store of which a backup is put back."""

    async def written(self, write: Callable[[Store], Awaitable[T]]) -> T:
        """With the store, in which nobody else writes."""
        ...

    async def back_up(self) -> None:
        """As it is now."""
        ...

    async def restore(self) -> str:
        """The backup in place of the store; its incarnation, as who restores it says."""
        ...


class _Simulated:
    def __init__(self) -> None:
        self._store = WorldStore(
            LoopClock(), SeededIds(Random(1)), lambda write, by: None, lambda write, by, refusal: None
        )

    async def written(self, write: Callable[[Store], Awaitable[T]]) -> T:
        return await write(self._store)

    async def back_up(self) -> None:
        self._store.make_backup()

    async def restore(self) -> str:
        return self._store.restore()


class _File:
    def __init__(self, path: Path) -> None:
        self._live, self._copy = path / "live", path / "copy"
        self._live.mkdir()

    async def written(self, write: Callable[[Store], Awaitable[T]]) -> T:
        store = await SqliteStore.open(self._live, clock=SystemClock(), ids=SystemIds())
        try:
            return await write(store)
        finally:
            await store.close()

    async def back_up(self) -> None:
        self._copy.mkdir()
        for one in self._live.glob("store.db*"):
            (self._copy / one.name).write_bytes(one.read_bytes())

    async def restore(self) -> str:
        return (await restore(copy_of(self._copy), self._live, clock=SystemClock(), ids=SystemIds())).incarnation


@asynccontextmanager
async def _simulated(_: Path) -> AsyncIterator[Restorable]:
    yield _Simulated()


@asynccontextmanager
async def _file(path: Path) -> AsyncIterator[Restorable]:
    yield _File(path)


@claims_of((Subject("simulated", _simulated, run), Subject("sqlite", _file)))
async def test_a_restored_store_is_stamped_and_paused_and_gives_no_version_twice(stores: Restorable) -> None:
    cluster = Cluster(metadata=ObjectMeta(name="default"))
    await stores.written(lambda store: store.create(cluster))
    old = await stores.written(lambda store: store.create(vm()))
    before = (await stores.written(lambda store: store.get(Cluster, "default"))).status.store_incarnation
    await stores.back_up()
    newer = await stores.written(lambda store: store.replace(with_project(old, "after the backup")))
    incarnations = [before, await stores.restore()]
    restored = await stores.written(lambda store: store.get(Cluster, "default", fresh=True))
    assert restored.status.store_incarnation == incarnations[1] != before
    assert restored.status.pause is not None
    assert await stores.written(lambda store: store.get(VirtualMachine, "vm-1", fresh=True)) == old
    with pytest.raises(Conflict):
        await stores.written(lambda store: store.replace(with_project(newer, "over the older one")))
    again = await stores.written(lambda store: store.replace(with_project(old, "anew")))
    given = {one.metadata.resource_version for one in (old, newer)}
    assert given.isdisjoint(one.metadata.resource_version for one in (restored, again))
    incarnations.append(await stores.restore())
    assert len(set(incarnations)) == 3

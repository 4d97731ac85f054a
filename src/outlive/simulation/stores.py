"""The store of a virtual cluster, and how each process reaches it.

One memory store, which refuses a process what the real server refuses a token with its names. Every write is shown to
the judges together with who made it, and every refusal; a backup of it can be made and restored. Each process has its
own way there, with its own faults: what was sent takes effect whatever becomes of the sender, and the answer reaches
nobody who was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from outlive.base import Clock, Ids, NotFound, OutliveError, Random, Unavailable, Unknown
from outlive.node import build_forbidden
from outlive.resources import ADMIN, HUMANS, Cluster, MemberRecord, Membership, Pause, R, Resource, decode, encode
from outlive.simulation.process import Process, go
from outlive.simulation.refusals import WriteRefusal, refusal_of
from outlive.store import (
    FaultObservation,
    FaultRates,
    FaultStore,
    Judge,
    MemoryStore,
    Page,
    Selector,
    Store,
    StoreProxy,
    Tables,
    Write,
    WriteBatch,
)

T = TypeVar("T")
QUIET = FaultRates()
"""Nothing goes wrong on the way to the store."""
HALF = 0.5
CALL_LIMIT_S = 1.0
"""After so long without an answer a process gives a call up."""


def add_lag(rates: FaultRates, lag_s: float) -> FaultRates:
    """The same rates for a process whose server shows changes up to so many seconds late, and older listings."""
    if not lag_s:
        return rates
    return msgspec.structs.replace(
        rates, observer_delay=1.0, observer_delay_max_s=max(lag_s, rates.observer_delay_max_s), stale_relist=1.0
    )


class Author(NamedTuple):
    """Who writes: the process, the host it is on, and the names under which it may write fields."""

    process: str
    host: str
    writers: tuple[str, ...]
    hears: bool = True
    """Whether the answer to what it writes reaches it."""

    @property
    def token(self) -> str:
        """Whose token it has, as the server calls it."""
        return f"host {self.host}" if self.host else f"controller {self.process}"


Wrote = Callable[[Write, Author], None]
Refused = Callable[[Write, Author, WriteRefusal], None]
OUTSIDE = Author("operator", "", HUMANS)
ADMINISTRATOR = Author("admin", "", (ADMIN,))
_author: contextvars.ContextVar[Author] = contextvars.ContextVar("outlive_author", default=OUTSIDE)


def current_author() -> Author:
    """Who writes what is written in the present context."""
    return _author.get()


@contextlib.contextmanager
def set_author(author: Author) -> Iterator[None]:
    """What is written in the block is written by him."""
    token = _author.set(author)
    try:
        yield
    finally:
        _author.reset(token)


class Reached(Store, Protocol):
    """The store at the end of one process's way."""

    @property
    def incarnation(self) -> str:
        """Changes when a backup is put back."""
        ...


class _Batch(WriteBatch):
    """A batch of one write, that finds what was decoded once."""

    def __init__(self, tables: Tables, decoded: Mapping[tuple[str, str], Resource]) -> None:
        super().__init__(tables)
        self._decoded = decoded

    def find(self, kind: type[R], key: str) -> R | None:
        return self._decoded.get((kind.kind(), key))  # type: ignore[return-value]


class WorldStore(MemoryStore):
    """See the module. ``wrote`` is called for every write that changes something, once it counts; ``refused`` for every
    one that its author may not make."""

    def __init__(self, clock: Clock, ids: Ids, wrote: Wrote, refused: Refused) -> None:
        super().__init__(clock, ids)
        self._wrote = wrote
        self._refused = refused
        self._backup: dict[str, dict[str, bytes]] | None = None
        self._decoded: dict[tuple[str, str], Resource] = {}
        self._pages: dict[str, dict[tuple[str, int, str], Page[Any]]] = {}
        """Kind → pages that were listed since it was last written."""

    async def get(self, kind: type[R], name: str, *, fresh: bool = False) -> R:
        """As every local store's; objects are frozen, so those that were decoded once are kept."""
        await asyncio.sleep(0)
        self._check_open()
        found = self._decoded.get((kind.kind(), name))
        if found is not None:
            return found  # type: ignore[return-value]
        return await super().get(kind, name, fresh=fresh)

    async def list(
        self, kind: type[R], *, selector: Selector | None = None, limit: int = 500, token: str = ""
    ) -> Page[R]:
        """As every local store's, of what was decoded once. Thousands of daemons ask for the same pages."""
        await asyncio.sleep(0)
        self._check_open()
        name = kind.kind()
        pages, asked = self._pages.setdefault(name, {}), (str(selector or ""), limit, token)
        known = pages.get(asked)
        if known is not None:
            return known
        rows = self._tables.table_of(kind).list_after(token, limit)
        found: Sequence[R] = [self._decoded[(name, key)] for key, _ in rows]  # type: ignore[misc]
        if selector is not None:
            found = [one for one in found if selector.matches(one.metadata.labels)]
        pages[asked] = page = Page(tuple(found), rows[-1][0] if len(rows) == limit else "")
        return page

    def find(self, kind: type[R], name: str) -> R | None:
        """The object as it is now, if there is one."""
        return self._decoded.get((kind.kind(), name))  # type: ignore[return-value]

    def find_member_record(self, host: str) -> MemberRecord | None:
        """What the store says of a host's membership."""
        found = self.find(Membership, host)
        return found.record if found is not None else None

    def list_all(self, kind: type[R]) -> Sequence[R]:
        """All objects of a kind, in name order."""
        name = kind.kind()
        return [self._decoded[(name, key)] for key, _ in self._tables.table_of(kind).list_all()]  # type: ignore[misc]

    async def _submit(self, judge: Judge) -> Resource:
        return await super()._submit(lambda _: self._permit(judge(self._make_batch())))

    def _make_batch(self) -> WriteBatch:
        return _Batch(self._tables, self._decoded)

    def _permit(self, write: Write) -> Write:
        """The write; ``Forbidden`` where the server refuses it. People of a story are never refused: what an operator
        may not do is theirs to do as administrators, and the judges are told that they did not say so."""
        author = current_author()
        if ADMIN in author.writers:
            return write
        refusal = refusal_of(self, write, author.host, author.writers)
        if refusal is not None:
            self._refused(write, author, refusal)
            if author.writers != HUMANS:
                raise build_forbidden(author.token, refusal.why)
        return write

    def _count(self, batch: WriteBatch) -> None:
        for write in batch.writes:
            place = (write.kind.kind(), write.key)
            self._pages.pop(place[0], None)
            if write.after is None:
                self._decoded.pop(place, None)
            else:
                self._decoded[place] = write.after
        super()._count(batch)
        for write in batch.writes:
            self._wrote(write, current_author())

    def make_backup(self) -> None:
        """Make a backup."""
        self._backup = {kind: dict(table.list_all()) for kind, table in self._tables}

    def restore(self) -> str:
        """Put the last backup back, as a store that knows that it is another one now; its new incarnation."""
        if self._backup is None:
            raise NotFound("there is no backup", remedy="make one before")
        self.incarnation = self._ids.new_uuid()
        for kind, rows in self._backup.items():
            self._tables.load(kind, rows)
        self._decode_all()
        cluster = self._decoded.get(("Cluster", "default"))
        if isinstance(cluster, Cluster):
            version = WriteBatch(self._tables).next_version()
            marked = msgspec.structs.replace(
                cluster,
                metadata=msgspec.structs.replace(cluster.metadata, resource_version=version),
                status=cluster.status.with_incarnation(self.incarnation, Pause()),
            )
            self._decoded[("Cluster", "default")] = marked
            self._tables.table_of(Cluster).put("default", encode(marked))
        self._observers.relist()
        return self.incarnation

    @property
    def failing(self) -> bool:
        """Whether the store itself, and not the way there, does not answer: never."""
        return False

    def way_end(self, process: str) -> Reached:
        """What is at the end of that process's way."""
        return self

    async def fill(self, objects: Iterable[Resource]) -> None:
        """Put in what there is at the beginning, before anybody reads or observes."""
        self.load(objects)

    def load(self, objects: Iterable[Resource]) -> None:
        """As they are, before anybody reads or observes."""
        super().load(objects)
        self._decode_all()

    def overlay(self, objects: Iterable[Resource]) -> None:
        """Put these over what is there, or beside it, before anybody reads or observes."""
        self._pages.clear()
        for obj in objects:
            meta = obj.metadata
            version = WriteBatch(self._tables).next_version()
            laid = msgspec.structs.replace(
                obj,
                metadata=msgspec.structs.replace(meta, uid=meta.uid or self._ids.new_uuid(), resource_version=version),
            )
            key = meta.name
            self._tables.table_of(type(obj)).put(key, encode(laid))
            self._decoded[(obj.kind(), key)] = laid

    def _decode_all(self) -> None:
        self._pages.clear()
        self._decoded = {
            (kind, key): decode(self._tables.kinds[kind], raw)
            for kind, table in self._tables
            for key, raw in table.list_all()
        }


class ProcessStore(StoreProxy):
    """The store as one process reaches it, under one name: ``Store``."""

    embedded: bool = False

    def __init__(self, way: StoreLink, author: Author) -> None:
        self._way = way
        self._author = author

    def with_writers(self, *writers: str) -> ProcessStore:
        """The same way under other names."""
        return ProcessStore(self._way, self._author._replace(writers=writers))

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> FaultObservation[R]:
        """A stream of its own."""
        return self._way.observe(kind, selector)

    async def _read(self, call: Callable[[Store], Awaitable[T]]) -> T:
        return await self._way.read(call)

    async def _write(self, call: Callable[[Store], Awaitable[T]]) -> T:
        return await self._way.write(call, self._author)

    async def close(self) -> None:
        """The store is everybody's."""


class StoreLink:
    """The way from one process to the store, shared by its names; ``acknowledged`` hears what was answered."""

    def __init__(
        self,
        store: Reached,
        process: Process,
        *,
        clock: Clock,
        random: Random,
        acknowledged: Callable[[object], None],
    ) -> None:
        self._store = store
        self.faults = FaultStore(store, clock=clock, random=random)
        self.hears = True
        self.sends = True
        self._process = process
        self._random = random.fork("timeouts")
        self._acknowledged = acknowledged
        self.latency_s = 0.0
        """Of every call, one way."""
        self.interruptions = 0
        """How often something that got through before did not any more."""

    def set(self, *, sends: bool, hears: bool) -> None:
        """What gets through from now on. Observers need to hear only: their request was sent before."""
        self.interruptions += (self.sends and not sends) or (self.hears and not hears)
        self.sends, self.hears = sends, hears
        if hears and not self.faults.network.reachable:
            self.faults.network.heal()
        elif not hears and self.faults.network.reachable:
            self.faults.network.cut()

    def observe(self, kind: type[R], selector: Selector | None) -> FaultObservation[R]:
        """A stream of its own."""
        return self.faults.observe(kind, selector=selector)

    async def read(self, call: Callable[[Store], Awaitable[T]]) -> T:
        """``Unavailable`` where it is not reached."""
        self._process.check()
        if not (self.sends and self.hears):
            await asyncio.sleep(CALL_LIMIT_S)
            raise Unavailable("the store does not answer", remedy="see the network to it")
        answer = await self._pass_through(call)
        self._process.check()
        if not self.hears:
            raise Unavailable("the answer was lost", remedy="see the network to the store")
        return answer

    async def write(self, call: Callable[[Store], Awaitable[T]], author: Author) -> T:
        """``Unknown`` where it may have arrived, and its answer cannot."""
        self._process.check()
        incarnation = self._store.incarnation
        with set_author(author if self.hears else author._replace(hears=False)):
            if not self.sends:
                await asyncio.sleep(CALL_LIMIT_S)
                if self._random.random() < HALF:
                    raise Unknown("the store did not answer", remedy="read it again")
                raise Unavailable("the store is not reached", remedy="see the network to it")
            if not self.hears:  # it arrives and counts, and the process does not learn that
                with contextlib.suppress(OutliveError):
                    await call(self._store)
                await asyncio.sleep(CALL_LIMIT_S)
                raise Unknown("the store did not answer", remedy="read it again")
            answer = await self._pass_through(call)
        self._process.check()
        if not (self.sends and self.hears):
            raise Unknown("the answer was lost", remedy="read it again")
        if self._store.incarnation == incarnation:  # what a backup has undone meanwhile was kept until then
            self._acknowledged(answer)
        return answer

    async def _pass_through(self, call: Callable[[Store], Awaitable[T]]) -> T:
        """Directly where nothing goes wrong; else in a task of its own, which a halt or a kill does not touch."""
        network = self.faults.network
        if (network.rates is QUIET or network.rates == QUIET) and not self.latency_s:
            return await call(self._store if network.reachable else self.faults)

        async def send_call() -> T:
            await asyncio.sleep(self.latency_s)
            answer = await call(self.faults)
            await asyncio.sleep(self.latency_s)
            return answer

        return await self._process.call(go(send_call(), name=f"{self._process.name}/store"))

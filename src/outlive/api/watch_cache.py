"""What watches are served from: of each kind that is watched, the last states and a ring of recent changes.

A store observes, but its versions have no order that a client could resume from. A cache observes a kind once,
numbers what it sees, and serves any number of watches: from the states that it holds (initial events), or from
a number on (resume), as long as that is still in the ring. Numbers begin at the milliseconds of the server's
start, so that those of an earlier run are older than anything in the ring and answered ``Expired``. Clients of
the Kubernetes protocol also resume from the version of the last object that they saw; the ring finds it.

A cache's order is that of the store's observer: per object never an older state after a newer one. It trails the
store by the time that an observer takes, so a listing is never served from it unless the client asks for that.
The states of a kind are held as JSON for as long as the server runs once somebody listed or watched it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

from outlive.api.config import CACHE_READY_SECONDS, RING_CHANGES
from outlive.api.errors import Expired
from outlive.base import Clock, OutliveError, Unavailable, get_logger
from outlive.resources import Resource, encode, hosts_of
from outlive.store import Change, Delete, Malformed, Reset, Store, Synced, Upsert

RESTART_SECONDS_LEAST: Final = 0.5
RESTART_SECONDS_MOST: Final = 30.0
"""How long a cache waits before it observes again after the store failed: doubling, up to this."""
NUMBERS_PER_MILLISECOND: Final = 1 << 16

_log = get_logger("api.watch_cache")

WatchEventType = Literal["ADDED", "MODIFIED", "DELETED"]


@dataclass(frozen=True, slots=True)
class CachedObject:
    """One object as it is sent."""

    name: str
    uid: str
    version: str
    labels: dict[str, str]
    raw: bytes
    hosts: tuple[str, ...] = ()
    """Those that it belongs to (``resources.readers.hosts_of``)."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change, with its number in the cache."""

    number: int
    type: WatchEventType
    entry: CachedObject
    before: CachedObject | None
    """The state before, to know whether a selector selected it."""


class WatchCache:
    """The states and recent changes of one kind."""

    def __init__(self, store: Store, kind: type[Resource], *, clock: Clock, ring: int = RING_CHANGES) -> None:
        self.kind = kind
        self._store = store
        self._clock = clock
        self._ring: deque[WatchEvent] = deque()
        self._ring_limit = ring
        self._numbers: dict[str, tuple[str, int] | None] = {}
        """Version → object and its first number in the ring; ``None`` for a version that two objects have."""
        self._entries: dict[str, CachedObject] = {}
        self._unseen: dict[str, CachedObject] | None = None
        """While listing again after a reset: what has not been named yet."""
        self._waiting: list[asyncio.Future[None]] = []
        self._ready = asyncio.Event()
        self._complete = False
        """Whether a first listing was ever complete: nothing of it is a change, for nobody can have seen less."""
        self.number = int(clock.now() * 1000) * NUMBERS_PER_MILLISECOND
        """Of the last change."""
        self._oldest = self.number
        """The lowest number from which a watch may resume."""

    @property
    def trusted(self) -> bool:
        """Whether the states are known to follow the store; false while listing after a doubt."""
        return self._ready.is_set()

    async def run(self) -> None:
        """Follow the store for ever; a failing store is observed again after a while."""
        pause = RESTART_SECONDS_LEAST
        while True:
            try:
                async for change in self._store.observe(self.kind):
                    self.apply(change)
                    if isinstance(change, Synced):
                        pause = RESTART_SECONDS_LEAST
            except OutliveError as error:
                _log.warning("api.watch_cache.lost", kind=self.kind.kind(), error=str(error), retry_s=pause)
            except Exception:  # noqa: BLE001 - watches must not go silent for a defect: it is logged and begun again
                _log.exception("api.watch_cache.defect", kind=self.kind.kind(), retry_s=pause)
            self.apply(Reset())
            await self._clock.sleep(pause)
            pause = min(pause * 2, RESTART_SECONDS_MOST)

    async def wait_ready(self) -> None:
        """Return once the first listing is complete; ``Unavailable`` if that takes too long."""
        if self._ready.is_set():
            return
        try:
            async with asyncio.timeout(CACHE_READY_SECONDS):
                await self._ready.wait()
        except TimeoutError:
            raise Unavailable(
                f"{self.kind.info.plural} are still being listed after {CACHE_READY_SECONDS:g} s", remedy="try again"
            ) from None

    def apply(self, change: Change[Resource]) -> None:
        """Take over one change of the store."""
        match change:
            case Upsert(obj):
                self._upsert(obj)
            case Delete(ref, _):
                key = ref.name
                if self._unseen is not None:
                    self._unseen.pop(key, None)
                entry = self._entries.get(key)
                if entry is not None and (not ref.uid or ref.uid == entry.uid):
                    self._remove(entry)
            case Malformed(ref):  # what was understood of it last stays
                if self._unseen is not None:
                    self._unseen.pop(ref.name, None)
            case Reset():
                self._ready.clear()
                self._unseen = dict(self._entries)
            case Synced():
                for entry in (self._unseen or {}).values():
                    self._remove(entry)
                self._unseen = None
                self._complete = True
                self._ready.set()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _upsert(self, obj: Resource) -> None:
        meta = obj.metadata
        key = meta.name
        if self._unseen is not None:
            self._unseen.pop(key, None)
        before = self._entries.get(key)
        if before is not None and before.uid == meta.uid and before.version == meta.resource_version:
            return
        if before is not None and before.uid != meta.uid:
            self._remove(before)
            before = None
        entry = CachedObject(meta.name, meta.uid, meta.resource_version, meta.labels, encode(obj), hosts_of(obj))
        self._entries[key] = entry
        self._record("ADDED" if before is None else "MODIFIED", entry, before)

    def _remove(self, entry: CachedObject) -> None:
        del self._entries[entry.name]
        self._record("DELETED", entry, entry)

    def _record(self, what: WatchEventType, entry: CachedObject, before: CachedObject | None) -> None:
        self.number += 1
        if not self._complete:
            self._oldest = self.number
            return
        self._ring.append(WatchEvent(self.number, what, entry, before))
        known = self._numbers.setdefault(entry.version, (entry.name, self.number))
        if known is not None and known[0] != entry.name:
            self._numbers[entry.version] = None
        while len(self._ring) > self._ring_limit:
            old = self._ring.popleft()
            self._oldest = old.number
            self._numbers.pop(old.entry.version, None)

    def next_change(self, after: int) -> asyncio.Future[None]:
        """Done as soon as something has happened beyond that number, or trust has changed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.number > after:
            future.set_result(None)
        else:
            self._waiting = [other for other in self._waiting if not other.done()]
            self._waiting.append(future)
        return future

    def list_entries(self) -> tuple[list[CachedObject], int]:
        """All states in name order, and the number that a watch goes on from."""
        return [self._entries[key] for key in sorted(self._entries)], self.number

    def find_number(self, version: str) -> int:
        """The number of a client's ``resourceVersion``; ``Expired`` if it is not in the ring."""
        known = self._numbers.get(version)
        if known is not None:
            return known[1]
        if (
            version.isascii()
            and version.isdigit()
            and len(version) < 20
            and self._oldest <= int(version) <= self.number
        ):
            return int(version)
        raise self._expired_error(version)

    def check(self, number: int) -> None:
        """``Expired`` if something after that number has left the ring."""
        if number < self._oldest:
            raise self._expired_error(str(number))

    def events_since(self, number: int) -> Iterator[WatchEvent]:
        """Everything after that number; ``Expired`` if a part of it has left the ring."""
        self.check(number)
        if number >= self.number:
            return iter(())
        newer = self.number - number
        return iter(list(islice(self._ring, max(0, len(self._ring) - newer), None)))

    def _expired_error(self, version: str) -> Expired:
        return Expired(f"resourceVersion {version[:80]} is too old", remedy="list again and watch from there")


def coalesce(events: Iterable[WatchEvent]) -> list[WatchEvent]:
    """Of each object the last change only, a deletion before the successor of the same name kept.

    A client that resumes then never sees an older state after one that it has listed meanwhile.
    """
    last: dict[tuple[str, str], WatchEvent] = {}
    first: dict[tuple[str, str], WatchEvent] = {}
    for event in events:
        identity = (event.entry.name, event.entry.uid)
        first.setdefault(identity, event)
        last.pop(identity, None)
        last[identity] = event
    result: list[WatchEvent] = []
    for identity, event in last.items():
        began = first[identity]
        what: WatchEventType = event.type
        if what == "MODIFIED" and began.type == "ADDED":
            what = "ADDED"
        result.append(WatchEvent(event.number, what, event.entry, began.before))
    return result


class WatchCaches:
    """The caches of all kinds, each begun when it is first asked for."""

    def __init__(self, store: Store, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._caches: dict[type[Resource], tuple[WatchCache, asyncio.Task[None]]] = {}
        self._closed = False

    async def get_cache(self, kind: type[Resource]) -> WatchCache:
        """The kind's cache, once it has listed everything."""
        if self._closed:
            raise Unavailable("the server is stopping", remedy="try again")
        if kind not in self._caches:
            cache = WatchCache(self._store, kind, clock=self._clock)
            task = asyncio.create_task(cache.run(), name=f"watch-cache-{kind.info.plural}")
            self._caches[kind] = (cache, task)
        cache, _ = self._caches[kind]
        await cache.wait_ready()
        return cache

    async def close(self) -> None:
        """Stop all caches."""
        self._closed = True
        for _, task in self._caches.values():
            task.cancel()
        for _, task in self._caches.values():
            await asyncio.wait([task])

"""Streams of changes of the local stores: a listing of one moment, then every change after it.

The listing is taken as encoded rows in one step (some milliseconds) and decoded little by little, so that a
hundred thousand objects neither hold up the event loop nor mix with changes that come meanwhile. Changes wait
in a bounded queue; an observer that is too slow for it gets ``Reset`` and a new listing. Changes are given to observers
in the order of the writes; nothing is coalesced here, though the contract would allow it.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, Generic, cast

from outlive.base import Unavailable, limits
from outlive.resources import HOST_LABEL, SHARES_LABEL, R, Resource
from outlive.store.contract import Change, Delete, Malformed, Reset, Synced, Upsert
from outlive.store.selectors import Selector
from outlive.store.tables import Tables, Write, decode_stored, labels_of

INDEXED: Final = (HOST_LABEL, SHARES_LABEL)
"""Labels by which listings are looked up: thousands of hosts begin at once, each with a listing of its own."""


class ObserverStream(Generic[R]):
    """One observer's stream. For one task at a time; a cancelled wait loses nothing."""

    def __init__(self, tables: Tables, kind: type[R], selector: Selector | None, *, queue: int) -> None:
        self._tables = tables
        self._kind = kind
        self._selector = selector
        wanted = find_label(selector)
        self._needle = b"" if wanted is None else f'"{wanted[0]}":"{wanted[1]}"'.encode()
        """What the encoding of every object that is selected contains."""
        self._limit = queue
        self._queue: deque[Change[R]] = deque()
        self._listing: Iterator[tuple[str, bytes]] = iter(())
        self._synced = False
        self._overflowed = False
        self._closed = False
        self._failure: str = ""
        self._wake: asyncio.Future[None] | None = None
        self._delivered = 0
        self._begin()

    def __aiter__(self) -> ObserverStream[R]:
        return self

    async def __anext__(self) -> Change[R]:
        """The next change; waits for ever if there is none."""
        self._delivered += 1
        if self._delivered % limits.YIELD_OBJECTS == 0:
            await asyncio.sleep(0)
        while True:
            if self._closed:
                raise StopAsyncIteration
            if self._failure:
                raise Unavailable(self._failure, remedy="observe again once the store is back")
            if self._overflowed:
                self._begin()
                return Reset()
            if not self._synced:
                change = self._next_listed()
                if change is not None:
                    return change
                await asyncio.sleep(0)
            elif self._queue:
                return self._queue.popleft()
            else:
                await self._wait()

    async def aclose(self) -> None:
        """Stop; a caller that waits for a change sees the end of the stream."""
        self._closed = True
        self._queue.clear()
        self._listing = iter(())
        self._rouse()

    @property
    def wants(self) -> bool:
        """Whether changes still need to be offered."""
        return not (self._closed or self._failure)

    def offer(self, write: Write) -> None:
        """Take one applied write in."""
        if self._overflowed:
            return
        change = self._change_of(write)
        if change is None:
            return
        if len(self._queue) >= self._limit:
            self.relist()
            return
        self._queue.append(change)
        self._rouse()

    def fail(self, why: str) -> None:
        """End the stream with ``Unavailable``."""
        self._failure = why
        self._rouse()

    def relist(self) -> None:
        """What was delivered may be out of date: ``Reset`` and a new listing come next."""
        self._overflowed = True
        self._queue.clear()
        self._listing = iter(())
        self._rouse()

    def _begin(self) -> None:
        """Take the listing of this moment; every change from now on comes after it."""
        self._queue.clear()
        table, wanted = self._tables.table_of(self._kind), find_label(self._selector)
        indexed = wanted is not None and wanted[0] in INDEXED
        self._listing = table.list_labelled(*wanted) if wanted and indexed else table.list_all()
        self._synced = False
        self._overflowed = False

    def _next_listed(self) -> Change[R] | None:
        """The next of the listing, or ``Synced`` after it; ``None`` if it is time to let others run."""
        for passed, (_, raw) in enumerate(self._listing, 1):
            if self._selector is None or (self._needle in raw and self._selector.matches(labels_of(raw))):
                found = decode_stored(self._kind, raw)
                return found if isinstance(found, Malformed) else Upsert(found)
            if passed == limits.YIELD_OBJECTS:
                return None
        self._listing = iter(())
        self._synced = True
        return Synced()

    def _change_of(self, write: Write) -> Change[R] | None:
        """What this observer sees of the write: an object that stops matching is gone for it."""
        before: Any = write.before
        after: Any = write.after
        selector = self._selector
        if after is not None and (selector is None or selector.matches(after.metadata.labels)):
            return Upsert(after)
        if before is None or not (selector is None or selector.matches(before.metadata.labels)):
            return None
        return Delete(before.ref, before if after is not None else write.answer)

    async def _wait(self) -> None:
        if self._wake is not None:
            raise RuntimeError("an observation is for one task at a time")
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)


def find_label(selector: Selector | None) -> tuple[str, str] | None:
    """A label and the one value of it that the selector asks for; ``None`` if it asks for no such thing."""
    for term in selector.terms if selector is not None else ():
        if term.op == "in" and len(term.values) == 1:
            return term.key, term.values[0]
    return None


_Watching = list[tuple[int, "weakref.ref[ObserverStream[Resource]]"]]
"""Observations with the order in which they began."""
_ByLabel = dict[tuple[str, str] | None, _Watching]
"""Wanted label and value (or none) → observations."""


class Observers:
    """All observers of a store. An observation that nobody holds any more is forgotten.

    Those that ask for one value of a label are found by it, so that a write costs only those whom it may concern: every
    host follows its own virtual machines, and each write of one would else be offered to all hosts.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._all: dict[str, _ByLabel] = {}
        """By kind."""
        self._begun = 0

    def observe(
        self,
        kind: type[R],
        selector: Selector | None,
        *,
        queue: int = limits.OBSERVER_QUEUE,
    ) -> ObserverStream[R]:
        """A new stream that begins with a listing of this moment."""
        observation = ObserverStream(self._tables, kind, selector, queue=queue)
        watching = self._all.setdefault(kind.kind(), {}).setdefault(find_label(selector), [])
        self._begun += 1
        watching.append((self._begun, weakref.ref(cast("ObserverStream[Resource]", observation))))
        return observation

    def publish(self, write: Write) -> None:
        """Offer one applied write to all who observe its kind and whom it may concern, in the order of their begin."""
        by_label = self._all.get(write.kind.kind())
        if not by_label:
            return
        concerned = self._find_listening(by_label, None)
        if len(by_label) > 1 or None not in by_label:
            places: dict[tuple[str, str], None] = {}
            for obj in (write.before, write.after):
                if obj is not None:
                    places.update(dict.fromkeys(obj.metadata.labels.items()))
            for place in places:
                if place in by_label:
                    concerned += self._find_listening(by_label, place)
            concerned.sort(key=_order_key)
        for _, observation in concerned:
            if observation.wants:
                observation.offer(write)

    @staticmethod
    def _find_listening(
        by_label: _ByLabel, place: tuple[str, str] | None
    ) -> list[tuple[int, ObserverStream[Resource]]]:
        """Those that are registered there and still listen, in the order of their begin; forget the others."""
        watching = by_label.get(place, ())
        living = [(begun, one) for begun, reference in watching if (one := reference()) is not None and one.wants]
        if len(living) < len(watching):
            if living:
                by_label[place] = [each for each in watching if (one := each[1]()) is not None and one.wants]
            else:
                del by_label[place]
        return living

    def relist(self) -> None:
        """Let all streams begin again: the tables were exchanged."""
        for observation in self._live_observations():
            observation.relist()

    def fail(self, why: str) -> None:
        """End all streams with ``Unavailable``."""
        for observation in self._live_observations():
            observation.fail(why)
        self._all.clear()

    def _live_observations(self) -> list[ObserverStream[Resource]]:
        """All observations that somebody holds, in the order of their begin."""
        everybody = [each for by_label in self._all.values() for watching in by_label.values() for each in watching]
        found = (reference() for _, reference in sorted(everybody, key=_order_key))
        return [one for one in found if one is not None]


def _order_key(each: tuple[int, object]) -> int:
    return each[0]

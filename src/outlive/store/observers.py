"""Streams of changes of the local stores: a listing of one moment, then every change after it.

The listing is taken as encoded rows in one step (some milliseconds) and decoded little by little, so that a
hundred thousand objects neither hold up the event loop nor mix with changes that come meanwhile. Changes wait
in a bounded queue; whoever is too slow for it gets ``Reset`` and a new listing. Changes are given to observers
in the order of the writes; nothing is coalesced here, though the contract would allow it.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Generic, cast

from outlive.base import limits
from outlive.base.errors import Unavailable
from outlive.resources import R, Resource
from outlive.resources.codec import decode
from outlive.store.contract import Change, Delete, Reset, Synced, Upsert
from outlive.store.selectors import Selector
from outlive.store.tables import Tables, Write, labels_of


class Observation(Generic[R]):
    """One observer's stream. For one task at a time; a cancelled wait loses nothing."""

    def __init__(self, tables: Tables, kind: type[R], namespace: str, selector: Selector | None, *, queue: int) -> None:
        self._tables = tables
        self._kind = kind
        self._prefix = f"{namespace}/" if namespace else ""
        self._selector = selector
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

    def __aiter__(self) -> Observation[R]:
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
                change = self._listed()
                if change is not None:
                    return change
                await asyncio.sleep(0)
            elif self._queue:
                return self._queue.popleft()
            else:
                await self._wait()

    async def aclose(self) -> None:
        """Stop; whoever waits for a change sees the end of the stream."""
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
        if self._overflowed or not write.key.startswith(self._prefix):
            return
        change = self._seen(write)
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
        self._listing = self._tables.table(self._kind).snapshot(self._prefix)
        self._synced = False
        self._overflowed = False

    def _listed(self) -> Change[R] | None:
        """The next of the listing, or ``Synced`` after it; ``None`` if it is time to let others run."""
        for passed, (_, raw) in enumerate(self._listing, 1):
            if self._selector is None or self._selector.matches(labels_of(raw)):
                return Upsert(decode(self._kind, raw))
            if passed == limits.YIELD_OBJECTS:
                return None
        self._listing = iter(())
        self._synced = True
        return Synced()

    def _seen(self, write: Write) -> Change[R] | None:
        """What this observer sees of the write: an object that stops matching is gone for it."""
        before, after = cast("R | None", write.before), cast("R | None", write.after)
        if after is not None and self._selects(after):
            return Upsert(after)
        if before is None or not self._selects(before):
            return None
        return Delete(before.ref, before if after is not None else cast("R", write.answer))

    def _selects(self, obj: Resource) -> bool:
        return self._selector is None or self._selector.matches(obj.metadata.labels)

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


class Observers:
    """All observers of a store. An observation that nobody holds any more is forgotten."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._all: dict[str, list[weakref.ref[Observation[Resource]]]] = {}

    def observe(
        self,
        kind: type[R],
        namespace: str,
        selector: Selector | None,
        *,
        queue: int = limits.OBSERVER_QUEUE,
    ) -> Observation[R]:
        """A new stream that begins with a listing of this moment."""
        observation = Observation(self._tables, kind, namespace, selector, queue=queue)
        watching = self._all.setdefault(kind.kind(), [])
        watching.append(weakref.ref(cast("Observation[Resource]", observation)))
        return observation

    def publish(self, write: Write) -> None:
        """Offer one applied write to all who observe its kind."""
        watching = self._all.get(write.kind.kind())
        if not watching:
            return
        gone = False
        for reference in watching:
            observation = reference()
            if observation is None or not observation.wants:
                gone = True
            else:
                observation.offer(write)
        if gone:
            self._all[write.kind.kind()] = [r for r in watching if (o := r()) is not None and o.wants]

    def relist(self) -> None:
        """Let all streams begin again: the tables were exchanged."""
        for watching in self._all.values():
            for reference in watching:
                if (observation := reference()) is not None:
                    observation.relist()

    def fail(self, why: str) -> None:
        """End all streams with ``Unavailable``."""
        for watching in self._all.values():
            for reference in watching:
                if (observation := reference()) is not None:
                    observation.fail(why)
        self._all.clear()

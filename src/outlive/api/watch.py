"""Watches: an endless answer of one JSON document a line, as the Kubernetes protocol has it.

A watch begins with the present states (``resourceVersion`` absent or 0, or ``sendInitialEvents=true``), or where
an earlier list or watch left off. Bookmarks say at least every ``BOOKMARK_SECONDS`` that the stream is alive, if
the client allows them; none is sent while the server itself is in doubt about its store. A place that is too old
is one ERROR event with a ``Status`` of code 410. Deliveries are at least once; a state in between may be left out
only where a watch resumes (docs/reference/http-api.md#watch).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

import msgspec

from outlive.api.config import BOOKMARK_SECONDS, WATCH_SECONDS
from outlive.api.hub import Entry, Happening, Hub, coalesced
from outlive.api.problems import TooManyRequests, status_document
from outlive.api.wire import Call
from outlive.base.clock import Clock
from outlive.base.errors import OutliveError
from outlive.resources.meta import API_VERSION
from outlive.store import Selector

CHUNK_BYTES: Final = 64 * 1024
"""What is gathered before it is written."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a client wants to watch."""

    selector: Selector | None = None
    name: str = ""
    namespace: str = ""
    version: str = ""
    initial: bool = False
    """Send the present states first, then a bookmark that says so."""
    bookmarks: bool = False
    seconds: float = WATCH_SECONDS

    def selects(self, entry: Entry | None) -> bool:
        """Whether the client wants to see this state."""
        return (
            entry is not None
            and (not self.name or entry.name == self.name)
            and (not self.namespace or entry.namespace == self.namespace)
            and (self.selector is None or self.selector.matches(entry.labels))
        )


Render = Callable[[Entry], bytes]
"""An entry as the document that is sent: itself, or a table of one row."""


class Watches:
    """All watches of a server: how many there are, and the end of all of them."""

    def __init__(self, *, clock: Clock, limit: int, gauge: Callable[[int], None] = lambda _count: None) -> None:
        self._clock = clock
        self._limit = limit
        self._gauge = gauge
        self._open = 0
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End all watches, and refuse new ones."""
        self._closing.set()

    async def serve(self, call: Call, hub: Hub, wish: Wish, render: Render, request_id: str) -> None:
        """Answer the call until the client leaves, its time is over, or the server stops."""
        if self._open >= self._limit:
            raise TooManyRequests(f"{self._open} watches are open", remedy="close some, or raise api.watches")
        self._open += 1
        self._gauge(self._open)
        try:
            await call.start(200, b"application/json", ((b"cache-control", b"no-store"),))
            await self._stream(call, hub, wish, render, request_id)
            await call.chunk(b"", last=True)
        finally:
            self._open -= 1
            self._gauge(self._open)

    async def _stream(self, call: Call, hub: Hub, wish: Wish, render: Render, request_id: str) -> None:
        ends: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(call.until_gone()),
            asyncio.ensure_future(self._closing.wait()),
        ]
        try:
            async for chunk in self._chunks(hub, wish, render, ends):
                await call.chunk(chunk)
        except OutliveError as error:
            await call.chunk(event("ERROR", msgspec.json.encode(status_document(error, request_id))))
        finally:
            for end in ends:
                end.cancel()

    async def _chunks(
        self, hub: Hub, wish: Wish, render: Render, ends: list[asyncio.Future[Any]]
    ) -> AsyncIterator[bytes]:
        deadline = self._clock.monotonic() + wish.seconds
        if wish.initial or wish.version in ("", "0"):
            states, number = hub.states()
            for chunk in gathered(event("ADDED", render(entry)) for entry in states if wish.selects(entry)):
                yield chunk
            if wish.initial:
                yield bookmark(hub, number, initial_end=True)
        else:
            number = hub.place(wish.version)
            happenings = coalesced(hub.since(number))
            number = hub.number
            for chunk in gathered(events(happenings, wish, render)):
                yield chunk
        while not any(end.done() for end in ends):
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return
            changed = hub.changed(number)
            await asyncio.wait([changed, *ends], timeout=min(BOOKMARK_SECONDS, left), return_when="FIRST_COMPLETED")
            if changed.done():
                happenings = list(hub.since(number))
                number = hub.number
                for chunk in gathered(events(happenings, wish, render)):
                    yield chunk
            else:
                changed.cancel()
                if wish.bookmarks and hub.trusted:
                    yield bookmark(hub, number)


def events(happenings: Iterable[Happening], wish: Wish, render: Render) -> Iterable[bytes]:
    """The lines of those happenings that the client wants; leaving the selection is a deletion to it."""
    for happening in happenings:
        now = happening.type != "DELETED" and wish.selects(happening.entry)
        before = wish.selects(happening.before)
        if now:
            yield event("MODIFIED" if before else "ADDED", render(happening.entry))
        elif before:
            yield event("DELETED", render(happening.entry))


def event(what: str, document: bytes) -> bytes:
    """One line of a watch."""
    return b'{"type":"%b","object":%b}\n' % (what.encode(), document)


def bookmark(hub: Hub, number: int, *, initial_end: bool = False) -> bytes:
    """A line that only says how far the watch has come."""
    metadata: dict[str, object] = {"resourceVersion": str(number), "creationTimestamp": None}
    if initial_end:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    document = {"kind": hub.kind.kind(), "apiVersion": API_VERSION, "metadata": metadata}
    return event("BOOKMARK", msgspec.json.encode(document))


def gathered(lines: Iterable[bytes]) -> Iterable[bytes]:
    """The lines in chunks of about ``CHUNK_BYTES``."""
    parts: list[bytes] = []
    size = 0
    for line in lines:
        parts.append(line)
        size += len(line)
        if size >= CHUNK_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)

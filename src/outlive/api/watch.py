"""Watches: an endless answer of one JSON document a line, as the Kubernetes protocol has it.

A watch begins with the present states (``resourceVersion`` absent or 0, or ``sendInitialEvents=true``), or where
an earlier list or watch left off. Bookmarks say at least every ``BOOKMARK_SECONDS`` that the stream is alive, if
the client allows them; none is sent while the server itself is in doubt about its store. A place that is too old
is one ERROR event with a ``Status`` of code 410; a token that was revoked meanwhile, or has ended, is one of code
401, and one that may not read the kind any more is one of code 403: both are asked again before anything is sent.
Deliveries are at least once; a state in between may be left out only where a watch resumes
(docs/reference/http-api.md#watch).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

import msgspec
from starlette.responses import StreamingResponse

from outlive.api.config import BOOKMARK_SECONDS, WATCH_SECONDS
from outlive.api.errors import TooManyRequests, status_document
from outlive.api.requests import JSON
from outlive.api.watch_cache import Entry, WatchCache, WatchEvent, coalesced
from outlive.base.clock import Clock
from outlive.base.errors import OutliveError
from outlive.resources.meta import API_VERSION
from outlive.store import Selector

CHUNK_BYTES: Final = 64 * 1024
"""What is gathered before it is written."""


class WatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a client watches."""

    selector: Selector | None = None
    name: str = ""
    version: str = ""
    initial: bool = False
    """Send the present states first, then a bookmark that says so."""
    bookmarks: bool = False
    seconds: float = WATCH_SECONDS
    host: str | None = None
    """Only what belongs to this host; ``None``: to anybody."""

    def selects(self, entry: Entry | None) -> bool:
        """Whether the client wants to see this state."""
        return (
            entry is not None
            and (not self.name or entry.name == self.name)
            and (self.host is None or self.host in entry.hosts)
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

    def response(
        self, cache: WatchCache, wanted: WatchRequest, render: Render, request_id: str, check: Callable[[], object]
    ) -> StreamingResponse:
        """An answer that ends when the client leaves, its time is over, the server stops, or ``check``, which is asked
        before anything is sent, says that it must."""
        if self._open >= self._limit:
            raise TooManyRequests(f"{self._open} watches are open", remedy="close some, or raise api.watches")
        chunks = self._stream(cache, wanted, render, request_id, check)
        return StreamingResponse(chunks, headers={"cache-control": "no-store"}, media_type=JSON)

    async def _stream(
        self, cache: WatchCache, wanted: WatchRequest, render: Render, request_id: str, check: Callable[[], object]
    ) -> AsyncIterator[bytes]:
        self._open += 1
        self._gauge(self._open)
        closing: asyncio.Future[Any] = asyncio.ensure_future(self._closing.wait())
        try:
            async for chunk in self._chunks(cache, wanted, render, closing):
                check()
                yield chunk
        except OutliveError as error:
            yield line("ERROR", msgspec.json.encode(status_document(error, request_id)))
        finally:
            closing.cancel()
            self._open -= 1
            self._gauge(self._open)

    async def _chunks(
        self, cache: WatchCache, wanted: WatchRequest, render: Render, closing: asyncio.Future[Any]
    ) -> AsyncIterator[bytes]:
        deadline = self._clock.monotonic() + wanted.seconds
        if wanted.initial or wanted.version in ("", "0"):
            states, number = cache.states()
            for chunk in gathered(line("ADDED", render(entry)) for entry in states if wanted.selects(entry)):
                yield chunk
            if wanted.initial:
                yield bookmark(cache, number, initial_end=True)
        else:
            number = cache.place(wanted.version)
            changes = coalesced(cache.since(number))
            number = cache.number
            for chunk in gathered(lines(changes, wanted, render)):
                yield chunk
        while not closing.done():
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return
            changed = cache.changed(number)
            await asyncio.wait([changed, closing], timeout=min(BOOKMARK_SECONDS, left), return_when="FIRST_COMPLETED")
            if changed.done():
                events = list(cache.since(number))
                number = cache.number
                for chunk in gathered(lines(events, wanted, render)):
                    yield chunk
            else:
                changed.cancel()
                if wanted.bookmarks and cache.trusted:
                    yield bookmark(cache, number)


def lines(events: Iterable[WatchEvent], wanted: WatchRequest, render: Render) -> Iterable[bytes]:
    """The lines of those events that the client wants; what leaves the selection, or its host, is deleted for it."""
    for event in events:
        now = event.type != "DELETED" and wanted.selects(event.entry)
        before = wanted.selects(event.before)
        if now:
            yield line("MODIFIED" if before else "ADDED", render(event.entry))
        elif before:
            yield line("DELETED", render(event.entry))


def line(what: str, document: bytes) -> bytes:
    """One line of a watch."""
    return b'{"type":"%b","object":%b}\n' % (what.encode(), document)


def bookmark(cache: WatchCache, number: int, *, initial_end: bool = False) -> bytes:
    """A line that only says how far the watch has come."""
    metadata: dict[str, object] = {"resourceVersion": str(number), "creationTimestamp": None}
    if initial_end:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    document = {"kind": cache.kind.kind(), "apiVersion": API_VERSION, "metadata": metadata}
    return line("BOOKMARK", msgspec.json.encode(document))


def gathered(parts: Iterable[bytes]) -> Iterable[bytes]:
    """The parts in chunks of about ``CHUNK_BYTES``."""
    chunk = bytearray()
    for part in parts:
        chunk += part
        if len(chunk) >= CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
    if chunk:
        yield bytes(chunk)

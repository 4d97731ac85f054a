"""Watches: an endless answer of one JSON document a line, as the Kubernetes protocol has it.

A watch begins with the present states (``resourceVersion`` absent or 0, or ``sendInitialEvents=true``), or where
an earlier list or watch left off. Bookmarks say at least every ``BOOKMARK_SECONDS`` that the stream is alive, if
the client allows them; none is sent while the server itself is in doubt about its store. A place that is too old
is one ERROR event with a ``Status`` of code 410, and so is the place of a client that takes its events too slowly; a
token that was revoked meanwhile, or has ended, is one of code 401, and one that may not read the kind any more is one
of code 403: both are asked again before anything is sent.
Deliveries are at least once; a state in between may be left out only where a watch resumes
(docs/reference/http-api.md#watch).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

import msgspec
from starlette.types import Receive, Scope, Send

from outlive.api.auth import HOSTS, Identity
from outlive.api.config import BOOKMARK_SECONDS, WATCH_SECONDS, WATCHES_LEAST, WATCHES_SHARE
from outlive.api.errors import TooManyRequests, status_document
from outlive.api.levels import Turns
from outlive.api.requests import JSON
from outlive.api.streams import StreamedResponse
from outlive.api.watch_cache import CachedObject, WatchCache, WatchEvent, coalesce
from outlive.base import Clock, OutliveError, limits
from outlive.resources import API_VERSION
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

    def selects(self, entry: CachedObject | None) -> bool:
        """Whether the client wants to see this state."""
        return (
            entry is not None
            and (not self.name or entry.name == self.name)
            and (self.host is None or self.host in entry.hosts)
            and (self.selector is None or self.selector.matches(entry.labels))
        )


Render = Callable[[CachedObject], bytes]
"""An entry as the document that is sent: itself, or a table of one row."""


class WatchResponse(StreamedResponse):
    """The answer to a watch, which has a place among the watches until it ends."""

    def __init__(self, chunks: AsyncIterator[bytes], leave: Callable[[], None]) -> None:
        super().__init__(chunks, headers={"cache-control": "no-store"}, media_type=JSON)
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; its place is free afterwards, also where the client left before the first byte."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


class Watches:
    """All watches of a server: how many there are, whose, and the end of all of them.

    One token has at most ``share``, and all that belong to no host leave a quarter of the places to hosts.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        turns: Turns,
        limit: int,
        share: int = 0,
        gauge: Callable[[int], None] = lambda _count: None,
    ) -> None:
        self._clock = clock
        self._limit = limit
        self._share = min(limit, share or max(WATCHES_LEAST, limit // WATCHES_SHARE))
        self._gauge = gauge
        self._turns = turns
        self._open: Counter[str] = Counter()
        """Watches by flow."""
        self._of_hosts = 0
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End all watches, and refuse new ones."""
        self._closing.set()

    def create_response(
        self,
        cache: WatchCache,
        wanted: WatchRequest,
        render: Render,
        request_id: str,
        check: Callable[[], object],
        identity: Identity,
    ) -> WatchResponse:
        """An answer that ends when the client leaves, its time is over, the server stops, or ``check``, which is asked
        before anything is sent, says that it must. ``TooManyRequests`` if there is no place for this token."""
        count, host = self._open.total(), identity.role in HOSTS
        if self._open[identity.flow] >= self._share:
            raise TooManyRequests(
                f"the token {identity.name!r} has {self._share} watches open",
                remedy="close some, or raise api.watchesPerToken",
            )
        if count >= self._limit or (not host and count - self._of_hosts >= self._limit - self._limit // WATCHES_SHARE):
            kept = "" if host or count >= self._limit else f", and {self._limit // WATCHES_SHARE} are kept for hosts"
            raise TooManyRequests(f"{count} watches are open{kept}", remedy="close some, or raise api.watches")
        self._count(identity.flow, host, 1)
        stream = self._stream(cache, wanted, render, request_id, check)
        return WatchResponse(stream, lambda: self._count(identity.flow, host, -1))

    def _count(self, flow: str, host: bool, change: int) -> None:
        self._open[flow] += change
        self._of_hosts += change if host else 0
        if not self._open[flow]:
            del self._open[flow]
        self._gauge(self._open.total())

    async def _stream(
        self, cache: WatchCache, wanted: WatchRequest, render: Render, request_id: str, check: Callable[[], object]
    ) -> AsyncIterator[bytes]:
        closing: asyncio.Future[Any] = asyncio.ensure_future(self._closing.wait())
        try:
            async for chunk in self._produce_chunks(cache, wanted, render, closing):
                check()
                yield chunk
        except OutliveError as error:
            yield encode_line("ERROR", msgspec.json.encode(status_document(error, request_id)))
        finally:
            closing.cancel()

    async def _produce_chunks(
        self, cache: WatchCache, wanted: WatchRequest, render: Render, closing: asyncio.Future[Any]
    ) -> AsyncIterator[bytes]:
        deadline = self._clock.monotonic() + wanted.seconds
        if wanted.initial or wanted.version in ("", "0"):
            states, number = cache.list_entries()
            parts = (encode_line("ADDED", render(entry)) if wanted.selects(entry) else b"" for entry in states)
            async for chunk in self._join_chunks(parts, cache, number):
                yield chunk
            if wanted.initial:
                yield encode_bookmark(cache, number, initial_end=True)
        else:
            start = cache.find_number(wanted.version)
            changes = coalesce(cache.events_since(start))
            number = cache.number
            async for chunk in self._join_chunks(render_events(changes, wanted, render), cache, number):
                yield chunk
        while not closing.done():
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return
            changed = cache.next_change(number)
            await asyncio.wait([changed, closing], timeout=min(BOOKMARK_SECONDS, left), return_when="FIRST_COMPLETED")
            if changed.done():
                events = list(cache.events_since(number))
                number = cache.number
                async for chunk in self._join_chunks(render_events(events, wanted, render), cache, number):
                    yield chunk
            else:
                changed.cancel()
                if wanted.bookmarks and cache.trusted:
                    yield encode_bookmark(cache, number)

    async def _join_chunks(self, parts: Iterable[bytes], cache: WatchCache, number: int) -> AsyncIterator[bytes]:
        """The parts in chunks of about ``CHUNK_BYTES``. ``Expired`` if the client takes them so slowly that the ring
        loses what comes after ``number`` meanwhile: else all that it has not taken would be kept for it."""
        chunk = bytearray()
        for count, part in enumerate(parts, 1):
            chunk += part
            if len(chunk) >= CHUNK_BYTES:
                yield bytes(chunk)
                chunk.clear()
                cache.check(number)
            if count % limits.YIELD_OBJECTS == 0:
                await self._turns.wait()
        if chunk:
            yield bytes(chunk)


def render_events(events: Iterable[WatchEvent], wanted: WatchRequest, render: Render) -> Iterable[bytes]:
    """The lines of the events; empty for those that the client does not want. What leaves the selection, or its host,
    is deleted for it."""
    for event in events:
        now = event.type != "DELETED" and wanted.selects(event.entry)
        before = wanted.selects(event.before)
        if now:
            yield encode_line("MODIFIED" if before else "ADDED", render(event.entry))
        else:
            yield encode_line("DELETED", render(event.entry)) if before else b""


def encode_line(what: str, document: bytes) -> bytes:
    """One line of a watch."""
    return b'{"type":"%b","object":%b}\n' % (what.encode(), document)


def encode_bookmark(cache: WatchCache, number: int, *, initial_end: bool = False) -> bytes:
    """A line that only says how far the watch has come."""
    metadata: dict[str, object] = {"resourceVersion": str(number), "creationTimestamp": None}
    if initial_end:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    document = {"kind": cache.kind.kind(), "apiVersion": API_VERSION, "metadata": metadata}
    return encode_line("BOOKMARK", msgspec.json.encode(document))

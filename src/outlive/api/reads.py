"""The reading half of resources over HTTP: one object, a list, a watch; as JSON or as a table.

``api.auth`` decides what part of an object its reader sees. ``ResourceReader`` writes a list page by page, so that no
answer is ever in memory as a whole (docs/reference/http-api.md#resources).
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from outlive.api.audit import WATCH
from outlive.api.auth import (
    Identity,
    Role,
    check_coordinates,
    may_read,
    read_refusal,
    visible_part,
)
from outlive.api.config import LIST_OBJECTS, LIST_SLICE_BYTES, LIST_SLICE_OBJECTS
from outlive.api.kubernetes import KnownCells, render_table, table_head, table_row
from outlive.api.levels import Turns
from outlive.api.list_places import ListPlaces
from outlive.api.middleware import AUTHENTICATE, REQUEST_ID
from outlive.api.requests import (
    JSON,
    IncludeObject,
    RequestTarget,
    include_object,
    json_response,
    label_selector,
    list_head,
    name_selector,
    object_response,
    read_flag,
    read_number,
    split_continue,
    wanted_table,
)
from outlive.api.streams import StreamedResponse
from outlive.api.watch import Render, Watches, WatchRequest
from outlive.api.watch_cache import CachedObject, WatchCaches
from outlive.base import Clock, NotFound
from outlive.resources import (
    OF_A_VM,
    Resource,
    Secret,
    VirtualMachine,
    decode,
    encode,
    vm_of_object,
)
from outlive.store import Page, Selector, Store, read

_Part = Callable[[Resource], Resource | None]
"""The part of an object that its reader sees; ``None``: nothing."""


def _keep_whole(obj: Resource) -> Resource:
    return obj


class ResourceReader:
    """Answers GET for ``api.resources``."""

    def __init__(
        self,
        store: Store,
        caches: WatchCaches,
        watches: Watches,
        turns: Turns,
        clock: Clock,
        known_cells: KnownCells,
        places: ListPlaces,
    ) -> None:
        self._store = store
        self._caches = caches
        self._watches = watches
        self._turns = turns
        self._clock = clock
        self._known_cells = known_cells
        self._places = places

    async def get(self, request: Request, identity: Identity, target: RequestTarget) -> Response:
        """One object."""
        own, vm = may_read(identity, target.kind).own, None
        if own and issubclass(target.kind, OF_A_VM):
            vm = await read(self._store, VirtualMachine, vm_of_object(target.kind, target.name))
            if vm is None or identity.host not in vm.placed_hosts():
                raise read_refusal(identity, target.kind, target.name)
        if identity.role is Role.COORDINATOR and target.kind is Secret:
            await check_coordinates(self._store, identity)
        fresh = "resourceVersion" not in request.query_params
        obj = visible_part(identity, await self._store.get(target.kind, target.name, fresh=fresh), vm=vm)
        if obj is None:
            raise read_refusal(identity, target.kind, target.name)
        version = wanted_table(request)
        if not version:
            return object_response(obj)
        metadata = {"resourceVersion": obj.metadata.resource_version}
        return json_response(self._render_table(request, target, [obj], version, metadata))

    async def list_objects(self, request: Request, identity: Identity, target: RequestTarget) -> Response:
        """The objects of a kind that the query selects."""
        part: _Part = partial(visible_part, identity, verb="list")
        if may_read(identity, target.kind, "list").everything:
            part = _keep_whole
        selector = label_selector(request)
        wanted_name = name_selector(request)
        limit = read_number(request, "limit", default=0, most=LIST_OBJECTS)
        position, token = split_continue(request.query_params.get("continue", ""))
        token = token if part is _keep_whole else self._places.open(token, target.kind.info.plural)
        if not position:
            position = str((await self._caches.get_cache(target.kind)).number)
        version = wanted_table(request)
        if wanted_name:
            pages = self._single_page(await self._read_named(target, wanted_name, selector))
        else:
            pages = self._read_pages(target, selector, limit or (LIST_OBJECTS if version else 0), token)
        body = self._list_document(request, target, pages, part, version, position)
        first = await anext(body)  # what fails, fails before the answer begins

        async def stream_chunks() -> AsyncIterator[bytes]:
            yield first
            async for chunk in body:
                yield chunk

        return StreamedResponse(stream_chunks(), media_type=JSON)

    async def _read_named(self, target: RequestTarget, name: str, selector: Selector | None) -> Page[Resource]:
        try:
            obj = await self._store.get(target.kind, name, fresh=True)
        except NotFound:
            return Page(())
        return Page((obj,) if selector is None or selector.matches(obj.metadata.labels) else ())

    async def _single_page(self, page: Page[Resource]) -> AsyncGenerator[Page[Resource], int]:
        yield page

    async def _read_pages(
        self, target: RequestTarget, selector: Selector | None, most: int, token: str
    ) -> AsyncGenerator[Page[Resource], int]:
        """Small pages, up to so many objects together (0: all). It is sent the bytes of each page, and reads fewer
        objects at a time where they are large."""
        size, count = LIST_SLICE_OBJECTS, 0
        while True:
            await self._turns.wait()
            page = await self._store.list(
                target.kind, selector=selector, limit=min(size, most - count) if most else size, token=token
            )
            written = yield page
            count, token = count + len(page.items), page.token
            if not token or count == most:
                return
            size = max(1, min(LIST_SLICE_OBJECTS, len(page.items) * LIST_SLICE_BYTES // max(1, written)))

    async def _list_document(
        self,
        request: Request,
        target: RequestTarget,
        pages: AsyncGenerator[Page[Resource], int],
        part: _Part,
        version: str,
        position: str,
    ) -> AsyncIterator[bytes]:
        """A list, or its table, page by page, so that no answer is ever in memory as a whole; its metadata come last.

        ``part``: what the reader sees of each object.
        """
        head: bytes = list_head(target.kind)
        include: IncludeObject = "Metadata"
        if version:
            head, include = table_head(target.kind, version), include_object(request)
        token, comma = "", b""
        with contextlib.suppress(StopAsyncIteration):
            page = await anext(pages)
            while True:
                rows = [
                    msgspec.json.encode(table_row(item, self._clock.now(), include, self._known_cells(item)))
                    if version
                    else encode(item)
                    for item in map(part, page.items)
                    if item is not None
                ]
                chunk = head + (comma + b",".join(rows) if rows else b"")
                head, comma, token = b"", b"," if rows else comma, page.token
                yield chunk
                page = await pages.asend(len(chunk))
        token = token if part is _keep_whole else self._places.seal(token, target.kind.info.plural)
        metadata = {"resourceVersion": position} | ({"continue": f"{position}.{token}"} if token else {})
        yield b'],"metadata":%b}\n' % msgspec.json.encode(metadata)

    def _render_table(
        self, request: Request, target: RequestTarget, objects: list[Resource], version: str, metadata: dict[str, str]
    ) -> dict[str, Any]:
        return render_table(
            target.kind,
            objects,
            version=version,
            now=self._clock.now(),
            include=include_object(request),
            metadata=dict(metadata),
            known_cells=self._known_cells,
        )

    async def watch(self, request: Request, identity: Identity, target: RequestTarget) -> Response:
        """The changes of a kind, until the watch ends."""
        found = may_read(identity, target.kind, "watch")
        wanted = WatchRequest(
            selector=label_selector(request),
            name=name_selector(request),
            version=request.query_params.get("resourceVersion", ""),
            initial=read_flag(request, "sendInitialEvents"),
            bookmarks=read_flag(request, "allowWatchBookmarks"),
            seconds=float(read_number(request, "timeoutSeconds", default=3600, most=3600)),
            host=identity.host if found.own else None,
        )
        cache = await self._caches.get_cache(target.kind)
        request_id: str = request.scope["state"].get(REQUEST_ID, "")
        authenticate: Callable[[], Identity] = request.scope["state"][AUTHENTICATE]
        request.scope["state"][WATCH] = True

        def check() -> None:
            may_read(authenticate(), target.kind, "watch")

        return self._watches.create_response(
            cache, wanted, self._make_renderer(request, identity, target), request_id, check, identity
        )

    def _make_renderer(self, request: Request, identity: Identity, target: RequestTarget) -> Render:
        """Each entry as the reader is shown it; what has left its host, as single objects of others are shown."""
        version, found = wanted_table(request), may_read(identity, target.kind, "watch")

        def part(entry: CachedObject) -> Resource:
            mine = not found.own or identity.host in entry.hosts
            seen = visible_part(identity, decode(target.kind, entry.raw), "watch" if mine else "get")
            assert seen is not None
            return seen

        def encode_entry(entry: CachedObject) -> bytes:
            mine = not found.own or identity.host in entry.hosts
            whole = mine and (found.view is None or found.mark not in entry.raw)
            return entry.raw if whole else encode(part(entry))

        if not version:
            return encode_entry
        include_object(request)  # what is malformed is refused before the stream begins

        def one_row(entry: CachedObject) -> bytes:
            obj = part(entry)
            return msgspec.json.encode(
                self._render_table(request, target, [obj], version, {"resourceVersion": entry.version})
            )

        return one_row

"""Resources over HTTP: the part of the Kubernetes protocol that docs/reference/http-api.md#resources defines.

Handlers are thin: they read the request, call the store once (a patch: read, apply, compare-and-swap), and write
the answer. Decoding is strict whatever ``fieldValidation`` says. A patch that names no version is applied again
when somebody else's write came between, at most ``PATCH_ATTEMPTS`` times; one that names a version never is.
A dry run goes to a store in memory that holds nothing but the object as it is, so that the same rules judge it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from outlive.api.admission import (
    DiskOwners,
    Neighbours,
    admitted,
    as_new,
    being_deleted,
    check_deletion,
    completed,
    warned,
    with_finalizer,
)
from outlive.api.audit import CHANGED, DRY_RUN, TARGET
from outlive.api.auth import (
    CHECKED,
    HOSTS,
    Identity,
    Role,
    check_coordinates,
    may_read,
    may_write,
    not_shown,
    shown_to,
)
from outlive.api.config import LIST_OBJECTS, LIST_SLICE_BYTES, LIST_SLICE_OBJECTS, PATCH_ATTEMPTS
from outlive.api.errors import success_document
from outlive.api.kubernetes import row, table, table_head
from outlive.api.levels import Turns
from outlive.api.list_places import ListPlaces
from outlive.api.middleware import AUTHENTICATE, REQUEST_ID, ROUTE
from outlive.api.patches import (
    APPLY_PATCH,
    PATCH_REMEDY,
    PATCHES,
    applied,
    label_changes,
    names_version,
    patched,
    same_but_labels,
)
from outlive.api.permission import permit_write, revoke_tokens
from outlive.api.requests import (
    JSON,
    IncludeObject,
    Target,
    check_preconditions,
    document_of,
    flag,
    include_object,
    is_dry_run,
    json_response,
    label_selector,
    list_head,
    media_type,
    name_selector,
    named,
    number,
    object_response,
    replacing,
    split_continue,
    wanted_table,
)
from outlive.api.watch import Render, Watches, WatchRequest
from outlive.api.watch_cache import Entry, WatchCaches
from outlive.base.clock import Clock
from outlive.base.errors import AlreadyExists, BadInput, Conflict, Invalid, NotFound
from outlive.base.ids import Ids
from outlive.resources import (
    HostLog,
    Hypervisor,
    HypervisorUsage,
    ObjectRef,
    Resource,
    Secret,
    Token,
    VirtualMachine,
)
from outlive.resources.codec import convert, decode, encode
from outlive.resources.documents import parse_request
from outlive.resources.readers import OF_A_VM, restored
from outlive.resources.writers import changed_fields, given_fields
from outlive.store import Page, Selector, Store, read
from outlive.store.memory import MemoryStore
from outlive.store.rules import check_metadata_patch

_Part = Callable[[Resource], Resource | None]
"""What a reader is shown of an object; ``None``: nothing."""


def _whole(obj: Resource) -> Resource:
    return obj


class Resources:
    """The handlers of ``/apis/outlive.dev/v1alpha1/…``."""

    def __init__(
        self,
        store: Store,
        plurals: Mapping[str, type[Resource]],
        caches: WatchCaches,
        watches: Watches,
        turns: Turns,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._store = store
        self._plurals = plurals
        self._caches = caches
        self._watches = watches
        self._turns = turns
        self._clock = clock
        self._owners = DiskOwners(store, clock.monotonic)
        self._ids = ids
        self._places = ListPlaces()

    def _target(self, request: Request, *, status: bool = False) -> Target:
        """What the path names; ``NotFound`` for a kind that is none of ours."""
        parts = request.path_params
        kind = self._plurals.get(parts["plural"])
        if kind is None:
            known = ", ".join(sorted(self._plurals))
            raise NotFound(f"there is no resource {parts['plural'][:80]!r}", remedy=f"one of {known}")
        if status and not kind.has_status():
            raise NotFound(f"{kind.info.plural} have no status of their own", remedy="write the whole document")
        target = Target(kind, parts.get("name", ""), status)
        request.scope["state"] |= {ROUTE: target.route, TARGET: target}
        return target

    async def collection(self, request: Request, identity: Identity) -> Response:
        """List, watch or create."""
        target = self._target(request)
        if request.method == "POST":
            may_write(identity, target.kind, verb="create")
            return await self._create(request, identity, target)
        return await (self._watch if flag(request, "watch") else self._list)(request, identity, target)

    async def item(self, request: Request, identity: Identity) -> Response:
        """Read, replace, patch or delete one object."""
        return await self._one(request, identity, self._target(request))

    async def status(self, request: Request, identity: Identity) -> Response:
        """Read, replace or patch the status half of one object."""
        return await self._one(request, identity, self._target(request, status=True))

    async def _one(self, request: Request, identity: Identity, target: Target) -> Response:
        if request.method in ("GET", "HEAD"):
            return await self._get(request, identity, target)
        verb = "delete" if request.method == "DELETE" else "update"
        may_write(identity, target.kind, status=target.status, name=target.name, verb=verb)
        match request.method:
            case "PUT":
                return await self._replace(request, identity, target)
            case "PATCH":
                return await self._patch(request, identity, target)
            case _:
                return await self._delete(request, identity, target)

    # Reading

    async def _get(self, request: Request, identity: Identity, target: Target) -> Response:
        own, vm = may_read(identity, target.kind).own, None
        if own and issubclass(target.kind, OF_A_VM):
            vm = await read(self._store, VirtualMachine, target.name)
            if vm is None or identity.host not in vm.placed_hosts():
                raise not_shown(identity, target.kind, target.name)
        if identity.role is Role.COORDINATOR and target.kind is Secret:
            await check_coordinates(self._store, identity)
        fresh = "resourceVersion" not in request.query_params
        obj = shown_to(identity, await self._store.get(target.kind, target.name, fresh=fresh), vm=vm)
        if obj is None:
            raise not_shown(identity, target.kind, target.name)
        version = wanted_table(request)
        if not version:
            return object_response(obj)
        metadata = {"resourceVersion": obj.metadata.resource_version}
        return json_response(self._table(request, target, [obj], version, metadata))

    async def _seen(self, identity: Identity, obj: Resource) -> Resource | None:
        """What the identity is shown of an object that it writes, or has written; ``None``: nothing."""
        of_a_vm = identity.role in HOSTS and isinstance(obj, OF_A_VM)
        return shown_to(identity, obj, vm=await read(self._store, VirtualMachine, obj.name) if of_a_vm else None)

    async def _readable(self, identity: Identity, target: Target, current: Resource) -> Resource:
        """What the writer is shown of the object; ``Forbidden``: nobody changes what it may not read."""
        seen = await self._seen(identity, current)
        if seen is None:
            raise not_shown(identity, target.kind, target.name)
        return seen

    async def _answer(
        self,
        request: Request,
        identity: Identity,
        before: Resource | None,
        after: Resource,
        warnings: tuple[str, ...] = (),
        status: int = 200,
    ) -> Response:
        """The answer to a write, whose changed fields the audit log names; what the writer may not read any more it has
        written itself."""
        fields = changed_fields(before, after) if before is not None else given_fields(after)
        request.scope["state"][CHANGED] = (after.name, tuple(fields), after.metadata.resource_version)
        seen = await self._seen(identity, after)
        return warned(object_response(after if seen is None else seen, status), warnings)

    async def _list(self, request: Request, identity: Identity, target: Target) -> Response:
        part: _Part = partial(shown_to, identity, verb="list")
        if may_read(identity, target.kind, "list").everything:
            part = _whole
        selector = label_selector(request)
        wanted_name = name_selector(request)
        limit = number(request, "limit", default=0, most=LIST_OBJECTS)
        position, token = split_continue(request.query_params.get("continue", ""))
        token = token if part is _whole else self._places.open(token, target.kind.info.plural)
        if not position:
            position = str((await self._caches.of(target.kind)).number)
        version = wanted_table(request)
        if wanted_name:
            pages = self._only(await self._named(target, wanted_name, selector))
        else:
            pages = self._pages(target, selector, limit or (LIST_OBJECTS if version else 0), token)
        body = self._list_document(request, target, pages, part, version, position)
        first = await anext(body)  # what fails, fails before the answer begins

        async def chunks() -> AsyncIterator[bytes]:
            yield first
            async for chunk in body:
                yield chunk

        return StreamingResponse(chunks(), media_type=JSON)

    async def _named(self, target: Target, name: str, selector: Selector | None) -> Page[Resource]:
        try:
            obj = await self._store.get(target.kind, name, fresh=True)
        except NotFound:
            return Page(())
        return Page((obj,) if selector is None or selector.matches(obj.metadata.labels) else ())

    async def _only(self, page: Page[Resource]) -> AsyncGenerator[Page[Resource], int]:
        yield page

    async def _pages(
        self, target: Target, selector: Selector | None, most: int, token: str
    ) -> AsyncGenerator[Page[Resource], int]:
        """Small pages, up to so many objects together (0: all). It is sent the bytes of each page, and reads fewer
        objects at a time where they are large."""
        size, count = LIST_SLICE_OBJECTS, 0
        while True:
            await self._turns.turn()
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
        target: Target,
        pages: AsyncGenerator[Page[Resource], int],
        part: _Part,
        version: str,
        position: str,
    ) -> AsyncIterator[bytes]:
        """A list, or its table, page by page, so that no answer is ever held as a whole; what is said of the whole
        stands at its end. ``part``: what the reader is shown of each object."""
        head: bytes = list_head(target.kind)
        include: IncludeObject = "Metadata"
        if version:
            head, include = table_head(target.kind, version), include_object(request)
        token, comma = "", b""
        with contextlib.suppress(StopAsyncIteration):
            page = await anext(pages)
            while True:
                rows = [
                    msgspec.json.encode(row(item, self._clock.now(), include)) if version else encode(item)
                    for item in map(part, page.items)
                    if item is not None
                ]
                chunk = head + (comma + b",".join(rows) if rows else b"")
                head, comma, token = b"", b"," if rows else comma, page.token
                yield chunk
                page = await pages.asend(len(chunk))
        token = token if part is _whole else self._places.seal(token, target.kind.info.plural)
        metadata = {"resourceVersion": position} | ({"continue": f"{position}.{token}"} if token else {})
        yield b'],"metadata":%b}\n' % msgspec.json.encode(metadata)

    def _table(
        self, request: Request, target: Target, objects: list[Resource], version: str, metadata: dict[str, str]
    ) -> dict[str, Any]:
        return table(
            target.kind,
            objects,
            version=version,
            now=self._clock.now(),
            include=include_object(request),
            metadata=dict(metadata),
        )

    async def _watch(self, request: Request, identity: Identity, target: Target) -> Response:
        found = may_read(identity, target.kind, "watch")
        wanted = WatchRequest(
            selector=label_selector(request),
            name=name_selector(request),
            version=request.query_params.get("resourceVersion", ""),
            initial=flag(request, "sendInitialEvents"),
            bookmarks=flag(request, "allowWatchBookmarks"),
            seconds=float(number(request, "timeoutSeconds", default=3600, most=3600)),
            host=identity.host if found.own else None,
        )
        cache = await self._caches.of(target.kind)
        request_id: str = request.scope["state"].get(REQUEST_ID, "")
        authenticate: Callable[[], Identity] = request.scope["state"][AUTHENTICATE]

        def check() -> None:
            may_read(authenticate(), target.kind, "watch")

        return self._watches.response(
            cache, wanted, self._renderer(request, identity, target), request_id, check, identity
        )

    def _renderer(self, request: Request, identity: Identity, target: Target) -> Render:
        """Each entry as the reader is shown it; what has left its host, as single objects of others are shown."""
        version, found = wanted_table(request), may_read(identity, target.kind, "watch")

        def part(entry: Entry) -> Resource:
            mine = not found.own or identity.host in entry.hosts
            seen = shown_to(identity, decode(target.kind, entry.raw), "watch" if mine else "get")
            assert seen is not None
            return seen

        def document(entry: Entry) -> bytes:
            mine = not found.own or identity.host in entry.hosts
            whole = mine and (found.view is None or found.mark not in entry.raw)
            return entry.raw if whole else encode(part(entry))

        if not version:
            return document
        include_object(request)  # what is malformed is refused before the stream begins

        def one_row(entry: Entry) -> bytes:
            obj = part(entry)
            return msgspec.json.encode(self._table(request, target, [obj], version, {"resourceVersion": entry.version}))

        return one_row

    # Writing

    async def _store_for(self, request: Request, target: Target, name: str, *, dry_run: object = None) -> Store:
        """The store that a write goes to: for a dry run one that holds nothing but the object as it is."""
        asked = [is_dry_run(value) for value in (*request.query_params.getlist("dryRun"), dry_run)]
        if not any(asked):
            return self._store
        request.scope["state"][DRY_RUN] = True
        store = MemoryStore(self._clock, self._ids, kinds={target.kind.kind(): target.kind})
        if name:
            with contextlib.suppress(NotFound):
                store.load([await self._store.get(target.kind, name, fresh=True)])
        return store

    async def _permitted(
        self, identity: Identity, target: Target, current: Resource | None, wanted: Resource | None
    ) -> None:
        """``Forbidden`` unless the token allows this very change of what is written: the half that is named. What is
        written afterwards has to name the version of ``current``."""
        if current is not None and wanted is not None:
            wanted = half_written(current, wanted, status=target.status)
        await permit_write(self._store, identity, current, wanted)

    async def _admitted(self, obj: Resource) -> tuple[str, ...]:
        """Warnings for whoever writes it; ``Invalid`` where it cannot be used."""
        warnings = admitted(obj)
        await Neighbours(self._store, self._owners).check(obj)
        return warnings

    async def _create(self, request: Request, identity: Identity, target: Target) -> Response:
        media_type(request)
        obj = as_new(decode(target.kind, await request.body()))
        if isinstance(obj, Token):
            obj = obj.with_end(self._clock.now()).by(identity.name)
        store = await self._store_for(request, target, obj.metadata.name)
        await self._permitted(identity, target, None, obj)
        obj = completed(obj)
        warnings = await self._admitted(obj)
        return await self._answer(request, identity, None, await _created(store, obj), warnings, 201)

    async def _replace(self, request: Request, identity: Identity, target: Target) -> Response:
        media_type(request)
        obj = named(decode(target.kind, await request.body()), target)
        if not obj.metadata.resource_version:
            raise Invalid(
                "an object is replaced only by who knows its version",
                place="metadata.resourceVersion",
                remedy="read the object, change it, and send it with its resourceVersion",
            )
        store = await self._store_for(request, target, target.name)
        current = await _current(store, target)
        obj = replacing(obj, current)
        obj = obj if target.status else with_finalizer(obj, current)
        obj = restored(current, await self._readable(identity, target, current), obj, status=target.status)
        await self._permitted(identity, target, current, obj)
        obj = obj if target.status else completed(obj)
        warnings = () if target.status else await self._admitted(obj)
        return await self._answer(request, identity, current, await _write(store, target, obj), warnings)

    async def _patch(self, request: Request, identity: Identity, target: Target) -> Response:
        """Read, change, compare-and-swap; a server-side apply creates the object where it is missing."""
        media = media_type(request, *PATCHES)
        if media == JSON:
            raise BadInput("a patch of type application/json", place="Content-Type", remedy=PATCH_REMEDY)
        body = await request.body()
        store = await self._store_for(request, target, target.name)
        applies = media == APPLY_PATCH
        patch = await _one_document(body) if applies else document_of(body)
        manager, force = request.query_params.get("fieldManager", ""), flag(request, "force")
        conditional = not applies and names_version(patch)
        whole = applies or conditional or target.status
        attempt = 1
        while True:
            current = await (_existing if applies and not target.status else _current)(store, target)
            seen = await self._readable(identity, target, current) if current is not None else None
            if seen is None or applies:
                document = applied(seen, patch, manager=manager, force=force)
                wanted = named(convert(target.kind, document), target)
                wanted = as_new(wanted) if current is None else wanted
            else:
                wanted = patched(seen, patch, media)
            if current is not None and seen is not None:
                wanted = restored(current, seen, wanted, status=target.status)
            await self._permitted(identity, target, current, wanted)
            try:
                if current is not None and not whole and same_but_labels(wanted, current):
                    changes = label_changes(current, wanted)
                    check_metadata_patch(target.kind, current.ref, changes["labels"])
                    if identity.role in CHECKED:  # it was judged on this version, and is written on no other
                        return await self._answer(request, identity, current, await store.replace(wanted))
                    labelled = await store.patch_metadata(current.ref, **changes)
                    return await self._answer(request, identity, current, labelled)
                wanted = wanted if target.status else completed(wanted)
                warnings = () if target.status else await self._admitted(wanted)
                if current is None:
                    return await self._answer(request, identity, None, await store.create(wanted), warnings, 201)
                return await self._answer(request, identity, current, await _write(store, target, wanted), warnings)
            except (AlreadyExists, Conflict):
                if conditional or attempt == PATCH_ATTEMPTS:
                    raise
                attempt += 1

    async def _delete(self, request: Request, identity: Identity, target: Target) -> Response:
        raw = await request.body()
        options = document_of(raw) if raw else {}
        if not isinstance(options, dict):
            raise BadInput("delete options are a map", remedy='send {"preconditions": {"uid": …}} or nothing')
        conditions = options.get("preconditions") or {}
        if not isinstance(conditions, dict) or not all(isinstance(item, str | None) for item in conditions.values()):
            raise BadInput(
                "preconditions are a map of strings", place="preconditions", remedy="give uid, resourceVersion"
            )
        uid, version = conditions.get("uid") or "", conditions.get("resourceVersion") or ""
        store = await self._store_for(request, target, target.name, dry_run=options.get("dryRun"))
        policy = request.query_params.get("propagationPolicy") or options.get("propagationPolicy")
        force = policy == "Orphan" or options.get("orphanDependents") is True
        attempt = 1
        while True:
            current = await _current(store, target)
            check_preconditions(current, uid=uid, version=version)
            await self._permitted(identity, target, current, None)
            await check_deletion(current, self._store, force=force)
            if isinstance(current, Hypervisor) and store is self._store:
                await revoke_tokens(store, current.name)
            try:
                await store.delete(current.ref, version=current.metadata.resource_version)
                break
            except Conflict:
                if version or attempt == PATCH_ATTEMPTS:
                    raise
                attempt += 1
        if isinstance(current, Hypervisor) and store is self._store:
            for kind in (HostLog, HypervisorUsage):  # what its daemon published, and nobody else may delete
                with contextlib.suppress(NotFound):
                    await store.delete(ObjectRef(kind=kind.kind(), name=current.name))
        if current.metadata.finalizers and (left := await _existing(store, target)) is not None:
            return await self._answer(request, identity, current, left)
        plural = target.kind.info.plural
        return json_response(success_document(plural=plural, name=target.name, uid=current.metadata.uid))


def half_written(current: Resource, wanted: Resource, *, status: bool) -> Resource:
    """The object as it is after the write: of an object with two halves only one is taken, and metadata with spec."""
    if not current.has_status():
        return wanted
    if status:
        return msgspec.structs.replace(current, status=wanted.status)  # type: ignore[attr-defined]
    return msgspec.structs.replace(wanted, status=current.status)  # type: ignore[attr-defined]


async def _created(store: Store, obj: Resource) -> Resource:
    """The new object; ``AlreadyExists`` says of a VM that is being deleted what its name waits for."""
    try:
        return await store.create(obj)
    except AlreadyExists:
        if isinstance(obj, VirtualMachine) and (why := being_deleted(await read(store, type(obj), obj.name))):
            raise why from None
        raise


async def _current(store: Store, target: Target) -> Resource:
    return await store.get(target.kind, target.name, fresh=True)


async def _existing(store: Store, target: Target) -> Resource | None:
    with contextlib.suppress(NotFound):
        return await _current(store, target)
    return None


async def _one_document(body: bytes) -> Any:
    documents = await parse_request(body)
    if len(documents) != 1:
        raise BadInput(f"an apply of {len(documents)} documents", remedy="send one")
    return documents[0]


async def _write(store: Store, target: Target, obj: Resource) -> Resource:
    return await (store.replace_status(obj) if target.status else store.replace(obj))

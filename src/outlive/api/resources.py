"""Resources over HTTP: the part of the Kubernetes protocol that docs/reference/http-api.md#resources defines.

Handlers are thin: they read the request, call the store once (a patch: read, apply, compare-and-swap), and write
the answer. Decoding is strict whatever ``fieldValidation`` says. A patch that names no version is applied again
when somebody else's write came between, at most ``PATCH_ATTEMPTS`` times; one that names a version never is.
A dry run goes to a store in memory that holds nothing but the object as it is, so that the same rules judge it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from outlive.api.admission import Neighbours, admitted, check_deletion, completed, warned
from outlive.api.auth import CHECKED, HOSTS, Identity, Role, check_read, check_write, may_read, may_write
from outlive.api.config import LIST_OBJECTS, PATCH_ATTEMPTS
from outlive.api.errors import success_document
from outlive.api.kubernetes import table
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
from outlive.api.requests import (
    JSON,
    Target,
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
    split_continue,
    wanted_table,
    with_uid,
)
from outlive.api.watch import Render, Watches, WatchRequest
from outlive.api.watch_cache import Entry, WatchCaches
from outlive.base import limits
from outlive.base.clock import Clock
from outlive.base.errors import AlreadyExists, BadInput, Conflict, Invalid, NotFound
from outlive.base.ids import Ids
from outlive.node.membership.states import MemberView, member_view
from outlive.node.permissions import dropped, writes_as_primary
from outlive.node.primary import ROLE
from outlive.resources import (
    Console,
    Election,
    HostLog,
    Hypervisor,
    HypervisorUsage,
    Membership,
    ObjectRef,
    Resource,
    Token,
    VirtualMachine,
)
from outlive.resources.codec import convert, decode, encode
from outlive.resources.documents import parse_documents
from outlive.store import Page, Selector, Store, read
from outlive.store.memory import MemoryStore


class Resources:
    """The handlers of ``/apis/outlive.dev/v1alpha1/…``."""

    def __init__(
        self,
        store: Store,
        plurals: Mapping[str, type[Resource]],
        caches: WatchCaches,
        watches: Watches,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._store = store
        self._plurals = plurals
        self._caches = caches
        self._watches = watches
        self._clock = clock
        self._ids = ids

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
        request.scope["state"][ROUTE] = target.route
        return target

    async def collection(self, request: Request, identity: Identity) -> Response:
        """List, watch or create."""
        target = self._target(request)
        if request.method == "POST":
            may_write(identity, target.kind, verb="create")
            return await self._create(request, identity, target)
        may_read(identity, target.kind)
        return await (self._watch if flag(request, "watch") else self._list)(request, target)

    async def item(self, request: Request, identity: Identity) -> Response:
        """Read, replace, patch or delete one object."""
        return await self._one(request, identity, self._target(request))

    async def status(self, request: Request, identity: Identity) -> Response:
        """Read, replace or patch the status half of one object."""
        return await self._one(request, identity, self._target(request, status=True))

    async def _one(self, request: Request, identity: Identity, target: Target) -> Response:
        if request.method in ("GET", "HEAD"):
            may_read(identity, target.kind, target.name)
            if identity.role in HOSTS and target.kind is Console:
                vm = await read(self._store, VirtualMachine, target.name)
                check_read(identity, target.kind, target.name, vm)
            return await self._get(request, target)
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

    async def _get(self, request: Request, target: Target) -> Response:
        fresh = "resourceVersion" not in request.query_params
        obj = await self._store.get(target.kind, target.name, fresh=fresh)
        version = wanted_table(request)
        if not version:
            return object_response(obj)
        metadata = {"resourceVersion": obj.metadata.resource_version}
        return json_response(self._table(request, target, [obj], version, metadata))

    async def _list(self, request: Request, target: Target) -> Response:
        selector = label_selector(request)
        wanted_name = name_selector(request)
        limit = number(request, "limit", default=0, most=LIST_OBJECTS)
        position, token = split_continue(request.query_params.get("continue", ""))
        if not position:
            position = str((await self._caches.of(target.kind)).number)
        version = wanted_table(request)
        if wanted_name:
            page = await self._named(target, wanted_name, selector)
        elif limit or version:
            page = await self._store.list(target.kind, selector=selector, limit=limit or LIST_OBJECTS, token=token)
        else:
            return await self._stream_list(target, selector, position)
        metadata = {"resourceVersion": position}
        if page.token:
            metadata["continue"] = f"{position}.{page.token}"
        if version:
            return json_response(self._table(request, target, list(page.items), version, metadata))
        items = b",".join([encode(item) for item in page.items])
        return Response(b"".join((list_head(target.kind, metadata), items, b"]}\n")), media_type=JSON)

    async def _named(self, target: Target, name: str, selector: Selector | None) -> Page[Resource]:
        try:
            obj = await self._store.get(target.kind, name, fresh=True)
        except NotFound:
            return Page(())
        return Page((obj,) if selector is None or selector.matches(obj.metadata.labels) else ())

    async def _stream_list(self, target: Target, selector: Selector | None, position: str) -> Response:
        """All objects page by page, so that no answer is ever held as a whole."""
        pages = self._pages(target, selector)
        first = await anext(pages)  # what fails, fails before the answer begins

        async def body() -> AsyncIterator[bytes]:
            yield list_head(target.kind, {"resourceVersion": position}) + first
            async for page in pages:
                yield page
            yield b"]}\n"

        return StreamingResponse(body(), media_type=JSON)

    async def _pages(self, target: Target, selector: Selector | None) -> AsyncIterator[bytes]:
        token, comma = "", b""
        while True:
            page = await self._store.list(target.kind, selector=selector, limit=limits.PAGE_OBJECTS, token=token)
            yield comma + b",".join([encode(item) for item in page.items]) if page.items else b""
            comma = b"," if page.items or comma else b""
            token = page.token
            if not token:
                return
            await asyncio.sleep(0)

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

    async def _watch(self, request: Request, target: Target) -> Response:
        wanted = WatchRequest(
            selector=label_selector(request),
            name=name_selector(request),
            version=request.query_params.get("resourceVersion", ""),
            initial=flag(request, "sendInitialEvents"),
            bookmarks=flag(request, "allowWatchBookmarks"),
            seconds=float(number(request, "timeoutSeconds", default=3600, most=3600)),
        )
        cache = await self._caches.of(target.kind)
        request_id: str = request.scope["state"].get(REQUEST_ID, "")
        authenticate: Callable[[], Identity] = request.scope["state"][AUTHENTICATE]

        def check() -> None:
            may_read(authenticate(), target.kind)

        return self._watches.response(cache, wanted, self._renderer(request, target), request_id, check)

    def _renderer(self, request: Request, target: Target) -> Render:
        version = wanted_table(request)
        if not version:
            return lambda entry: entry.raw
        include_object(request)  # what is malformed is refused before the stream begins

        def one_row(entry: Entry) -> bytes:
            obj = decode(target.kind, entry.raw)
            return msgspec.json.encode(self._table(request, target, [obj], version, {"resourceVersion": entry.version}))

        return one_row

    # Writing

    async def _store_for(self, request: Request, target: Target, name: str, *, dry_run: object = None) -> Store:
        """The store that a write goes to: for a dry run one that holds nothing but the object as it is."""
        asked = [is_dry_run(value) for value in (*request.query_params.getlist("dryRun"), dry_run)]
        if not any(asked):
            return self._store
        store = MemoryStore(self._clock, self._ids, kinds={target.kind.kind(): target.kind})
        if name:
            with contextlib.suppress(NotFound):
                store.load([await self._store.get(target.kind, name, fresh=True)])
        return store

    async def _permitted(
        self, identity: Identity, target: Target, current: Resource | None, wanted: Resource | None
    ) -> None:
        """``Forbidden`` unless the token allows this very change of what is written: the half that is named."""
        if identity.role not in CHECKED:
            return
        if current is not None and wanted is not None:
            wanted = half_written(current, wanted, status=target.status)
        members: list[MemberView] = []
        if identity.role in HOSTS and isinstance(current, VirtualMachine) and isinstance(wanted, VirtualMachine):
            hosts = {one.hypervisor for one in dropped(identity.host, current, wanted)}
            found = [await read(self._store, Membership, host) for host in sorted(hosts)]
            members = [member_view(one) for one in found if one is not None]
        vm: VirtualMachine | None = None
        if identity.role in HOSTS and isinstance(wanted, Console):
            vm = await read(self._store, VirtualMachine, wanted.name)
        check_write(identity, current, wanted, members, await self._term(identity, current, wanted), vm)

    async def _term(self, identity: Identity, *objects: Resource | None) -> int:
        """In which term the host is the primary coordinator, where one of the objects is written by that alone."""
        if identity.role is not Role.COORDINATOR or not any(
            writes_as_primary(one) for one in objects if one is not None
        ):
            return 0
        election = await read(self._store, Election, ROLE)
        return election.record.term if election is not None and election.record.holder == identity.host else 0

    async def _admitted(self, obj: Resource) -> tuple[str, ...]:
        """Warnings for whoever writes it; ``Invalid`` where it cannot be used."""
        warnings = admitted(obj)
        await Neighbours(self._store).check(obj)
        return warnings

    async def _create(self, request: Request, identity: Identity, target: Target) -> Response:
        media_type(request)
        obj = decode(target.kind, await request.body())
        if isinstance(obj, Token):
            obj = obj.with_end(self._clock.now()).by(identity.name)
        store = await self._store_for(request, target, obj.metadata.name)
        await self._permitted(identity, target, None, obj)
        obj = completed(obj)
        warnings = await self._admitted(obj)
        return warned(object_response(await store.create(obj), 201), warnings)

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
        if not obj.metadata.uid:
            obj = with_uid(obj, await _current(store, target))
        if identity.role in CHECKED:
            current = await _current(store, target)
            if current.metadata.resource_version == obj.metadata.resource_version:  # else the store refuses it
                await self._permitted(identity, target, current, obj)
        obj = obj if target.status else completed(obj)
        warnings = () if target.status else await self._admitted(obj)
        return warned(object_response(await _write(store, target, obj)), warnings)

    async def _patch(self, request: Request, identity: Identity, target: Target) -> Response:
        """Read, change, compare-and-swap; a server-side apply creates the object where it is missing."""
        media = media_type(request, *PATCHES)
        if media == JSON:
            raise BadInput("a patch of type application/json", place="Content-Type", remedy=PATCH_REMEDY)
        body = await request.body()
        store = await self._store_for(request, target, target.name)
        applies = media == APPLY_PATCH
        patch = _one_document(body) if applies else document_of(body)
        manager, force = request.query_params.get("fieldManager", ""), flag(request, "force")
        conditional = not applies and names_version(patch)
        whole = applies or conditional or target.status
        attempt = 1
        while True:
            current = await (_existing if applies and not target.status else _current)(store, target)
            if current is None or applies:
                document = applied(current, patch, manager=manager, force=force)
                wanted = named(convert(target.kind, document), target)
            else:
                wanted = patched(current, patch, media)
            await self._permitted(identity, target, current, wanted)
            try:
                if current is not None and not whole and same_but_labels(wanted, current):
                    return object_response(await store.patch_metadata(current.ref, **label_changes(current, wanted)))
                wanted = wanted if target.status else completed(wanted)
                warnings = () if target.status else await self._admitted(wanted)
                if current is None:
                    return warned(object_response(await store.create(wanted), 201), warnings)
                return warned(object_response(await _write(store, target, wanted)), warnings)
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
        current = await _current(store, target)
        await self._permitted(identity, target, current, None)
        policy = request.query_params.get("propagationPolicy") or options.get("propagationPolicy")
        force = policy == "Orphan" or options.get("orphanDependents") is True
        await check_deletion(current, self._store, force=force)
        await store.delete(msgspec.structs.replace(current.ref, uid=""), uid=uid, version=version)
        if isinstance(current, Hypervisor) and store is self._store:
            for kind in (HostLog, HypervisorUsage):  # what its daemon published, and nobody else may delete
                with contextlib.suppress(NotFound):
                    await store.delete(ObjectRef(kind=kind.kind(), name=current.name))
        if current.metadata.finalizers and (left := await _existing(store, target)) is not None:
            return object_response(left)
        plural = target.kind.info.plural
        return json_response(success_document(plural=plural, name=target.name, uid=current.metadata.uid))


def half_written(current: Resource, wanted: Resource, *, status: bool) -> Resource:
    """The object as it is after the write: of an object with two halves only one is taken, and metadata with spec."""
    if not current.has_status():
        return wanted
    if status:
        return msgspec.structs.replace(current, status=wanted.status)  # type: ignore[attr-defined]
    return msgspec.structs.replace(wanted, status=current.status)  # type: ignore[attr-defined]


async def _current(store: Store, target: Target) -> Resource:
    return await store.get(target.kind, target.name, fresh=True)


async def _existing(store: Store, target: Target) -> Resource | None:
    with contextlib.suppress(NotFound):
        return await _current(store, target)
    return None


def _one_document(body: bytes) -> Any:
    documents = parse_documents(body, "body")
    if len(documents) != 1:
        raise BadInput(f"an apply of {len(documents)} documents", remedy="send one")
    return documents[0].value


async def _write(store: Store, target: Target, obj: Resource) -> Resource:
    return await (store.replace_status(obj) if target.status else store.replace(obj))

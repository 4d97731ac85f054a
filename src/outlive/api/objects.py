"""Resources over HTTP: the part of the Kubernetes protocol that docs/reference/http-api.md#resources defines.

Handlers are thin: they read the request, call the store once (a patch: read, apply, compare-and-swap), and write
the answer. Decoding is strict whatever ``fieldValidation`` says. A patch that names no version is applied again
when somebody else's write came between, at most ``PATCH_ATTEMPTS`` times; one that names a version never is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from outlive.api.admission import admitted, check_circle, warned
from outlive.api.auth import Access, Identity, allow, may_write
from outlive.api.changes import (
    JSON_PATCH,
    MERGE_PATCH,
    PATCH_REMEDY,
    apply,
    label_changes,
    metadata_only,
    names_version,
    same_but_labels,
    string_map,
)
from outlive.api.config import LIST_OBJECTS, PATCH_ATTEMPTS
from outlive.api.hub import Entry, Hubs
from outlive.api.problems import MethodNotAllowed, success_document
from outlive.api.requests import (
    GROUP_PATH,
    GROUP_SEGMENTS,
    Target,
    document_of,
    in_namespace,
    include_object,
    label_selector,
    list_head,
    name_selector,
    named,
    object_answer,
    refuse_dry_run,
    split_continue,
    with_uid,
)
from outlive.api.tables import row, table, wanted_table
from outlive.api.watch import Render, Watches, Wish
from outlive.api.wire import JSON, REQUEST_ID, ROUTE, Answer, Call, json_answer
from outlive.base import limits
from outlive.base.clock import Clock
from outlive.base.errors import BadInput, Conflict, Invalid, NotFound
from outlive.resources import ObjectRef, Resource
from outlive.resources.codec import decode, encode
from outlive.store import Page, Selector, Store


class Objects:
    """The handlers of ``/apis/outlive.dev/v1alpha1/…``."""

    def __init__(
        self, store: Store, plurals: Mapping[str, type[Resource]], hubs: Hubs, watches: Watches, clock: Clock
    ) -> None:
        self._store = store
        self._plurals = plurals
        self._hubs = hubs
        self._watches = watches
        self._clock = clock

    async def serve(self, call: Call, identity: Identity) -> Answer | None:
        """Whatever is asked below the group's path."""
        target = self.target(call.segments)
        call.scope[ROUTE] = target.route
        if not target.name:
            return await self.collection(call, identity, target)
        if not target.status:
            return await self.item(call, identity, target)
        return await self.status(call, identity, target)

    def target(self, segments: Sequence[str]) -> Target:
        """Kind, name and half of a path; ``NotFound`` for one that is none of ours."""
        parts = list(segments[GROUP_SEGMENTS:])
        if parts and not parts[-1]:
            parts.pop()
        namespace = ""
        if len(parts) > 2 and parts[0] == "namespaces":
            namespace, parts = parts[1], parts[2:]
        known = parts and "/".join(segments[:GROUP_SEGMENTS]) == GROUP_PATH[1:]
        kind = self._plurals.get(parts[0]) if known else None
        if kind is None:
            what = parts[0] if known else "/".join(segments)
            raise NotFound(f"there is no resource {what[:80]!r}", remedy=f"one of {', '.join(sorted(self._plurals))}")
        if len(parts) > 3 or (len(parts) == 3 and parts[2] != "status") or "" in parts or any("/" in p for p in parts):
            raise NotFound(
                f"there is nothing at /{'/'.join(segments)[:200]}", remedy=f"see {GROUP_PATH} for what is served"
            )
        return Target(kind, parts[1] if len(parts) > 1 else "", namespace, len(parts) == 3)

    async def collection(self, call: Call, identity: Identity, target: Target) -> Answer | None:
        """List, watch or create."""
        match call.method:
            case "GET" if call.flag("watch"):
                allow(identity, Access.READ)
                await self._watch(call, target)
                return None
            case "GET":
                allow(identity, Access.READ)
                return await self._list(call, target)
            case "POST":
                may_write(identity, target.kind)
                return await self._create(call, target)
            case method:
                raise MethodNotAllowed(method, ("GET", "POST"))

    async def item(self, call: Call, identity: Identity, target: Target) -> Answer | None:
        """Read, replace, patch or delete one object."""
        match call.method:
            case "GET":
                allow(identity, Access.READ)
                return await self._get(call, target)
            case "PUT":
                may_write(identity, target.kind)
                return await self._replace(call, target)
            case "PATCH":
                may_write(identity, target.kind)
                return await self._patch(call, target)
            case "DELETE":
                may_write(identity, target.kind)
                return await self._delete(call, target)
            case method:
                raise MethodNotAllowed(method, ("GET", "PUT", "PATCH", "DELETE"))

    async def status(self, call: Call, identity: Identity, target: Target) -> Answer | None:
        """Read, replace or patch the status half of one object."""
        if not target.kind.has_status():
            raise NotFound(f"{target.kind.info.plural} have no status of their own", remedy="write the whole document")
        match call.method:
            case "GET":
                allow(identity, Access.READ)
                return await self._get(call, target)
            case "PUT":
                may_write(identity, target.kind, status=True)
                return await self._replace(call, target)
            case "PATCH":
                may_write(identity, target.kind, status=True)
                return await self._patch(call, target)
            case method:
                raise MethodNotAllowed(method, ("GET", "PUT", "PATCH"))

    # Reading

    async def _get(self, call: Call, target: Target) -> Answer:
        fresh = "resourceVersion" not in call.query
        obj = await self._store.get(target.kind, target.name, namespace=target.namespace, fresh=fresh)
        version = wanted_table(call.header(b"accept"))
        if not version:
            return object_answer(obj)
        metadata = {"resourceVersion": obj.metadata.resource_version}
        return json_answer(self._table(call, target, [obj], version, metadata))

    async def _list(self, call: Call, target: Target) -> Answer | None:
        selector = label_selector(call)
        wanted_name = name_selector(call)
        limit = call.number("limit", default=0, most=LIST_OBJECTS)
        number, token = split_continue(call.query.get("continue", ""))
        if not number:
            number = str((await self._hubs.of(target.kind)).number)
        version = wanted_table(call.header(b"accept"))
        if wanted_name:
            page = await self._named(target, wanted_name, selector)
        elif limit or version:
            page = await self._store.list(
                target.kind, namespace=target.namespace, selector=selector, limit=limit or LIST_OBJECTS, token=token
            )
        else:
            await self._stream_list(call, target, selector, number)
            return None
        metadata = {"resourceVersion": number}
        if page.token:
            metadata["continue"] = f"{number}.{page.token}"
        if version:
            return json_answer(self._table(call, target, list(page.items), version, metadata))
        head = list_head(target.kind, metadata)
        return Answer(200, b"".join((head, b",".join([encode(item) for item in page.items]), b"]}\n")))

    async def _named(self, target: Target, name: str, selector: Selector | None) -> Page[Resource]:
        try:
            obj = await self._store.get(target.kind, name, namespace=target.namespace, fresh=True)
        except NotFound:
            return Page(())
        return Page((obj,) if selector is None or selector.matches(obj.metadata.labels) else ())

    async def _stream_list(self, call: Call, target: Target, selector: Selector | None, number: str) -> None:
        """All objects page by page, so that no answer is ever held as a whole."""
        pages = self._pages(target, selector)
        first = await anext(pages)
        await call.start(200, JSON)
        await call.chunk(list_head(target.kind, {"resourceVersion": number}) + first)
        async for page in pages:
            await call.chunk(page)
        await call.chunk(b"]}\n", last=True)

    async def _pages(self, target: Target, selector: Selector | None) -> AsyncIterator[bytes]:
        token, comma = "", b""
        while True:
            page = await self._store.list(
                target.kind, namespace=target.namespace, selector=selector, limit=limits.PAGE_OBJECTS, token=token
            )
            yield comma + b",".join([encode(item) for item in page.items]) if page.items else b""
            comma = b"," if page.items or comma else b""
            token = page.token
            if not token:
                return
            await asyncio.sleep(0)

    def _table(
        self, call: Call, target: Target, objects: list[Resource], version: str, metadata: dict[str, str]
    ) -> dict[str, Any]:
        return table(
            target.kind,
            objects,
            version=version,
            now=self._clock.now(),
            include=include_object(call),
            metadata=dict(metadata),
        )

    async def _watch(self, call: Call, target: Target) -> None:
        wish = Wish(
            selector=label_selector(call),
            name=name_selector(call),
            namespace=target.namespace,
            version=call.query.get("resourceVersion", ""),
            initial=call.flag("sendInitialEvents"),
            bookmarks=call.flag("allowWatchBookmarks"),
            seconds=float(call.number("timeoutSeconds", default=3600, most=3600)),
        )
        hub = await self._hubs.of(target.kind)
        request_id: str = call.scope.get(REQUEST_ID, "")
        await self._watches.serve(call, hub, wish, self._renderer(call, target), request_id)

    def _renderer(self, call: Call, target: Target) -> Render:
        version = wanted_table(call.header(b"accept"))
        if not version:
            return lambda entry: entry.raw
        include = include_object(call)

        def one_row(entry: Entry) -> bytes:
            obj = decode(target.kind, entry.raw)
            metadata: dict[str, Any] = {"resourceVersion": entry.version}
            document = table(
                target.kind, (), version=version, now=self._clock.now(), include=include, metadata=metadata
            )
            document["rows"] = [row(obj, self._clock.now(), include)]
            return msgspec.json.encode(document)

        return one_row

    # Writing

    async def _admitted(self, obj: Resource) -> tuple[str, ...]:
        """Warnings for whoever writes it; ``Invalid`` where it cannot be used."""
        warnings = admitted(obj)
        await check_circle(obj, self._store)
        return warnings

    async def _create(self, call: Call, target: Target) -> Answer:
        refuse_dry_run(call.query.get("dryRun"))
        call.need_json()
        obj = decode(target.kind, await call.body())
        warnings = await self._admitted(obj)
        return warned(object_answer(await self._store.create(in_namespace(obj, target)), 201), warnings)

    async def _replace(self, call: Call, target: Target) -> Answer:
        refuse_dry_run(call.query.get("dryRun"))
        call.need_json()
        obj = named(decode(target.kind, await call.body()), target)
        if not obj.metadata.resource_version:
            raise Invalid(
                "an object is replaced only by who knows its version",
                place="metadata.resourceVersion",
                remedy="read the object, change it, and send it with its resourceVersion",
            )
        if not obj.metadata.uid:
            obj = with_uid(obj, await self._current(target))
        warnings = () if target.status else await self._admitted(obj)
        return warned(object_answer(await self._write(target, obj)), warnings)

    async def _patch(self, call: Call, target: Target) -> Answer:
        refuse_dry_run(call.query.get("dryRun"))
        media = call.need_json(MERGE_PATCH, JSON_PATCH)
        if media not in (MERGE_PATCH, JSON_PATCH):
            raise BadInput("a patch of type application/json", place="Content-Type", remedy=PATCH_REMEDY)
        patch = document_of(await call.body())
        if media == MERGE_PATCH and not target.status and metadata_only(patch):
            metadata = patch["metadata"]
            return object_answer(await self._patch_metadata(target, metadata, str(metadata.get("uid", ""))))
        conditional = names_version(patch)
        attempt = 1
        while True:
            current = await self._current(target)
            wanted = apply(patch, media, current)
            try:
                if not conditional and not target.status and same_but_labels(wanted, current):
                    return object_answer(
                        await self._patch_metadata(target, label_changes(current, wanted), current.metadata.uid)
                    )
                warnings = () if target.status else await self._admitted(wanted)
                return warned(object_answer(await self._write(target, wanted)), warnings)
            except Conflict:
                if conditional or attempt == PATCH_ATTEMPTS:
                    raise
                attempt += 1

    async def _patch_metadata(self, target: Target, metadata: Mapping[str, Any], uid: str) -> Resource:
        labels = string_map(metadata.get("labels"), "metadata.labels")
        annotations = string_map(metadata.get("annotations"), "metadata.annotations")
        ref = ObjectRef(kind=target.kind.kind(), name=target.name, namespace=target.namespace, uid=uid)
        return await self._store.patch_metadata(ref, labels=labels, annotations=annotations)

    async def _current(self, target: Target) -> Resource:
        return await self._store.get(target.kind, target.name, namespace=target.namespace, fresh=True)

    async def _write(self, target: Target, obj: Resource) -> Resource:
        return await (self._store.replace_status(obj) if target.status else self._store.replace(obj))

    async def _delete(self, call: Call, target: Target) -> Answer:
        refuse_dry_run(call.query.get("dryRun"))
        raw = await call.body()
        options = document_of(raw) if raw else {}
        if not isinstance(options, dict):
            raise BadInput("delete options are a map", remedy='send {"preconditions": {"uid": …}} or nothing')
        refuse_dry_run(options.get("dryRun"))
        conditions = options.get("preconditions") or {}
        if not isinstance(conditions, dict) or not all(isinstance(item, str | None) for item in conditions.values()):
            raise BadInput(
                "preconditions are a map of strings", place="preconditions", remedy="give uid, resourceVersion"
            )
        uid, version = conditions.get("uid") or "", conditions.get("resourceVersion") or ""
        current = await self._current(target)
        await self._store.delete(msgspec.structs.replace(current.ref, uid=""), uid=uid, version=version)
        if current.metadata.finalizers:
            try:
                return object_answer(await self._current(target))
            except NotFound:
                pass
        plural = target.kind.info.plural
        return json_answer(success_document(plural=plural, name=target.name, uid=current.metadata.uid))

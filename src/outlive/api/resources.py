"""Resources over HTTP: the part of the Kubernetes protocol that docs/reference/http-api.md#resources defines.

Handlers are thin: they read the request, call the store once (a patch: read, apply, compare-and-swap), and write
the answer. Decoding is strict whatever ``fieldValidation`` says. A patch that names no version is applied again
when another write came between, at most ``PATCH_ATTEMPTS`` times; one that names a version never is.
``api.reads`` answers GET.

A dry run goes to a store in memory that holds nothing but the object as it is, so that the same rules judge it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from outlive.api.admission import (
    add_warnings,
    check_admission,
    check_deletion,
    deletion_conflict,
    fill_from_definition,
    keep_finalizer,
    keep_owners,
    without_finalizer,
)
from outlive.api.audit import CHANGED, DRY_RUN, TARGET
from outlive.api.auth import (
    CHECKED,
    Identity,
    may_write,
)
from outlive.api.config import PATCH_ATTEMPTS
from outlive.api.errors import success_document
from outlive.api.kubernetes import KnownCells
from outlive.api.levels import Turns
from outlive.api.list_places import ListPlaces
from outlive.api.middleware import ROUTE
from outlive.api.neighbours import DiskOwners, Neighbours
from outlive.api.patches import (
    APPLY_PATCH,
    PATCH_REMEDY,
    PATCHES,
    apply_configuration,
    apply_patch,
    differs_in_labels_only,
    label_changes,
    names_version,
)
from outlive.api.permission import permit_write, require_readable, revoke_tokens, shown_part
from outlive.api.quotas import HostQuotas
from outlive.api.reads import ResourceReader
from outlive.api.requests import (
    JSON,
    RequestTarget,
    check_preconditions,
    document_of,
    is_dry_run,
    json_response,
    make_replacement,
    media_type,
    object_response,
    read_flag,
    with_path_name,
)
from outlive.api.watch import Watches
from outlive.api.watch_cache import WatchCaches
from outlive.base import AlreadyExists, BadInput, Clock, Conflict, Ids, Invalid, NotFound, OutliveError, Unavailable
from outlive.resources import (
    HostLog,
    Hypervisor,
    HypervisorUsage,
    ObjectRef,
    Resource,
    Token,
    VirtualMachine,
    changed_fields,
    convert,
    created_fields,
    decode,
    parse_request,
    restore_hidden,
)
from outlive.store import MemoryStore, Store, check_metadata_patch, read


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
        known_cells: KnownCells,
        places: ListPlaces,
    ) -> None:
        self._store = store
        self._plurals = plurals
        self._reader = ResourceReader(store, caches, watches, turns, clock, known_cells, places)
        self._quotas = HostQuotas(store, clock)
        self._clock = clock
        self._owners = DiskOwners(store, clock.monotonic)
        self._ids = ids

    def _find_target(self, request: Request, *, status: bool = False) -> RequestTarget:
        """What the path names; ``NotFound`` for a kind that is none of ours."""
        parts = request.path_params
        kind = self._plurals.get(parts["plural"])
        if kind is None:
            known = ", ".join(sorted(self._plurals))
            raise NotFound(f"there is no resource {parts['plural'][:80]!r}", remedy=f"one of {known}")
        if status and not kind.has_status():
            raise NotFound(f"{kind.info.plural} have no status of their own", remedy="write the whole document")
        target = RequestTarget(kind, parts.get("name", ""), status)
        request.scope["state"] |= {ROUTE: target.route, TARGET: target}
        return target

    async def serve_collection(self, request: Request, identity: Identity) -> Response:
        """List, watch or create."""
        target = self._find_target(request)
        if request.method == "POST":
            may_write(identity, target.kind, verb="create")
            return await self._create(request, identity, target)
        return await (self._reader.watch if read_flag(request, "watch") else self._reader.list_objects)(
            request, identity, target
        )

    async def serve_item(self, request: Request, identity: Identity) -> Response:
        """Read, replace, patch or delete one object."""
        return await self._serve_object(request, identity, self._find_target(request))

    async def serve_status(self, request: Request, identity: Identity) -> Response:
        """Read, replace or patch the status half of one object."""
        return await self._serve_object(request, identity, self._find_target(request, status=True))

    async def _serve_object(self, request: Request, identity: Identity, target: RequestTarget) -> Response:
        if request.method in ("GET", "HEAD"):
            return await self._reader.get(request, identity, target)
        verb = "delete" if request.method == "DELETE" else "update"
        may_write(identity, target.kind, status=target.status, name=target.name, verb=verb)
        match request.method:
            case "PUT":
                return await self._replace(request, identity, target)
            case "PATCH":
                return await self._patch(request, identity, target)
            case _:
                return await self._delete(request, identity, target)

    async def _answer_write(
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
        fields = changed_fields(before, after) if before is not None else created_fields(after)
        request.scope["state"][CHANGED] = (after.name, tuple(fields), after.metadata.resource_version)
        seen = await shown_part(self._store, identity, after)
        return add_warnings(object_response(after if seen is None else seen, status), warnings)

    async def _store_for(self, request: Request, target: RequestTarget, name: str, *, dry_run: object = None) -> Store:
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

    async def _check_permission(
        self, identity: Identity, target: RequestTarget, current: Resource | None, wanted: Resource | None
    ) -> None:
        """``Forbidden`` unless the token allows this very change of what is written: the half that is named. What is
        written afterwards has to name the version of ``current``."""
        if current is not None and wanted is not None:
            wanted = merge_half(current, wanted, status=target.status)
        await permit_write(self._store, identity, current, wanted)
        await self._quotas.check(identity, current, wanted)

    async def _check_admission(self, obj: Resource) -> tuple[str, ...]:
        """Check an object before it is written, and return warnings for the writer; ``Invalid`` if it is unusable."""
        warnings = check_admission(obj)
        await Neighbours(self._store, self._owners).check(obj)
        return warnings

    async def _create(self, request: Request, identity: Identity, target: RequestTarget) -> Response:
        media_type(request)
        obj = without_finalizer(decode(target.kind, await request.body()))
        if isinstance(obj, Token):
            obj = obj.with_end(self._clock.now()).with_creator(identity.name)
        obj = keep_owners(obj, None) if identity.role in CHECKED else obj
        store = await self._store_for(request, target, obj.metadata.name)
        await self._check_permission(identity, target, None, obj)
        obj = fill_from_definition(obj)
        warnings = await self._check_admission(obj)
        return await self._answer_write(request, identity, None, await _create_object(store, obj), warnings, 201)

    async def _replace(self, request: Request, identity: Identity, target: RequestTarget) -> Response:
        media_type(request)
        obj = with_path_name(decode(target.kind, await request.body()), target)
        if not obj.metadata.resource_version:
            raise Invalid(
                "an object is replaced only by who knows its version",
                place="metadata.resourceVersion",
                remedy="read the object, change it, and send it with its resourceVersion",
            )
        store = await self._store_for(request, target, target.name)
        current = await _read_current(store, target)
        obj = make_replacement(obj, current)
        obj = keep_owners(obj if target.status else keep_finalizer(obj, current), current)
        obj = restore_hidden(current, await require_readable(self._store, identity, current), obj, status=target.status)
        await self._check_permission(identity, target, current, obj)
        obj = obj if target.status else fill_from_definition(obj)
        warnings = () if target.status else await self._check_admission(obj)
        return await self._answer_write(request, identity, current, await _write(store, target, obj), warnings)

    async def _patch(self, request: Request, identity: Identity, target: RequestTarget) -> Response:
        """Read, change, compare-and-swap; a server-side apply creates the object where it is missing."""
        media = media_type(request, *PATCHES)
        if media == JSON:
            raise BadInput("a patch of type application/json", place="Content-Type", remedy=PATCH_REMEDY)
        body = await request.body()
        store = await self._store_for(request, target, target.name)
        applies = media == APPLY_PATCH
        patch = await _parse_single_document(body) if applies else document_of(body)
        manager, force = request.query_params.get("fieldManager", ""), read_flag(request, "force")
        conditional = not applies and names_version(patch)
        whole = applies or conditional or target.status
        attempt = 1
        while True:
            current = await (_find_current if applies and not target.status else _read_current)(store, target)
            seen = await require_readable(self._store, identity, current) if current is not None else None
            if seen is None or applies:
                document = apply_configuration(seen, patch, manager=manager, force=force)
                wanted = with_path_name(convert(target.kind, document), target)
                wanted = without_finalizer(wanted) if current is None else wanted
            else:
                wanted = apply_patch(seen, patch, media)
            if current is not None and seen is not None:
                wanted = restore_hidden(current, seen, wanted, status=target.status)
            wanted = keep_owners(wanted, current)
            await self._check_permission(identity, target, current, wanted)
            try:
                if current is not None and not whole and differs_in_labels_only(wanted, current):
                    changes = label_changes(current, wanted)
                    check_metadata_patch(target.kind, current.ref, changes["labels"])
                    if identity.role in CHECKED:  # it was judged on this version, and is written on no other
                        return await self._answer_write(request, identity, current, await store.replace(wanted))
                    labelled = await store.patch_metadata(current.ref, **changes)
                    return await self._answer_write(request, identity, current, labelled)
                wanted = wanted if target.status else fill_from_definition(wanted)
                warnings = () if target.status else await self._check_admission(wanted)
                if current is None:
                    return await self._answer_write(request, identity, None, await store.create(wanted), warnings, 201)
                return await self._answer_write(
                    request, identity, current, await _write(store, target, wanted), warnings
                )
            except (AlreadyExists, Conflict):
                if conditional or attempt == PATCH_ATTEMPTS:
                    raise
                attempt += 1

    async def _delete(self, request: Request, identity: Identity, target: RequestTarget) -> Response:
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
            current = await _read_current(store, target)
            check_preconditions(current, uid=uid, version=version)
            await self._check_permission(identity, target, current, None)
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
                with contextlib.suppress(OutliveError):  # the deletion itself was applied
                    await store.delete(ObjectRef(kind=kind.kind(), name=current.name))
        with contextlib.suppress(Unavailable):
            if current.metadata.finalizers and (left := await _find_current(store, target)) is not None:
                return await self._answer_write(request, identity, current, left)
        plural = target.kind.info.plural
        return json_response(success_document(plural=plural, name=target.name, uid=current.metadata.uid))


def merge_half(current: Resource, wanted: Resource, *, status: bool) -> Resource:
    """The object as it is after the write: of an object with two halves only one is taken, and metadata with spec."""
    if not current.has_status():
        return wanted
    if status:
        return msgspec.structs.replace(current, status=wanted.status)  # type: ignore[attr-defined]
    return msgspec.structs.replace(wanted, status=current.status)  # type: ignore[attr-defined]


async def _create_object(store: Store, obj: Resource) -> Resource:
    """The new object; ``AlreadyExists`` says of a VM that is being deleted what its name waits for."""
    try:
        return await store.create(obj)
    except AlreadyExists:
        if isinstance(obj, VirtualMachine) and (why := deletion_conflict(await read(store, type(obj), obj.name))):
            raise why from None
        raise


async def _read_current(store: Store, target: RequestTarget) -> Resource:
    return await store.get(target.kind, target.name, fresh=True)


async def _find_current(store: Store, target: RequestTarget) -> Resource | None:
    with contextlib.suppress(NotFound):
        return await _read_current(store, target)
    return None


async def _parse_single_document(body: bytes) -> Any:
    documents = await parse_request(body)
    if len(documents) != 1:
        raise BadInput(f"an apply of {len(documents)} documents", remedy="send one")
    return documents[0]


async def _write(store: Store, target: RequestTarget, obj: Resource) -> Resource:
    return await (store.replace_status(obj) if target.status else store.replace(obj))

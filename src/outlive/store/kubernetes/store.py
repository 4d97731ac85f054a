"""The contract on a Kubernetes API server, with etcd's quorum below it.

Reads of one object and listings are quorum reads: the server's own cache may be older than one's own write, and after
a change of servers older than what was seen. A kind is followed by a listing in pages of one snapshot, and a watch
from the listing's version. A watch that the server ends, or whose connection breaks, goes on from the last version
that was seen, bookmarks included. Where it cannot go on at once, or that version has expired, or nothing came for
``SILENCE_S``, there is doubt: ``Reset``, a pause with jitter, a new listing (docs/reference/store.md#kubernetes).

What an API server does not check is checked here before anything is sent, by the rules of every other store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from outlive.base import Clock, Invalid, OutliveError, Random, Refused, Unavailable, get_logger, limits
from outlive.resources import ObjectRef, R, Resource, decode, find_kind
from outlive.store.contract import Change, Malformed, Synced, Upsert
from outlive.store.http_answers import Remedies, WatchLine, change_of_line, decode_answer, lines_of
from outlive.store.kubernetes.answers import api_error
from outlive.store.rest import RequestCredentials, RestStore
from outlive.store.rules import check_document, check_metadata_patch, encode_checked, kind_of
from outlive.store.tables import decode_stored
from outlive.store.troubles import StoreTroubles

if TYPE_CHECKING:
    from outlive.store.http_calls import HttpCalls
    from outlive.store.kubernetes.access import ClusterAccess

SILENCE_S: Final = 100.0
"""How long a watch may be silent: the server sends a bookmark a minute. TCP finds a peer that is gone sooner."""
WATCH_S: Final = (240.0, 420.0)
"""How long one watch lasts; drawn for each, so that not all of them begin anew at once."""
AGAIN_S: Final = 0.5
"""The longest pause before a watch whose connection broke goes on."""

NO_STATUS: Final = b',"status":{}}'
"""How a document with nothing in its status ends. It has no status where it is stored, and so is not changed by it."""

_log = get_logger("store.kubernetes")
_replace = msgspec.structs.replace


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _ListPage(msgspec.Struct, frozen=True):
    metadata: _ListMetadata
    items: tuple[msgspec.Raw, ...]


class _Versioned(msgspec.Struct, frozen=True):
    """The part of any object that says how far a watch has come."""

    metadata: _ListMetadata = _ListMetadata()


class KubernetesStore(RestStore):
    """The store of one cluster."""

    connections = 256
    """Each kind is watched up to twice: by informers, and for those who watch the HTTP server of this process."""
    pause_most_s = 8.0
    """The controllers stand still for as long after the API server is back."""
    remedies = Remedies(
        not_believed="give the kubeconfig the authority that signed the API server's certificate now "
        "(certificate-authority-data); see that this machine's clock is right",
        not_reached="is the API server running there?",
    )

    def __init__(
        self,
        access: ClusterAccess,
        *,
        clock: Clock,
        random: Random,
        silence_s: float = SILENCE_S,
        calls: HttpCalls | None = None,
        page_objects: int = limits.PAGE_OBJECTS,
    ) -> None:
        """``page_objects``: of listings of observers; with fewer a listing of large objects needs less memory."""
        super().__init__(access.server, clock=clock, random=random, calls=calls)
        self.troubles = StoreTroubles(clock)
        self.page_objects = page_objects
        self._access = access
        if access.request_timeout_s is not None:
            self.answer_s = access.request_timeout_s or None
        self._silence_s = silence_s
        self._incarnation = ""
        self._newest = 0
        """The highest revision of etcd that a listing was of, since the incarnation is what it is."""

    @property
    def incarnation(self) -> str:
        """Changes when somebody says that etcd was restored from a snapshot; empty: nobody has said anything yet."""
        return self._incarnation

    def become(self, incarnation: str) -> None:
        """It is this incarnation from now on, whose versions begin anew."""
        if incarnation != self._incarnation:
            self._incarnation, self._newest = incarnation, 0

    async def create(self, obj: R) -> R:
        """Write a new object; ``AlreadyExists`` if the name is taken."""
        if obj.metadata.resource_version:
            raise Invalid(
                f"{obj.kind()}/{obj.name} has resourceVersion {obj.metadata.resource_version!r}",
                place="metadata.resourceVersion",
                remedy="leave it out when creating",
            )
        return await super().create(obj)

    async def delete(self, ref: ObjectRef, *, uid: str = "", version: str = "", orphan: bool = False) -> None:
        """Delete, or mark where there are finalizers. ``Refused`` for ``orphan``, which means another thing there."""
        if orphan:
            raise Refused(
                f"{ref.kind}/{ref.name} is not deleted by force on the API server itself",
                remedy="ask a controller: --server URL instead of --store kubernetes",
            )
        await super().delete(ref, uid=uid, version=version)

    async def patch_metadata(
        self,
        ref: ObjectRef,
        *,
        labels: Mapping[str, str | None] | None = None,
        annotations: Mapping[str, str | None] | None = None,
    ) -> Resource:
        """Set or remove labels and annotations without a version, where the kind allows it."""
        check_metadata_patch(kind_of(ref), ref, labels or {})
        return await super().patch_metadata(ref, labels=labels, annotations=annotations)

    async def call(self, method: str, path: str, document: object = None, media_type: str = "application/json") -> Any:
        """What the server answers to a request about any object, of whatever group; errors as of every other call."""
        body = None if document is None else msgspec.json.encode(document)
        return decode_answer(Any, await self._call(method, path, body=body, content_type=media_type))

    def path_of(self, kind: type[Resource], key: str) -> str:
        """Where an object is, for ``call``; ``NotFound`` for a key that no object of the kind has."""
        return self._resource_path(kind, key)

    def _serves(self, kind: type[Resource]) -> bool:
        return find_kind(kind.info.api_version, kind.kind()) is kind

    async def _call(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        try:
            answer = await super()._call(method, path, parameters, body=body, content_type=content_type)
        except OutliveError as error:
            self.troubles.note_failure(method, path, error)
            raise
        self.troubles.note_success(method, path)
        return answer

    async def _request_credentials(self) -> RequestCredentials:
        return await self._access.request_credentials(self._clock)

    async def _renew_credentials(self, refused: RequestCredentials) -> bool:
        return await self._access.renew(refused, self._clock)

    def _error_of(self, status: int, raw: bytes, *, writing: bool) -> OutliveError:
        return api_error(status, raw, writing=writing)

    def _encode_body(self, obj: Resource) -> bytes:
        """Without what only the server says, checked by the rules of every store."""
        raw = encode_checked(
            _replace(
                obj, metadata=_replace(obj.metadata, generation=0, creation_timestamp=None, deletion_timestamp=None)
            )
        )
        check_document(decode(type(obj), raw))
        return raw.removesuffix(NO_STATUS) + b"}" if raw.endswith(NO_STATUS) else raw

    async def _follow_once(
        self, kind: type[R], path: str, selector: Mapping[str, str]
    ) -> AsyncGenerator[Change[R], None]:
        """A listing, and watches as long as one can go on where the last one ended."""
        version = ""
        async with aclosing(self._list_pages(path, selector)) as pages:
            async for page in pages:
                version = page.metadata.resource_version
                for number, item in enumerate(page.items, 1):
                    found = decode_stored(kind, item)
                    yield found if isinstance(found, Malformed) else Upsert(found)
                    if number % limits.YIELD_OBJECTS == 0:
                        await asyncio.sleep(0)
        yield Synced()
        broken = ""
        while True:
            before = version
            try:
                async with aclosing(self._watch_lines(path, {**selector, "resourceVersion": version})) as lines:
                    async for line in lines:
                        broken = ""
                        version = _version_of(line) or version
                        change = change_of_line(kind, line, api_error)
                        if change is not None:
                            yield change
            except _Broken as error:
                if broken or self._closed:
                    raise Unavailable(f"the watch broke, and could not go on: {broken or error.why}") from None
                broken = error.why
                _log.info("store.kubernetes.watch_broke", kind=kind.kind(), why=broken, version=version)
                await self._clock.sleep(self._random.uniform(0.0, AGAIN_S))
                continue
            if version == before:  # a server that ends each watch at once
                await self._clock.sleep(self._random.uniform(0.0, AGAIN_S))

    async def _list_pages(self, path: str, selector: Mapping[str, str]) -> AsyncGenerator[_ListPage, None]:
        """All pages of one snapshot, read by quorum; each one is fetched while the one before is decoded."""
        before, first = self._newest, await self._get_page(path, selector)
        self._check_revision(first.metadata.resource_version, before)
        page: _ListPage | None = first
        while page is not None:
            token = page.metadata.continue_
            coming = asyncio.create_task(self._get_page(path, selector, token), name="next page") if token else None
            try:
                yield page
                page = await coming if coming is not None else None
            finally:
                if coming is not None:
                    coming.cancel()
                    await asyncio.wait([coming])
                    _ = coming.cancelled() or coming.exception()  # nobody else asks for it
            if page is not None:
                self._check_revision(page.metadata.resource_version, 0)

    async def _get_page(self, path: str, selector: Mapping[str, str], token: str = "") -> _ListPage:
        query = {"limit": str(self.page_objects), **({"continue": token} if token else {})}
        return cast("_ListPage", decode_answer(_ListPage, await self._call("GET", path, {**selector, **query})))

    def _check_revision(self, version: str, before: int) -> None:
        """``Unavailable`` for a listing that is older than another one was before it was asked for: etcd went back, and
        nobody has said so."""
        if not version.isdecimal():
            return
        if int(version) < min(before, self._newest):
            raise Unavailable(
                f"the API server went back from revision {before} to {version}: its etcd was restored",
                remedy="outlive restored says so; the cluster is paused until its hosts have registered",
            )
        self._newest = max(self._newest, int(version))

    async def _watch_lines(self, path: str, parameters: Mapping[str, str]) -> AsyncGenerator[WatchLine, None]:
        """The lines of one connection until the server ends it. ``_Broken``: the next one may go on at the last line;
        any other error is a doubt."""
        from outlive.store.http_session import read_answer

        seconds = str(int(self._random.uniform(*WATCH_S)))
        query = {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": seconds, **parameters}
        sent = await self._request_credentials()
        began = False
        try:
            async with self._open_session().watch(
                self._build_url(path, query), sent.headers, sent.tls, self._silence_s
            ) as answer:
                if answer.status == 401 and await self._renew_credentials(sent):
                    raise _Broken("its credentials have changed")
                if answer.status != 200:
                    raise api_error(answer.status, await read_answer(answer), writing=False)
                began = True
                self.troubles.note_success("WATCH", path)
                async for raw in lines_of(answer.content):
                    yield cast("WatchLine", decode_answer(WatchLine, raw))
        except Unavailable as error:
            if began and not isinstance(error.__cause__, TimeoutError) and error.__cause__ is not None:
                raise _Broken(error.message) from None
            self.troubles.note_failure("WATCH", path, error)
            raise
        except OutliveError as error:
            self.troubles.note_failure("WATCH", path, error)
            raise


class _Broken(Exception):
    """A connection is gone, and nothing is in doubt if the next one opens at once."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def _version_of(line: WatchLine) -> str:
    """How far the watch has come with this line; empty for an error."""
    if line.type == "ERROR":
        return ""
    return cast("_Versioned", decode_answer(_Versioned, bytes(line.object))).metadata.resource_version

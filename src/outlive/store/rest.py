"""The store contract over an API of the form that Kubernetes serves: what all of its clients do alike.

What cannot be known is not guessed. A connection that was refused means ``Unavailable``: nothing was sent. An
answer that got lost means ``Unknown`` for a write and ``Unavailable`` for a read. Nothing is ever sent twice,
not even by the HTTP library (docs/reference/http-api.md#client).

A subclass says who it is (``_headers``, ``_has_new_credentials``), what an error means (``_error_of``), and how
a kind is followed over one connection (``_follow_once``).
"""

from __future__ import annotations

import abc
import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from copy import copy
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import quote

import msgspec

from outlive.base import Clock, Conflict, Invalid, OutliveError, Random, Unavailable, Unknown, get_logger, limits
from outlive.resources import KINDS, ObjectRef, R, Resource
from outlive.resources.foreign import ForeignResource
from outlive.store.contract import Change, Malformed, Page, Reset, Synced
from outlive.store.http_answers import ANSWER_SECONDS, ListPage, Remedies, decode_answer, decode_object, error_of_answer
from outlive.store.observation import StreamObservation
from outlive.store.rules import build_not_found_error, check_has_status, check_replaceable, encode_object, kind_of
from outlive.store.selectors import Selector
from outlive.store.tables import decode_stored

if TYPE_CHECKING:
    from outlive.store.http_calls import HttpCalls
    from outlive.store.http_session import HttpSession

PAUSE_LEAST_SECONDS: Final = 0.2
PAUSE_MOST_SECONDS: Final = 30.0
"""How long to wait before observing again: doubling, up to this, with jitter."""
AHEAD_PAGES: Final = 2
"""Pages of changes that are read before the observer asks for them."""
MERGE_PATCH: Final = "application/merge-patch+json"

_log = get_logger("store.http")


class RequestCredentials(NamedTuple):
    """What a request is sent with."""

    headers: Mapping[str, str]
    tls: ssl.SSLContext | None = None
    """What is believed, and the client's own certificate; ``None``: the authorities that the system knows."""


class RestStore(abc.ABC):
    """The store behind ``server``, such as ``https://10.0.0.1:6443``.

    ``calls``: how requests are sent, where not over the connections of ``HttpSession``; watches always are.
    """

    embedded = False
    """See ``outlive.store.contract.Store``."""
    connections = 64
    """To the server at the same time; each watch has one of its own."""
    remedies = Remedies()
    pause_most_s = PAUSE_MOST_SECONDS
    page_objects = limits.PAGE_OBJECTS
    """Objects in a page of a listing that an observer begins with."""
    answer_s: float | None = ANSWER_SECONDS
    """How long an answer may take; ``None``: there is no limit."""

    def __init__(
        self,
        server: str,
        *,
        clock: Clock,
        random: Random,
        calls: HttpCalls | None = None,
    ) -> None:
        self._server = server.rstrip("/")
        self._clock = clock
        self._random = random
        self._calls = calls
        self._session: HttpSession | None = None
        self._observations: list[StreamObservation[Resource]] = []
        self._closed = False

    async def get(self, kind: type[R], name: str, *, fresh: bool = False) -> R:
        """The object; ``NotFound``."""
        raw = await self._call("GET", self._resource_path(kind, name), self._read_parameters(fresh))
        return decode_object(kind, raw, writing=False)

    async def list(
        self,
        kind: type[R],
        *,
        selector: Selector | None = None,
        limit: int = limits.PAGE_OBJECTS,
        token: str = "",
    ) -> Page[R]:
        """One page in name order."""
        if limit < 1:
            raise Invalid(f"a page of {limit} objects", place="limit", remedy="ask for at least 1")
        parameters = {"limit": str(limit)}
        if token:
            parameters["continue"] = token
        if selector is not None and selector.terms:
            parameters["labelSelector"] = str(selector)
        raw = await self._call("GET", self._resource_path(kind), parameters)
        page = decode_answer(ListPage, raw)
        items: list[R] = []
        malformed: list[Malformed] = []
        for number, item in enumerate(page.items, 1):
            found = decode_stored(kind, item)
            if isinstance(found, Malformed):
                malformed.append(found)
            else:
                items.append(found)
            if number % limits.YIELD_OBJECTS == 0:
                await asyncio.sleep(0)
        return Page(tuple(items), page.metadata.continue_, tuple(malformed))

    async def create(self, obj: R) -> R:
        """Write a new object; ``AlreadyExists`` if the name is taken."""
        kind = type(obj)
        _check_written_whole(kind)
        raw = await self._call("POST", self._resource_path(kind), body=self._encode_body(obj))
        return decode_object(kind, raw, writing=True)

    async def replace(self, obj: R) -> R:
        """Compare-and-swap of everything but the status half."""
        return await self._swap(obj, "")

    async def replace_status(self, obj: R) -> R:
        """Compare-and-swap of the status half."""
        check_has_status(type(obj))
        return await self._swap(obj, "/status")

    async def _swap(self, obj: R, half: str) -> R:
        check_replaceable(obj)
        kind = type(obj)
        _check_written_whole(kind)
        path = self._resource_path(kind, obj.metadata.key) + half
        return decode_object(kind, await self._call("PUT", path, body=self._encode_body(obj)), writing=True)

    async def delete(self, ref: ObjectRef, *, uid: str = "", version: str = "", orphan: bool = False) -> None:
        """Delete, or mark where there are finalizers. ``orphan``: a host also though it has VMs."""
        path = self._path_of(ref)
        if uid and ref.uid and uid != ref.uid:
            raise Conflict(f"{ref.kind}/{ref.name} cannot have two uids", remedy="read it again and repeat")
        conditions = {"uid": uid or ref.uid, "resourceVersion": version}
        options: dict[str, Any] = {"preconditions": {name: value for name, value in conditions.items() if value}}
        if orphan:
            options["propagationPolicy"] = "Orphan"
        await self._call("DELETE", path, body=msgspec.json.encode(options))

    async def patch_metadata(
        self,
        ref: ObjectRef,
        *,
        labels: Mapping[str, str | None] | None = None,
        annotations: Mapping[str, str | None] | None = None,
    ) -> Resource:
        """Set or remove labels and annotations without a version, where the kind allows it."""
        metadata: dict[str, Any] = {"labels": dict(labels or {}), "annotations": dict(annotations or {})}
        if ref.uid:
            metadata["uid"] = ref.uid
        body = msgspec.json.encode({"metadata": metadata})
        raw = await self._call("PATCH", self._path_of(ref), body=body, content_type=MERGE_PATCH)
        return decode_object(kind_of(ref), raw, writing=True)

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> StreamObservation[R]:
        """Lists, says ``Synced``, then follows, over any number of connections."""
        path = self._resource_path(kind)
        if self._closed:
            raise _closed_error()
        chosen = {"labelSelector": str(selector)} if selector is not None and selector.terms else {}
        observation: StreamObservation[R] = StreamObservation(
            self._follow(kind, path, chosen), AHEAD_PAGES * self.page_objects
        )
        self._observations = [other for other in self._observations if not other.ended]
        self._observations.append(cast("StreamObservation[Resource]", observation))
        return observation

    async def close(self) -> None:
        """Close all connections; further calls and all observers raise ``Unavailable``."""
        self._closed = True
        observations, self._observations = self._observations, []
        for observation in observations:
            await observation.fail(_closed_error())
        for open_calls in (self._calls, self._session):
            if open_calls is not None:
                await open_calls.close()

    async def _follow(self, kind: type[R], path: str, parameters: Mapping[str, str]) -> AsyncGenerator[Change[R], None]:
        """One connection after the other, with ``Reset`` in between."""
        failures = 0
        while True:
            failures += 1
            try:
                async with aclosing(self._follow_once(kind, path, parameters)) as changes:
                    async for change in changes:
                        if isinstance(change, Synced):
                            failures = 1
                        yield change
                why = "the server ended the watch"
            except (Unavailable, Unknown) as error:
                if self._closed:
                    raise
                why = str(error)
            yield Reset()
            wait = self._random.backoff_seconds(failures, PAUSE_LEAST_SECONDS, self.pause_most_s)
            _log.info("store.http.reset", kind=kind.kind(), why=why, retry_s=round(wait, 3))
            await self._clock.sleep(wait)

    # What a subclass says

    @abc.abstractmethod
    async def _request_credentials(self) -> RequestCredentials:
        """What the next request is sent with."""

    @abc.abstractmethod
    async def _renew_credentials(self, refused: RequestCredentials) -> bool:
        """True if others are sent now than those that were just refused."""

    @abc.abstractmethod
    def _follow_once(self, kind: type[R], path: str, selector: Mapping[str, str]) -> AsyncGenerator[Change[R], None]:
        """List and follow until there is doubt: ``Unavailable`` and the end of the iterator are doubts."""

    def _read_parameters(self, fresh: bool) -> Mapping[str, str]:
        """Of a read of one object."""
        return {}

    def _error_of(self, status: int, raw: bytes, *, writing: bool) -> OutliveError:
        """The error that an answer means."""
        return error_of_answer(status, raw, writing=writing)

    def _encode_body(self, obj: Resource) -> bytes:
        """The document of a write; ``Invalid`` for one that no store takes."""
        return encode_object(obj)

    async def _call(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """The body of a successful answer; any other raises."""
        for _ in range(2):
            sent = await self._request_credentials()
            headers = cast("dict[str, str]", copy(sent.headers))  # of the same type: some headers may be repeated
            if body is not None:
                headers["Content-Type"] = content_type
            status, raw = await self._get_calls().call(
                method, self._build_url(path, parameters), headers, body, sent.tls
            )
            if status != 401 or not await self._renew_credentials(sent):  # what is refused was not applied
                break
        if not 200 <= status < 300:
            raise self._error_of(status, raw, writing=method != "GET")
        return raw

    def _get_calls(self) -> HttpCalls:
        """What sends requests."""
        if self._closed:
            raise _closed_error()
        return self._calls if self._calls is not None else self._open_session()

    def _open_session(self) -> HttpSession:
        """The connections of watches, and of requests where nothing else was given for these."""
        if self._closed:
            raise _closed_error()
        if self._session is None:
            from outlive.store.http_session import HttpSession

            self._session = HttpSession(self._server, self.connections, self.remedies, self.answer_s)
        return self._session

    def _build_url(self, path: str, parameters: Mapping[str, str] | None = None) -> str:
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in (parameters or {}).items())
        return f"{self._server}{path}{f'?{query}' if query else ''}"

    def _resource_path(self, kind: type[Resource], key: str | None = None) -> str:
        """Of the kind, or of one of its objects; ``Invalid`` for a kind that the server does not serve, ``NotFound``
        for a key that no object has."""
        if not self._serves(kind):
            raise Invalid(
                f"kind {kind.kind()} of {kind.info.api_version} is not kept here",
                remedy="use one of the kinds of this store",
            )
        info = kind.info
        root = f"/apis/{info.api_version}" if info.group else f"/api/{info.api_version}"
        if key is None:
            return f"{root}/{info.plural}"
        parts = key.split("/")
        if len(parts) != 1 + info.namespaced or not {"", ".", ".."}.isdisjoint(parts):
            raise build_not_found_error(kind, key)
        namespace = f"/namespaces/{quote(parts[0], safe='')}" if info.namespaced else ""
        return f"{root}{namespace}/{info.plural}/{quote(parts[-1], safe='')}"

    def _serves(self, kind: type[Resource]) -> bool:
        """True for a kind that the server has; of those of others, only an API server of Kubernetes has any."""
        return KINDS.get(kind.kind()) is kind

    def _path_of(self, ref: ObjectRef) -> str:
        return self._resource_path(kind_of(ref), ref.key)


def _check_written_whole(kind: type[Resource]) -> None:
    """``Invalid`` for a kind of others, of which nobody here knows all fields."""
    if issubclass(kind, ForeignResource):
        raise Invalid(
            f"{kind.kind()} of {kind.info.api_version} is not written whole", remedy="change it by a JSON patch"
        )


def _closed_error() -> Unavailable:
    return Unavailable("the store was closed", remedy="open it again")

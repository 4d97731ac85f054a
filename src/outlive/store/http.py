"""A store that is somewhere else: the contract over the HTTP API of another Outlive process.

What cannot be known is not guessed. A connection that was refused means ``Unavailable``: nothing was sent. An
answer that got lost means ``Unknown`` for a write and ``Unavailable`` for a read. Nothing is ever sent twice,
not even by the HTTP library (docs/reference/http-api.md#client).

An observation is a watch that begins with all present states. When its connection ends, is silent for longer
than ``SILENCE_SECONDS`` or is answered 410, the observer gets ``Reset`` and, after a pause that grows with every
failure, everything anew. A refusal (a wrong token) ends it with the error.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, cast
from urllib.parse import quote

import msgspec

from outlive.base import limits
from outlive.base.clock import Clock
from outlive.base.errors import Conflict, Forbidden, Invalid, Unavailable, Unknown
from outlive.base.logging import get_logger, global_request_id
from outlive.base.random import Random
from outlive.resources import API_VERSION, KINDS, ObjectRef, R, Resource
from outlive.resources.codec import encode
from outlive.store.contract import Change, Page, Reset, Synced
from outlive.store.http_answers import ListPage, change_of, decoded, lines_of, object_of, refusal
from outlive.store.rules import check_has_status, check_replaceable, not_found
from outlive.store.selectors import Selector
from outlive.store.tls import check_address, shown_address

if TYPE_CHECKING:
    from outlive.store.http_calls import HttpCalls
    from outlive.store.http_session import HttpSession

SILENCE_SECONDS: Final = 45.0
"""How long a watch may be silent; the server says something every 15 s."""
PAUSE_LEAST_SECONDS: Final = 0.2
PAUSE_MOST_SECONDS: Final = 30.0
"""How long to wait before observing again: doubling, up to this, with jitter."""
AHEAD_CHANGES: Final = 1000
"""Changes that are read before the observer asks for them."""
TOKEN_AGAIN_SECONDS: Final = 10.0
"""How long a token that was just taken instead of another is sent before the other is tried again."""
WATCH_PARAMETERS: Final[Mapping[str, str]] = {
    "watch": "true",
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
    "allowWatchBookmarks": "true",
}
MERGE_PATCH: Final = "application/merge-patch+json"

_log = get_logger("store.http")
DOWNLOAD_SILENCE_S = 120.0
"""How long a server may prepare a long answer, or fall silent in it."""


class HttpStore:
    """The store behind ``base_url``. ``token`` is sent as a bearer token.

    ``tls``: what to believe, by default authorities that the system knows (``outlive.store.tls.trusting``).
    ``insecure``: the token may be sent in clear text to another machine; ``Forbidden`` without. ``former``: the token
    before it, for a server whose store was restored and knows that one. ``calls``: how requests are sent, where not
    over the connections of ``HttpSession``; watches always are.
    """

    embedded = True
    """What it speaks to is ``outlive up``."""

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        clock: Clock,
        random: Random,
        tls: ssl.SSLContext | None = None,
        insecure: bool = False,
        former: str = "",
        silence_s: float = SILENCE_SECONDS,
        calls: HttpCalls | None = None,
    ) -> None:
        check_address(base_url, insecure=insecure)
        self._server = base_url.rstrip("/")
        self._base = f"{self._server}/apis/{API_VERSION}"
        self._token = token
        self._former = former
        self._changed_token_s = -TOKEN_AGAIN_SECONDS
        self._clock = clock
        self._random = random
        self._tls = tls
        self._silence_s = silence_s
        self._calls = calls
        self._session: HttpSession | None = None
        self._observations: list[HttpObservation[Resource]] = []
        self._closed = False

    async def get(self, kind: type[R], name: str, *, fresh: bool = False) -> R:
        """The object; ``NotFound``. Without ``fresh`` the server may answer from what it last saw."""
        parameters = {} if fresh else {"resourceVersion": "0"}
        raw = await self._call("GET", self._path(kind, self._named(kind, name)), parameters)
        return object_of(kind, raw, writing=False)

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
        raw = await self._call("GET", self._path(kind), parameters)
        page = decoded(ListPage, raw)
        items: list[R] = []
        for item in page.items:
            items.append(object_of(kind, item, writing=False))
            if len(items) % limits.YIELD_OBJECTS == 0:
                await asyncio.sleep(0)
        return Page(tuple(items), page.metadata.continue_)

    async def create(self, obj: R) -> R:
        """Write a new object; ``AlreadyExists`` if the name is taken."""
        kind = type(obj)
        raw = await self._call("POST", self._path(kind), body=_encoded(obj))
        return object_of(kind, raw, writing=True)

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
        path = self._path(kind, self._named(kind, obj.metadata.name)) + half
        return object_of(kind, await self._call("PUT", path, body=_encoded(obj)), writing=True)

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
        return object_of(KINDS[ref.kind], raw, writing=True)

    async def question(self, path: str, parameters: Mapping[str, str] | None = None) -> Any:
        """What the server answers about itself at a path such as ``/faults``; ``NotFound`` where it knows none."""
        return decoded(Any, await self._call("GET", path, parameters, base=self._server))

    async def command(self, path: str, body: Any) -> Any:
        """Have the server do something at a path that is no resource; ``NotFound`` where it knows none."""
        return decoded(Any, await self._call("POST", path, body=msgspec.json.encode(body), base=self._server))

    async def download(self, path: str, sink: Callable[[bytes], object]) -> None:
        """Have ``sink`` take the body of an answer part by part, however long it is; errors as for other calls."""
        from outlive.store.http_session import read_answer

        url = self._url(path, None, self._server)
        async with self._opened().watch(url, self._headers(), self._tls, DOWNLOAD_SILENCE_S) as answer:
            if not 200 <= answer.status < 300:
                raise refusal(answer.status, await read_answer(answer), writing=False)
            async for part in answer.content.iter_any():
                sink(part)

    def use_token(self, token: str, former: str = "") -> None:
        """Send this token from now on, and what was the token before it where a server does not know it."""
        self._token, self._former = token, former

    def trust(self, tls: ssl.SSLContext) -> None:
        """Believe this from now on; connections that are open stay."""
        self._tls = tls

    def _other_token(self, refused: str) -> bool:
        """After a refusal of a token: whether another one is to be sent, because it changed, or is the former one."""
        if refused != self._token:
            return True
        now = self._clock.monotonic()
        if not self._former or now - self._changed_token_s < TOKEN_AGAIN_SECONDS:
            return False
        self._changed_token_s = now
        self._token, self._former = self._former, self._token
        _log.warning("store.http.former_token", server=shown_address(self._server))
        return True

    async def exchange(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """The status and body of any answer, for protocols with errors of their own; ``Unavailable``, ``Unknown``."""
        headers = self._headers()
        if body is not None:
            headers["Content-Type"] = "application/json"
        return await self._connected().call(method, self._url(path, None, self._server), headers, body, self._tls)

    async def close(self) -> None:
        """Close all connections; further calls and all observers raise ``Unavailable``."""
        self._closed = True
        observations, self._observations = self._observations, []
        for observation in observations:
            await observation.fail(_closed())
        for open_calls in (self._calls, self._session):
            if open_calls is not None:
                await open_calls.close()

    def observe(self, kind: type[R], *, selector: Selector | None = None) -> HttpObservation[R]:
        """Lists, says ``Synced``, then follows, over any number of connections."""
        path = self._path(kind)
        if self._closed:
            raise _closed()
        parameters = dict(WATCH_PARAMETERS)
        if selector is not None and selector.terms:
            parameters["labelSelector"] = str(selector)
        observation: HttpObservation[R] = HttpObservation(self._follow(kind, path, parameters))
        self._observations = [other for other in self._observations if not other.ended]
        self._observations.append(cast("HttpObservation[Resource]", observation))
        return observation

    async def _follow(self, kind: type[R], path: str, parameters: Mapping[str, str]) -> AsyncIterator[Change[R]]:
        """One connection after the other, with ``Reset`` in between."""
        failures = 0
        while True:
            failures += 1
            try:
                async for change in self._watch(kind, path, parameters):
                    if isinstance(change, Synced):
                        failures = 1
                    yield change
                why = "the server ended the watch"
            except (Unavailable, Unknown) as error:
                if self._closed:
                    raise
                why = str(error)
            yield Reset()
            wait = self._random.backoff(failures, PAUSE_LEAST_SECONDS, PAUSE_MOST_SECONDS)
            _log.info("store.http.reset", kind=kind.kind(), why=why, retry_s=round(wait, 3))
            await self._clock.sleep(wait)

    async def _watch(self, kind: type[R], path: str, parameters: Mapping[str, str]) -> AsyncIterator[Change[R]]:
        """The changes of one connection."""
        token = self._token
        try:
            async with self._opened().watch(
                self._url(path, parameters), self._headers(), self._tls, self._silence_s
            ) as answer:
                if answer.status != 200:
                    if answer.status == 401 and self._other_token(token):
                        raise Unavailable("the token has changed", remedy="observe again")
                    from outlive.store.http_session import read_answer

                    raise refusal(answer.status, await read_answer(answer), writing=False)
                async for line in lines_of(answer.content):
                    change = change_of(kind, line)
                    if change is not None:
                        yield change
        except Forbidden:
            if token != self._token:  # renewed while the watch ran
                raise Unavailable("the token has changed", remedy="observe again") from None
            raise

    async def _call(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
        base: str = "",
    ) -> bytes:
        """The body of a successful answer; any other raises."""
        writing = method != "GET"
        for _ in range(2):
            token, headers = self._token, self._headers()
            if body is not None:
                headers["Content-Type"] = content_type
            url = self._url(path, parameters, base)
            status, raw = await self._connected().call(method, url, headers, body, self._tls)
            if status != 401 or not self._other_token(token):  # what is refused was not applied
                break
        if not 200 <= status < 300:
            raise refusal(status, raw, writing=writing)
        return raw

    def _connected(self) -> HttpCalls:
        """What sends requests."""
        if self._closed:
            raise _closed()
        return self._calls if self._calls is not None else self._opened()

    def _opened(self) -> HttpSession:
        """The connections of watches, and of requests where nothing else was given for these."""
        if self._closed:
            raise _closed()
        if self._session is None:
            from outlive.store.http_session import HttpSession

            self._session = HttpSession(self._base)
        return self._session

    def _headers(self) -> dict[str, str]:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if global_request_id():
            headers["X-Global-Request-Id"] = global_request_id()
        return headers

    def _url(self, path: str, parameters: Mapping[str, str] | None, base: str = "") -> str:
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in (parameters or {}).items())
        return f"{base or self._base}{path}{f'?{query}' if query else ''}"

    def _path(self, kind: type[Resource], name: str = "") -> str:
        if KINDS.get(kind.kind()) is not kind:
            raise Invalid(f"kind {kind.kind()} is not kept here", remedy="use one of the kinds of this store")
        return f"/{kind.info.plural}{'/' if name else ''}{quote(name, safe='')}"

    def _named(self, kind: type[Resource], name: str) -> str:
        if not name or name in (".", "..") or "/" in name:
            raise not_found(kind, name)
        return name

    def _path_of(self, ref: ObjectRef) -> str:
        kind = KINDS.get(ref.kind)
        if kind is None:
            raise Invalid(
                f"kind {ref.kind!r} is not kept here", place="kind", remedy="use one of the kinds of this store"
            )
        if ref.cluster:
            raise Invalid(f"{ref.kind}/{ref.name} is in cluster {ref.cluster!r}, not here", place="cluster")
        return self._path(kind, self._named(kind, ref.name))


class HttpObservation(Generic[R]):
    """One observer's stream, read ahead by a task of its own, so that a cancelled wait loses nothing."""

    def __init__(self, changes: AsyncIterator[Change[R]]) -> None:
        self._queue: asyncio.Queue[Change[R] | None] = asyncio.Queue(AHEAD_CHANGES)
        self._failure: BaseException | None = None
        self._closed = False
        self._task = asyncio.create_task(self._read(changes), name="http-observation")
        self._task.add_done_callback(self._ended)

    @property
    def ended(self) -> bool:
        """Whether nothing comes any more."""
        return self._task.done()

    def __aiter__(self) -> HttpObservation[R]:
        return self

    async def __anext__(self) -> Change[R]:
        """The next change; waits for ever if there is none."""
        if self._closed:
            raise StopAsyncIteration
        change = None if self._failure is not None and self._queue.empty() else await self._queue.get()
        if change is not None:
            return change
        if self._failure is not None and not self._closed:
            raise self._failure
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop; whoever waits for a change sees the end of the stream."""
        self._closed = True
        await self._stop()

    async def fail(self, failure: Exception) -> None:
        """Stop; whoever waits for a change gets the failure."""
        self._failure = self._failure or failure
        await self._stop()

    async def _stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        while not self._queue.empty():
            self._queue.get_nowait()
        self._queue.put_nowait(None)

    async def _read(self, changes: AsyncIterator[Change[R]]) -> None:
        async for change in changes:
            await self._queue.put(change)

    def _ended(self, task: asyncio.Task[None]) -> None:
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self._failure = failure
            if self._queue.empty():
                self._queue.put_nowait(None)


def _closed() -> Unavailable:
    return Unavailable("the store was closed", remedy="open it again")


def _encoded(obj: Resource) -> bytes:
    try:
        return encode(obj)
    except (TypeError, ValueError, OverflowError) as error:
        raise Invalid(f"{obj.kind()}/{obj.metadata.name} has no JSON form: {error}") from None

"""One HTTP request and its answer, straight on ASGI.

Litestar routes and runs the application; the handlers are raw ASGI, because its own parsing of a request costs
more than most of our handlers do (docs/decisions/0002-http-layer.md). ``Call`` reads lazily: a handler pays for what
it looks at. Nothing here knows of resources, tokens or errors' forms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec

from outlive.api.problems import TimedOut, TooLarge, UnsupportedMedia
from outlive.base.errors import BadInput

JSON: Final = b"application/json"
TEXT: Final = b"text/plain; charset=utf-8"
HTML: Final = b"text/html; charset=utf-8"
IDENTITY: Final = "outlive.identity"
REQUEST_ID: Final = "outlive.request_id"
ROUTE: Final = "outlive.route"
ERROR: Final = "outlive.error"
PATH: Final = "outlive.path"
PEER: Final = "outlive.peer"
PLACED: Final = "outlive.placed"
"""Keys of the ASGI scope: who asks, the request's id, the route for metrics, the error's code, the path before
routing, whether a client certificate was believed, whether placement answered (and measured it itself)."""
QUERY_PARAMETERS: Final = 64
"""Parameters of one query string."""

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]


class ClientGone(Exception):
    """The client closed the connection before its request was read: nobody waits for an answer."""


class Answer(msgspec.Struct, frozen=True):
    """A whole answer."""

    status: int
    body: bytes = b""
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


def json_answer(value: object, status: int = 200) -> Answer:
    """Any plain value as JSON."""
    return Answer(status, msgspec.json.encode(value) + b"\n")


class Call:
    """One request, and the way to answer it."""

    __slots__ = ("_headers", "_query", "body_limit", "method", "path", "receive", "scope", "send")

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, body_limit: int) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.body_limit = body_limit
        self.method: str = scope["method"]
        self.path: str = scope.get(PATH) or scope["path"]
        self._headers: dict[bytes, bytes] | None = None
        self._query: dict[str, str] | None = None

    def header(self, name: bytes) -> str:
        """The last header of that lower-case name, or the empty string."""
        if self._headers is None:
            self._headers = dict(self.scope["headers"])
        return self._headers.get(name, b"").decode("latin-1")

    @property
    def query(self) -> dict[str, str]:
        """The query's parameters; of a repeated one the last."""
        if self._query is None:
            raw = self.scope.get("query_string", b"").decode("latin-1")
            try:
                pairs = parse_qsl(raw, keep_blank_values=True, max_num_fields=QUERY_PARAMETERS, errors="strict")
            except ValueError as error:
                raise BadInput(
                    f"the query string is malformed: {error}", remedy="send UTF-8, at most 64 parameters"
                ) from None
            self._query = dict(pairs)
        return self._query

    def flag(self, name: str) -> bool:
        """A true or false parameter; absent is false, present without a value true."""
        value = self.query.get(name)
        if value is None or value in ("false", "0"):
            return False
        if value in ("true", "1", ""):
            return True
        raise BadInput(f"{name}={value[:40]!r} is neither true nor false", remedy="write true or false")

    def number(self, name: str, *, default: int, most: int) -> int:
        """A whole number from 0 to ``most`` (more is cut down to it); absent or 0 is the default."""
        text = self.query.get(name, "")
        if not text:
            return default
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise BadInput(f"{name}={text[:40]!r} is not a whole number", remedy="write digits")
        return min(int(text), most) or default

    @property
    def segments(self) -> list[str]:
        """The parts of the path, each decoded by itself: an encoded slash separates nothing."""
        raw: bytes = self.scope.get("raw_path") or self.path.encode()
        return [unquote(part) for part in raw.decode("latin-1").split("/")[1:]]

    async def body(self) -> bytes:
        """The whole body; ``TooLarge`` beyond the limit, ``ClientGone`` if the client left."""
        declared = self.header(b"content-length")
        if declared.isdigit() and int(declared) > self.body_limit:
            raise self._too_large(int(declared))
        message = await self.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk: bytes = message.get("body", b"")
        if not message.get("more_body", False) and len(chunk) <= self.body_limit:
            return chunk
        chunks = [chunk]
        size = len(chunk)
        while message.get("more_body", False):
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > self.body_limit:
                raise self._too_large(size)
            chunks.append(chunk)
        if size > self.body_limit:
            raise self._too_large(size)
        return b"".join(chunks)

    def _too_large(self, size: int) -> TooLarge:
        return TooLarge(f"the body has {size} bytes or more", remedy=f"send at most {self.body_limit} bytes")

    def need_json(self, *others: str) -> str:
        """The body's media type, which must be JSON or one of the others; absent counts as JSON."""
        media = self.header(b"content-type").partition(";")[0].strip().lower() or "application/json"
        known = ("application/json", *others)
        if media not in known:
            raise UnsupportedMedia(f"a body of type {media[:80]!r} is not read here", remedy=f"send {', '.join(known)}")
        return media

    async def answer(self, answer: Answer, extra: Headers = ()) -> None:
        """Send a whole answer."""
        await self.start(
            answer.status,
            answer.content_type,
            (*answer.headers, *extra, (b"content-length", str(len(answer.body)).encode())),
        )
        body = b"" if self.method == "HEAD" else answer.body
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    async def start(self, status: int, content_type: bytes, headers: Headers = ()) -> None:
        """Send the head of an answer; ``chunk`` follows."""
        await self.send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", content_type), *headers],
            }
        )

    async def chunk(self, body: bytes, *, last: bool = False) -> None:
        """Send a part of the body; waits while the client does not read."""
        await self.send({"type": "http.response.body", "body": body, "more_body": not last})

    async def until_gone(self) -> None:
        """Return when the client has closed the connection. Reads and drops what is left of the body."""
        message = await self.receive()
        while message["type"] != "http.disconnect":
            message = await self.receive()


async def within(seconds: float, work: Awaitable[Any]) -> Any:
    """The result of the work; ``TimedOut`` when it takes longer."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise TimedOut(
            f"the request took longer than {seconds:g} s", remedy="read the object to see whether it was applied"
        ) from None

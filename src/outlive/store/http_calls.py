"""Requests over HTTP/1.1, each with one whole answer, for a command that makes a few and ends.

Daemons call through aiohttp (``outlive.store.http_session``), which takes longer to import than a command to answer.
Here the parser is httptools and the connection asyncio's. Nothing is ever sent twice, redirects are not followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import httptools

from outlive.base import BadInput, Clock, LimitExceeded
from outlive.store.http_answers import (
    ANSWER_BYTES,
    ANSWER_SECONDS,
    connection_error,
    unreachable_error,
    untrusted_error,
)

CONNECT_SECONDS: Final = 10.0
"""How long a connection may take to open."""
KEEP_ALIVE_SECONDS: Final = 30.0
"""How long an idle connection is kept; shorter than the server keeps it, so that no write goes into a closing one."""
IDLE_CONNECTIONS: Final = 8
CLOSE_SECONDS: Final = 1.0
"""How long a connection may take to close."""
READ_BYTES: Final = 1 << 20
NEXT_ADDRESS_SECONDS: Final = 0.25
"""How long one address of a name is tried alone."""


class HttpCalls(Protocol):
    """How ``HttpStore`` sends a request."""

    async def call(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, tls: ssl.SSLContext | None
    ) -> tuple[int, bytes]:
        """The status and body of any answer; ``Unavailable``, for writes ``Unknown`` if it may have been applied."""
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...


class _Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    origin: tuple[str, str]
    idle_since: float = 0.0


class BriefCalls:
    """Calls of a command; at most ``answer_bytes`` are read of an answer, within ``within_s``."""

    def __init__(
        self, base: str, clock: Clock, *, answer_bytes: int = ANSWER_BYTES, within_s: float = ANSWER_SECONDS
    ) -> None:
        self._base = base
        self._clock = clock
        self._answer_bytes = answer_bytes
        self._within_s = within_s
        self._idle: list[_Connection] = []

    async def call(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, tls: ssl.SSLContext | None
    ) -> tuple[int, bytes]:
        """The status and body of any answer; ``Unavailable``, for writes ``Unknown`` if it may have been applied."""
        request = _request(method, url, headers, body)
        connection = await self._reuse_connection(url) or await self._open(url, tls)
        again = False
        try:
            connection.writer.write(request)
            async with asyncio.timeout(self._within_s):
                status, answer, again = await self._read(connection.reader)
        except (OSError, EOFError, httptools.HttpParserError) as error:
            raise connection_error(error, self._base, writing=method != "GET") from error
        finally:
            if again and len(self._idle) < IDLE_CONNECTIONS:
                self._idle.append(connection._replace(idle_since=self._clock.monotonic()))
            else:
                await _end(connection)
        return status, answer

    async def close(self) -> None:
        """Close all connections."""
        idle, self._idle = self._idle, []
        for connection in idle:
            await _end(connection)

    async def _reuse_connection(self, url: str) -> _Connection | None:
        """An idle connection to the same server that both sides still keep."""
        while self._idle:
            connection = self._idle.pop()
            fresh = self._clock.monotonic() - connection.idle_since < KEEP_ALIVE_SECONDS
            if fresh and connection.origin == _server_origin(url) and not connection.reader.at_eof():
                return connection
            await _end(connection)
        return None

    async def _open(self, url: str, tls: ssl.SSLContext | None) -> _Connection:
        parts = urlsplit(url)
        context = (tls or ssl.create_default_context()) if parts.scheme == "https" else None
        port = parts.port or (443 if context is not None else 80)
        try:
            async with asyncio.timeout(min(CONNECT_SECONDS, self._within_s)):
                reader, writer = await asyncio.open_connection(
                    parts.hostname,
                    port,
                    ssl=context,
                    limit=READ_BYTES,
                    happy_eyeballs_delay=NEXT_ADDRESS_SECONDS,
                )
        except ssl.SSLError as error:
            raise untrusted_error(error, self._base) from error
        except OSError as error:
            raise unreachable_error(str(error) or "no answer in time", self._base) from error
        return _Connection(reader, writer, _server_origin(url))

    async def _read(self, reader: asyncio.StreamReader) -> tuple[int, bytes, bool]:
        """Status, body, and whether the connection can be used again."""
        answer = _ParsedAnswer()
        parser = answer.parser
        while not answer.complete:
            data = await reader.read(READ_BYTES)
            if not data:
                if answer.ends_with_connection:
                    break
                raise EOFError("it was closed before the answer was complete")
            parser.feed_data(data)
            if answer.size > self._answer_bytes:
                raise LimitExceeded(
                    f"an answer of more than {self._answer_bytes} bytes", remedy="ask for smaller pages"
                )
        return parser.get_status_code(), b"".join(answer.parts), answer.keep_alive


async def _end(connection: _Connection) -> None:
    """Close it, and wait a moment for that."""
    connection.writer.close()
    with contextlib.suppress(OSError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await connection.writer.wait_closed()


class _ParsedAnswer:
    """What the parser finds in an answer."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.complete = self.keep_alive = False
        self.parts: list[bytes] = []
        self.size = 0
        """Bytes of headers and body so far."""
        self._in_body = self._has_length = False

    @property
    def ends_with_connection(self) -> bool:
        """Whether the end of the connection is the end of the body."""
        return self._in_body and not self._has_length

    def on_header(self, name: bytes, value: bytes) -> None:
        self.size += len(name) + len(value)
        self._has_length = self._has_length or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self._in_body = True

    def on_body(self, part: bytes) -> None:
        self.size += len(part)
        self.parts.append(part)

    def on_message_complete(self) -> None:
        self.complete, self.keep_alive = True, self.parser.should_keep_alive()


def _server_origin(url: str) -> tuple[str, str]:
    """Scheme and address of the server."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2]


def _request(method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
    parts = urlsplit(url)
    target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
    sent = [("Host", _server_origin(url)[1]), *headers.items()]
    if body is not None or method != "GET":
        sent.append(("Content-Length", str(len(body or b""))))
    for name, value in sent:
        if not value.isprintable():
            raise BadInput(f"the header {name} has a character that cannot be sent", remedy="check the token")
    head = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in sent)]
    return "\r\n".join([*head, "", ""]).encode() + (body or b"")

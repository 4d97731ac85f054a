"""Requests and watches over aiohttp: connections that many calls of a daemon share."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
from yarl import URL

from outlive.base import LimitExceeded, OutliveError
from outlive.store.http_answers import (
    ANSWER_BYTES,
    ANSWER_SECONDS,
    Remedies,
    connection_error,
    unreachable_error,
    untrusted_error,
)
from outlive.store.http_calls import CONNECT_SECONDS, KEEP_ALIVE_SECONDS, READ_BYTES

CONNECTIONS: Final = 64
PEER_GONE_S: Final = 12
"""After so long without an acknowledgement a connection is broken: its peer has lost power, or is cut off."""
CLOSING_TURNS: Final = 10
"""Turns of the loop in which connections that were aborted, or were just being opened, let go of their sockets."""
PROBE_S: Final = 4
"""How often TCP asks a peer that sends nothing whether it is there."""


class HttpSession:
    """Calls and watches of one client."""

    def __init__(
        self,
        base: str,
        connections: int = CONNECTIONS,
        remedies: Remedies = Remedies(),
        answer_s: float | None = ANSWER_SECONDS,
    ) -> None:
        """``answer_s``: how long an answer may take; ``None``: there is no limit."""
        self._answer_s = answer_s
        self._base = base
        self._remedies = remedies
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    async def call(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, tls: ssl.SSLContext | None
    ) -> tuple[int, bytes]:
        """The status and body of any answer; ``Unavailable``, for writes ``Unknown`` if it may have been applied."""
        try:
            async with self._open_session().request(
                method,
                URL(url, encoded=True),
                data=body,
                headers=headers,
                allow_redirects=False,
                ssl=tls if tls is not None else True,
            ) as answer:
                return answer.status, await read_answer(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._error_of(error, writing=method != "GET") from error

    @asynccontextmanager
    async def watch(
        self, url: str, headers: Mapping[str, str], tls: ssl.SSLContext | None, silence_s: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that goes on; ``Unavailable`` when the connection ends badly, or nothing comes for so long."""
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS, sock_read=silence_s)
        trusted = tls if tls is not None else True
        try:
            async with self._open_session().get(
                URL(url, encoded=True), headers=headers, timeout=timeout, ssl=trusted
            ) as answer:
                try:
                    yield answer
                finally:  # what comes after is wanted by nobody, and a peer may never say goodbye
                    if answer.connection is not None and answer.connection.transport is not None:
                        answer.connection.transport.abort()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._error_of(error, writing=False) from error

    async def close(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is None:
            return
        if session.connector is not None:
            # At once: peers that are gone would be waited for, and the loop may end before they have said goodbye.
            await session.connector.close(abort_ssl=True)
        await session.close()
        for _ in range(CLOSING_TURNS):
            await asyncio.sleep(0)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=self._connections, keepalive_timeout=KEEP_ALIVE_SECONDS, socket_factory=_open_socket
                ),
                timeout=aiohttp.ClientTimeout(total=self._answer_s, connect=CONNECT_SECONDS),
                read_bufsize=READ_BYTES,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            # aiohttp sends PUT and DELETE again when a kept connection turns out to be closed, and has no setting
            # against it. The first may have been applied, and the second would then be answered Conflict or NotFound.
            self._session._retry_connection = False
        return self._session

    def _error_of(self, error: Exception, *, writing: bool) -> OutliveError:
        """What a failing connection means: certainly not applied, or perhaps."""
        if isinstance(error, aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError):
            return untrusted_error(getattr(error, "certificate_error", error), self._base, self._remedies)
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | aiohttp.InvalidURL):
            return unreachable_error(error, self._base, self._remedies)
        return connection_error(error, self._base, writing=writing)


def _open_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket that notices within ``PEER_GONE_S`` that its peer is gone, though nothing is sent to it."""
    family, kind, protocol, _, _ = address
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", PROBE_S),
        ("TCP_KEEPINTVL", PROBE_S),
        ("TCP_KEEPCNT", PEER_GONE_S // PROBE_S),
        ("TCP_USER_TIMEOUT", PEER_GONE_S * 1000),
    ):
        if (known := getattr(socket, option, None)) is not None:
            opened.setsockopt(socket.IPPROTO_TCP, known, value)
    return opened


async def read_answer(answer: aiohttp.ClientResponse) -> bytes:
    """The whole body of an answer, up to a limit."""
    parts: list[bytes] = []
    size = 0
    async for part in answer.content.iter_any():
        size += len(part)
        if size > ANSWER_BYTES:
            raise LimitExceeded(f"an answer of more than {ANSWER_BYTES} bytes", remedy="ask for smaller pages")
        parts.append(part)
    return b"".join(parts)

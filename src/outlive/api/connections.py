"""Connections: how many there are, whose, and what one may cost before and after its owner has shown a token.

uvicorn bounds neither the size of a head, nor the time that a client takes to send it, nor what waits for a client
that reads nothing, nor requests that are sent before earlier ones are answered; asyncio does not bound TLS handshakes
that were begun and not finished. ``ClientConnection``, ``Connections`` and ``Listener`` do
(docs/reference/http-api.md#connections).

A life of a connection::

    accepted ── handshake ──▶ unknown ── a valid token ──▶ known
    at most 1/4 of the limit  at least 1/8 of the limit    the rest

A connection that comes anew takes the place of an unknown one; one that becomes known, of a known one. Idle ones go
first, of the client that has the most, that which has been idle for longest. One whose peer takes nothing counts as
idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from asyncio import sslproto
from collections.abc import Callable, Mapping
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from outlive.api.auth import PEER
from outlive.api.config import (
    BUFFER_BYTES,
    HEAD_SECONDS,
    HEADERS_BYTES,
    NEWCOMERS_SHARE,
    PIPELINED_REQUESTS,
    STALLED_SECONDS,
    TLS_READ_BYTES,
    UNKNOWN_WRITE_SECONDS,
    WRITE_SECONDS,
)
from outlive.runtime import FairSelector, current_selector

CONNECTION: Final = "connection"
"""Key of a request's state: its connection."""
HANDSHAKES_SHARE: Final = 4
"""One connection of so many may be one whose TLS handshake is not finished."""
HANDSHAKE_SECONDS: Final = 0.5
"""How long a handshake may take when others wait for its place."""
ACCEPTED_AT_ONCE: Final = 4
"""Connections that are accepted before others on the event loop get their turn."""
FIRST_CONNECTIONS: Final = 4
"""Connections of one host that are served in every round of the event loop."""
SWEEP_SECONDS: Final = 1.0
"""How often the server looks for connections whose peers take nothing."""
_HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b'content-length: 81\r\n\r\n{"code":"headers-too-large","message":"the request\'s headers are beyond the limit"}'
)
# asyncio allocates (and clears) this much for each connection, 256 KiB by default.
sslproto.SSLProtocol.max_size = TLS_READ_BYTES

Groups = dict[str, dict["ClientConnection", None]]
"""Client → its connections, in the order in which they came."""


class Connections:
    """All connections of one server. ``ended`` is called with why one was ended before its time; ``selector``: of the
    event loop, if it serves some connections first."""

    def __init__(
        self, limit: int, ended: Callable[[str], None] = lambda _why: None, selector: FairSelector | None = None
    ) -> None:
        self.limit = limit
        self._selector = selector
        self._first: dict[str, dict[ClientConnection, None]] = {}
        """Host's token → its connections that are served in every round of the event loop, in order of use."""
        self.known_limit = max(1, limit - max(1, limit // NEWCOMERS_SHARE))
        self.listeners: tuple[Listener, ...] = ()
        """Those that wait for the end of its handshake."""
        self._ended = ended
        self._unknown: Groups = {}
        self._known: Groups = {}
        self._counts = {id(self._unknown): 0, id(self._known): 0}

    def add(self, connection: ClientConnection) -> None:
        """Take in a new connection; where there are too many, end an unknown one, which may be this one."""
        self._add_to(self._unknown, connection)
        if self._count(self._unknown) + self._count(self._known) > self.limit:
            victim = _longest_idle_connection(self._unknown, connection)
            if victim is None:  # of the client with the most connections the one that came first
                groups = sorted(self._unknown.values(), key=len, reverse=True)
                victim = next((each for group in groups for each in group if each is not connection), connection)
            self.end(victim, "evicted")

    def prove(self, connection: ClientConnection) -> None:
        """The connection has shown a valid token. It stays unknown where all known ones work."""
        if connection not in self._unknown.get(connection.client_group, ()):
            return
        if self._count(self._known) >= self.known_limit:
            victim = _longest_idle_connection(self._known, connection)
            if victim is None:
                return
            self.end(victim, "evicted")
        self._remove_from(self._unknown, connection)
        self._add_to(self._known, connection)

    def serve_first(self, connection: ClientConnection, flow: str) -> None:
        """The connection renews a lease: from now on it is served in every round of the event loop, as are the last
        few of that token that did."""
        if self._selector is None:
            return
        group = self._first.setdefault(flow, {})
        if connection in group:
            return
        if len(group) >= FIRST_CONNECTIONS:
            former = next(iter(group))
            del group[former]
            self._selector.move(former.fd, first=False)
        group[connection] = None
        connection.first_of = flow
        self._selector.move(connection.fd, first=True)

    def is_known(self, connection: ClientConnection) -> bool:
        """Whether it has shown a valid token, and has its place for that."""
        return connection in self._known.get(connection.client_group, ())

    def remove(self, connection: ClientConnection) -> None:
        """The connection is gone, or about to go."""
        self._remove_from(self._unknown, connection)
        self._remove_from(self._known, connection)
        group = self._first.get(connection.first_of, {})
        group.pop(connection, None)
        if not group:
            self._first.pop(connection.first_of, None)

    def end(self, connection: ClientConnection, why: str) -> None:
        """End it at once: nothing that waits for its peer is kept."""
        self.remove(connection)
        self._ended(why)
        connection.abort()

    def sweep(self, now_s: float) -> dict[str, int]:
        """End those whose peers have taken nothing for too long; how many are left, by state."""
        counts = {"unknown": 0, "idle": 0, "active": 0, "stalled": 0}
        for groups in (self._unknown, self._known):
            for connection in [one for group in groups.values() for one in group]:
                stalled_s = connection.stalled_s(now_s)
                if stalled_s > (WRITE_SECONDS if groups is self._known else UNKNOWN_WRITE_SECONDS):
                    self.end(connection, "write-timeout")
                elif stalled_s > STALLED_SECONDS:
                    counts["stalled"] += 1
                elif groups is self._unknown:
                    counts["unknown"] += 1
                else:
                    counts["idle" if connection.idle else "active"] += 1
        return counts

    async def run(self, report: Callable[[Mapping[str, int]], None] = lambda _counts: None) -> None:
        """Sweep until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            report(self.sweep(loop.time()))

    def _count(self, groups: Groups) -> int:
        return self._counts[id(groups)]

    def _add_to(self, groups: Groups, connection: ClientConnection) -> None:
        groups.setdefault(connection.client_group, {})[connection] = None
        self._counts[id(groups)] += 1

    def _remove_from(self, groups: Groups, connection: ClientConnection) -> None:
        group = groups.get(connection.client_group, {})
        if connection not in group:
            return
        del group[connection]
        self._counts[id(groups)] -= 1
        if not group:
            del groups[connection.client_group]


def _longest_idle_connection(groups: Groups, spared: ClientConnection) -> ClientConnection | None:
    """Of the client with the most connections, of which some are idle, that which has been idle for longest."""
    for group in sorted(groups.values(), key=len, reverse=True):
        idle = [each for each in group if each is not spared and each.idle]
        if idle:
            return min(idle, key=lambda each: each.idle_since)
    return None


def client_group(address: str) -> str:
    """What counts as one client: an IPv4 address, or a network of /64, which one machine may have as a whole."""
    if ":" not in address:
        return address
    try:
        found = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or ipaddress.IPv6Network((int(found) >> 64 << 64, 64)))


class Listener(socket.socket):
    """A listening socket that keeps few connections open whose TLS handshake is not finished.

    When there are ``limit`` of them, the oldest is closed for a new one; if it is younger than ``HANDSHAKE_SECONDS``,
    new ones wait. So clients that never finish keep no other out, and the listener serves many that come at once one
    after the other.
    """

    def __init__(self, listening: socket.socket, limit: int) -> None:
        super().__init__(listening.family, listening.type, listening.proto, fileno=listening.detach())
        self.setblocking(False)
        self._selector = current_selector()
        if self._selector is not None:
            self._selector.mark_later(self)
        self._limit = limit
        self._accepted = 0
        """Connections that were accepted in this round of the event loop."""
        self._begun: dict[int, tuple[socket.socket, float]] = {}
        """Descriptor -> connection, and since when, in the order in which they came."""

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; ``BlockingIOError`` if there is none, or no room for it yet."""
        if self._accepted == ACCEPTED_AT_ONCE:  # asyncio goes on at once until it hears that there is none
            self._accepted = 0
            raise BlockingIOError
        now = asyncio.get_running_loop().time()
        if len(self._begun) >= self._limit:
            self._begun = {number: each for number, each in self._begun.items() if each[0].fileno() == number}
        if len(self._begun) >= self._limit:
            number, (oldest, since) = next(iter(self._begun.items()))
            if now - since >= HANDSHAKE_SECONDS:
                del self._begun[number]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            raise BlockingIOError
        connection, peer = super().accept()
        self._accepted += 1
        if self._selector is not None:
            self._selector.mark_later(connection)
        self._begun.pop(connection.fileno(), None)
        self._begun[connection.fileno()] = (connection, now)
        return connection, peer

    def end_handshake(self, number: int) -> None:
        """Count the handshake of the connection with this descriptor no more: it is finished."""
        self._begun.pop(number, None)


class ClientConnection(HttpToolsProtocol):
    """One connection, with limits on its head, its requests, and what waits for its peer."""

    pool: Connections
    """Set by the subclass of one server."""
    client_group = ""
    first_of = ""
    """The token of a host for which it is served in every round of the event loop."""
    fd = -1
    idle_since = 0.0
    """When it was opened, or its last answer was complete, or its peer took something last."""
    _head_bytes = 0
    _reading_head = False
    """Whether a head has begun and is not complete."""
    _served = False
    """Whether a whole head was ever read."""
    _head_timer: asyncio.TimerHandle | None = None
    _answered: RequestResponseCycle | None = None
    """The request that is being answered; ``cycle`` is the one that came last."""
    _paused_at: float | None = None
    """Since when more waits for its peer than ``BUFFER_BYTES``, or since when it is closing with something unsent."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count it, and bound what waits for its peer."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=BUFFER_BYTES)
        self.idle_since = self.loop.time()
        self.client_group = client_group(self.client[0] if self.client else "")
        self.fd = transport.get_extra_info("socket").fileno()
        for listener in self.pool.listeners:
            listener.end_handshake(self.fd)
        self._watch_head()
        self.app_state = {**self.app_state, CONNECTION: self}
        if self.scheme == "https" and transport.get_extra_info("peercert"):
            self.app_state[PEER] = True
        self.pool.add(self)

    @property
    def idle(self) -> bool:
        """Whether no request of it is being answered, or its peer does not take the answer."""
        return self.cycle is None or self.cycle.response_complete or self.stalled_s(self.loop.time()) > STALLED_SECONDS

    def stalled_s(self, now_s: float) -> float:
        """For how long its peer has not taken what waits for it; 0 while it does."""
        if self._paused_at is None and self.transport.is_closing():
            self._paused_at = now_s
        return 0.0 if self._paused_at is None else now_s - self._paused_at

    def pause_writing(self) -> None:
        """More waits for its peer than may."""
        self._paused_at = self.idle_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """Its peer has taken something."""
        self._paused_at = None
        super().resume_writing()

    def on_response_complete(self) -> None:
        """An answer is complete."""
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Disconnect all its requests, and free its buffers."""
        self._unwatch_head()
        self._unset_keepalive_if_required()
        self.pool.remove(self)
        self.disconnect_requests()
        super().connection_lost(exc)
        # These lead back to this object, whose buffers the collector of garbage would else free late.
        self.app_state = {}
        self.scope = self.cycle = self._answered = None  # type: ignore[assignment]

    def prove(self) -> None:
        """It has shown a valid token."""
        self.pool.prove(self)

    def serve_first(self, flow: str) -> None:
        """It renews the lease of the host with this token."""
        self.pool.serve_first(self, flow)

    def abort(self) -> None:
        """End it at once: drop what waits for its peer, and disconnect its requests."""
        self.disconnect_requests()
        self.transport.abort()

    def disconnect_requests(self) -> None:
        """Disconnect all its requests; uvicorn disconnects only the one that came last."""
        for cycle in (self._answered, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        """Parse what came, within the limit of a head."""
        before = self._reading_head
        super().data_received(data)
        # What came together with the end of an earlier request may be that one's body, and is not counted.
        if self._reading_head and (before or not self._served):
            self._head_bytes += len(data)
            if self._head_bytes > 2 * HEADERS_BYTES and not self.transport.is_closing():
                self.transport.write(_HEAD_TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        """A head begins."""
        if self.transport.is_closing():
            return
        super().on_message_begin()
        self._reading_head, self._head_bytes = True, 0
        if self._head_timer is None:
            self._watch_head()

    def on_headers_complete(self) -> None:
        """A head is complete: its request is served, or waits for the answer of an earlier one."""
        self._reading_head, self._served = False, True
        self._unwatch_head()
        if self.transport.is_closing():
            return
        if len(self.pipeline) >= PIPELINED_REQUESTS:
            self.pool.end(self, "pipelined")
            return
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of a body came; what is more than a handler takes waits in the kernel."""
        if self.transport.is_closing():
            return
        super().on_body(body)
        if len(self.cycle.body) > BUFFER_BYTES:
            self.flow.pause_reading()
            if self.pipeline:  # nobody reads it yet, and the request before it may go on reading the socket
                self.pool.end(self, "pipelined")

    def on_message_complete(self) -> None:
        """A request is complete."""
        if not self.transport.is_closing():
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _watch_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _unwatch_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

"""Opens the socket and serves the application with uvicorn, inside the event loop that runs already.

Whoever runs the process owns its signals: this stops when its task is cancelled or ``Serving.stop`` is called,
ends all watches, gives running requests ``SHUTDOWN_SECONDS``, and removes ``server.json`` and ``kubeconfig``.
uvicorn has no limit on the size of request headers and none on the time that a client takes to send them, and answers
503 to everybody once its limit of connections is reached, however idle they are; ``_Protocol`` adds both limits, closes
the connection that has been idle for longest for a new one, and says whether a client certificate was verified.
asyncio has no limit on TLS handshakes that were begun and not finished; ``_Listener`` adds one.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import ipaddress
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from outlive.api.auth import PEER
from outlive.api.config import (
    HEAD_SECONDS,
    HEADERS_BYTES,
    KEEP_ALIVE_SECONDS,
    SERVER_FILE,
    SHUTDOWN_SECONDS,
    TOKEN_FILE,
    ApiSettings,
    ServerFile,
)
from outlive.base.errors import BadInput, Forbidden, InUse, OutliveError
from outlive.base.files import check_private, read_private, write_whole
from outlive.base.logging import get_logger

BACKLOG: Final = 2048
OTHER_DESCRIPTORS: Final = 128
"""Descriptors that are kept free of connections: for files, watches of our own, and children."""
HANDSHAKES_SHARE: Final = 4
"""One connection of so many may be one whose TLS handshake is not finished."""
HANDSHAKE_SECONDS: Final = 0.5
"""How long a handshake may take when others wait for its place."""
KUBECONFIG_FILE: Final = "kubeconfig"
TOKEN_BYTES: Final = 4096
"""The largest file of a token."""
KEY_BYTES: Final = 64 * 1024
"""The largest file of a private key."""
_HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b'content-length: 81\r\n\r\n{"code":"headers-too-large","message":"the request\'s headers are beyond the limit"}'
)

_log = get_logger("api.serve")


class OwnTls(Protocol):
    """The server's own authority and certificate (``outlive.api.tls``)."""

    context: ssl.SSLContext

    @property
    def authority(self) -> str:
        """Its certificate in PEM."""
        ...

    @property
    def fingerprint(self) -> str:
        """Of the authority."""
        ...


class Serving:
    """A server that serves."""

    def __init__(self, server: _Server, url: str, announce: Callable[[], None] = lambda: None) -> None:
        self._server = server
        self.url = url
        """Where it can be reached from this machine."""
        self.announce = announce
        """Write ``server.json`` and ``kubeconfig`` again: the token or the authority has changed."""

    def stop(self) -> None:
        """Begin to stop; ``serving`` ends once that is done."""
        self._server.should_exit = True

    async def until_stopped(self) -> None:
        """Return when the server stops."""
        await self._server.stopping.wait()


@asynccontextmanager
async def serving(
    app: Starlette,
    host: str,
    port: int,
    *,
    settings: ApiSettings | None = None,
    state_dir: Path | None = None,
    version: str = "",
    tls: OwnTls | None = None,
    beside: tuple[Serving, OwnTls] | None = None,
    lifespan: bool = True,
) -> AsyncIterator[Serving]:
    """Serve while the block runs; it begins when the port accepts connections. Port 0 takes any free one.

    ``tls``: the server's own certificate; without one the settings say whether it speaks TLS. ``beside``: where the
    same application is served by TLS for kubectl, which sends no token over plain HTTP. ``lifespan``: whether the
    application begins and ends with this server.
    """
    settings = settings or ApiSettings()
    context = tls_context(settings) if tls is None else tls.context
    sockets = listen(host, port)
    limit = _connections_limit(settings.connections)
    if context is not None:
        sockets = [_Listener(each, max(1, limit // HANDSHAKES_SHARE)) for each in sockets]
    server = _Server(_config(app, _protocol(limit, sockets), context, lifespan=lifespan), app)
    url = address(sockets[0], tls=context is not None)
    task = asyncio.create_task(server.serve(sockets=sockets), name="api")
    started = asyncio.create_task(server.started_event.wait())
    try:
        await asyncio.wait([task, started], return_when="FIRST_COMPLETED")
        if task.done():
            task.result()
            raise OutliveError("the HTTP server did not start", remedy="its log says why")

        def announced() -> None:
            if state_dir is not None:
                pinned = tls.fingerprint if tls is not None else ""
                content = ServerFile(url=url, pid=os.getpid(), version=version, fingerprint=pinned)
                kubectl = (url, tls) if beside is None else (beside[0].url, beside[1])
                announce(state_dir, content, kubectl[0], kubectl[1].authority if kubectl[1] is not None else "")

        announced()
        _log.info("api.serving", url=url)
        yield Serving(server, url, announced)
    finally:
        started.cancel()
        server.should_exit = True
        app.state.watches.close()
        await asyncio.shield(asyncio.wait([task]))
        for opened in sockets:
            opened.close()
        if state_dir is not None:
            withdraw(state_dir)
        _log.info("api.stopped", url=url)


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen on every address of the host; errors say what to do about it."""
    place = f"--listen {host}:{port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise BadInput(
            f"{host!r} is no address of this machine: {error}", place=place, remedy="use 127.0.0.1"
        ) from None
    sockets: list[socket.socket] = []
    for family, kind, protocol, _, target in dict.fromkeys(found):
        opened = socket.socket(family, kind, protocol)
        sockets.append(opened)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            opened.bind(target)
            opened.listen(BACKLOG)
            opened.setblocking(False)
        except OSError as error:
            for other in sockets:
                other.close()
            raise _cannot_listen(error, host, port, place) from None
    return sockets


def _cannot_listen(error: OSError, host: str, port: int, place: str) -> OutliveError:
    if error.errno == errno.EADDRINUSE:
        return InUse(
            f"port {port} of {host} is in use by another process",
            place=place,
            remedy=f"stop it (see: ss -ltnp 'sport = :{port}'), or choose another port with --listen",
        )
    if error.errno == errno.EACCES:
        return Forbidden(f"port {port} may not be opened", place=place, remedy="use a port above 1023")
    return BadInput(f"cannot listen: {error.strerror}", place=place, remedy="use an address of this machine")


def address(opened: socket.socket, *, tls: bool) -> str:
    """The URL of a listening socket, reachable from this machine."""
    host, port = opened.getsockname()[:2]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def tls_context(settings: ApiSettings) -> ssl.SSLContext | None:
    """The TLS settings; ``BadInput`` names a file that cannot be used. A client certificate must verify if sent."""
    if not settings.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.tls_key and Path(settings.tls_key).exists():
        check_private(Path(settings.tls_key).resolve(), limit=KEY_BYTES)
    with _naming("api.tlsCertificate", f"{settings.tls_certificate} with {settings.tls_key}"):
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    if settings.tls_client_ca:
        with _naming("api.tlsClientCa", settings.tls_client_ca):
            context.load_verify_locations(settings.tls_client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


@contextmanager
def _naming(place: str, what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ssl.SSLError) as error:
        raise BadInput(f"{what} cannot be used: {error}", place=place, remedy="give PEM files that fit") from None


def announce(state_dir: Path, content: ServerFile, kubectl: str, authority: str = "") -> None:
    """Write ``server.json`` and, where there is a token, a ``kubeconfig`` that holds the address for ``kubectl``,
    authority and token."""
    write_whole(state_dir / SERVER_FILE, msgspec.json.encode(content) + b"\n")
    token = state_dir / TOKEN_FILE
    if token.is_file():
        text = read_private(token, limit=TOKEN_BYTES).decode(errors="replace").strip()
        write_whole(state_dir / KUBECONFIG_FILE, kubeconfig(kubectl, text, authority))


def withdraw(state_dir: Path) -> None:
    """Remove what ``announce`` wrote, if it is still ours."""
    content = read_server_file(state_dir / SERVER_FILE)
    if content is not None and content.pid == os.getpid():
        for name in (SERVER_FILE, KUBECONFIG_FILE):
            (state_dir / name).unlink(missing_ok=True)


def kubeconfig(url: str, token: str, authority: str = "") -> bytes:
    """Settings for kubectl. The token is where ``kubectl config view`` does not show it; over plain HTTP it is not sent
    at all."""
    cluster = {"server": url}
    if authority:
        cluster["certificate-authority-data"] = base64.b64encode(authority.encode()).decode()
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "outlive", "cluster": cluster}],
        "users": [{"name": "outlive", "user": {"token": token}}],
        "contexts": [{"name": "outlive", "context": {"cluster": "outlive", "user": "outlive"}}],
        "current-context": "outlive",
    }
    return msgspec.json.encode(document) + b"\n"


def read_server_file(path: Path) -> ServerFile | None:
    """What a running server wrote, or ``None`` where there is none or it is broken."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ServerFile)
    except (OSError, msgspec.DecodeError):
        return None


def _config(
    app: Starlette, protocol: type[_Protocol], context: ssl.SSLContext | None, *, lifespan: bool
) -> uvicorn.Config:
    options: dict[str, Any] = {}
    if context is not None:
        options["ssl_context_factory"] = lambda _config, _default: context
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="on" if lifespan else "off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        **options,
    )


def _connections_limit(wanted: int) -> int:
    """As many connections as are wanted, but so few that descriptors are left for everything else."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(1, wanted if descriptors == resource.RLIM_INFINITY else min(wanted, descriptors - OTHER_DESCRIPTORS))


def _protocol(limit: int, sockets: Sequence[socket.socket]) -> type[_Protocol]:
    """The protocol of a server that serves so many connections at once, which come from these sockets."""

    class Protocol(_Protocol):
        connections_limit = limit
        listeners = tuple(each for each in sockets if isinstance(each, _Listener))

    return Protocol


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, which says when it has started and when it begins to stop."""

    def __init__(self, config: uvicorn.Config, app: Starlette) -> None:
        super().__init__(config)
        self.started_event = asyncio.Event()
        self.stopping = asyncio.Event()
        self._app = app

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled by whoever runs the process."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.started_event.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.stopping.set()
        self._app.state.watches.close()
        await super().shutdown(sockets=sockets)


class _Listener(socket.socket):
    """A listening socket that keeps few connections open whose TLS handshake is not finished.

    When there are ``limit`` of them, the oldest is closed for a new one; if it is younger than ``HANDSHAKE_SECONDS``,
    new ones wait. So those who never finish keep nobody out, and many who come at once are served one after the other.
    """

    def __init__(self, listening: socket.socket, limit: int) -> None:
        super().__init__(listening.family, listening.type, listening.proto, fileno=listening.detach())
        self.setblocking(False)
        self._limit = limit
        self._begun: dict[int, tuple[socket.socket, float]] = {}
        """Descriptor -> connection, and since when, in the order in which they came."""

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; ``BlockingIOError`` if there is none, or no room for it yet."""
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
        self._begun.pop(connection.fileno(), None)
        self._begun[connection.fileno()] = (connection, now)
        return connection, peer

    def finished(self, number: int) -> None:
        """The handshake of the connection with this descriptor is finished."""
        self._begun.pop(number, None)


class _Protocol(HttpToolsProtocol):
    """One connection, with limits on its head."""

    connections_limit = 1024
    listeners: tuple[_Listener, ...] = ()
    """Those that wait for the end of its handshake."""
    idle_since = 0.0
    """When it was opened, or its last answer was complete."""
    _head_bytes = 0
    _reading_head = False
    """Whether a head has begun and is not complete."""
    _served = False
    """Whether a whole head was ever read."""
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]
        self.idle_since = self.loop.time()
        for listener in self.listeners:
            listener.finished(transport.get_extra_info("socket").fileno())
        self._make_room()
        self._watch_head()
        if self.scheme == "https" and transport.get_extra_info("peercert"):
            self.app_state = {**self.app_state, PEER: True}

    @property
    def idle(self) -> bool:
        """Whether no request of it is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def _make_room(self) -> None:
        """Close the connection that has been idle for longest when there are too many: this one, if all others work."""
        if len(self.connections) <= self.connections_limit:
            return
        others = [each for each in self.connections if isinstance(each, _Protocol) and each is not self]
        idle = [each for each in others if each.idle and not each.transport.is_closing()]
        min(idle, key=lambda each: each.idle_since, default=self).transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self._reading_head
        super().data_received(data)
        # What came together with the end of an earlier request may be that one's body, and is not counted.
        if self._reading_head and (before or not self._served):
            self._head_bytes += len(data)
            if self._head_bytes > 2 * HEADERS_BYTES and not self.transport.is_closing():
                self.transport.write(_HEAD_TOO_LARGE)
                self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reading_head, self._head_bytes = True, 0
        if self._head_timer is None:
            self._watch_head()

    def on_headers_complete(self) -> None:
        self._reading_head, self._served = False, True
        self._unwatch_head()
        super().on_headers_complete()

    def _watch_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _unwatch_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

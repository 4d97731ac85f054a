"""Opens the socket and serves the application with uvicorn, inside the event loop that runs already.

The process owns its signals: the server stops when its task is cancelled or ``Serving.stop`` is called,
ends all watches, gives running requests ``SHUTDOWN_SECONDS``, and removes ``server.json`` and ``kubeconfig``.
What one connection may cost, and which one goes when there are too many, is in ``outlive.api.connections``.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import ipaddress
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import uvicorn
from starlette.applications import Starlette

from outlive.api.config import (
    KEEP_ALIVE_SECONDS,
    SERVER_FILE,
    SHUTDOWN_SECONDS,
    TOKEN_FILE,
    ApiSettings,
    ServerFile,
)
from outlive.api.connections import HANDSHAKES_SHARE, ClientConnection, Connections, Listener
from outlive.base import (
    BadInput,
    Forbidden,
    InUse,
    OutliveError,
    check_private,
    get_logger,
    process_identity,
    read_private,
    write_whole,
)
from outlive.runtime import current_selector

BACKLOG: Final = 2048
OTHER_DESCRIPTORS: Final = 128
"""Descriptors that are kept free of connections: for files, watches of our own, and children."""
SEND_BYTES: Final = 128 * 1024
"""What the kernel keeps for a peer that reads nothing, about; else it grows to megabytes a connection."""
KUBECONFIG_FILE: Final = "kubeconfig"
TOKEN_BYTES: Final = 4096
"""The largest file of a token."""
KEY_BYTES: Final = 64 * 1024
"""The largest file of a private key."""
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
        """Begin to stop; ``serve_app`` ends once that is done."""
        self._server.should_exit = True

    async def wait_until_stopped(self) -> None:
        """Return when the server stops."""
        await self._server.stopping.wait()


@asynccontextmanager
async def serve_app(
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
    connections = Connections(limit, app.state.recorder.count_ended, current_selector())
    connections.listeners = tuple(Listener(each, max(1, limit // HANDSHAKES_SHARE)) for each in sockets)
    server = _Server(_uvicorn_config(app, _make_protocol(connections), context, lifespan=lifespan), app)
    url = socket_url(connections.listeners[0], tls=context is not None)
    task = asyncio.create_task(server.serve(sockets=list(connections.listeners)), name="api")
    sweeping = asyncio.create_task(connections.run(app.state.recorder.count_connections), name="connections")
    started = asyncio.create_task(server.started_event.wait())
    try:
        await asyncio.wait([task, started], return_when="FIRST_COMPLETED")
        if task.done():
            task.result()
            raise OutliveError("the HTTP server did not start", remedy="its log says why")

        def write_files() -> None:
            if state_dir is not None:
                pinned = tls.fingerprint if tls is not None else ""
                own = os.getpid()
                content = ServerFile(
                    url=url, pid=own, process=process_identity(own), version=version, fingerprint=pinned
                )
                kubectl = (url, tls) if beside is None else (beside[0].url, beside[1])
                announce(state_dir, content, kubectl[0], kubectl[1].authority if kubectl[1] is not None else "")

        write_files()
        _log.info("api.serving", url=url)
        yield Serving(server, url, write_files)
    finally:
        started.cancel()
        server.should_exit = True
        app.state.watches.close()
        await asyncio.shield(asyncio.wait([task]))
        sweeping.cancel()
        for opened in connections.listeners:
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
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)  # connections inherit it
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


def socket_url(opened: socket.socket, *, tls: bool) -> str:
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
    with _explain_errors("api.tlsCertificate", f"{settings.tls_certificate} with {settings.tls_key}"):
        context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    if settings.tls_client_ca:
        with _explain_errors("api.tlsClientCa", settings.tls_client_ca):
            context.load_verify_locations(settings.tls_client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


@contextmanager
def _explain_errors(place: str, what: str) -> Iterator[None]:
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
        write_whole(state_dir / KUBECONFIG_FILE, make_kubeconfig(kubectl, text, authority))


def withdraw(state_dir: Path) -> None:
    """Remove what ``announce`` wrote, if it is still ours."""
    content = read_server_file(state_dir / SERVER_FILE)
    if content is not None and content.pid == os.getpid():
        for name in (SERVER_FILE, KUBECONFIG_FILE):
            (state_dir / name).unlink(missing_ok=True)


def make_kubeconfig(url: str, token: str, authority: str = "") -> bytes:
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


def _uvicorn_config(
    app: Starlette, protocol: type[ClientConnection], context: ssl.SSLContext | None, *, lifespan: bool
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


def _make_protocol(connections: Connections) -> type[ClientConnection]:
    """The protocol of the server that has these connections."""

    class Protocol(ClientConnection):
        pool = connections

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
        """Leave signals to the process."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.started_event.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.stopping.set()
        self._app.state.watches.close()
        await super().shutdown(sockets=sockets)

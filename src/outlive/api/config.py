"""The settings of the HTTP server, and the named limits of everything that a client can make it do.

Sections ``api`` and, for who may ask for placements, ``scheduler.auth`` (docs/reference/http-api.md#settings).
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from outlive.base import BadInput, limits
from outlive.runtime import Duration, Size

SchedulerAuth = Literal["token", "mtls", "none"]

HEADERS_BYTES: Final = 64 * 1024
"""Request line and headers together."""
HEAD_SECONDS: Final = 30.0
"""How long a client may take to send its headers, or stay silent on a new connection."""
KEEP_ALIVE_SECONDS: Final = 75
"""How long an idle connection is kept; longer than clients keep theirs, so that they never write into a closing one."""
WRITE_SECONDS: Final = 20.0
"""How long a connection may wait for a peer that does not take what was written; then it is ended."""
UNKNOWN_WRITE_SECONDS: Final = 5.0
"""The same of one that has not shown a token."""
STALLED_SECONDS: Final = 2.0
"""A connection that waits for its peer for so long counts as idle."""
BUFFER_BYTES: Final = 32 * 1024
"""What waits for one peer before its handler does; answers are written in pieces of this size."""
TLS_READ_BYTES: Final = 16 * 1024
"""What is read from one TLS connection at once."""
PIPELINED_REQUESTS: Final = 4
"""Requests of one connection that wait for the answer of an earlier one; with more it is ended."""
NEWCOMERS_SHARE: Final = 8
"""One connection of so many is for those that have not shown a token."""
BODY_SECONDS: Final = 30.0
"""How long a client may take to send a body."""
SMALL_BODY_BYTES: Final = 32 * 1024
"""Bodies up to this size count as part of their connection."""
BODIES_AT_ONCE: Final = 4
"""So many times ``api.bodyLimit`` are the bytes of larger bodies in memory together."""
SHUTDOWN_SECONDS: Final = 5
"""How long requests that run may take to finish when the server stops."""
BOOKMARK_SECONDS: Final = 15.0
"""A watch says at least this often that it is alive."""
WATCH_SECONDS: Final = 3600.0
"""A watch ends after this time, and the client begins a new one."""
RING_CHANGES: Final = 10_000
"""Changes of a kind that are kept for watches that resume; older places are answered 410."""
WATCHES_SHARE: Final = 4
"""One watch of so many is kept for hosts, and one token has at most one of so many."""
WATCHES_LEAST: Final = 16
"""Watches that every token may have, if there are so many."""
CACHE_READY_SECONDS: Final = 30.0
"""How long a request waits for the first listing of a kind before a watch can be served."""
PATCH_ATTEMPTS: Final = 5
"""How often a patch without a version is applied again after somebody else's write came between."""
PATCH_OPERATIONS: Final = 1_000
"""Operations of one JSON patch."""
POINTER_CHARACTERS: Final = 2048
"""Of one path in a JSON patch."""
PATCH_COPIED_BYTES: Final = limits.OBJECT_BYTES
"""What all ``copy`` operations of one JSON patch make, as JSON."""
LIST_SLICE_OBJECTS: Final = 64
"""Objects of a list that are read and written in one round of the event loop."""
LIST_SLICE_BYTES: Final = 256 * 1024
"""The same in bytes, about: of large objects there are fewer."""
LIST_OBJECTS: Final = 10 * limits.PAGE_OBJECTS
"""Objects on one page at most, whatever the client asks for."""


SERVER_FILE: Final = "server.json"
AUTHORITY_FILE: Final = "ca.pem"
"""The server's own authority, for clients."""
TOKEN_FILE: Final = "token"  # noqa: S105 - the name of a file


class ServerFile(msgspec.Struct, frozen=True, kw_only=True):
    """``server.json``: where the command line finds the server of a state directory."""

    url: str
    pid: int
    process: str = ""
    """Which process that is, so that nobody is taken for the server who has its number later."""
    version: str = ""
    fingerprint: str = ""
    """Of the server's own authority, where it has one."""


class ApiSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The HTTP server. Keys are camelCase in the file and on the command line."""

    listen: str = "127.0.0.1:8080"
    """Address and port; ``[::1]:8080`` for IPv6, port 0 for any free one."""
    tokens_file: str = ""
    """Further tokens: lines of ``ROLE TOKEN [NAME] [until=YYYY-MM-DD]``."""
    tls_certificate: str = ""
    """Certificate chain (PEM), for HTTPS only."""
    tls_key: str = ""
    """Private key (PEM) of the certificate."""
    tls_client_ca: str = ""
    """Authorities (PEM) of client certificates; for ``scheduler.auth: mtls``."""
    names: tuple[str, ...] = ()
    """Further names and addresses for the server's own certificate."""
    insecure: bool = False
    """Plain HTTP beyond this machine; tokens can be read on the way."""
    metrics_auth: Literal["token", "none"] = "token"
    """Whether ``/metrics`` needs a token (viewer)."""
    body_limit: Size = Size(limits.REQUEST_BODY_BYTES)
    """The largest request body."""
    request_timeout: Duration = Duration(60.0)
    """How long a request may take, except lists and watches."""
    watches: int = 256
    """Concurrent watches; a quarter is for hosts."""
    watches_per_token: int = 0
    """Concurrent watches of one token; 0: a quarter of all, at least 16."""
    connections: int = 1024
    """Concurrent connections (docs/reference/http-api.md#connections)."""

    def __post_init__(self) -> None:
        try:
            parse_listen(self.listen)
        except BadInput as error:
            raise ValueError(f"listen: {error.message} ({error.remedy})") from None
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tlsCertificate and tlsKey go together: set both or none")
        if self.tls_client_ca and not self.tls_certificate:
            raise ValueError("tlsClientCa needs TLS: set tlsCertificate and tlsKey")
        for name in ("body_limit", "request_timeout", "watches", "connections"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} {getattr(self, name)} is not above 0")
        if self.watches_per_token < 0:
            raise ValueError(f"watchesPerToken {self.watches_per_token} is below 0")


HOST_CONNECTIONS: Final = 16
"""Connections at the same time to the metrics of a daemon."""


class HostMetricsSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``metrics`` of a host's configuration: where its daemon serves ``/metrics``."""

    listen: str = ""
    """Address and port, such as ``10.0.0.11:9177``; empty: nothing is served."""
    tokens_file: str = ""
    """Tokens that may read them: lines of ``ROLE TOKEN [NAME] [until=YYYY-MM-DD]`` with a role such as ``viewer``."""
    tls_certificate: str = ""
    """Certificate chain (PEM); needed beyond this machine."""
    tls_key: str = ""
    """Private key (PEM) of the certificate."""

    def __post_init__(self) -> None:
        if not self.listen:
            return
        api = self.api  # which refuses what is no address, or half of a certificate
        if not self.tokens_file:
            raise ValueError("tokensFile is missing: without one nobody may read the metrics")
        from outlive.store import is_loopback

        if not self.tls_certificate and not is_loopback(parse_listen(api.listen)[0]):
            raise ValueError(f"listen {self.listen} is beyond this machine: set tlsCertificate and tlsKey")

    @property
    def api(self) -> ApiSettings:
        """As the server takes them."""
        return ApiSettings(
            listen=self.listen,
            tls_certificate=self.tls_certificate,
            tls_key=self.tls_key,
            connections=HOST_CONNECTIONS,
        )


def parse_listen(text: str, *, place: str = "api.listen") -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``; ``BadInput`` otherwise."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BadInput(f"{text[:80]!r} is no address to listen on", place=place, remedy="write 127.0.0.1:8080")
    return host, int(port)


def check_scheduler_auth(auth: SchedulerAuth, settings: ApiSettings) -> None:
    """``BadInput`` when placements ask for client certificates that the server could not check."""
    if auth == "mtls" and not settings.tls_client_ca:
        raise BadInput(
            "scheduler.auth is mtls but no authority for client certificates is set",
            place="scheduler.auth",
            remedy="set api.tlsCertificate, api.tlsKey and api.tlsClientCa",
        )

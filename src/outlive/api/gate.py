"""What every request passes: request ids, its token, limits, the access log, metrics, and errors as answers.

``Gate`` stands around the whole application; ``endpoint`` turns one of our handlers into the ASGI function that
Litestar routes to. The id of a request is the client's ``X-Request-Id`` (or OpenStack's spelling) where it is
well formed, else a new one; it is in the answer, in every log line, and in every error
(docs/reference/http-api.md#requests).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from litestar import Litestar, asgi
from litestar.exceptions import HTTPException
from litestar.handlers import ASGIRouteHandler
from litestar.types import Receive, Scope, Send

from outlive.api.auth import ANYBODY, Access, Identity, Tokens, allow
from outlive.api.config import HEADERS_BYTES, ApiSettings
from outlive.api.problems import (
    HeadTooLarge,
    MethodNotAllowed,
    Unauthenticated,
    code_of,
    kubernetes_status,
    plain_problem,
    status_of,
)
from outlive.api.wire import (
    ERROR,
    IDENTITY,
    JSON,
    PATH,
    PEER,
    PLACED,
    REQUEST_ID,
    ROUTE,
    Answer,
    Call,
    ClientGone,
    within,
)
from outlive.base.clock import Clock
from outlive.base.errors import BadInput, Forbidden, NotFound
from outlive.base.ids import Ids
from outlive.base.logging import get_logger, request_context
from outlive.runtime.metrics import Metrics

Handler = Callable[[Call, Identity], Awaitable[Answer | None]]
"""Answers, or returns ``None`` when it has answered itself (a stream)."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}\Z")
_REQUEST_ID_HEADERS: Final = (b"x-request-id", b"x-openstack-request-id")
_GLOBAL_ID_HEADERS: Final = (b"x-global-request-id", b"x-openstack-global-request-id")
_KUBERNETES: Final = ("/api", "/apis", "/openapi", "/version")
_SCHEDULER: Final = "/scheduler/"

_log = get_logger("api")


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One path of the API, as the gate and the documentation see it."""

    path: str
    """A whole path, or where ``mount`` is set the beginning of many."""
    methods: tuple[str, ...]
    access: Access
    handler: Handler
    summary: str
    streams: bool = False
    """Whether a GET may answer with a stream, which the request's time limit would cut off."""
    mount: bool = False
    tag: str = ""


class Recorder:
    """Metrics and access log of requests."""

    def __init__(self, metrics: Metrics) -> None:
        self._requests = metrics.counter(
            "http_requests_total", "HTTP requests by route and status", ("method", "route", "status")
        )
        self._seconds = metrics.histogram(
            "http_request_duration_seconds", "How long HTTP requests took", ("method", "route")
        )
        self._scheduler = metrics.histogram(
            "scheduler_api_request_duration_seconds",
            "How long placement requests took",
            ("method", "path", "status", "error"),
        )
        self.watches = metrics.gauge("http_watches", "Watches that are open")

    def record(self, scope: Any, status: int, seconds: float) -> None:
        """Note one finished request. Reads that succeed are logged only at level debug."""
        method, path = scope["method"], scope[PATH]
        route, error = scope.get(ROUTE, "unknown"), scope.get(ERROR, "")
        known = method if method in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS") else "other"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(seconds)
        if route.startswith(_SCHEDULER) and not scope.get(PLACED):
            self._scheduler.labels(known, route, str(status), error).observe(seconds)
        quiet = status < 400 and (method in ("GET", "HEAD") or route.startswith(_SCHEDULER))
        (_log.debug if quiet else _log.info)(
            "api.request",
            method=method,
            path=path[:512],
            status=status,
            took_s=round(seconds, 6),
            user=scope[IDENTITY].name if IDENTITY in scope else "",
            client=(scope.get("client") or ("",))[0],
            error=error,
        )


class Gate:
    """The outermost part of the application."""

    def __init__(self, inner: Any, *, clock: Clock, ids: Ids, recorder: Recorder) -> None:
        self._inner = inner
        self._clock = clock
        self._ids = ids
        self._recorder = recorder

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one HTTP request."""
        started = self._clock.monotonic()
        request_id, global_id, size = self._read_head(scope)
        scope[REQUEST_ID] = request_id
        scope[PATH] = scope["path"]
        header = (b"x-request-id", request_id.encode())
        status = 0

        async def sending(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], header]
            await send(message)

        with request_context(greq=global_id or request_id, req=request_id):
            try:
                if size > HEADERS_BYTES:
                    raise HeadTooLarge(f"headers of {size} bytes", remedy=f"send at most {HEADERS_BYTES}")
                await self._inner(scope, receive, sending)
            except ClientGone:
                status = status or 499
            except Exception as error:  # the last resort: whatever happens is logged and answered
                if status_of(error).http == 500:
                    _log.exception("api.defect", method=scope["method"], path=scope[PATH][:512])
                if status:
                    raise  # the answer has begun: uvicorn closes the connection, so that nobody takes it for whole
                await answer_error(scope, sending, error)
            finally:
                self._recorder.record(scope, status or 500, self._clock.monotonic() - started)

    def _read_head(self, scope: Any) -> tuple[str, str, int]:
        """The request's id, the global one, and the size of the head."""
        request_id = global_id = b""
        size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        for name, value in scope["headers"]:
            size += len(name) + len(value) + 4
            if name in _REQUEST_ID_HEADERS and not request_id and _REQUEST_ID.match(value):
                request_id = value
            elif name in _GLOBAL_ID_HEADERS and not global_id and _REQUEST_ID.match(value):
                global_id = value
        return request_id.decode() or f"req-{self._ids.uuid()}", global_id.decode(), size


async def answer_error(scope: Any, send: Any, error: Exception) -> None:
    """Answer with the error, in the form of the path."""
    error = _of_routing(error, scope)
    scope[ERROR] = code_of(error)
    status, path = status_of(error), scope[PATH]
    request_id = scope.get(REQUEST_ID, "")
    kubernetes = any(path == start or path.startswith(f"{start}/") for start in _KUBERNETES)
    body = kubernetes_status(error, request_id) if kubernetes else plain_problem(error, request_id)
    headers: list[tuple[bytes, bytes]] = []
    if isinstance(error, Unauthenticated):
        headers.append((b"www-authenticate", b'Bearer realm="outlive"'))
    if isinstance(error, MethodNotAllowed):
        headers.append((b"allow", ", ".join(error.allow).encode()))
    if status.http in (413, 431):
        headers.append((b"connection", b"close"))
    if status.http in (429, 503):
        headers.append((b"retry-after", b"1"))
    await send(
        {
            "type": "http.response.start",
            "status": status.http,
            "headers": [(b"content-type", JSON), (b"content-length", str(len(body)).encode()), *headers],
        }
    )
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _of_routing(error: Exception, scope: Any) -> Exception:
    """Litestar's own errors as ours."""
    if not isinstance(error, HTTPException):
        return error
    if error.status_code == 404:
        return NotFound(f"there is nothing at {scope[PATH][:200]}", remedy="see /schema for what is served")
    return BadInput(f"{error.detail}"[:200], remedy="see /schema for what is served")


class Endpoints:
    """Makes Litestar's handlers from routes."""

    def __init__(self, *, tokens: Tokens, settings: ApiSettings, scheduler_auth: str) -> None:
        self._tokens = tokens
        self._settings = settings
        self._scheduler_auth = scheduler_auth

    def handler(self, route: Route) -> ASGIRouteHandler:
        """The route as an ASGI handler: authenticates, checks method and role, limits the time, answers."""

        @asgi(route.path, copy_scope=False, is_mount=route.mount)
        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            raw: Any = scope
            raw[ROUTE] = route.path
            call = Call(raw, receive, send, body_limit=self._settings.body_limit)
            identity = self._identify(raw, route.access)
            raw[IDENTITY] = identity
            if call.method not in route.methods:
                raise MethodNotAllowed(call.method, route.methods)
            work = route.handler(call, identity)
            streams = route.streams and call.method == "GET"
            answer = await work if streams else await within(self._settings.request_timeout, work)
            if answer is not None:
                if answer.status >= 400 and ERROR not in raw:
                    raw[ERROR] = str(answer.status)
                await call.answer(answer)

        return serve

    def _identify(self, scope: Any, access: Access) -> Identity:
        if access is Access.OPEN:
            return ANYBODY
        if access in (Access.PLACE, Access.EXPLAIN):
            if self._scheduler_auth == "none":
                return ANYBODY
            if self._scheduler_auth == "mtls":
                if not scope.get(PEER) and not (scope.get("state") or {}).get(PEER):
                    raise Unauthenticated(
                        "a client certificate is needed", remedy="connect by TLS with one of an authority that is known"
                    )
                return ANYBODY
        authorization = b""
        for name, value in scope["headers"]:
            if name == b"authorization":
                authorization = value
            elif name == b"sec-fetch-site" and value in (b"cross-site", b"same-site"):
                raise Forbidden("a page of another site asks", remedy="ask from this server's own pages, or a program")
        identity = self._tokens.identify(authorization)
        allow(identity, access)
        return identity


def application(handlers: list[ASGIRouteHandler], lifespan: Any, gate: Callable[[Any], Gate]) -> Litestar:
    """A Litestar application with the gate around it."""
    return _Gated(handlers, lifespan, gate)


class _Gated(Litestar):
    """Litestar, but every HTTP request passes the gate first, those that no route knows included."""

    def __init__(self, handlers: list[ASGIRouteHandler], lifespan: Any, gate: Callable[[Any], Gate]) -> None:
        super().__init__(
            route_handlers=handlers,
            lifespan=[lifespan],
            openapi_config=None,
            logging_config=None,
            debug=False,
            pdb_on_exception=False,
        )
        self._gate = gate(self.asgi_router)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        scope["app"] = scope["litestar_app"] = self
        scope.setdefault("state", {})
        await self._gate(scope, receive, send)

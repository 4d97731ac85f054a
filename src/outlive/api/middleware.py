"""What every request passes: request ids, limits, the access log, metrics, and errors as answers.

The id of a request is the client's ``X-Request-Id`` (or OpenStack's spelling) where it is well formed, else a new one;
it is in the answer, in every log line, and in every error (docs/reference/http-api.md#requests).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outlive.api.config import BODIES_AT_ONCE, BUFFER_BYTES, HEADERS_BYTES, SMALL_BODY_BYTES
from outlive.api.connections import CONNECTION, ClientConnection, client_group
from outlive.api.errors import (
    HeadTooLarge,
    MethodNotAllowed,
    TooLarge,
    Unauthenticated,
    code_of,
    plain_line,
    plain_problem,
    status_document,
    status_of,
)
from outlive.api.levels import Bodies
from outlive.base import (
    OBJECT_VALUES,
    REQUEST_VALUES,
    BadInput,
    Clock,
    Ids,
    NotFound,
    OutliveError,
    get_logger,
    request_context,
)
from outlive.runtime import Metrics

if TYPE_CHECKING:
    from outlive.api.audit import RequestAudit

ROUTE: Final = "route"
ERROR: Final = "error"
IDENTITY: Final = "identity"
AUTHENTICATE: Final = "authenticate"
"""Asks again whose the request is, as an answer without an end has to; ``Unauthenticated``, ``Forbidden``."""
FLOW: Final = "flow"
SEAT: Final = "seat"
PLACED: Final = "placed"
REQUEST_ID: Final = "request_id"
"""Keys of a request's state: the route for metrics, the error's code, who asks, the flow that it belongs to, what gives
its seat back, whether placement measured the call itself, the request's id."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}\Z")
REQUEST_ID_HEADER: Final = "x-request-id"
"""Goes before OpenStack's own header."""
_REQUEST_ID_HEADERS: Final = (REQUEST_ID_HEADER.encode(), b"x-openstack-request-id")
_GLOBAL_ID_HEADERS: Final = (b"x-global-request-id", b"x-openstack-global-request-id")
_KUBERNETES: Final = ("/api", "/apis", "/openapi", "/version")
_LIQUID: Final = "/commitments/"
_SCHEDULER: Final = "/scheduler/"
_ADMISSION: Final = "/admission/"
_EVERY_ANSWER: Final = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
"""Where the answer says nothing else."""
_HSTS: Final = (b"strict-transport-security", b"max-age=31536000")
_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")

_log = get_logger("api")


class Recorder:
    """Metrics and access log of requests."""

    def __init__(self, metrics: Metrics) -> None:
        self._requests = metrics.add_counter(
            "http_requests_total", "HTTP requests by route and status", ("method", "route", "status")
        )
        self._seconds = metrics.add_histogram(
            "http_request_duration_seconds", "How long HTTP requests took", ("method", "route")
        )
        self._scheduler = metrics.add_histogram(
            "scheduler_api_request_duration_seconds",
            "How long placement requests took",
            ("method", "path", "status", "error"),
        )
        self.watches = metrics.add_gauge("http_watches", "Watches that are open")
        self._connections = metrics.add_gauge("http_connections", "Connections by what they do", ("state",))
        self._connections_ended = metrics.add_counter(
            "http_connections_ended_total", "Connections that the server ended before their time", ("why",)
        )

    def count_connections(self, counts: Mapping[str, int]) -> None:
        """Set the number of connections in each state."""
        for state, count in counts.items():
            self._connections.labels(state).set(float(count))

    def count_ended(self, why: str) -> None:
        """Count a connection that the server ended before its time."""
        self._connections_ended.labels(why).inc()

    def record(self, scope: Scope, status: int, seconds: float) -> None:
        """Record one finished request. Reads that succeed are logged only at level debug."""
        method, path, state = scope["method"], scope["path"], scope["state"]
        route, error = state.get(ROUTE, "unknown"), state.get(ERROR, "")
        known = method if method in _METHODS else "other"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(seconds)
        if route.startswith(_SCHEDULER) and not state.get(PLACED):
            self._scheduler.labels(known, route, str(status), error).observe(seconds)
        quiet = status < 400 and (method in ("GET", "HEAD") or route.startswith((_SCHEDULER, _ADMISSION)))
        (_log.debug if quiet else _log.info)(
            "api.request",
            method=method,
            path=path[:512],
            status=status,
            took_s=round(seconds, 6),
            user=state[IDENTITY].name if IDENTITY in state else "",
            client=(scope.get("client") or ("",))[0],
            error=error,
        )


class _Body:
    """How much of a request's body was declared, read, and taken of what all bodies may take."""

    def __init__(self, declared: int) -> None:
        self.declared = declared
        self.size = 0
        self.values = 0
        self.reserved = 0

    @property
    def unread(self) -> bool:
        """Whether so much of it is still to come that the connection is better ended."""
        return self.declared - self.size > SMALL_BODY_BYTES


def _complete_headers(
    headers: Iterable[tuple[bytes, bytes]], scope: Scope, *, unread: bool
) -> list[tuple[bytes, bytes]]:
    """The headers of an answer with those that every answer has."""
    made = list(headers)
    names = {name for name, _ in made}
    made.append((REQUEST_ID_HEADER.encode(), scope["state"][REQUEST_ID].encode()))
    made += [each for each in _EVERY_ANSWER if each[0] not in names]
    if scope.get("scheme") == "https":
        made.append(_HSTS)
    if unread and b"connection" not in names:
        made.append((b"connection", b"close"))
    return made


class RequestMiddleware:
    """Stands around the router; see the module."""

    def __init__(
        self, app: ASGIApp, *, clock: Clock, ids: Ids, recorder: Recorder, audit: RequestAudit, body_limit: int
    ) -> None:
        self._app = app
        self._clock = clock
        self._ids = ids
        self._recorder = recorder
        self._audit = audit
        self._body_limit = body_limit
        self._bodies = Bodies(BODIES_AT_ONCE * body_limit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = self._clock.monotonic()
        request_id, global_id, size, length = self._read_head(scope)
        state = scope.setdefault("state", {})
        state[REQUEST_ID] = request_id
        body = _Body(length)
        status = 0

        async def send_part(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._audit.begin(scope, status)
                message["headers"] = _complete_headers(message["headers"], scope, unread=body.unread)
            elif len(message["body"]) > BUFFER_BYTES:  # so that no more than that waits for the peer
                whole, more = message["body"], message.get("more_body", False)
                connection: ClientConnection | None = state.get(CONNECTION)
                for start in range(0, len(whole), BUFFER_BYTES):
                    if connection is not None and connection.transport.is_closing():
                        connection.disconnect_requests()  # else asyncio warns of each write until the loop's next round
                    last = start + BUFFER_BYTES >= len(whole)
                    part = whole[start : start + BUFFER_BYTES]
                    await send({"type": message["type"], "body": part, "more_body": more or not last})
                return
            await send(message)

        with request_context(greq=global_id or request_id, req=request_id):
            try:
                if size > HEADERS_BYTES:
                    raise HeadTooLarge(f"headers of {size} bytes", remedy=f"send at most {HEADERS_BYTES}")
                await self._app(scope, self._limit_body(receive, body, scope), send_part)
            except ClientDisconnect:
                status = status or 499
            except Exception as error:  # the last resort: whatever happens is logged and answered
                # No variable keeps the error beyond this block: its traceback leads to this frame, and so to the body.
                if status_of(_cause_of(error) if status else error).http == 500:
                    _log.exception("api.defect", method=scope["method"], path=scope["path"][:512])
                if status:
                    raise  # the answer has begun: uvicorn closes the connection, so that nobody takes it for whole
                await error_response(Request(scope), error)(scope, receive, send_part)
            finally:
                if SEAT in state:
                    state[SEAT]()
                if body.reserved:
                    self._bodies.give(state[FLOW], body.reserved)
                self._recorder.record(scope, status or 500, self._clock.monotonic() - started)
                self._audit.record(scope, status or 500)
                state.pop(AUTHENTICATE, None)  # it leads to the request, and back: the body would stay in memory

    def _read_head(self, scope: Scope) -> tuple[str, str, int, int]:
        """The request's id, the global one, the size of the head, and the length of the body as it was declared."""
        request_id = global_id = b""
        length = 0
        size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        for name, value in scope["headers"]:
            size += len(name) + len(value) + 4
            if name == b"content-length" and value.isdigit():
                length = int(value)
            elif name in _REQUEST_ID_HEADERS and _REQUEST_ID.match(value):
                request_id = value if name == _REQUEST_ID_HEADERS[0] else request_id or value
            elif name in _GLOBAL_ID_HEADERS and not global_id and _REQUEST_ID.match(value):
                global_id = value
        made = (
            ""
            if request_id
            else self._ids.new_uuid()
            if scope["path"].startswith(_LIQUID)
            else f"req-{self._ids.new_uuid()}"
        )
        return request_id.decode() or made, global_id.decode(), size, length

    def _limit_body(self, receive: Receive, body: _Body, scope: Scope) -> Receive:
        """``receive``, which raises ``TooLarge`` for a body beyond the limit of bytes or of values, and
        ``TooManyRequests`` for a large one while others are in memory.

        Each value of a JSON document but the first follows a comma or opens a list or map, so these are counted: commas
        in texts as well, which are few.
        """
        most = OBJECT_VALUES if scope["path"].startswith("/apis/") else REQUEST_VALUES
        if scope["path"].startswith(_ADMISSION):
            most = 4 * OBJECT_VALUES  # an object as it was and as it is to be, with what others note of both

        async def receive_part() -> Message:
            if body.declared > self._body_limit:
                raise self._make_too_large(body.declared)
            message = await receive()
            part = message.get("body", b"")
            body.size += len(part)
            if body.size > self._body_limit:
                raise self._make_too_large(body.size)
            body.values += part.count(b",") + part.count(b"[") + part.count(b"{")
            if body.values > most:
                raise TooLarge(f"the body has over {most} values", remedy="send less at a time")
            if body.size > SMALL_BODY_BYTES and not body.reserved:
                size = body.declared or self._body_limit
                self._bodies.take(scope["state"][FLOW], size)
                body.reserved = size
            return message

        return receive_part

    def _make_too_large(self, size: int) -> TooLarge:
        return TooLarge(f"the body has {size} bytes or more", remedy=f"send at most {self._body_limit} bytes")


def _cause_of(error: Exception) -> Exception:
    """What the framework reports as its own error where an answer has begun."""
    return error.__cause__ if isinstance(error.__cause__, OutliveError) else error


def error_response(request: Request, error: Exception) -> Response:
    """The error as an answer, in the form that its path has."""
    path = request.scope["path"]
    error = _translate_routing_error(error, path, request.method)
    request.scope["state"][ERROR] = code_of(error)
    status = status_of(error)
    request_id = request.scope["state"].get(REQUEST_ID, "")
    kubernetes = any(path == start or path.startswith(f"{start}/") for start in _KUBERNETES)
    headers: dict[str, str] = {}
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = 'Bearer realm="outlive"'
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allow)
    if status.http in (408, 413, 431):
        headers["connection"] = "close"
    if status.http in (429, 503):
        headers["retry-after"] = "1"
    if path.startswith(_LIQUID):
        return PlainTextResponse(plain_line(error, request_id), status.http, headers)
    body = (status_document if kubernetes else plain_problem)(error, request_id)
    return Response(msgspec.json.encode(body) + b"\n", status.http, headers, media_type="application/json")


async def answer_error(request: Request, error: Any) -> Response:
    """``error_response`` as the framework calls it. A path with a slash at its end leads to the one without."""
    path = request.scope["path"]
    if isinstance(error, HTTPException):
        if error.status_code == 404 and path.strip("/") and path.endswith("/"):
            query = request.scope["query_string"].decode("latin-1")
            return RedirectResponse(f"/{quote(path.strip('/'))}{'?' if query else ''}{query}", 307)
        try:
            async with request.app.state.levels.suspicious_seat(client_of(request)):
                raise _translate_routing_error(error, path, request.method)
        except OutliveError as refused:
            return error_response(request, refused)  # a variable that outlives this block would keep the request
    return error_response(request, error)


def client_of(request: Request) -> str:
    """The client that a request without a token counts for."""
    return client_group(request.client.host if request.client is not None else "")


def _translate_routing_error(error: Exception, path: str, method: str) -> Exception:
    """The framework's own errors as ours."""
    if not isinstance(error, HTTPException):
        return error
    if error.status_code == 404:
        return NotFound(f"there is nothing at {path[:200]}", remedy="see /schema for what is served")
    if error.status_code == 405:
        return MethodNotAllowed(method, tuple((error.headers or {}).get("Allow", "").split(", ")))
    return BadInput(f"{error.detail}"[:200], remedy="see /schema for what is served")

"""What every request passes: request ids, limits, the access log, metrics, and errors as answers.

The id of a request is the client's ``X-Request-Id`` (or OpenStack's spelling) where it is well formed, else a new one;
it is in the answer, in every log line, and in every error (docs/reference/http-api.md#requests).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outlive.api.config import HEADERS_BYTES
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
from outlive.base.clock import Clock
from outlive.base.errors import BadInput, NotFound, OutliveError
from outlive.base.ids import Ids
from outlive.base.limits import OBJECT_VALUES, REQUEST_VALUES
from outlive.base.logging import get_logger, request_context
from outlive.runtime.metrics import Metrics

if TYPE_CHECKING:
    from outlive.api.audit import RequestAudit

ROUTE: Final = "route"
ERROR: Final = "error"
IDENTITY: Final = "identity"
AUTHENTICATE: Final = "authenticate"
"""Asks again whose the request is, as an answer without an end has to; ``Unauthenticated``, ``Forbidden``."""
PLACED: Final = "placed"
REQUEST_ID: Final = "request_id"
"""Keys of a request's state: the route for metrics, the error's code, who asks, whether placement measured the call
itself, the request's id."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}\Z")
REQUEST_ID_HEADER: Final = "x-request-id"
"""Goes before OpenStack's own header."""
_REQUEST_ID_HEADERS: Final = (REQUEST_ID_HEADER.encode(), b"x-openstack-request-id")
_GLOBAL_ID_HEADERS: Final = (b"x-global-request-id", b"x-openstack-global-request-id")
_KUBERNETES: Final = ("/api", "/apis", "/openapi", "/version")
_LIQUID: Final = "/commitments/"
_SCHEDULER: Final = "/scheduler/"
_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")

_log = get_logger("api")


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

    def record(self, scope: Scope, status: int, seconds: float) -> None:
        """Record one finished request. Reads that succeed are logged only at level debug."""
        method, path, state = scope["method"], scope["path"], scope["state"]
        route, error = state.get(ROUTE, "unknown"), state.get(ERROR, "")
        known = method if method in _METHODS else "other"
        self._requests.labels(known, route, str(status)).inc()
        self._seconds.labels(known, route).observe(seconds)
        if route.startswith(_SCHEDULER) and not state.get(PLACED):
            self._scheduler.labels(known, route, str(status), error).observe(seconds)
        quiet = status < 400 and (method in ("GET", "HEAD") or route.startswith(_SCHEDULER))
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = self._clock.monotonic()
        request_id, global_id, size, length = self._read_head(scope)
        scope.setdefault("state", {})[REQUEST_ID] = request_id
        header = (b"x-request-id", request_id.encode())
        status = 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], header]
            await send(message)

        with request_context(greq=global_id or request_id, req=request_id):
            try:
                if size > HEADERS_BYTES:
                    raise HeadTooLarge(f"headers of {size} bytes", remedy=f"send at most {HEADERS_BYTES}")
                await self._app(scope, self._limited(receive, length, scope["path"]), sending)
            except ClientDisconnect:
                status = status or 499
            except Exception as error:  # the last resort: whatever happens is logged and answered
                cause = error.__cause__ if status and isinstance(error.__cause__, OutliveError) else error
                if status_of(cause).http == 500:
                    _log.exception("api.defect", method=scope["method"], path=scope["path"][:512])
                if status:
                    raise  # the answer has begun: uvicorn closes the connection, so that nobody takes it for whole
                await error_response(Request(scope), error)(scope, receive, sending)
            finally:
                self._recorder.record(scope, status or 500, self._clock.monotonic() - started)
                self._audit.record(scope, status or 500)

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
            "" if request_id else self._ids.uuid() if scope["path"].startswith(_LIQUID) else f"req-{self._ids.uuid()}"
        )
        return request_id.decode() or made, global_id.decode(), size, length

    def _limited(self, receive: Receive, declared: int, path: str) -> Receive:
        """``receive``, which raises ``TooLarge`` for a body beyond the limit of bytes or of values.

        Each value of a JSON document but the first follows a comma or opens a list or map, so these are counted: commas
        in texts as well, which are few.
        """
        size = values = 0
        most = OBJECT_VALUES if path.startswith("/apis/") else REQUEST_VALUES

        async def receiving() -> Message:
            nonlocal size, values
            if declared > self._body_limit:
                raise self._too_large(declared)
            message = await receive()
            body = message.get("body", b"")
            size += len(body)
            if size > self._body_limit:
                raise self._too_large(size)
            values += body.count(b",") + body.count(b"[") + body.count(b"{")
            if values > most:
                raise TooLarge(f"the body has over {most} values", remedy="send less at a time")
            return message

        return receiving

    def _too_large(self, size: int) -> TooLarge:
        return TooLarge(f"the body has {size} bytes or more", remedy=f"send at most {self._body_limit} bytes")


def error_response(request: Request, error: Exception) -> Response:
    """The error as an answer, in the form that its path has."""
    path = request.scope["path"]
    error = _of_routing(error, path, request.method)
    request.scope["state"][ERROR] = code_of(error)
    status = status_of(error)
    request_id = request.scope["state"].get(REQUEST_ID, "")
    kubernetes = any(path == start or path.startswith(f"{start}/") for start in _KUBERNETES)
    headers: dict[str, str] = {}
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = 'Bearer realm="outlive"'
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allow)
    if status.http in (413, 431):
        headers["connection"] = "close"
    if status.http in (429, 503):
        headers["retry-after"] = "1"
    if path.startswith(_LIQUID):
        return PlainTextResponse(plain_line(error, request_id), status.http, headers)
    body = (status_document if kubernetes else plain_problem)(error, request_id)
    return Response(msgspec.json.encode(body) + b"\n", status.http, headers, media_type="application/json")


async def answer_error(request: Request, error: Any) -> Response:
    """``error_response`` as the framework calls it."""
    return error_response(request, error)


def _of_routing(error: Exception, path: str, method: str) -> Exception:
    """The framework's own errors as ours."""
    if not isinstance(error, HTTPException):
        return error
    if error.status_code == 404:
        return NotFound(f"there is nothing at {path[:200]}", remedy="see /schema for what is served")
    if error.status_code == 405:
        return MethodNotAllowed(method, tuple((error.headers or {}).get("Allow", "").split(", ")))
    return BadInput(f"{error.detail}"[:200], remedy="see /schema for what is served")

"""The HTTP routes of LIQUID: which checks come in which order, who gave up, and what is counted.

``outlive.commitments.service`` answers; nothing is decided here. The order of the checks can be seen from outside and
is the contract's: it is in docs/reference/commitments.md#liquid. Errors are lines of plain text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from outlive.api.audit import DRY_RUN
from outlive.api.auth import Identity
from outlive.api.errors import MethodNotAllowed, TooLarge, status_of
from outlive.api.middleware import REQUEST_ID, REQUEST_ID_HEADER
from outlive.api.requests import JSON
from outlive.base import BadInput, Clock, NotFound, Unavailable
from outlive.commitments import (
    Call,
    ChangeRequest,
    CommitmentService,
    Interface,
    QuotaRequest,
    ReportRequest,
    Result,
    decode,
    encode,
)

PATHS: Final = "/commitments/v1"
USAGE_SUFFIX: Final = "/report-usage"
QUOTA_SUFFIX: Final = "/quota"
BODY_BYTES: Final = 4 * 2**20
"""The largest body of a request."""
PROJECT_CHARACTERS: Final = 255
"""Of a project's id."""
GAVE_UP: Final = 499
"""The status under which requests are counted that ended before their answer."""

T = TypeVar("T")


class LiquidHandlers:
    """The handlers. Without a service every call is answered 503."""

    def __init__(self, service: CommitmentService | None, clock: Clock) -> None:
        self._service = service
        self._clock = clock

    async def serve_info(self, request: Request, _identity: Identity) -> Response:
        """The catalogue."""

        async def answer() -> Response:
            _require_method(request, "GET")
            return _json_response(encode(await self._require_service().read_info()))

        return await self._count_call("info", answer)

    async def report_capacity(self, request: Request, _identity: Identity) -> Response:
        """The capacity of all resources. A body that cannot be read asks for no zone."""

        async def answer() -> Response:
            service = self._require_service()
            service.check_enabled(Interface.CAPACITY)
            _require_method(request, "POST")
            body = await _read_body(request)
            try:
                zones = decode(body, ReportRequest).all_azs
            except BadInput:
                zones = None
            return _json_response(encode(await service.report_capacity(zones or ())))

        return await self._count_call("capacity", answer)

    async def report_usage(self, request: Request, _identity: Identity) -> Response:
        """The usage of one project."""

        async def answer() -> Response:
            service = self._require_service()
            service.check_enabled(Interface.USAGE)
            _require_method(request, "POST")
            project = _parse_project(request, USAGE_SUFFIX)
            asked = decode(await _read_body(request), ReportRequest)
            return _json_response(encode(await service.report_usage(project, asked.all_azs or ())))

        return await self._count_call("usage", answer)

    async def put_quota(self, request: Request, identity: Identity) -> Response:
        """The quota of one project."""

        async def answer() -> Response:
            service = self._require_service()
            _require_method(request, "PUT")
            service.check_enabled(Interface.QUOTA)
            project = _parse_project(request, QUOTA_SUFFIX)
            pushed = decode(await _read_body(request), QuotaRequest)
            await service.put_quota(project, pushed, request_id=_request_id(request), requested_by=identity.name)
            return Response(status_code=204)

        return await self._count_call("quota", answer)

    async def serve_project(self, request: Request, identity: Identity) -> Response:
        """What is under a project and has no id of a project, or too many, in its path."""
        path = request.scope["path"]
        if path.endswith(USAGE_SUFFIX):
            return await self.report_usage(request, identity)
        if path.endswith(QUOTA_SUFFIX):
            return await self.put_quota(request, identity)
        raise NotFound("there is no such call of a project")

    async def change(self, request: Request, identity: Identity) -> Response:
        """A batch of changes. If the caller goes away before it is decided, nothing of it is done."""
        started = self._clock.monotonic()
        asked = ChangeRequest()
        status = GAVE_UP
        result: Result = "error"
        try:
            service = self._require_service()
            service.check_enabled(Interface.CHANGE)
            _require_method(request, "POST")
            asked = decode(await _read_body(request), ChangeRequest)
            request.scope["state"][DRY_RUN] = asked.dry_run
            request_id = _request_id(request)
            named = request.headers.get(REQUEST_ID_HEADER) == request_id  # the caller chose it
            answer = await _run_while_connected(
                request, service.change(asked, request_id=request_id, requested_by=identity.name, named=named)
            )
            status = 200
            result = "rejected" if answer.rejection_reason else "accepted"
            return _json_response(encode(answer))
        except Exception as error:
            status = _status_code(error)
            raise
        finally:
            if self._service is not None:
                self._service.metrics.observe_change(
                    status,
                    self._clock.monotonic() - started,
                    result=result,
                    dry_run=asked.dry_run,
                    zone=asked.az,
                    commitments=asked.commitments,
                )

    async def _count_call(self, call: Call, answer: Callable[[], Awaitable[Response]]) -> Response:
        """The answer, counted with its status."""
        started = self._clock.monotonic()
        status = GAVE_UP
        try:
            response = await answer()
            status = response.status_code
            return response
        except Exception as error:
            status = _status_code(error)
            raise
        finally:
            if self._service is not None:
                self._service.metrics.observe(call, status, self._clock.monotonic() - started)

    def _require_service(self) -> CommitmentService:
        if self._service is None:
            raise Unavailable("this process sells no capacity")
        return self._service


async def _run_while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, which is cancelled when the caller closes the connection; then ``ClientDisconnect``.

    The body must have been read. Work that must not be left half done finishes in spite of the cancellation.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_wait_disconnect(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.wait((task, gone))


async def _wait_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _read_body(request: Request) -> bytes:
    body = await request.body()
    if len(body) > BODY_BYTES:
        raise TooLarge(f"the body has {len(body)} bytes", remedy=f"send at most {BODY_BYTES}")
    return body


def _require_method(request: Request, method: str) -> None:
    if request.method != method:
        raise MethodNotAllowed(request.method, (method,))


def _parse_project(request: Request, suffix: str) -> str:
    """The project in ``/commitments/v1/projects/<project><suffix>``."""
    path: str = request.scope["path"]
    project = path.removeprefix(f"{PATHS}/projects").removesuffix(suffix).removeprefix("/")
    if not project or "/" in project or len(project) > PROJECT_CHARACTERS:
        raise BadInput(f"Invalid URL path: expected {PATHS}/projects/<project>{suffix}")
    return project


def _request_id(request: Request) -> str:
    found: str = request.scope["state"][REQUEST_ID]
    return found


def _status_code(error: Exception) -> int:
    return GAVE_UP if isinstance(error, ClientDisconnect) else status_of(error).http


def _json_response(body: bytes) -> Response:
    return Response(body, media_type=JSON)

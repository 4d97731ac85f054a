"""Placement over HTTP: Nova's external scheduler call, and the same question with reasons.

The bodies are placement's business (docs/reference/placement.md#external): this passes bytes through.
"""

from __future__ import annotations

from typing import Final, Protocol

from starlette.requests import Request
from starlette.responses import Response

from outlive.api.auth import Identity
from outlive.api.middleware import ERROR, PLACED
from outlive.api.requests import JSON
from outlive.base.errors import Unavailable
from outlive.placement.external import ExternalAnswer

EXTERNAL_PATH: Final = "/scheduler/nova/external"
EXPLAIN_PATH: Final = "/scheduler/nova/explain"


class PlacementPort(Protocol):
    """What answers placement calls (``outlive.placement.service.PlacementService``)."""

    async def external(self, body: bytes) -> ExternalAnswer:
        """Rank the hosts of a call."""
        ...

    async def explain(self, body: bytes) -> ExternalAnswer:
        """The same without any effect, with every step's figures and a reason for each refused host."""
        ...


class Scheduler:
    """The handlers of ``/scheduler/…``."""

    def __init__(self, placement: PlacementPort | None) -> None:
        self._placement = placement

    async def external(self, request: Request, _identity: Identity) -> Response:
        """Rank the hosts of a call."""
        port = self._port()
        return _response(request, await port.external(await request.body()))

    async def explain(self, request: Request, _identity: Identity) -> Response:
        """Say why hosts were refused."""
        port = self._port()
        return _response(request, await port.explain(await request.body()))

    def _port(self) -> PlacementPort:
        if self._placement is None:
            raise Unavailable("this process places nothing", remedy="send the call to one that runs placement")
        return self._placement


def _response(request: Request, answer: ExternalAnswer) -> Response:
    state = request.scope["state"]
    state[PLACED] = True
    if answer.code:
        state[ERROR] = answer.code
    return Response(answer.body, answer.status, media_type=JSON)

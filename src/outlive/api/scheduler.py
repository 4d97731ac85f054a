"""Placement over HTTP: Nova's external scheduler call, and the same question with reasons.

The bodies are placement's business (docs/reference/placement.md#external): this passes bytes through, so that the
call costs no more than it must.
"""

from __future__ import annotations

from typing import Final, Protocol

from outlive.api.auth import Access, Identity
from outlive.api.gate import Route
from outlive.api.wire import ERROR, PLACED, Answer, Call
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

    def routes(self) -> list[Route]:
        """The paths."""
        return [
            Route(
                path=EXTERNAL_PATH,
                methods=("POST",),
                access=Access.PLACE,
                handler=self._external,
                summary="Rank the hosts of a request, best first (Nova's external scheduler)",
                tag="scheduler",
            ),
            Route(
                path=EXPLAIN_PATH,
                methods=("POST",),
                access=Access.EXPLAIN,
                handler=self._explain,
                summary="The same question without any effect, with a reason for every refused host",
                tag="scheduler",
            ),
        ]

    async def _external(self, call: Call, _identity: Identity) -> Answer:
        port = self._port()
        return answered(call, await port.external(await call.body()))

    async def _explain(self, call: Call, _identity: Identity) -> Answer:
        port = self._port()
        return answered(call, await port.explain(await call.body()))

    def _port(self) -> PlacementPort:
        if self._placement is None:
            raise Unavailable("this process places nothing", remedy="send the call to one that runs placement")
        return self._placement


def answered(call: Call, answer: ExternalAnswer) -> Answer:
    """Placement's answer as ours."""
    call.scope[PLACED] = True
    if answer.code:
        call.scope[ERROR] = answer.code
    return Answer(answer.status, answer.body)

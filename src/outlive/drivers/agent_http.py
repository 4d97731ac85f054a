"""The listener of the storage agent: health for kubelet, metrics for Prometheus, and explanations for people.

It is bound before the caches are filled. Nothing that it serves changes anything.
"""

from __future__ import annotations

from ipaddress import ip_address
from types import TracebackType
from typing import Final, cast, get_args

import msgspec
from aiohttp import web

from outlive.base import InUse, NotFound
from outlive.resources import encode
from outlive.storage import AgentFlags, AgentMetrics, StorageAgent, Subject, health_address

REQUEST_BYTES: Final = 2**14
CONNECTIONS_WAITING: Final = 16
JSON: Final = "application/json"


class AgentListener:
    """Serves while the context is open. ``url`` is empty where the options say that nothing is served."""

    def __init__(self, agent: StorageAgent, metrics: AgentMetrics, flags: AgentFlags) -> None:
        self._agent = agent
        self._metrics = metrics
        self._address = health_address(flags)
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def __aenter__(self) -> AgentListener:
        if self._address is None:
            return self
        host, port = self._address
        app = web.Application(client_max_size=REQUEST_BYTES)
        app.router.add_route("*", "/healthz", self._serve_health)
        app.router.add_get("/metrics", self._show_metrics)
        app.router.add_get("/decisions", self._serve_decisions)
        app.router.add_get("/explain", self._explain)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host or None, port, backlog=CONNECTIONS_WAITING)
        try:
            await site.start()
        except OSError as error:
            raise InUse(
                f"nothing can be served on {host}:{port}: {error.strerror}",
                place="--health-bind-address",
                remedy="choose another address",
            ) from None
        bound = self._runner.addresses[0]
        self.url = f"http://{bound[0]}:{bound[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve_health(self, request: web.Request) -> web.Response:
        answer = self._agent.check_health()
        return web.Response(status=answer.status, text=answer.body)

    async def _show_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), content_type="text/plain")

    async def _explain(self, request: web.Request) -> web.Response:
        """``?kind=pod&name=NAMESPACE/NAME``, or of a ``volume`` or ``node``."""
        _refuse_strangers(request)
        kind, name = request.query.get("kind", ""), request.query.get("name", "")
        if kind not in get_args(Subject):
            raise web.HTTPBadRequest(text=f"kind is {kind[:40]!r}: write one of {', '.join(get_args(Subject))}")
        try:
            found = self._agent.explain(cast("Subject", kind), name)
        except NotFound as error:
            raise web.HTTPNotFound(text=str(error)) from None
        return web.Response(body=encode(found), content_type=JSON)

    async def _serve_decisions(self, request: web.Request) -> web.Response:
        """Inputs and answers of the last decisions that asked for something, a line each, for ``outlive decide``."""
        _refuse_strangers(request)
        lines = [
            encode({"at": use.at, "name": use.name, "input": msgspec.Raw(use.input), "output": msgspec.Raw(use.output)})
            for use in self._agent.uses
        ]
        return web.Response(body=b"\n".join(lines), content_type=JSON)


def _refuse_strangers(request: web.Request) -> None:
    """Who is on the node, or in the agent's pod, may see which pods use which volumes; the network may not."""
    remote = request.remote or ""
    if not remote or not ip_address(remote.partition("%")[0]).is_loopback:
        raise web.HTTPForbidden(text="this is answered on the node itself only: kubectl exec into the agent's pod")

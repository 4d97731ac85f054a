"""The HTTP application: which paths there are, and what they are made of.

Everything that the server needs of the rest is in ``ApiDeps``; nothing here reads a file or opens a socket
(``outlive.api.serve`` does). The paths are pinned in docs/reference/http-api.md#paths.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from litestar import Litestar

from outlive.api import discovery
from outlive.api.auth import Access, Identity, Tokens, allow
from outlive.api.config import ApiSettings, SchedulerAuth, check_scheduler_auth
from outlive.api.gate import Endpoints, Gate, Handler, Recorder, Route, application
from outlive.api.hub import Hubs
from outlive.api.objects import Objects
from outlive.api.openapi import Documents
from outlive.api.pages import SCHEMA_PAGE, STATUS_PAGE, page
from outlive.api.requests import GROUP_PATH
from outlive.api.scheduler import PlacementPort, Scheduler
from outlive.api.watch import Watches
from outlive.api.wire import TEXT, Answer, Call, json_answer
from outlive.base.clock import Clock
from outlive.base.ids import Ids
from outlive.resources import API_VERSION, PLURALS, Resource
from outlive.runtime.metrics import Metrics
from outlive.store import Store

Query = Callable[[Mapping[str, str]], Awaitable[Any]]
"""Answers a question with plain values, from the parameters of the query string."""

OPENAPI_GROUP: Final = f"apis/{API_VERSION}"
METRICS_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, kw_only=True)
class ApiDeps:
    """What the server needs of the rest."""

    store: Store
    clock: Clock
    ids: Ids
    tokens: Tokens
    metrics: Metrics
    version: str
    settings: ApiSettings = field(default_factory=ApiSettings)
    scheduler_auth: SchedulerAuth = "token"
    placement: PlacementPort | None = None
    ready: Callable[[], str] = lambda: ""
    """Why the process is not ready, in a few words; empty when it is."""
    queries: Mapping[str, Query] = field(default_factory=dict)
    """Further questions by path, such as ``/failover/coverage``."""
    plurals: Mapping[str, type[Resource]] = field(default_factory=lambda: PLURALS)


def create_app(deps: ApiDeps) -> Litestar:
    """The application. ``app.state.watches.close()`` ends all watches, which a server must do before it waits."""
    check_scheduler_auth(deps.scheduler_auth, deps.settings)
    recorder = Recorder(deps.metrics)
    hubs = Hubs(deps.store, clock=deps.clock)
    watches = Watches(
        clock=deps.clock, limit=deps.settings.watches, gauge=lambda count: recorder.watches.set(float(count))
    )
    routes = all_routes(deps, hubs, watches)
    endpoints = Endpoints(tokens=deps.tokens, settings=deps.settings, scheduler_auth=deps.scheduler_auth)

    @asynccontextmanager
    async def lifespan(_app: Litestar) -> AsyncIterator[None]:
        try:
            yield
        finally:
            watches.close()
            await hubs.close()

    app = application(
        [endpoints.handler(route) for route in routes],
        lifespan,
        lambda inner: Gate(inner, clock=deps.clock, ids=deps.ids, recorder=recorder),
    )
    app.state.watches = watches
    return app


def all_routes(deps: ApiDeps, hubs: Hubs, watches: Watches) -> list[Route]:
    """Every path that is served."""
    objects = Objects(deps.store, deps.plurals, hubs, watches, deps.clock)
    routes = [*object_routes(objects, deps.plurals), *discovery_routes(deps), *operation_routes(deps)]
    routes += Scheduler(deps.placement).routes()
    routes += [
        _get(path, Access.READ, _query(query), f"Answers {path}", tag="questions")
        for path, query in sorted(deps.queries.items())
    ]
    documents = Documents(deps.plurals, routes, deps.version)
    return [*routes, *document_routes(documents)]


def object_routes(objects: Objects, plurals: Mapping[str, type[Resource]]) -> list[Route]:
    """The resources. One mount: Litestar gives ASGI handlers no path parameters, and their names are ours to judge."""
    kinds = json_answer(discovery.resources(plurals))

    async def serve(call: Call, identity: Identity) -> Answer | None:
        if call.path.rstrip("/") == GROUP_PATH:
            allow(identity, Access.READ)
            return kinds
        return await objects.serve(call, identity)

    return [
        Route(
            path=GROUP_PATH,
            methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
            access=Access.READ,
            handler=serve,
            summary="Resources",
            streams=True,
            mount=True,
            tag="resources",
        )
    ]


def discovery_routes(deps: ApiDeps) -> list[Route]:
    """What clients of the Kubernetes protocol ask first."""
    return [
        _get("/api", Access.READ, _constant(discovery.core_versions()), "Versions of the core group: none"),
        _get("/apis", Access.READ, _constant(discovery.groups()), "API groups"),
        _get("/apis/outlive.dev", Access.READ, _constant(discovery.group()), "The API group"),
        _get("/version", Access.OPEN, _constant(discovery.version(deps.version)), "Versions"),
    ]


def operation_routes(deps: ApiDeps) -> list[Route]:
    """What those who run the server ask."""

    async def alive(_call: Call, _identity: Identity) -> Answer:
        return Answer(200, b"ok\n", TEXT)

    async def ready(_call: Call, _identity: Identity) -> Answer:
        why_not = deps.ready()
        return Answer(503, f"not ready: {why_not}\n".encode(), TEXT) if why_not else Answer(200, b"ok\n", TEXT)

    async def metrics(_call: Call, _identity: Identity) -> Answer:
        return Answer(200, deps.metrics.render(), METRICS_TYPE)

    metrics_access = Access.OPEN if deps.settings.metrics_auth == "none" else Access.READ
    return [
        _get("/healthz", Access.OPEN, alive, "Whether the process serves at all", tag="operation"),
        _get("/livez", Access.OPEN, alive, "Whether the process serves at all", tag="operation"),
        _get("/readyz", Access.OPEN, ready, "Whether the process is ready: 200, or 503 and why not", tag="operation"),
        _get("/metrics", metrics_access, metrics, "Metrics in Prometheus' text format", tag="operation"),
    ]


def document_routes(documents: Documents) -> list[Route]:
    """The API's descriptions, and the pages for people."""

    async def schema(call: Call, _identity: Identity) -> Answer:
        accept = call.header(b"accept")
        return page(SCHEMA_PAGE) if "text/html" in accept else Answer(200, documents.everything())

    async def openapi(_call: Call, _identity: Identity) -> Answer:
        return Answer(200, documents.everything())

    async def group(_call: Call, _identity: Identity) -> Answer:
        return Answer(200, documents.group())

    async def index(_call: Call, _identity: Identity) -> Answer:
        return json_answer(documents.index(OPENAPI_GROUP))

    async def status(_call: Call, _identity: Identity) -> Answer:
        return page(STATUS_PAGE)

    return [
        _get("/", Access.OPEN, status, "The status page", tag="pages"),
        _get("/schema", Access.OPEN, schema, "This description: OpenAPI, or a page for browsers", tag="pages"),
        _get("/schema/openapi.json", Access.OPEN, openapi, "This description as OpenAPI", tag="pages"),
        _get("/openapi/v3", Access.READ, index, "Which groups OpenAPI describes"),
        _get(f"/openapi/v3/{OPENAPI_GROUP}", Access.READ, group, "OpenAPI of the group"),
    ]


def _get(path: str, access: Access, handler: Handler, summary: str, *, tag: str = "discovery") -> Route:
    return Route(path=path, methods=("GET", "HEAD"), access=access, handler=handler, summary=summary, tag=tag)


def _constant(document: dict[str, Any]) -> Handler:
    answer = json_answer(document)

    async def serve(_call: Call, _identity: Identity) -> Answer:
        return answer

    return serve


def _query(query: Query) -> Handler:
    async def serve(call: Call, _identity: Identity) -> Answer:
        return json_answer(await query(call.query))

    return serve

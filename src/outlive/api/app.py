"""The HTTP application: which paths there are, who may ask them, and what answers.

Everything that the server needs of the rest is in ``ApiDeps``; nothing here reads a file or opens a socket
(``outlive.api.server`` does). The paths are pinned in docs/reference/http-api.md#paths.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from outlive.api import kubernetes
from outlive.api.auth import Access, Authenticator, Identity, Tokens
from outlive.api.config import ApiSettings, SchedulerAuth, check_scheduler_auth
from outlive.api.errors import TimedOut
from outlive.api.middleware import ERROR, IDENTITY, ROUTE, Recorder, RequestMiddleware, answer_error
from outlive.api.openapi import Documents
from outlive.api.pages import SCHEMA_PAGE, STATUS_PAGE, page
from outlive.api.requests import GROUP_PATH, JSON, json_response
from outlive.api.resources import Resources
from outlive.api.scheduler import EXPLAIN_PATH, EXTERNAL_PATH, PlacementPort, Scheduler
from outlive.api.watch import Watches
from outlive.api.watch_cache import WatchCaches
from outlive.base.clock import Clock
from outlive.base.errors import OutliveError
from outlive.base.ids import Ids
from outlive.resources import API_VERSION, PLURALS, Resource
from outlive.runtime.metrics import Metrics
from outlive.store import Store

Query = Callable[[Mapping[str, str]], Awaitable[Any]]
"""Answers a question with plain values, from the parameters of the query string."""
Handler = Callable[[Request, Identity], Awaitable[Response]]

OPENAPI_GROUP: Final = f"apis/{API_VERSION}"
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


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


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One path of the API, as it is served and described."""

    path: str
    handler: Handler
    access: Access
    summary: str
    methods: tuple[str, ...] = ("GET",)
    tag: str = "discovery"


def create_app(deps: ApiDeps) -> Starlette:
    """The application. ``app.state.watches.close()`` ends all watches, which a server must do before it waits."""
    check_scheduler_auth(deps.scheduler_auth, deps.settings)
    recorder = Recorder(deps.metrics)
    caches = WatchCaches(deps.store, clock=deps.clock)
    watches = Watches(
        clock=deps.clock, limit=deps.settings.watches, gauge=lambda count: recorder.watches.set(float(count))
    )
    authenticator = Authenticator(deps.tokens, deps.scheduler_auth)
    limit_s = float(deps.settings.request_timeout)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            watches.close()
            await caches.close()

    app = Starlette(
        routes=[_route(endpoint, authenticator, limit_s) for endpoint in _endpoints(deps, caches, watches)],
        middleware=[
            Middleware(
                RequestMiddleware,
                clock=deps.clock,
                ids=deps.ids,
                recorder=recorder,
                body_limit=int(deps.settings.body_limit),
            )
        ],
        exception_handlers={HTTPException: answer_error, OutliveError: answer_error},
        lifespan=lifespan,
    )
    app.state.watches = watches
    return app


def _route(endpoint: Endpoint, authenticator: Authenticator, limit_s: float) -> Route:
    """The endpoint as the framework serves it: authenticated, and in limited time (a stream's body is not limited)."""
    handler = endpoint.handler

    async def serve(request: Request) -> Response:
        state = request.scope["state"]
        state[ROUTE] = endpoint.path
        state[IDENTITY] = identity = authenticator.identify(request, endpoint.access)
        try:
            async with asyncio.timeout(limit_s):
                response = await handler(request, identity)
        except TimeoutError:
            raise TimedOut(
                f"the request took longer than {limit_s:g} s", remedy="read the object to see whether it was applied"
            ) from None
        if response.status_code >= 400:
            state.setdefault(ERROR, str(response.status_code))
        return response

    return Route(endpoint.path, serve, methods=list(endpoint.methods))


def _endpoints(deps: ApiDeps, caches: WatchCaches, watches: Watches) -> list[Endpoint]:
    """Every path that is served."""
    endpoints = [
        *_resources(Resources(deps.store, deps.plurals, caches, watches, deps.clock, deps.ids)),
        *_kubernetes(deps),
        *_operation(deps),
        *_scheduler(Scheduler(deps.placement)),
    ]
    endpoints += [
        Endpoint(path=path, handler=_query(query), access=Access.READ, summary=f"Answers {path}", tag="questions")
        for path, query in sorted(deps.queries.items())
    ]
    return [*endpoints, *_documents(Documents(deps.plurals, endpoints, deps.version))]


def _resources(resources: Resources) -> list[Endpoint]:
    served: list[tuple[str, Handler, tuple[str, ...]]] = [
        ("/{plural}", resources.collection, ("GET", "POST")),
        ("/{plural}/{name}", resources.item, ("GET", "PUT", "PATCH", "DELETE")),
        ("/{plural}/{name}/status", resources.status, ("GET", "PUT", "PATCH")),
    ]
    return [
        Endpoint(
            path=f"{GROUP_PATH}{path}",
            handler=handler,
            access=Access.READ,
            summary="Resources",
            methods=methods,
            tag="resources",
        )
        for path, handler, methods in served
    ]


def _kubernetes(deps: ApiDeps) -> list[Endpoint]:
    """What clients of the Kubernetes protocol ask around the resources."""
    events, reviews = kubernetes.CoreEvents(deps.store, deps.clock), kubernetes.AccessReviews(deps.plurals)
    authorization = f"/apis/{kubernetes.AUTHORIZATION}/v1"
    known: list[tuple[str, dict[str, Any], str]] = [
        ("/api", kubernetes.core_versions(), "Versions of the core group"),
        ("/api/v1", kubernetes.core_resources(), "Kinds of the core group"),
        ("/apis", kubernetes.groups(), "API groups"),
        ("/apis/outlive.dev", kubernetes.group(), "The API group"),
        (GROUP_PATH, kubernetes.resources(deps.plurals), "Kinds of the API group"),
        (authorization, kubernetes.authorization_resources(), "Questions about what a token may"),
    ]
    asked: list[tuple[str, Handler, str]] = [
        ("/api/v1/events", events.list, "Events in the form of the core group"),
        ("/api/v1/namespaces/{namespace}/events", events.list, "The same of one namespace"),
        ("/api/v1/namespaces/{namespace}/events/{name}", events.get, "One event"),
    ]
    posted: list[tuple[str, Handler, str]] = [
        ("selfsubjectaccessreviews", reviews.review, "Whether the token may do something"),
        ("selfsubjectrulesreviews", reviews.rules, "What the token may do"),
    ]
    version = kubernetes.version(deps.version)
    return [
        *(Endpoint(path=path, handler=_constant(doc), access=Access.READ, summary=text) for path, doc, text in known),
        *(Endpoint(path=path, handler=handler, access=Access.READ, summary=text) for path, handler, text in asked),
        *(
            Endpoint(
                path=f"{authorization}/{name}", handler=handler, access=Access.KNOWN, summary=text, methods=("POST",)
            )
            for name, handler, text in posted
        ),
        Endpoint(path="/version", handler=_constant(version), access=Access.OPEN, summary="Versions"),
    ]


def _operation(deps: ApiDeps) -> list[Endpoint]:
    """What those who run the server ask."""

    async def alive(_request: Request, _identity: Identity) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(_request: Request, _identity: Identity) -> Response:
        why_not = deps.ready()
        return PlainTextResponse(f"not ready: {why_not}\n", 503) if why_not else PlainTextResponse("ok\n")

    async def metrics(_request: Request, _identity: Identity) -> Response:
        return Response(deps.metrics.render(), media_type=METRICS_TYPE)

    metrics_access = Access.OPEN if deps.settings.metrics_auth == "none" else Access.READ
    served: list[tuple[str, Handler, Access, str]] = [
        ("/healthz", alive, Access.OPEN, "Whether the process serves at all"),
        ("/livez", alive, Access.OPEN, "Whether the process serves at all"),
        ("/readyz", ready, Access.OPEN, "Whether the process is ready: 200, or 503 and why not"),
        ("/metrics", metrics, metrics_access, "Metrics in Prometheus' text format"),
    ]
    return [
        Endpoint(path=path, handler=handler, access=access, summary=summary, tag="operation")
        for path, handler, access, summary in served
    ]


def _scheduler(scheduler: Scheduler) -> list[Endpoint]:
    served: list[tuple[str, Handler, Access, str]] = [
        (
            EXTERNAL_PATH,
            scheduler.external,
            Access.PLACE,
            "Rank the hosts of a request, best first (Nova's external scheduler)",
        ),
        (
            EXPLAIN_PATH,
            scheduler.explain,
            Access.EXPLAIN,
            "The same question without any effect, with a reason for every refused host",
        ),
    ]
    return [
        Endpoint(path=path, handler=handler, access=access, summary=summary, methods=("POST",), tag="scheduler")
        for path, handler, access, summary in served
    ]


def _documents(documents: Documents) -> list[Endpoint]:
    """The API's descriptions, and the pages for people."""

    async def schema(request: Request, identity: Identity) -> Response:
        html = "text/html" in request.headers.get("accept", "")
        return page(SCHEMA_PAGE) if html else await openapi(request, identity)

    async def openapi(_request: Request, _identity: Identity) -> Response:
        return Response(documents.everything(), media_type=JSON)

    async def group(_request: Request, _identity: Identity) -> Response:
        return Response(documents.group(), media_type=JSON)

    async def index(_request: Request, _identity: Identity) -> Response:
        return json_response(documents.index(OPENAPI_GROUP))

    async def status(_request: Request, _identity: Identity) -> Response:
        return page(STATUS_PAGE)

    served: list[tuple[str, Handler, Access, str, str]] = [
        ("/", status, Access.OPEN, "The status page", "pages"),
        ("/schema", schema, Access.OPEN, "This description: OpenAPI, or a page for browsers", "pages"),
        ("/schema/openapi.json", openapi, Access.OPEN, "This description as OpenAPI", "pages"),
        ("/openapi/v3", index, Access.READ, "Which groups OpenAPI describes", "discovery"),
        (f"/openapi/v3/{OPENAPI_GROUP}", group, Access.READ, "OpenAPI of the group", "discovery"),
    ]
    return [
        Endpoint(path=path, handler=handler, access=access, summary=summary, tag=tag)
        for path, handler, access, summary, tag in served
    ]


def _constant(document: dict[str, Any]) -> Handler:
    response = json_response(document)

    async def serve(_request: Request, _identity: Identity) -> Response:
        return response

    return serve


def _query(query: Query) -> Handler:
    async def serve(request: Request, _identity: Identity) -> Response:
        return json_response(await query(request.query_params))

    return serve

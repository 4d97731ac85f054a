"""The HTTP application: which paths there are, who may ask them, and what answers.

Everything that the server needs of the rest is in ``ApiDeps``; nothing here reads a file or opens a socket
(``outlive.api.server`` does). The paths are pinned in docs/reference/http-api.md#paths.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import IO, Any, Final, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from outlive.api import kubernetes
from outlive.api.audit import RequestAudit
from outlive.api.auth import (
    ADMISSION_PATH,
    ANYBODY,
    LEASES_PATH,
    PEER,
    PODS_PATH,
    AccessLevel,
    Authenticator,
    Identity,
    KeystoneAccess,
    Tokens,
    check_coordinates,
)
from outlive.api.config import BODY_SECONDS, ApiSettings, SchedulerAuth, check_scheduler_auth
from outlive.api.connections import CONNECTION, ClientConnection
from outlive.api.errors import SlowBody, TimedOut
from outlive.api.kubernetes import KnownCells
from outlive.api.levels import Levels, PriorityLevel, Turns, level_of
from outlive.api.liquid import PATHS, QUOTA_SUFFIX, USAGE_SUFFIX, LiquidHandlers
from outlive.api.list_places import ListPlaces
from outlive.api.middleware import (
    AUTHENTICATE,
    ERROR,
    FLOW,
    IDENTITY,
    PLACED,
    ROUTE,
    SEAT,
    Recorder,
    RequestMiddleware,
    answer_error,
    client_of,
)
from outlive.api.openapi import OpenApiDocuments
from outlive.api.requests import GROUP_PATH, JSON, json_response
from outlive.api.resources import Resources
from outlive.api.streams import StreamedResponse
from outlive.api.watch import Watches, WatchResponse
from outlive.api.watch_cache import WatchCaches
from outlive.base import Clock, Forbidden, Ids, NotFound, OutliveError, Unavailable, get_logger
from outlive.commitments import CommitmentService
from outlive.node import StorageGauges
from outlive.placement import ExternalAnswer, PlacementService
from outlive.resources import API_VERSION, CONSOLE_SECRETS, PLURALS, Resource, Secret, VirtualMachine
from outlive.runtime import AuditLog, AuditSettings, Metrics, Refusals, TokenShares
from outlive.store import (
    AUTHORITY_PATH,
    BACKUP_PATH,
    JOIN_PATH,
    KEY_PATH,
    RENEWAL_PATH,
    ROTATION_PATH,
    SCREEN_PATH,
    TOKEN_PATH,
    Store,
    read,
)

Query = Callable[[Mapping[str, str]], Awaitable[Any]]
"""Answers a question with plain values, from the parameters of the query string."""
Command = Callable[[], Awaitable[Any]]
"""Does something, and says what it did in plain values."""
Handler = Callable[[Request, Identity], Awaitable[Response]]

STATUS_PAGE: Final = "status.html"
SCHEMA_PAGE: Final = "schema.html"
EXTERNAL_PATH: Final = "/scheduler/nova/external"
EXPLAIN_PATH: Final = "/scheduler/nova/explain"
OPENAPI_GROUP: Final = f"apis/{API_VERSION}"
FILE_PART_BYTES: Final = 64 * 1024
METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_log = get_logger("api")


class AdmissionEndpoint(NamedTuple):
    """How writes are reviewed, and the key that says that the API server asks."""

    review: Handler
    key: str
    review_pods: Handler | None = None
    """Reviews network annotations of pods; absent: nobody does."""


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
    placement: PlacementService | None = None
    commitments: CommitmentService | None = None
    keystone: KeystoneAccess | None = None
    """Who may use LIQUID with a token of Keystone; absent: nobody."""
    ready: Callable[[], str] = lambda: ""
    """Why the process is not ready, in a few words; empty when it is."""
    join: Handler | None = None
    """Exchanges the join token of a request for a host's own."""
    own_token: Handler | None = None
    """Says what is known of the token of a request."""
    renew_token: Handler | None = None
    """Takes the digest of a host's next secret."""
    rotate_authority: Handler | None = None
    """Replaces the server's own authority."""
    cluster_key: Callable[[], str] | None = None
    """What opens the cluster's secrets, for coordinators."""
    opened: Callable[[Secret], str] | None = None
    """The value of a secret."""
    backup: Callable[[], Awaitable[IO[bytes]]] | None = None
    """Makes a backup: a file that goes once it is closed."""
    audit: AuditLog | None = None
    """Where it is written down who did what; absent: nowhere."""
    audit_routine: bool = False
    """Also what hosts and controllers write all the time."""
    refusals: Refusals = field(default_factory=Refusals)
    """Counts requests that were refused."""
    audit_shares: TokenShares = field(default_factory=lambda: TokenShares(AuditSettings().token_bytes))
    """How much of the audit log each token may write."""
    admission: AdmissionEndpoint | None = None
    """Reviews writes for a Kubernetes API server; absent: no process of this kind does."""
    authority: Callable[[], str] | None = None
    """The certificate (PEM) of the server's own authority, where it has one, and of the one that is to follow it."""
    queries: Mapping[str, Query] = field(default_factory=dict)
    """Further questions by path, such as ``/failover/coverage``."""
    known_cells: KnownCells = lambda _obj: {}
    """What tables print of an object by column, instead of what its document says."""
    commands: Mapping[str, Command] = field(default_factory=dict)
    """What operators have the server do, by path, such as ``/commitments/consistency/repair``."""
    plurals: Mapping[str, type[Resource]] = field(default_factory=lambda: PLURALS)
    metrics_only: bool = False
    """Nothing but metrics and probes is served, as by the daemon of a host; the store is not asked."""


class Endpoint(NamedTuple):
    """One path of the API, as it is served and described."""

    path: str
    handler: Handler
    access: AccessLevel
    summary: str
    tag: str = "discovery"
    methods: tuple[str, ...] = ("GET",)
    any_method: bool = False
    """Whether the handler itself refuses other methods, because other checks come first."""
    described: bool = True


def create_app(deps: ApiDeps) -> Starlette:
    """The application. ``app.state.watches.close()`` ends all watches, which a server must do before it waits."""
    check_scheduler_auth(deps.scheduler_auth, deps.settings)
    recorder = Recorder(deps.metrics)
    audit = RequestAudit(
        deps.audit, deps.refusals, deps.audit_shares, deps.metrics, deps.clock, routine=deps.audit_routine
    )
    levels, turns = Levels(deps.clock), Turns()
    deps.metrics.register_collector(levels.collect)
    caches = WatchCaches(deps.store, clock=deps.clock)
    watches = Watches(
        clock=deps.clock,
        turns=turns,
        limit=deps.settings.watches,
        share=deps.settings.watches_per_token,
        gauge=lambda count: recorder.watches.set(float(count)),
    )
    key = deps.admission.key if deps.admission is not None else ""
    authenticator = Authenticator(deps.tokens, deps.scheduler_auth, deps.keystone, key)
    limit_s = float(deps.settings.request_timeout)

    @asynccontextmanager
    async def close_at_end(_app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            watches.close()
            await caches.close()

    app = Starlette(
        routes=[
            _build_route(endpoint, authenticator, levels, limit_s)
            for endpoint in _build_endpoints(deps, caches, watches, turns)
        ],
        middleware=[
            Middleware(
                RequestMiddleware,
                clock=deps.clock,
                ids=deps.ids,
                recorder=recorder,
                audit=audit,
                body_limit=int(deps.settings.body_limit),
            )
        ],
        exception_handlers={HTTPException: answer_error, OutliveError: answer_error},
        lifespan=close_at_end,
    )
    app.router.redirect_slashes = False  # the framework's own redirect trusts the header Host
    app.state.watches = watches
    app.state.recorder = recorder
    app.state.levels = levels
    return app


def _build_route(endpoint: Endpoint, authenticator: Authenticator, levels: Levels, limit_s: float) -> Route:
    """The endpoint as the framework serves it: authenticated, its body read, by a seat of its level, and in limited
    time (a stream's body is not limited)."""
    handler = endpoint.handler

    async def serve(request: Request) -> Response:
        state = request.scope["state"]
        state[ROUTE] = endpoint.path
        state[AUTHENTICATE] = lambda: authenticator.identify(request, endpoint.access)
        try:
            identity = authenticator.identify(request, endpoint.access)
        except Forbidden:
            if (refused := authenticator.identify_bearer(request)) is not None:
                state[IDENTITY] = refused
            async with levels.suspicious_seat(client_of(request)):
                identity = await authenticator.authenticate(request, endpoint.access)
        state[IDENTITY] = identity
        connection: ClientConnection | None = state.get(CONNECTION)
        if connection is not None and (identity is not ANYBODY or state.get(PEER)):
            connection.prove()
        state[FLOW] = identity.flow if identity is not ANYBODY else client_of(request)
        if request.method not in ("GET", "HEAD"):
            await _read_body(request)
        level = level_of(identity, endpoint.access, endpoint.path, request)
        if connection is not None and level is PriorityLevel.PROTOCOL and identity.host:
            connection.serve_first(identity.flow)
        state[SEAT] = give = await levels.take(level, state[FLOW])
        try:
            async with asyncio.timeout(limit_s):
                response = await handler(request, identity)
        except TimeoutError:
            raise TimedOut(
                f"the request took longer than {limit_s:g} s", remedy="read the object to see whether it was applied"
            ) from None
        if isinstance(response, WatchResponse):
            give()  # it has a place of its own
        if response.status_code >= 400:
            state.setdefault(ERROR, str(response.status_code))
        return response

    # Without methods a route takes them all.
    return Route(endpoint.path, serve, methods=[] if endpoint.any_method else list(endpoint.methods))


async def _read_body(request: Request) -> None:
    """Have the body read, which the request then keeps; ``SlowBody`` if it does not come in time."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            await request.body()
    except TimeoutError:
        raise SlowBody(
            f"the body did not come within {BODY_SECONDS:g} s", remedy="send it at once; nothing was done"
        ) from None


def _build_endpoints(deps: ApiDeps, caches: WatchCaches, watches: Watches, turns: Turns) -> list[Endpoint]:
    """Every path that is served."""
    if deps.metrics_only:
        return _operation_endpoints(deps, turns)
    places = ListPlaces(deps.admission.key if deps.admission is not None else "")
    resources = Resources(
        deps.store, deps.plurals, caches, watches, turns, deps.clock, deps.ids, deps.known_cells, places
    )
    served: list[tuple[str, Handler, tuple[str, ...]]] = [
        ("/{plural}", resources.serve_collection, ("GET", "POST")),
        ("/{plural}/{name}", resources.serve_item, ("GET", "PUT", "PATCH", "DELETE")),
        ("/{plural}/{name}/status", resources.serve_status, ("GET", "PUT", "PATCH")),
    ]
    endpoints = [
        *(
            Endpoint(f"{GROUP_PATH}{path}", handler, AccessLevel.READ, "Resources", "resources", methods)
            for path, handler, methods in served
        ),
        *_kubernetes_endpoints(deps, turns),
        *_operation_endpoints(deps, turns),
        *_scheduler_endpoints(deps.placement),
        *_liquid_endpoints(LiquidHandlers(deps.commitments, deps.clock)),
        *(
            Endpoint(path, _serve_query(query), AccessLevel.SURVEY, f"Answers {path}", "questions")
            for path, query in sorted(deps.queries.items())
        ),
        *(
            Endpoint(path, _serve_command(command), AccessLevel.OPERATE, f"Does {path}", "commands", ("POST",))
            for path, command in sorted(deps.commands.items())
        ),
    ]
    return [*endpoints, *_document_endpoints(OpenApiDocuments(deps.plurals, endpoints, deps.version))]


def _kubernetes_endpoints(deps: ApiDeps, turns: Turns) -> list[Endpoint]:
    """What clients of the Kubernetes protocol ask around the resources."""
    events, reviews = kubernetes.CoreEvents(deps.store, deps.clock, turns), kubernetes.AccessReviews(deps.plurals)
    authorization = f"/apis/{kubernetes.AUTHORIZATION}/v1"
    read: list[tuple[str, Handler, str]] = [
        ("/api", _serve_constant(kubernetes.core_versions()), "Versions of the core group"),
        ("/api/v1", _serve_constant(kubernetes.core_resources()), "Kinds of the core group"),
        ("/apis", _serve_constant(kubernetes.api_groups()), "API groups"),
        ("/apis/outlive.dev", _serve_constant(kubernetes.api_group()), "The API group"),
        (GROUP_PATH, _serve_constant(kubernetes.api_resources(deps.plurals)), "Kinds of the API group"),
        (authorization, _serve_constant(kubernetes.authorization_resources()), "Questions about what a token may"),
    ]
    served: list[tuple[str, Handler, str]] = [
        ("/api/v1/events", events.list, "Events in the form of the core group"),
        ("/api/v1/namespaces/{namespace}/events", events.list, "The same of one namespace"),
        ("/api/v1/namespaces/{namespace}/events/{name}", events.get, "One event"),
    ]
    posted: list[tuple[str, Handler, str]] = [
        ("selfsubjectaccessreviews", reviews.review, "Whether the token may do something"),
        ("selfsubjectrulesreviews", reviews.review_rules, "What the token may do"),
    ]
    return [
        *(Endpoint(path, handler, AccessLevel.READ, summary) for path, handler, summary in read),
        *(Endpoint(path, handler, AccessLevel.SURVEY, summary) for path, handler, summary in served),
        *(
            Endpoint(f"{authorization}/{name}", handler, AccessLevel.KNOWN, summary, methods=("POST",))
            for name, handler, summary in posted
        ),
        Endpoint("/version", _serve_constant(kubernetes.server_version(deps.version)), AccessLevel.OPEN, "Versions"),
    ]


def _operation_endpoints(deps: ApiDeps, turns: Turns) -> list[Endpoint]:
    """What those who run the server ask."""

    async def serve_liveness(_request: Request, _identity: Identity) -> Response:
        return PlainTextResponse("ok\n")

    async def serve_readiness(_request: Request, _identity: Identity) -> Response:
        why_not = deps.ready()
        return PlainTextResponse(f"not ready: {why_not}\n", 503) if why_not else PlainTextResponse("ok\n")

    storage = StorageGauges(deps.store, deps.clock)
    if not deps.metrics_only:
        deps.metrics.register_collector(storage.collect)

    async def serve_metrics(_request: Request, _identity: Identity) -> Response:
        if not deps.metrics_only:
            await storage.refresh()
        return StreamedResponse(metric_parts(), media_type=METRICS_TYPE)

    async def metric_parts() -> AsyncIterator[bytes]:
        for part in deps.metrics.iterate_parts():
            yield part
            await turns.wait()

    async def serve_authority(_request: Request, _identity: Identity) -> Response:
        return Response(deps.authority() if deps.authority is not None else "", media_type="application/x-pem-file")

    async def cluster_key(_request: Request, identity: Identity) -> Response:
        await check_coordinates(deps.store, identity)
        answer = json_response({"key": deps.cluster_key()} if deps.cluster_key is not None else {})
        answer.headers["cache-control"] = "no-store"
        _log.info("cluster_key.given", host=identity.host)
        return answer

    async def screen_password(request: Request, identity: Identity) -> Response:
        vm = await read(deps.store, VirtualMachine, request.path_params["name"])
        if vm is None or identity.host not in vm.bound_hosts():
            raise Forbidden(f"no VM of {identity.host} has that name", remedy="ask for those that it is to run")
        secret = await read(deps.store, Secret, vm.spec.console_secret) if vm.spec.console_secret else None
        if secret is None or not secret.name.startswith(CONSOLE_SECRETS):
            name = vm.spec.console_secret or f"of {vm.name}"
            raise NotFound(f"secret {name} does not exist", remedy=f"outlive secret set {CONSOLE_SECRETS}NAME")
        answer = json_response({"password": deps.opened(secret)} if deps.opened is not None else {})
        answer.headers["cache-control"] = "no-store"
        _log.info("screen_password.given", host=identity.host, vm=vm.name, secret=secret.name)
        return answer

    async def serve_backup(_request: Request, identity: Identity) -> Response:
        assert deps.backup is not None
        stream = await deps.backup()
        _log.info("backup.given", name=identity.name)
        return StreamedResponse(_file_parts(stream, turns), media_type="application/x-tar")

    joins = "Exchange a join token for the token of a host"
    shows = "What is known of the token, and whether its host is to renew it"
    renews = "Take the digest of the next secret of a host's token"
    replaces = "Replace the server's own authority, in two steps"
    backs_up = "A backup of the server: its keys only as its settings encrypt them"
    opens = "What opens the cluster's secrets, for coordinators"
    screens = "The password of a VM's screens, for the host that is to run it"
    trusts = "The server's own authority, whose fingerprint clients compare"
    is_ready = "Whether the process is ready: 200, or 503 and why not"
    reviews = "Review a write for the Kubernetes API server"
    metrics_access = AccessLevel.OPEN if deps.settings.metrics_auth == "none" else AccessLevel.SURVEY
    return [
        Endpoint("/healthz", serve_liveness, AccessLevel.OPEN, "Whether the process serves at all", "operation"),
        Endpoint("/livez", serve_liveness, AccessLevel.OPEN, "Whether the process serves at all", "operation"),
        Endpoint("/readyz", serve_readiness, AccessLevel.OPEN, is_ready, "operation"),
        Endpoint("/metrics", serve_metrics, metrics_access, "Metrics in Prometheus' text format", "operation"),
        *([Endpoint(JOIN_PATH, deps.join, AccessLevel.JOIN, joins, "operation", ("POST",))] if deps.join else []),
        *([Endpoint(TOKEN_PATH, deps.own_token, AccessLevel.KNOWN, shows, "operation")] if deps.own_token else []),
        *(
            [Endpoint(RENEWAL_PATH, deps.renew_token, AccessLevel.RENEW, renews, "operation", ("POST",))]
            if deps.renew_token
            else []
        ),
        *(
            [Endpoint(ROTATION_PATH, deps.rotate_authority, AccessLevel.TLS, replaces, "operation", ("POST",))]
            if deps.rotate_authority
            else []
        ),
        *([Endpoint(BACKUP_PATH, serve_backup, AccessLevel.BACKUP, backs_up, "operation")] if deps.backup else []),
        *([Endpoint(KEY_PATH, cluster_key, AccessLevel.CLUSTER_KEY, opens, "operation")] if deps.cluster_key else []),
        *([Endpoint(SCREEN_PATH, screen_password, AccessLevel.SCREEN, screens, "operation")] if deps.opened else []),
        *(
            [
                Endpoint(path, deps.admission.review, AccessLevel.ADMIT, reviews, "operation", ("POST",))
                for path in (f"{ADMISSION_PATH}/{{key}}", f"{ADMISSION_PATH}/{{key}}{LEASES_PATH}")
            ]
            if deps.admission
            else []
        ),
        *(
            [
                Endpoint(
                    f"{ADMISSION_PATH}/{{key}}{PODS_PATH}",
                    deps.admission.review_pods,
                    AccessLevel.ADMIT,
                    "Review a network annotation for the Kubernetes API server",
                    "operation",
                    ("POST",),
                )
            ]
            if deps.admission and deps.admission.review_pods
            else []
        ),
        *([Endpoint(AUTHORITY_PATH, serve_authority, AccessLevel.OPEN, trusts, "operation")] if deps.authority else []),
    ]


async def _file_parts(stream: IO[bytes], turns: Turns) -> AsyncIterator[bytes]:
    """A file in parts; it is closed at the end, or when the client leaves."""
    with stream:
        while part := stream.read(FILE_PART_BYTES):
            yield part
            await turns.wait()


def _scheduler_endpoints(placement: PlacementService | None) -> list[Endpoint]:
    """Nova's external scheduler call, and the same question with reasons. Placement reads and writes the bodies."""

    async def rank_hosts(request: Request, _identity: Identity) -> Response:
        return _placement_response(request, await require_placement().answer_external(await request.body()))

    async def explain(request: Request, _identity: Identity) -> Response:
        return _placement_response(request, await require_placement().explain(await request.body()))

    def require_placement() -> PlacementService:
        if placement is None:
            raise Unavailable("this process places nothing", remedy="send the call to one that runs placement")
        return placement

    ranks = "Rank the hosts of a request, best first (Nova's external scheduler)"
    explains = "The same question without any effect, with a reason for every refused host"
    return [
        Endpoint(EXTERNAL_PATH, rank_hosts, AccessLevel.PLACE, ranks, "scheduler", ("POST",)),
        Endpoint(EXPLAIN_PATH, explain, AccessLevel.EXPLAIN, explains, "scheduler", ("POST",)),
    ]


def _liquid_endpoints(liquid: LiquidHandlers) -> list[Endpoint]:
    """What Limes asks of a service that sells capacity."""
    project = f"{PATHS}/projects/{{project}}"
    served: list[tuple[str, Handler, AccessLevel, str, str]] = [
        (f"{PATHS}/info", liquid.serve_info, AccessLevel.LIQUID_READ, "GET", "The catalogue of resources"),
        (
            f"{PATHS}/change-commitments",
            liquid.change,
            AccessLevel.LIQUID_CHANGE,
            "POST",
            "Change commitments, all or none of them",
        ),
        (
            f"{PATHS}/report-capacity",
            liquid.report_capacity,
            AccessLevel.LIQUID_READ,
            "POST",
            "Capacity of all resources",
        ),
        (
            f"{project}{USAGE_SUFFIX}",
            liquid.report_usage,
            AccessLevel.LIQUID_READ,
            "POST",
            "Usage of a project, VM by VM",
        ),
        (f"{project}{QUOTA_SUFFIX}", liquid.put_quota, AccessLevel.LIQUID_QUOTA, "PUT", "Set the quota of a project"),
    ]
    endpoints = [
        Endpoint(path, handler, access, summary, "liquid", (method,), any_method=True)
        for path, handler, access, method, summary in served
    ]
    others = f"{PATHS}/projects/{{rest:path}}"
    rest = Endpoint(
        others, liquid.serve_project, AccessLevel.LIQUID_READ, "", "liquid", any_method=True, described=False
    )
    return [*endpoints, rest]


def _placement_response(request: Request, answer: ExternalAnswer) -> Response:
    state = request.scope["state"]
    state[PLACED] = True
    if answer.code:
        state[ERROR] = answer.code
    return Response(answer.body, answer.status, media_type=JSON)


def _document_endpoints(documents: OpenApiDocuments) -> list[Endpoint]:
    """The API's descriptions, and the pages for people."""

    async def serve_schema(request: Request, identity: Identity) -> Response:
        html = "text/html" in request.headers.get("accept", "")
        return render_page(SCHEMA_PAGE) if html else await serve_openapi(request, identity)

    async def serve_openapi(_request: Request, _identity: Identity) -> Response:
        return Response(documents.describe_all(), media_type=JSON)

    async def serve_group(_request: Request, _identity: Identity) -> Response:
        return Response(documents.describe_group(), media_type=JSON)

    async def serve_index(_request: Request, _identity: Identity) -> Response:
        return json_response(documents.index(OPENAPI_GROUP))

    async def serve_status(_request: Request, _identity: Identity) -> Response:
        return render_page(STATUS_PAGE)

    described = "This description: OpenAPI, or a page for browsers"
    return [
        Endpoint("/", serve_status, AccessLevel.OPEN, "The status page", "pages"),
        Endpoint("/schema", serve_schema, AccessLevel.OPEN, described, "pages"),
        Endpoint("/schema/openapi.json", serve_openapi, AccessLevel.OPEN, "This description as OpenAPI", "pages"),
        Endpoint("/openapi/v3", serve_index, AccessLevel.READ, "Which groups OpenAPI describes"),
        Endpoint(f"/openapi/v3/{OPENAPI_GROUP}", serve_group, AccessLevel.READ, "OpenAPI of the group"),
    ]


_INLINE: Final = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


@lru_cache(maxsize=8)
def render_page(name: str) -> Response:
    """A page for people, without any address outside this server, because many have no internet.

    Under its policy a browser runs only what the page itself contains.
    """
    text = (files("outlive.api") / "static" / name).read_text(encoding="utf-8")
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in _INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; script-src {' '.join(hashes['script'])}; style-src {' '.join(hashes['style'])}"
    )
    headers = {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return HTMLResponse(text, headers=headers)


def _serve_constant(document: dict[str, Any]) -> Handler:
    response = json_response(document)

    async def serve(_request: Request, _identity: Identity) -> Response:
        return response

    return serve


def _serve_query(query: Query) -> Handler:
    async def serve(request: Request, _identity: Identity) -> Response:
        return json_response(await query(request.query_params))

    return serve


def _serve_command(command: Command) -> Handler:
    async def serve(request: Request, identity: Identity) -> Response:
        done = await command()
        _log.info("command.done", path=request.scope["path"], by=identity.name)
        return json_response(done)

    return serve

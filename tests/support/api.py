"""A real HTTP server for tests: our application over a given store, on a free port of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from outlive.api import (
    HOSTS,
    ApiDeps,
    HostJoin,
    Identity,
    OwnTls,
    Role,
    ServerTls,
    Serving,
    StoredTokens,
    Tokens,
    TokenService,
    create_app,
    names_of,
    serve_app,
)
from outlive.base import Random, SystemClock, SystemIds
from outlive.resources import KINDS, Resource
from outlive.runtime import Metrics
from outlive.store import HttpStore, MemoryStore, Store

TOKENS: dict[Role, str] = {role: f"{role}-token-of-the-tests" for role in Role}
HOST = "kvm-1"
"""To which the tokens of hosts belong."""
GROUP = "/apis/outlive.dev/v1alpha1"
VMS = f"{GROUP}/virtualmachines"


def host_of(role: Role) -> str:
    """The host of a token of that role."""
    return HOST if role in HOSTS else ""


@dataclass
class Api:
    """A server, what is behind it, and how to talk to it."""

    serving: Serving
    store: Store
    metrics: Metrics
    session: aiohttp.ClientSession
    stored: StoredTokens | None = None

    @property
    def url(self) -> str:
        return self.serving.url

    async def call(
        self, method: str, path: str, *, role: Role | None = Role.ADMIN, **options: Any
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Status, body (decoded where it is JSON) and headers of one call."""
        headers = dict(options.pop("headers", {}))
        if role is not None:
            headers.setdefault("Authorization", f"Bearer {TOKENS[role]}")
        async with self.session.request(method, f"{self.url}{path}", headers=headers, **options) as answer:
            if answer.content_type == "application/json":
                return answer.status, await answer.json(), answer.headers
            return answer.status, await answer.text(), answer.headers

    def client(self, role: Role = Role.ADMIN, **options: Any) -> HttpStore:
        return HttpStore(self.url, TOKENS[role], clock=SystemClock(), random=Random(1), **options)


@asynccontextmanager
async def api(
    store: Store | None = None,
    *,
    kinds: Mapping[str, type[Resource]] = KINDS,
    state_dir: Path | None = None,
    port: int = 0,
    tls: OwnTls | None = None,
    joins: bool = False,
    **deps: Any,
) -> AsyncIterator[Api]:
    """A server while the block runs. ``joins``: with the tokens of its store, and for hosts that join."""
    # An empty store is false: it has a length.
    behind = store if store is not None else MemoryStore(SystemClock(), SystemIds(), kinds=kinds)
    metrics = Metrics()
    stored = StoredTokens(behind, clock=SystemClock(), random=Random(1))
    known = [(token, Identity(f"{role}-of-tests", role, host_of(role))) for role, token in TOKENS.items()]
    tokens = Tokens(known, stored.identify) if joins else Tokens(known)
    if joins:
        service = TokenService(behind, stored, clock=SystemClock())
        deps |= {"own_token": service.show, "renew_token": service.renew}
        deps["join"] = HostJoin(
            behind, stored, clock=SystemClock(), ids=SystemIds(), cluster_key=lambda: "the key"
        ).join
    app = create_app(
        ApiDeps(
            store=behind,
            clock=SystemClock(),
            ids=SystemIds(),
            tokens=tokens,
            metrics=metrics,
            version="0.0.0",
            plurals={kind.info.plural: kind for kind in kinds.values()},
            **deps,
        )
    )
    settings = deps.get("settings")
    shown: dict[str, Any] = {"state_dir": state_dir, "version": "0.0.0", "settings": settings, "tls": tls}
    async with contextlib.AsyncExitStack() as stack:
        if joins:
            await stack.enter_async_context(stored.follow_store())
        if state_dir is not None and tls is None:  # for kubectl
            own = ServerTls(state_dir, names_of("127.0.0.1"), SystemClock())
            local = await stack.enter_async_context(serve_app(app, "127.0.0.1", 0, tls=own, lifespan=False))
            shown["beside"] = (local, own)
        server = await stack.enter_async_context(serve_app(app, "127.0.0.1", port, **shown))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        yield Api(server, behind, metrics, session, stored)


def vm(name: str = "vm-1", **meta: Any) -> dict[str, Any]:
    return {
        "apiVersion": "outlive.dev/v1alpha1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, **meta},
        "spec": {"project": "p", "resources": {"cpu": "2", "memory": "4Gi"}},
    }

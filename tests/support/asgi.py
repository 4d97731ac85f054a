"""Requests to our application without sockets, for tests that send thousands."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.applications import Starlette

from outlive.api import ApiDeps, Identity, Role, Tokens, create_app
from outlive.base import Clock, SystemClock, SystemIds
from outlive.runtime import Metrics
from outlive.store import Store
from tests.support.api import TOKENS, host_of


def application(store: Store, clock: Clock | None = None) -> Starlette:
    """Our application over this store, with the tokens of the tests; ``clock``: another one than the machine's."""
    known = [(token, Identity(f"{role}-of-tests", role, host_of(role))) for role, token in TOKENS.items()]
    deps = ApiDeps(
        store=store,
        clock=clock or SystemClock(),
        ids=SystemIds(),
        tokens=Tokens(known),
        metrics=Metrics(),
        version="0.0.0",
    )
    return create_app(deps)


async def ask(
    app: Starlette, role: Role, method: str, path: str, body: object = None, media: str = "application/json"
) -> tuple[int, Any]:
    """Status and body of one request with that role's token."""
    raw = b"" if body is None else json.dumps(body).encode()
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": path.partition("?")[2].encode(),
        "headers": [
            (b"authorization", f"Bearer {TOKENS[role]}".encode()),
            (b"content-type", media.encode()),
            (b"content-length", str(len(raw)).encode()),
        ],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        "root_path": "",
        "state": {},
    }
    scope["path"] = path.partition("?")[0]
    sent: list[dict[str, Any]] = []

    received = False

    async def receive() -> dict[str, Any]:
        nonlocal received
        if received:
            await asyncio.Event().wait()  # the caller waits for the answer
        received = True
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)  # type: ignore[arg-type]
    answer = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], json.loads(answer) if answer[:1] in (b"{", b"[") else answer.decode()

"""What a request carried is freed with its answer, by reference counts: the collector of garbage may come late."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.types import Message, Scope
from structlog.testing import capture_logs
from tests.support.api import TOKENS
from tests.support.asgi import application
from tests.support.loops import run

from outlive.api import Role
from outlive.base import LoopClock, SystemIds, Unavailable
from outlive.resources import Hypervisor, ObjectMeta
from outlive.store import MemoryStore

pytestmark = pytest.mark.slow

GROUP = "/apis/outlive.dev/v1alpha1"
HOST = {"apiVersion": "outlive.dev/v1alpha1", "kind": "Hypervisor", "metadata": {"name": "kvm-1"}, "spec": {}}
JSON = "application/json"
MERGE = "application/merge-patch+json"


class DefectiveStore(MemoryStore):
    """Reads of one name are a defect, and so are lists but for their first page while ``broken``."""

    broken = False

    async def get(self, kind: type[Any], name: str, *, fresh: bool = False) -> Any:
        if name == "defect":
            raise RuntimeError("a defect")
        return await super().get(kind, name, fresh=fresh)

    async def list(self, kind: type[Any], *, token: str = "", **options: Any) -> Any:
        if self.broken and token:
            raise Unavailable("the store is away")
        return await super().list(kind, token=token, **options)


class Body:
    """A request's body, as the server hands it to the application. Everything of a request leads to it."""

    def __init__(self, raw: bytes = b"", *, leaves_s: float = 3600.0) -> None:
        self._raw = raw
        self._leaves_s = leaves_s
        self._read = False

    async def __call__(self) -> Message:
        if self._read:
            await asyncio.sleep(self._leaves_s)
            return {"type": "http.disconnect"}
        self._read = True
        return {"type": "http.request", "body": self._raw, "more_body": False}


@pytest.fixture
def no_collector() -> Iterator[None]:
    """No pass of the collector of garbage."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


CASES: dict[str, tuple[str, str, str, object, str, int]] = {
    "created": ("admin", "POST", f"{GROUP}/hypervisors", HOST, JSON, 201),
    "malformed": ("admin", "POST", f"{GROUP}/hypervisors", {"kind": 1}, JSON, 422),
    "too many values": ("admin", "POST", f"{GROUP}/hypervisors", [0] * 400_000, JSON, 413),
    "changed": ("admin", "PATCH", f"{GROUP}/hypervisors/kvm-0", {"spec": {"drain": True}}, MERGE, 200),
    "a patch that does not fit": ("admin", "PATCH", f"{GROUP}/hypervisors/kvm-0", {"spec": 1}, MERGE, 422),
    "of an object that is not there": ("admin", "PATCH", f"{GROUP}/hypervisors/kvm-9", {}, MERGE, 404),
    "without the right": ("viewer", "PUT", f"{GROUP}/hypervisors/kvm-0", HOST, JSON, 403),
    "without a token": ("", "PUT", f"{GROUP}/hypervisors/kvm-0", HOST, JSON, 401),
    "for a path that is not there": ("admin", "POST", "/nowhere", HOST, JSON, 404),
    "with a method that is not there": ("admin", "PUT", f"{GROUP}/hypervisors", HOST, JSON, 405),
    "that meets a defect": ("admin", "PATCH", f"{GROUP}/hypervisors/defect", {}, MERGE, 500),
}


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(("role", "method", "path", "document", "media", "status"), CASES.values(), ids=CASES)
async def test_a_request_is_freed_with_its_answer(
    role: str, method: str, path: str, document: object, media: str, status: int
) -> None:
    clock = LoopClock()
    store = DefectiveStore(clock, SystemIds())
    app = application(store, clock)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def ask(role: str, method: str, path: str, document: object, media: str) -> weakref.ref[Body]:
        body = Body(json.dumps(document).encode())
        await app(_scope(role, method, path, media), body, send)
        return weakref.ref(body)

    await ask("admin", "POST", f"{GROUP}/hypervisors", HOST | {"metadata": {"name": "kvm-0"}}, JSON)
    sent.clear()
    with capture_logs():  # what prints a traceback for people has cycles of its own
        body = await ask(role, method, path, document, media)
    assert sent[0]["status"] == status
    await asyncio.sleep(0)  # the loop frees the handles of its last round
    assert body() is None


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("path", [f"{GROUP}/hypervisors", f"{GROUP}/hypervisors?watch=1"], ids=["list", "watch"])
@pytest.mark.parametrize("why", ["the client leaves", "the peer is gone", "the store fails"])
def test_an_answer_in_parts_that_ends_early_is_freed(path: str, why: str) -> None:
    async def claim() -> None:
        clock = LoopClock()
        store = DefectiveStore(clock, SystemIds())
        for number in range(200):
            await store.create(Hypervisor(metadata=ObjectMeta(name=f"kvm-{number}")))
        app = application(store, clock)
        parts = 0

        async def send(message: Message) -> None:
            nonlocal parts
            parts += 1
            if parts > 1 and why == "the peer is gone":
                raise OSError(why)
            if parts > 1 and why == "the client leaves":
                await clock.sleep(60.0)  # the client takes nothing

        async def ask() -> weakref.ref[Body]:
            body = Body(leaves_s=5.0)
            with contextlib.suppress(OSError, RuntimeError):
                await app(_scope("admin", "GET", path, JSON), body, send)
            return weakref.ref(body)

        async with app.router.lifespan_context(app):
            await ask()  # the watch cache begins
            store.broken, parts = why == "the store fails", 0
            with capture_logs():
                body = await ask()
            await clock.sleep(1.0)  # the loop closes generators that were left
            assert parts > 1
            assert body() is None

    run(claim())


def _scope(role: str, method: str, path: str, media: str) -> Scope:
    token = [(b"authorization", f"Bearer {TOKENS[Role(role)]}".encode())] if role else []
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path.partition("?")[0],
        "raw_path": path.partition("?")[0].encode(),
        "query_string": path.partition("?")[2].encode(),
        "headers": [*token, (b"content-type", media.encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        "root_path": "",
        "state": {},
    }

"""A small HTTP server inside a test: answers from a function, and the faults that services have."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from aiohttp import web

Answerer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpService:
    """Serves ``answer`` on a free port of this machine; ``fault`` answers instead of it while there is one."""

    def __init__(self) -> None:
        self.fault: Answerer | None = None
        self.requests: list[web.Request] = []
        self.running = 0
        self.most_running = 0
        self.url = ""
        self.tls: ssl.SSLContext | None = None
        """Serve HTTPS with it."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """What the service says."""
        raise NotImplementedError

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await (self.fault or self.answer)(request)
        finally:
            self.running -= 1

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serve for as long as the block lasts; the address, without a slash at its end."""
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._serve)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self.tls)
            await site.start()
            assert runner.addresses
            self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
            yield self.url
        finally:
            await runner.cleanup()


def status(code: int, text: str = "") -> Answerer:
    """Answers with that status."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=code, text=text)

    return answer


def body(raw: bytes) -> Answerer:
    """Answers 200 with that body, whatever it is."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=raw, content_type="application/json")

    return answer


async def never(_: web.Request) -> web.StreamResponse:
    """Does not answer."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError


async def forever(request: web.Request) -> web.StreamResponse:
    """Sends a body that has no end, fast."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" " * 65536)


async def drips(request: web.Request) -> web.StreamResponse:
    """Sends a body that has no end, slowly: no single wait is long."""
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.02)


@contextmanager
def in_thread(*services: HttpService) -> Iterator[None]:
    """Serve all of them from a loop of their own, for tests that have none."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    stack = AsyncExitStack()

    def call(work: Coroutine[Any, Any, Any]) -> None:
        asyncio.run_coroutine_threadsafe(work, loop).result(timeout=30)

    try:
        for service in services:
            call(stack.enter_async_context(service.serving()))
        yield
    finally:
        call(stack.aclose())
        call(_cancel_the_others())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=30)
        loop.close()


async def _cancel_the_others() -> None:
    """Let requests end that nobody waits for."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.wait(others, timeout=5) if others else None

"""What one client may cost: connections, requests, bodies, watches; and what everybody else still gets."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.support.api import GROUP, TOKENS, VMS, Api, api, vm

from outlive.api import PIPELINED_REQUESTS, ApiSettings, Role
from outlive.base import SystemClock, SystemIds
from outlive.runtime import Size
from outlive.store import MemoryStore

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
OPENAPI = b"GET /schema/openapi.json HTTP/1.1\r\nhost: a\r\n\r\n"


async def connected(server: Api, *, receive: int = 0) -> Streams:
    """A connection; ``receive``: what the kernel takes for it while it reads nothing."""
    opened = socket.socket()
    if receive:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    opened.setblocking(False)
    await asyncio.get_running_loop().sock_connect(opened, ("127.0.0.1", int(server.url.rpartition(":")[2])))
    return await asyncio.open_connection(sock=opened, limit=2**26)


async def asked(streams: Streams, path: str, role: Role | None = None) -> bytes:
    """The status of a request on this connection; empty if that is gone."""
    reader, writer = streams
    token = f"authorization: Bearer {TOKENS[role]}\r\n" if role is not None else ""
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nhost: a\r\n{token}\r\n".encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        await reader.readexactly(length)
    except (OSError, asyncio.IncompleteReadError):
        return b""
    return head[9:12]


def hang_up(*connections: Streams) -> None:
    for _, writer in connections:
        writer.transport.abort()


async def happens(claim: Callable[[], bool]) -> None:
    """Return once the claim is true; it fails if that does not come."""
    for _ in range(200):
        if claim():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it never happened")


def metric(server: Api, name: str) -> float:
    lines = server.metrics.render().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"outlive_{name}"))


async def test_answers_that_nobody_reads_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with api(settings=ApiSettings(connections=64)) as server:
        crowd = []
        for _ in range(80):
            crowd.append(await connected(server, receive=4096))
            crowd[-1][1].transport.pause_reading()  # type: ignore[attr-defined]
            crowd[-1][1].write(OPENAPI * 3)
        for _ in range(10):
            async with aiohttp.ClientSession() as session, session.get(f"{server.url}/healthz") as answer:
                assert answer.status == 200
        assert metric(server, 'http_connections_ended_total{why="evicted"}') >= 16
        hang_up(*crowd)


async def test_a_connection_whose_peer_reads_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlive.api.connections.UNKNOWN_WRITE_SECONDS", 0.5)
    async with api() as server:
        stuck = [await connected(server, receive=4096) for _ in range(3)]
        for _, writer in stuck:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(OPENAPI * 4)
        await happens(lambda: metric(server, 'http_connections_ended_total{why="write-timeout"}') >= 3)
        assert (await server.call("GET", "/healthz", role=None))[0] == 200
        hang_up(*stuck)


async def test_a_few_requests_may_be_sent_ahead_and_no_more() -> None:
    async with api(queries={"/t/slow": slow}) as server:
        request = f"GET /t/slow HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {TOKENS[Role.VIEWER]}\r\n\r\n".encode()
        reader, writer = await connected(server)
        writer.write(request * (1 + PIPELINED_REQUESTS))
        for _ in range(1 + PIPELINED_REQUESTS):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n{}\n"), 10)
            assert head.startswith(b"HTTP/1.1 200")
        writer.write(request * (2 + PIPELINED_REQUESTS))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n{}\n"), 10)
        hang_up((reader, writer))


async def slow(_: Any) -> object:
    await asyncio.sleep(0.05)
    return {}


async def test_a_watch_whose_client_sent_more_and_left_ends() -> None:
    async with api() as server:
        reader, writer = await connected(server)
        token = f"authorization: Bearer {TOKENS[Role.VIEWER]}\r\n"
        writer.write(f"GET {VMS}?watch=true HTTP/1.1\r\nhost: a\r\n{token}\r\n".encode() + OPENAPI)
        await reader.readuntil(b"\r\n\r\n")
        assert metric(server, "http_watches") == 1
        writer.transport.abort()
        await happens(lambda: not metric(server, "http_watches"))


async def test_an_idle_connection_of_a_host_outlives_a_crowd_of_strangers() -> None:
    async with api(settings=ApiSettings(connections=16)) as server:
        host = await connected(server)
        assert await asked(host, f"{GROUP}/memberships/none", Role.HOST) == b"404"
        strangers = []
        for _ in range(60):
            strangers.append(await connected(server))
            await asked(strangers[-1], "/healthz")
        assert await asked(host, f"{GROUP}/memberships/none", Role.HOST) == b"404"
        hang_up(host, *strangers)


async def test_a_body_without_a_token_is_not_read() -> None:
    async with api() as server:
        reader, writer = await connected(server)
        writer.write(
            f"POST {VMS} HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1000000\r\n\r\n".encode()
        )
        answer = await asyncio.wait_for(reader.read(), 10)  # to the end of the connection
        assert answer.startswith(b"HTTP/1.1 401")
        hang_up((reader, writer))


async def test_a_body_that_does_not_come_is_answered_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlive.api.app.BODY_SECONDS", 0.2)
    async with api() as server:
        reader, writer = await connected(server)
        token = f"authorization: Bearer {TOKENS[Role.ADMIN]}\r\n"
        writer.write(f"POST {VMS} HTTP/1.1\r\nhost: a\r\n{token}content-length: 1000\r\n\r\n{{".encode())
        answer = await asyncio.wait_for(reader.read(), 10)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"body-timeout" in answer
        hang_up((reader, writer))


async def test_large_bodies_that_do_not_end_leave_room_for_others() -> None:
    async with api(settings=ApiSettings(body_limit=Size(1 << 20))) as server:
        token = f"authorization: Bearer {TOKENS[Role.OPERATOR]}\r\n"
        head = f"POST {VMS} HTTP/1.1\r\nhost: a\r\n{token}content-length: 1000000\r\n\r\n".encode()
        halves = [await connected(server) for _ in range(6)]
        for _, writer in halves:
            writer.write(head + b" " * 200_000)
        refused = [asyncio.ensure_future(reader.read(12)) for reader, _ in halves]
        await asyncio.wait(refused, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(0.5)
        assert {task.result() for task in refused if task.done()} == {b"HTTP/1.1 429"}
        large = vm(annotations={"a": "x" * 200_000})
        assert (await server.call("POST", VMS, json=large))[0] == 201
        for task in refused:
            task.cancel()
        await asyncio.wait(refused)
        hang_up(*halves)


async def test_one_token_has_its_share_of_the_watches_and_hosts_find_room() -> None:
    async with api(settings=ApiSettings(watches=8, watches_per_token=3)) as server:
        open_ones = []

        async def watch(role: Role) -> tuple[int, str, str]:
            headers = {"Authorization": f"Bearer {TOKENS[role]}"}
            answer = await server.session.get(f"{server.url}{VMS}?watch=true", headers=headers)
            open_ones.append(answer)
            text = "" if answer.status == 200 else (await answer.json())["message"]
            return answer.status, text, answer.headers.get("Retry-After", "")

        assert [(await watch(Role.VIEWER))[0] for _ in range(3)] == [200] * 3
        status, text, after = await watch(Role.VIEWER)
        assert (status, after) == (429, "1")
        assert "the token 'viewer-of-tests' has 3 watches open" in text
        assert "api.watchesPerToken" in text
        assert [(await watch(Role.OPERATOR))[0] for _ in range(3)] == [200] * 3
        status, text, _ = await watch(Role.CONTROLLER)
        assert (status, "2 are kept for hosts" in text) == (429, True)
        assert [(await watch(Role.HOST))[0] for _ in range(2)] == [200] * 2
        assert (await watch(Role.COORDINATOR))[0] == 429
        for answer in open_ones:
            answer.close()
        await happens(lambda: not metric(server, "http_watches"))
        assert (await watch(Role.VIEWER))[0] == 200
        open_ones[-1].close()


async def test_a_watch_that_does_not_take_its_events_ends_with_410(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlive.api.watch_cache.WatchCache.__init__.__kwdefaults__", {"ring": 50}, raising=False)
    store = MemoryStore(SystemClock(), SystemIds())
    async with api(store) as server:
        admin = server.client()
        big = {"note": "x" * 100_000}
        for number in range(60):
            await server.call("POST", VMS, json=vm(f"vm-{number:03}", annotations=big))
        reader, writer = await connected(server, receive=4096)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        token = f"authorization: Bearer {TOKENS[Role.VIEWER]}\r\n"
        writer.write(f"GET {VMS}?watch=true HTTP/1.1\r\nhost: a\r\n{token}\r\n".encode())
        await happens(lambda: metric(server, "http_watches") == 1)
        for number in range(60):
            patch = json.dumps({"metadata": {"annotations": {"n": str(number)}}})
            headers = {"Content-Type": "application/merge-patch+json"}
            assert (await server.call("PATCH", f"{VMS}/vm-001", data=patch, headers=headers))[0] == 200
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        heard = await asyncio.wait_for(reader.readuntil(b'"code":410}'), 20)
        assert b'"type":"ERROR"' in heard[-2000:]
        await admin.close()
        hang_up((reader, writer))


async def test_a_slash_at_the_end_leads_to_the_path_without_it_on_the_same_server() -> None:
    async with api() as server:
        for path, leads in ((f"{VMS}/", VMS), ("/healthz/?a=1", "/healthz?a=1"), ("//evil.test/", "/evil.test")):
            async with server.session.get(
                server.url + path, headers={"Host": "evil.test"}, allow_redirects=False
            ) as answer:
                assert (answer.status, answer.headers["Location"]) == (307, leads)


async def test_every_answer_says_that_it_is_not_to_be_kept_or_guessed() -> None:
    async with api() as server:
        for path in (VMS, f"{VMS}/none", "/faults", "/healthz"):
            _, _, headers = await server.call("GET", path)
            assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store"), path
            assert "Strict-Transport-Security" not in headers
        _, _, headers = await server.call("GET", "/")
        assert headers["Cache-Control"] == "no-cache"


async def test_who_asks_with_wrong_tokens_waits_and_others_do_not(tmp_path: Path) -> None:
    async with api() as server:
        wrong = {"Authorization": "Bearer wrong-wrong-wrong"}
        guesses = [asyncio.create_task(server.call("GET", VMS, role=None, headers=wrong)) for _ in range(60)]
        assert (await server.call("GET", VMS))[0] == 200
        assert not all(one.done() for one in guesses), "it has not waited for those that are kept waiting"
        statuses = [status for status, _, _ in await asyncio.gather(*guesses)]
        assert statuses.count(401) == 60

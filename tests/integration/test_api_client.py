"""The store over HTTP when the connection fails: what is certain, what is not, and nothing sent twice."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.support.api import api
from tests.support.loops import run_real

from outlive.api import ApiSettings, Role
from outlive.base import (
    Conflict,
    Forbidden,
    Invalid,
    LimitExceeded,
    NotFound,
    Random,
    SystemClock,
    Unavailable,
    Unknown,
)
from outlive.resources import Flavor, FlavorSpec, ObjectMeta, ObjectRef, VirtualMachine
from outlive.runtime import Size
from outlive.store import BriefCalls, Delete, HttpStore, Malformed, Reset, Synced, Upsert

ANSWER = b"HTTP/1.1 %d X\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s"
MADE = VirtualMachine(metadata=ObjectMeta(name="a", uid="u", resource_version="1"))
REF = ObjectRef(kind="VirtualMachine", name="a")


def answer(status: int, body: bytes, kind: bytes = b"application/json") -> bytes:
    return ANSWER % (status, kind, len(body), body)


def client(url: str, *, brief: bool, silence_s: float = 30.0) -> HttpStore:
    """A client as a daemon's, or as that of a command, which is brief."""
    calls = BriefCalls(url, SystemClock()) if brief else None
    return HttpStore(url, "t", clock=SystemClock(), random=Random(1), silence_s=silence_s, calls=calls)


@pytest.fixture(params=[False, True], ids=["daemon", "command"])
def brief(request: pytest.FixtureRequest) -> bool:
    """Whether the client is that of a command."""
    return bool(request.param)


@asynccontextmanager
async def peer(
    reply: Callable[[int], bytes], *, brief: bool = False, silence_s: float = 30.0
) -> AsyncIterator[tuple[HttpStore, list[bytes]]]:
    """A client of a server that answers its n-th request with these bytes, and with none hangs up."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                heads.append(head)
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(int(length[0].split(b":")[1]) if length else 0)
                said = reply(len(heads))
                if not said:
                    break
                writer.write(said)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    store = client(f"http://127.0.0.1:{port}", brief=brief, silence_s=silence_s)
    try:
        yield store, heads
    finally:
        await store.close()
        server.close()


WRITES: dict[str, Callable[[HttpStore], object]] = {
    "create": lambda store: store.create(VirtualMachine(metadata=ObjectMeta(name="a"))),
    "replace": lambda store: store.replace(MADE),
    "replace_status": lambda store: store.replace_status(MADE),
    "delete": lambda store: store.delete(REF),
    "patch_metadata": lambda store: store.patch_metadata(REF, labels={"a": "b"}),
}


@pytest.mark.parametrize("write", WRITES)
async def test_a_write_whose_answer_is_lost_is_unknown_and_never_sent_twice(write: str, brief: bool) -> None:
    # The first call leaves a kept connection behind: on such a one the library would try again by itself.
    async with peer(lambda n: answer(404, b"{}") if n == 1 else b"", brief=brief) as (store, heads):
        with pytest.raises(NotFound):
            await store.get(VirtualMachine, "none")
        with pytest.raises(Unknown):
            await WRITES[write](store)  # type: ignore[misc]
        assert len(heads) == 2


async def test_a_read_whose_answer_is_lost_is_unavailable(brief: bool) -> None:
    async with peer(lambda _: b"", brief=brief) as (store, _):
        with pytest.raises(Unavailable):
            await store.get(VirtualMachine, "a")
        with pytest.raises(Unavailable):
            await store.list(VirtualMachine)


@pytest.mark.parametrize("write", WRITES)
async def test_a_refused_connection_means_that_nothing_was_applied(write: str, brief: bool) -> None:
    with socket.socket() as silent:  # nobody else has its port meanwhile, and it listens to nobody
        silent.bind(("127.0.0.1", 0))
        store = client(f"http://127.0.0.1:{silent.getsockname()[1]}", brief=brief)
        with pytest.raises(Unavailable) as caught:
            await WRITES[write](store)  # type: ignore[misc]
        assert "outlive up" in caught.value.remedy
        await store.close()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (answer(500, b"oops", b"text/plain"), Unknown),
        (answer(502, b"<html>", b"text/html"), Unknown),
        (answer(503, b"Service Unavailable", b"text/plain"), Unknown),
        (answer(503, b'{"details":{"code":"unavailable"}}'), Unavailable),
        (answer(504, b'{"details":{"code":"timeout"}}'), Unknown),
        (answer(409, b'{"details":{"code":"conflict"}}'), Conflict),
        (answer(409, b""), Conflict),
        (answer(401, b"{}"), Forbidden),
        (answer(422, b"{}"), Invalid),
        (answer(200, b"not json"), Unknown),
        (answer(200, b'{"kind":"VirtualMachine","spec":{"new":1}}'), Unknown),
        (answer(302, b""), Unknown),
    ],
)
async def test_every_answer_to_a_write_is_certain_or_unknown(
    said: bytes, expected: type[Exception], brief: bool
) -> None:
    async with peer(lambda n: said if n == 1 else b"", brief=brief) as (store, heads):
        with pytest.raises(expected) as caught:
            async with asyncio.timeout(30):
                await store.replace(MADE)
        assert type(caught.value) is expected
        assert len(heads) == 1


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", b"{}"),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{}", b"{}"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n{}", None),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n", None),
        (b"HTTP/1.1 200 OK\r\nconnection", None),
        (b"SSH-2.0-OpenSSH_9.2\r\n", None),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 30\r\n\r\n" + b"x" * 30, None),
    ],
    ids=["chunked", "until-the-end", "short", "no-last-chunk", "half-a-head", "no-http", "too-large"],
)
async def test_a_command_reads_a_whole_answer_or_none(said: bytes, expected: bytes | None) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        calls = BriefCalls(url, SystemClock(), answer_bytes=29)
        if expected is not None:
            assert await calls.call("GET", url, {}, None, None) == (200, expected)
        else:
            with pytest.raises((Unavailable, LimitExceeded)):
                await calls.call("GET", url, {}, None, None)
        await calls.close()


def test_a_command_uses_one_connection_and_another_one_once_the_server_has_closed_it() -> None:
    async def claim() -> None:
        opened = 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal opened
            opened += 1
            for _ in range(2):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer(200, b"{}"))
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            calls = BriefCalls(url, SystemClock())
            for expected in (1, 1, 2):
                assert (await calls.call("GET", url, {}, None, None))[0] == 200
                assert opened == expected
                await asyncio.sleep(0.05 * (expected - opened + 1))  # the end of the connection arrives
            await calls.close()

    run_real(claim())


async def test_an_error_comes_back_as_it_was() -> None:
    async with api(settings=ApiSettings(body_limit=Size(2000))) as server:
        store = server.client()
        with pytest.raises(NotFound) as missing:
            await store.get(VirtualMachine, "none")
        with pytest.raises(NotFound) as original:
            await server.store.get(VirtualMachine, "none")
        assert str(missing.value) == str(original.value)
        with pytest.raises(LimitExceeded):
            await store.create(Flavor(metadata=ObjectMeta(name="f"), spec=FlavorSpec(flavor_name="x" * 3000)))
        viewer = server.client(Role.VIEWER)
        with pytest.raises(Forbidden):
            await viewer.create(VirtualMachine(metadata=ObjectMeta(name="a")))
        await store.close()
        await viewer.close()


async def test_names_that_mean_something_in_a_path_reach_nothing_else() -> None:
    async with api() as server:
        store = server.client()
        await store.create(VirtualMachine(metadata=ObjectMeta(name="a")))
        for name in ("", ".", "..", "a/status", "../virtualmachines/a", "a?x=1", "a#", "%61", "a%2f"):
            with pytest.raises(NotFound):
                await store.get(VirtualMachine, name)
        await store.close()


async def test_an_observer_gets_a_reset_and_everything_anew_when_the_server_comes_back() -> None:
    async with api() as first:
        store = first.client()
        await store.create(VirtualMachine(metadata=ObjectMeta(name="a")))
        changes = store.observe(VirtualMachine)
        seen = [await anext(changes), await anext(changes)]
        assert [type(change) for change in seen] == [Upsert, Synced]
    assert await anext(changes) == Reset()
    await changes.aclose()
    await store.close()


async def test_a_silent_watch_is_given_up_and_begun_again() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
    mark = b'{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}\n'
    async with peer(lambda _: head + mark, silence_s=0.3) as (store, heads):
        changes = store.observe(VirtualMachine)
        async with asyncio.timeout(30):
            for _ in range(2):
                while (first := await anext(changes)) != Synced():  # a peer that was slow has been silent, too
                    assert first == Reset()
                assert await anext(changes) == Reset()
        assert len(heads) >= 2
        await changes.aclose()


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"ERROR","object":{"kind":"Status","code":410,"details":{"code":"expired"}}}\n',
        b'{"type":"ERROR","object":{"kind":"Status","code":410}}\n',
        b"rubbish\n",
        b'{"type":"NEW","object":{}}\n',
    ],
)
async def test_whatever_is_wrong_with_a_watch_is_a_reset(line: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
    async with peer(lambda _: head + line) as (store, _):
        changes = store.observe(VirtualMachine)
        assert await anext(changes) == Reset()
        await changes.aclose()


async def test_an_object_that_is_not_understood_is_named_and_the_watch_goes_on() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n"
    new = b'{"type":"ADDED","object":{"kind":"VirtualMachine","metadata":{"name":"v"},"spec":{"new":1}}}\n'
    gone = b'{"type":"DELETED","object":{"kind":"VirtualMachine","metadata":{"name":"w"},"spec":{"new":1}}}\n'
    async with peer(lambda _: head + new + gone) as (store, _):
        changes = store.observe(VirtualMachine)
        first, second = await anext(changes), await anext(changes)
        assert isinstance(first, Malformed)
        assert first.ref == ObjectRef(kind="VirtualMachine", name="v")
        assert "new" in first.why
        assert second == Delete(ObjectRef(kind="VirtualMachine", name="w"))
        await changes.aclose()


async def test_an_observer_with_a_wrong_token_is_told_so() -> None:
    async with api() as server:
        store = HttpStore(server.url, "wrong", clock=SystemClock(), random=Random(1))
        changes = store.observe(VirtualMachine)
        for _ in range(2):
            with pytest.raises(Forbidden):
                await anext(changes)
        await store.close()

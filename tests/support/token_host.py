"""A host that renews its token, and the server that it renews it at, in one process: every step may be the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from starlette.requests import Request

from outlive.api import Identity, Role, StoredTokens, TokenService, Unauthenticated, digest_of
from outlive.base import Forbidden, OutliveError, Random, SeededIds, Unavailable, Unknown, as_datetime
from outlive.node import CredentialRenewer, Credentials
from outlive.resources import LASTS, ObjectMeta, Token
from outlive.store import MemoryStore, compare_and_swap
from tests.support.calendar import Calendar

FIRST = "the-first-secret-of-kvm-1"
NAME = "host.kvm-1"
START_S = 1_800_000_000.0


class Crash(BaseException):
    """The power of the host is gone."""


class Disk:
    """A host's files; ``step`` is asked before and after each change, and may crash."""

    def __init__(self, step: Callable[[str], None]) -> None:
        self.token, self.next, self.former = FIRST, "", ""
        self._step = step

    async def read_pending(self) -> str:
        return self.next

    async def prepare(self, make: Callable[[], str]) -> str:
        self._step("before the next secret is kept")
        self.next = self.next or make()
        self._step("after the next secret is kept")
        return self.next

    async def adopt(self) -> str:
        self._step("before the former one is kept")
        self.former = self.token
        self._step("before the next one takes its place")
        self.token, self.next = self.next, ""
        self._step("after it took its place")
        return self.former

    async def forget(self) -> None:
        self.next = ""

    async def read_authorities(self) -> tuple[bytes, ...]:
        return ()

    async def believe(self, found: tuple[bytes, ...]) -> None:
        raise AssertionError(found)


class Line:
    """The host's connection: ``faults`` says of each call whether its request or its answer is lost."""

    def __init__(self, server: TokenServer, token: str, faults: Iterator[str]) -> None:
        self._server = server
        self._token = token
        self._faults = faults

    async def question(self, path: str) -> Any:
        return await self._call(lambda identity: self._server.service.show(_request({}), identity))

    async def command(self, path: str, body: Any) -> Any:
        return await self._call(lambda identity: self._server.service.renew(_request(body), identity))

    async def exchange(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        raise AssertionError(path)

    def use_token(self, token: str, former: str = "") -> None:
        self._token = token

    def trust(self, tls: Any) -> None:
        raise AssertionError(tls)

    async def _call(self, ask: Callable[[Identity], Any]) -> Any:
        fault = next(self._faults, "")
        if fault == "request lost":
            raise Unavailable("the request was lost")
        answer = msgspec.json.decode((await ask(self._server.identify(self._token))).body)
        if fault == "answer lost":
            raise Unknown("the answer was lost")
        return answer


class TokenServer:
    """What the server knows of tokens, over a store in memory."""

    def __init__(self) -> None:
        self.clock = Calendar(START_S)
        self.store = MemoryStore(self.clock, SeededIds(Random(1)))
        self.stored = StoredTokens(self.store, clock=self.clock, random=Random(1))
        self.service = TokenService(self.store, self.stored, clock=self.clock)

    async def begin(self) -> None:
        """The host has joined."""
        today = as_datetime(self.clock.now())
        token = Token(
            metadata=ObjectMeta(name=NAME),
            role=Role.HOST,
            digest=digest_of(FIRST.encode()),
            host="kvm-1",
            machine_id="m" * 32,
            issued=today,
            expires=today + LASTS,
        )
        await self.store.create(token)
        await self.follow()

    async def follow(self) -> None:
        """Another server on the same store: what the one before remembered is gone."""
        self.stored.used.clear()
        for one in (await self.store.list(Token)).items:
            self.stored.informer.note(one)

    async def mark(self) -> None:
        """Have the host renew its token."""

        def change(found: Token | None) -> Token | None:
            return msgspec.structs.replace(found, rotate=True) if found is not None else None

        await compare_and_swap(self.store, Token, NAME, change, clock=self.clock)
        await self.follow()

    def identify(self, token: str) -> Identity:
        try:
            found = self.stored.identify(token.encode())
        except Unauthenticated as error:
            raise Forbidden(error.message, remedy=error.remedy) from None
        if found is None:
            raise Forbidden("the token is not known")
        return found

    def knows(self, token: str) -> bool:
        """Whether it is good now; asking is no use of it."""
        kept = dict(self.stored.used)
        try:
            self.identify(token)
        except Forbidden:
            return False
        finally:
            self.stored.used = kept
        return True


async def look(server: TokenServer, disk: Disk, faults: Iterator[str], seed: int, token: str = "") -> bool:
    """One look of a daemon that has just started; whether the host lives on. ``token``: what it sends instead."""
    renewer = CredentialRenewer(
        Credentials(disk, Line(server, token or disk.token, faults)),
        clock=server.clock,
        random=Random(seed),
        make=SeededIds(Random(seed)).new_token,
    )
    try:
        await renewer.renew_token()
    except Crash:
        return False
    except OutliveError:
        pass
    return True


def _request(body: Any) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": msgspec.json.encode(body), "more_body": False}

    headers = [(b"content-type", b"application/json")]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers, "query_string": b""}, receive)

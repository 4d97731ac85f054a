"""A store that is somewhere else: the contract over the HTTP API of another Outlive process.

An observation is a watch that begins with all present states. When its connection ends, is silent for longer
than ``SILENCE_SECONDS`` or is answered 410, the observer gets ``Reset`` and, after a pause that grows with every
failure, everything anew. A refusal (a wrong token) ends it with the error.

Of several equal servers (controllers on one Kubernetes store) one is asked at a time. What it certainly has not
applied, because it could not be reached or could not write, is asked of the next one, each once; a write whose answer
was lost is never sent again. In both cases, and where a call is given up because it takes long, later calls and watches
go to the next server.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import msgspec

from outlive.base import Clock, Forbidden, Random, Unavailable, Unknown, get_logger, global_request_id
from outlive.resources import R
from outlive.store.contract import Change
from outlive.store.http_answers import change_of, decode_answer, error_of_answer, lines_of
from outlive.store.rest import RequestCredentials, RestStore
from outlive.store.tls import shown_address, split_addresses

if TYPE_CHECKING:
    from outlive.store.http_calls import HttpCalls

SILENCE_SECONDS: Final = 45.0
"""How long a watch may be silent; the server says something every 15 s."""
TOKEN_AGAIN_SECONDS: Final = 10.0
"""How long a token that was just taken instead of another is sent before the other is tried again."""
WATCH_PARAMETERS: Final[Mapping[str, str]] = {
    "watch": "true",
    "sendInitialEvents": "true",
    "resourceVersionMatch": "NotOlderThan",
    "allowWatchBookmarks": "true",
}
SLOW_S: Final = 1.0
"""After which a call that is given up says that its server is slow, and not that its answer is not wanted any more."""
DOWNLOAD_SILENCE_S: Final = 120.0
"""How long a server may prepare a long answer, or fall silent in it."""

_log = get_logger("store.http")


class HttpStore(RestStore):
    """The store behind ``base_url``, or behind any of several, which commas separate. ``token`` is a bearer token.

    ``tls``: what to believe, by default authorities that the system knows (``outlive.store.tls.trusting``).
    ``insecure``: the token may be sent in clear text to another machine; ``Forbidden`` without. ``former``: the token
    before it, for a server whose store was restored and knows that one.
    """

    embedded = True
    """What it speaks to is ``outlive up``."""

    def __init__(
        self,
        base_url: str,
        token: str,
        *,
        clock: Clock,
        random: Random,
        tls: ssl.SSLContext | None = None,
        insecure: bool = False,
        former: str = "",
        silence_s: float = SILENCE_SECONDS,
        calls: HttpCalls | None = None,
    ) -> None:
        self._addresses = split_addresses(base_url, insecure=insecure)
        super().__init__(self._addresses[0], clock=clock, random=random, calls=calls)
        self._token = token
        self._former = former
        self._changed_token_s = -TOKEN_AGAIN_SECONDS
        self._tls = tls
        self._silence_s = silence_s

    async def question(self, path: str, parameters: Mapping[str, str] | None = None) -> Any:
        """What the server answers about itself at a path such as ``/faults``; ``NotFound`` where it knows none."""
        return decode_answer(Any, await self._call("GET", path, parameters))

    async def command(self, path: str, body: Any) -> Any:
        """Have the server do something at a path that is no resource; ``NotFound`` where it knows none."""
        return decode_answer(Any, await self._call("POST", path, body=msgspec.json.encode(body)))

    async def download(self, path: str, sink: Callable[[bytes], object]) -> None:
        """Have ``sink`` take the body of an answer part by part, however long it is; errors as for other calls."""
        from outlive.store.http_session import read_answer

        headers, tls = await self._request_credentials()
        async with self._open_session().watch(self._build_url(path), headers, tls, DOWNLOAD_SILENCE_S) as answer:
            if not 200 <= answer.status < 300:
                raise error_of_answer(answer.status, await read_answer(answer), writing=False)
            async for part in answer.content.iter_any():
                sink(part)

    async def exchange(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """The status and body of any answer, for protocols with errors of their own; ``Unavailable``, ``Unknown``."""
        sent = await self._request_credentials()
        headers = dict(sent.headers) if body is None else {**sent.headers, "Content-Type": "application/json"}
        return await self._get_calls().call(method, self._build_url(path), headers, body, sent.tls)

    def use_token(self, token: str, former: str = "") -> None:
        """Send this token from now on, and what was the token before it where a server does not know it."""
        self._token, self._former = token, former

    def trust(self, tls: ssl.SSLContext) -> None:
        """Believe this from now on; connections that are open stay."""
        self._tls = tls

    async def _call(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str] | None = None,
        *,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """The body of a successful answer of one of the servers; any other raises."""
        for left in reversed(range(len(self._addresses))):
            server, began_s = self._server, self._clock.monotonic()
            try:
                return await super()._call(method, path, parameters, body=body, content_type=content_type)
            except Unavailable as error:
                self._leave(server, str(error))
                if not left or self._closed:
                    raise
            except Unknown as error:
                self._leave(server, str(error))
                raise
            except asyncio.CancelledError:
                if self._clock.monotonic() - began_s >= SLOW_S:
                    self._leave(server, f"no answer within {SLOW_S:g} s")
                raise
        raise AssertionError("a call ends with an answer or an error")

    def _leave(self, server: str, why: str) -> None:
        """Ask the server after this one from now on, unless somebody has left it already."""
        if len(self._addresses) > 1 and server == self._server and not self._closed:
            self._server = self._addresses[(self._addresses.index(server) + 1) % len(self._addresses)]
            _log.warning("store.http.next_server", left=shown_address(server), now=shown_address(self._server), why=why)

    async def _request_credentials(self) -> RequestCredentials:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if global_request_id():
            headers["X-Global-Request-Id"] = global_request_id()
        return RequestCredentials(headers, self._tls)

    async def _renew_credentials(self, refused: RequestCredentials) -> bool:
        return self._change_token(refused.headers["Authorization"].removeprefix("Bearer "))

    def _change_token(self, refused: str) -> bool:
        """After a refusal of a token: whether another one is to be sent, because it changed, or is the former one."""
        if refused != self._token:
            return True
        now = self._clock.monotonic()
        if not self._former or now - self._changed_token_s < TOKEN_AGAIN_SECONDS:
            return False
        self._changed_token_s = now
        self._token, self._former = self._former, self._token
        _log.warning("store.http.former_token", server=shown_address(self._server))
        return True

    def _read_parameters(self, fresh: bool) -> Mapping[str, str]:
        """Without ``fresh`` the server may answer from what it last saw."""
        return {} if fresh else {"resourceVersion": "0"}

    async def _follow_once(
        self, kind: type[R], path: str, selector: Mapping[str, str]
    ) -> AsyncGenerator[Change[R], None]:
        """The changes of one connection, to the first of the servers that answers."""
        for left in reversed(range(len(self._addresses))):
            server, began = self._server, False
            try:
                async with aclosing(self._follow_server(kind, path, selector)) as changes:
                    async for change in changes:
                        began = True
                        yield change
                return
            except (Unavailable, Unknown) as error:
                self._leave(server, str(error))
                if began or not left or self._closed:
                    raise

    async def _follow_server(
        self, kind: type[R], path: str, selector: Mapping[str, str]
    ) -> AsyncGenerator[Change[R], None]:
        token = self._token
        headers, tls = await self._request_credentials()
        url = self._build_url(path, {**WATCH_PARAMETERS, **selector})
        try:
            async with self._open_session().watch(url, headers, tls, self._silence_s) as answer:
                if answer.status != 200:
                    if answer.status == 401 and self._change_token(token):
                        raise Unavailable("the token has changed", remedy="observe again")
                    from outlive.store.http_session import read_answer

                    raise error_of_answer(answer.status, await read_answer(answer), writing=False)
                async for line in lines_of(answer.content):
                    change = change_of(kind, line)
                    if change is not None:
                        yield change
        except Forbidden:
            if token != self._token:  # renewed while the watch ran
                raise Unavailable("the token has changed", remedy="observe again") from None
            raise

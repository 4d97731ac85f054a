"""A store that is somewhere else: the contract over the HTTP API of another Outlive process.

An observation is a watch that begins with all present states. When its connection ends, is silent for longer
than ``SILENCE_SECONDS`` or is answered 410, the observer gets ``Reset`` and, after a pause that grows with every
failure, everything anew. A refusal (a wrong token) ends it with the error.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from outlive.base.clock import Clock
from outlive.base.errors import Forbidden, Unavailable
from outlive.base.logging import get_logger, global_request_id
from outlive.base.random import Random
from outlive.resources import R
from outlive.store.contract import Change
from outlive.store.http_answers import change_of, decoded, lines_of, refusal
from outlive.store.rest import RequestCredentials, RestStore
from outlive.store.tls import check_address, shown_address

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
DOWNLOAD_SILENCE_S: Final = 120.0
"""How long a server may prepare a long answer, or fall silent in it."""

_log = get_logger("store.http")


class HttpStore(RestStore):
    """The store behind ``base_url``. ``token`` is sent as a bearer token.

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
        check_address(base_url, insecure=insecure)
        super().__init__(base_url, clock=clock, random=random, calls=calls)
        self._token = token
        self._former = former
        self._changed_token_s = -TOKEN_AGAIN_SECONDS
        self._tls = tls
        self._silence_s = silence_s

    async def question(self, path: str, parameters: Mapping[str, str] | None = None) -> Any:
        """What the server answers about itself at a path such as ``/faults``; ``NotFound`` where it knows none."""
        return decoded(Any, await self._call("GET", path, parameters))

    async def command(self, path: str, body: Any) -> Any:
        """Have the server do something at a path that is no resource; ``NotFound`` where it knows none."""
        return decoded(Any, await self._call("POST", path, body=msgspec.json.encode(body)))

    async def download(self, path: str, sink: Callable[[bytes], object]) -> None:
        """Have ``sink`` take the body of an answer part by part, however long it is; errors as for other calls."""
        from outlive.store.http_session import read_answer

        headers, tls = await self._credentials()
        async with self._opened().watch(self._url(path), headers, tls, DOWNLOAD_SILENCE_S) as answer:
            if not 200 <= answer.status < 300:
                raise refusal(answer.status, await read_answer(answer), writing=False)
            async for part in answer.content.iter_any():
                sink(part)

    async def exchange(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """The status and body of any answer, for protocols with errors of their own; ``Unavailable``, ``Unknown``."""
        sent = await self._credentials()
        headers = dict(sent.headers) if body is None else {**sent.headers, "Content-Type": "application/json"}
        return await self._connected().call(method, self._url(path), headers, body, sent.tls)

    def use_token(self, token: str, former: str = "") -> None:
        """Send this token from now on, and what was the token before it where a server does not know it."""
        self._token, self._former = token, former

    def trust(self, tls: ssl.SSLContext) -> None:
        """Believe this from now on; connections that are open stay."""
        self._tls = tls

    async def _credentials(self) -> RequestCredentials:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        if global_request_id():
            headers["X-Global-Request-Id"] = global_request_id()
        return RequestCredentials(headers, self._tls)

    async def _renew_credentials(self, refused: RequestCredentials) -> bool:
        return self._other_token(refused.headers["Authorization"].removeprefix("Bearer "))

    def _other_token(self, refused: str) -> bool:
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
        """The changes of one connection."""
        token = self._token
        headers, tls = await self._credentials()
        url = self._url(path, {**WATCH_PARAMETERS, **selector})
        try:
            async with self._opened().watch(url, headers, tls, self._silence_s) as answer:
                if answer.status != 200:
                    if answer.status == 401 and self._other_token(token):
                        raise Unavailable("the token has changed", remedy="observe again")
                    from outlive.store.http_session import read_answer

                    raise refusal(answer.status, await read_answer(answer), writing=False)
                async for line in lines_of(answer.content):
                    change = change_of(kind, line)
                    if change is not None:
                        yield change
        except Forbidden:
            if token != self._token:  # renewed while the watch ran
                raise Unavailable("the token has changed", remedy="observe again") from None
            raise

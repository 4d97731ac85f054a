"""A session with an OpenStack: one entry of a ``clouds.yaml``, a token, the catalogue, and requests.

openstacksdk reads the entry, logs in at Keystone and finds endpoints in the catalogue; that blocks and therefore runs
in threads. The requests themselves are asynchronous, so that each has a deadline and a largest answer, and can be given
up. A request that is answered 401 is sent once more with a new token. Nothing else is repeated: the caller asks again.

The password is in the file, which nobody else may read then, or in a ``Secret``, which is opened when a new login needs
it (docs/how-to/openstack.md). It is in no message, no log and no environment of another process.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

import aiohttp
import msgspec

from outlive.base import Forbidden, NotFound, OutliveError, Unavailable, deadline, limits
from outlive.drivers.bmc.driver import Credential
from outlive.drivers.libvirt.threads import Threads
from outlive.drivers.openstack.login import UNREACHED, Login
from outlive.inventory import OpenStackSettings

LOGIN_THREADS: Final = 4
"""Calls that may wait for Keystone at the same time."""
ANSWER_BYTES: Final = 64 * 2**20
"""The largest answer that is read."""
ENDPOINTS_KEPT_S: Final = 600.0
"""How long an endpoint of the catalogue is used before it is looked up again."""
REFUSED_S: Final = 30.0
"""How long nobody logs in again after Keystone refused the credential."""

CredentialSource = Callable[[], Awaitable[Credential]]
T = TypeVar("T")


class Response(msgspec.Struct, frozen=True):
    """What a service said."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    url: str


class OpenStackSession:
    """See the module. All requests of one process to one cloud go through one of these."""

    def __init__(self, settings: OpenStackSettings, credential: CredentialSource | None = None) -> None:
        """``credential`` opens the secret that the settings name."""
        self._settings = settings
        self._credential = credential
        self._threads = Threads(LOGIN_THREADS, f"Keystone of cloud {settings.cloud}")
        self._turn = asyncio.Lock()
        self._login: Login | None = None
        self._endpoints: dict[tuple[str, str, str], tuple[float, str]] = {}
        self._http: aiohttp.ClientSession | None = None
        self._tls: ssl.SSLContext | bool = True
        self._refused: tuple[float, Forbidden] | None = None
        """Until when nobody logs in again, and why."""

    @property
    def limit_s(self) -> float:
        """How long one request may take."""
        return float(self._settings.request_limit)

    async def get_endpoint(self, service: str, *, interface: str = "", version: str = "") -> str:
        """The address of a service in the catalogue, without a slash at its end.

        ``interface``: another one than the settings name; ``version``: the major version that is looked for behind an
        address without one. ``NotFound`` where the catalogue has none.
        """
        key = (service, interface or self._settings.interface, version)
        now = asyncio.get_running_loop().time()
        known = self._endpoints.get(key)
        if known is not None and known[0] > now:
            return known[1]
        login = await self._open()
        url = await self._call(lambda: login.get_endpoint(*key), f"look up the {service} endpoint")
        self._endpoints[key] = (now + ENDPOINTS_KEPT_S, url.rstrip("/"))
        return self._endpoints[key][1]

    async def get(
        self,
        url: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        limit_bytes: int = ANSWER_BYTES,
    ) -> Response:
        """One GET with our token, whatever its status is, except 401: ``Forbidden`` if a new token gets that as well.

        ``Unavailable`` for everything that goes wrong on the way, and after ``limit_s`` for all of it together.
        """
        return await self._ask("GET", url, params or {}, headers or {}, limit_bytes)

    async def post(self, url: str, document: object, *, headers: Mapping[str, str]) -> Response:
        """One POST, like ``get``. ``Unavailable`` does not say whether it was carried out."""
        return await self._ask("POST", url, {}, headers, ANSWER_BYTES, document)

    async def _ask(
        self,
        method: str,
        url: str,
        params: Mapping[str, str],
        headers: Mapping[str, str],
        limit_bytes: int,
        document: object = None,
    ) -> Response:
        try:
            with deadline(self.limit_s):
                login = await self._open()
                token = await self._call(login.get_token, "log in")
                sent = {"Accept": "application/json", **headers, "X-Auth-Token": token}
                answer = await self._send(method, url, params, sent, limit_bytes, document)
                if answer.status == 401:
                    sent["X-Auth-Token"] = await self._call(lambda: login.renew(token), "log in")
                    answer = await self._send(method, url, params, sent, limit_bytes, document)
        except TimeoutError:
            raise _unavailable_error(url, f"no answer within {self.limit_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _unavailable_error(url, str(error) or type(error).__name__) from error
        if answer.status == 401:
            raise Forbidden("refuses our token", place=url, remedy="see whether its clock and its Keystone are right")
        return answer

    async def close(self) -> None:
        """Let go of connections."""
        session, self._http = self._http, None
        if session is not None:
            await session.close()

    async def _send(
        self,
        method: str,
        url: str,
        params: Mapping[str, str],
        headers: Mapping[str, str],
        limit_bytes: int,
        document: object,
    ) -> Response:
        if self._http is None:
            self._http = aiohttp.ClientSession()
        # A redirect would carry the token to wherever it points.
        request = self._http.request(
            method, url, params=params, headers=headers, json=document, ssl=self._tls, allow_redirects=False
        )
        async with request as response:
            parts = bytearray()
            async for chunk in response.content.iter_any():
                parts += chunk
                if len(parts) > limit_bytes:
                    raise ValueError(f"the answer is larger than {limit_bytes} bytes")
            return Response(response.status, bytes(parts), dict(response.headers), url)

    async def _open(self) -> Login:
        """The login; made where there is none, with the credential as it is now."""
        self._check_refused()
        async with self._turn:
            login = self._login
            if login is None:
                credential = await self._credential() if self._credential is not None else None
                settings = self._settings

                def make() -> tuple[Login, ssl.SSLContext | bool]:
                    login = Login(settings, credential)
                    return login, login.tls_verification()

                made, self._tls = await self._call(make, "read the clouds file")
                self._login = login = made
            return login

    async def _call(self, work: Callable[[], T], what: str) -> T:
        """In a thread, under the deadline. A login that is refused is forgotten, so that the next one reads the
        credential anew; for ``REFUSED_S`` there is none, because Keystone may lock a user out who tries too often."""
        self._check_refused()
        try:
            with deadline(self.limit_s):
                return await self._threads.submit(work)
        except TimeoutError:
            place = f"cloud {self._settings.cloud}"
            raise Unavailable(
                f"cannot {what}: Keystone did not answer within {self.limit_s:g} s", place=place, remedy=UNREACHED
            ) from None
        except Forbidden as error:
            self._login = None
            self._refused = (asyncio.get_running_loop().time() + REFUSED_S, error)
            raise

    def _check_refused(self) -> None:
        if self._refused is not None and asyncio.get_running_loop().time() < self._refused[0]:
            raise self._refused[1]


def _unavailable_error(url: str, why: str) -> Unavailable:
    return Unavailable(f"did not answer: {why}", place=url.partition("?")[0], remedy=UNREACHED)


def decode(answer: Response, kind: type[T]) -> T:
    """The body of a 200 as that type. ``Unavailable`` for any other status, and for a body that is something else:
    nothing is made of half an answer."""
    if answer.status != 200:
        raise refusal_of(answer)
    place = answer.url.partition("?")[0]
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unavailable(f"answers what is not understood: {error}", place=place, remedy=UNREACHED) from None


def refusal_of(answer: Response) -> OutliveError:
    """What an answer means that is not the one that was asked for."""
    said = answer.body[: limits.ERROR_BODY_BYTES].decode(errors="replace").strip()
    refused = answer.status == 403
    kind_of = Forbidden if refused else NotFound if answer.status == 404 else Unavailable
    remedy = "give our user the rights of docs/how-to/openstack.md#rights" if refused else UNREACHED
    return kind_of(f"answers {answer.status}: {said or 'nothing'}", place=answer.url.partition("?")[0], remedy=remedy)

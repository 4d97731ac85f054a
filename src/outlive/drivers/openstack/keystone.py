"""Keystone: its projects, and whose a caller's token is."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import parse_qsl

import msgspec

from outlive.base import Clock, LimitExceeded, Unavailable
from outlive.commitments import KeystoneDomain, Project, TokenOwner
from outlive.drivers.openstack.session import OpenStackSession, Response, decode

E = TypeVar("E", Project, KeystoneDomain)
P = TypeVar("P", "_Projects", "_Domains")
PROJECTS_LIMIT: Final = 100_000
PAGES_LIMIT: Final = 1_000
TOKEN_CHARACTERS: Final = 8_192
"""The longest token that is asked about."""
CALLERS_KEPT: Final = 1_000
"""Answers about tokens that are kept, the latest."""
VALID_S: Final = 60.0
"""How long a token that was good counts as good without asking again; a revoked one works no longer than this."""
INVALID_S: Final = 5.0
"""How long one that was not good is refused without asking again."""
ASKED_LIMIT: Final = 64
"""Tokens about which Keystone is asked at the same time."""


class _Links(msgspec.Struct, frozen=True):
    next: str | None = None


class _Projects(msgspec.Struct):
    projects: list[Project]
    links: _Links = _Links()
    truncated: bool = False


class _Domains(msgspec.Struct):
    domains: list[KeystoneDomain]
    links: _Links = _Links()
    truncated: bool = False


class KeystoneProjects:
    """A ``ProjectSource`` and ``DomainSource``."""

    def __init__(self, session: OpenStackSession) -> None:
        self._session = session

    async def list_projects(self) -> tuple[Project, ...]:
        """All projects, by id. ``Unavailable`` also where Keystone says that it left some out."""
        pages = [page.projects async for page in self._list_pages("projects", _Projects)]
        return _sort_by_id(one for page in pages for one in page)

    async def list_domains(self) -> tuple[KeystoneDomain, ...]:
        """All domains, by id. ``Unavailable`` as for projects."""
        pages = [page.domains async for page in self._list_pages("domains", _Domains)]
        return _sort_by_id(one for page in pages for one in page)

    async def _list_pages(self, what: str, form: type[P]) -> AsyncIterator[P]:
        """Every page of a list.

        Of the link to the next page only the query is taken: its host may be one that only Keystone can reach, and our
        token goes to none but Keystone.
        """
        url = f"{await self._session.get_endpoint('identity', version='3')}/{what}"
        asked: set[str] = set()
        count = 0
        query: str | None = ""
        while query is not None:
            if query in asked or len(asked) >= PAGES_LIMIT:
                raise Unavailable("gives pages without an end", place=url, remedy="see Keystone's log")
            asked.add(query)
            page = decode(await self._session.get(url, params=dict(parse_qsl(query))), form)
            if page.truncated:
                raise Unavailable(f"leaves {what} out", place=url, remedy="raise list_limit of [resource] in Keystone")
            count += len(page.projects if isinstance(page, _Projects) else page.domains)
            if count > PROJECTS_LIMIT:
                raise LimitExceeded(f"has more than {PROJECTS_LIMIT} {what}", place=url, remedy="ask for fewer")
            yield page
            query = page.links.next.partition("?")[2] if page.links.next is not None else None


def _sort_by_id(listed: Iterable[E]) -> tuple[E, ...]:
    """Each once, by id."""
    found = {one.id: one for one in listed}
    return tuple(found[key] for key in sorted(found))


class _NamedEntity(msgspec.Struct, frozen=True):
    id: str = ""
    name: str = ""


class _OfDomain(_NamedEntity, frozen=True):
    domain: _NamedEntity = _NamedEntity()


class _Token(msgspec.Struct):
    expires_at: str
    user: _OfDomain
    project: _OfDomain | None = None
    domain: _NamedEntity | None = None
    system: dict[str, bool] | None = None
    roles: Annotated[list[_NamedEntity], msgspec.Meta(max_length=1000)] = []


class _TokenAnswer(msgspec.Struct):
    token: _Token


class KeystoneTokens:
    """A ``TokenValidator``: asks Keystone, and keeps its answers for a short time under a digest of the token."""

    def __init__(self, session: OpenStackSession, clock: Clock) -> None:
        self._session = session
        self._clock = clock
        self._kept: OrderedDict[bytes, tuple[float, TokenOwner | None]] = OrderedDict()
        self._asked: dict[bytes, asyncio.Task[TokenOwner | None]] = {}

    async def validate(self, token: str) -> TokenOwner | None:
        """Whose the token is; see ``TokenValidator``. Callers with the same token share one request."""
        if not 0 < len(token) <= TOKEN_CHARACTERS or not (token.isascii() and token.isprintable()) or " " in token:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        known = self._kept.get(digest)
        if known is not None and self._clock.monotonic() < known[0]:
            return self._check_expiry(known[1])
        task = self._asked.get(digest)
        if task is None:
            if len(self._asked) >= ASKED_LIMIT:
                raise LimitExceeded(
                    f"Keystone is asked about {ASKED_LIMIT} tokens already",
                    place="Keystone",
                    remedy="try again in a moment",
                )
            task = asyncio.get_running_loop().create_task(self._ask(token, digest), name="validate a token")
            self._asked[digest] = task
            task.add_done_callback(lambda done: self._forget(digest, done))
        return self._check_expiry(await asyncio.shield(task))

    def _check_expiry(self, caller: TokenOwner | None) -> TokenOwner | None:
        return caller if caller is not None and caller.expires_at > self._clock.now() else None

    def _forget(self, digest: bytes, done: asyncio.Task[TokenOwner | None]) -> None:
        self._asked.pop(digest, None)
        if not done.cancelled():
            done.exception()  # the callers that waited have seen it

    async def _ask(self, token: str, digest: bytes) -> TokenOwner | None:
        url = f"{await self._session.get_endpoint('identity', version='3')}/auth/tokens"
        answer = await self._session.get(url, params={"nocatalog": "1"}, headers={"X-Subject-Token": token})
        caller = None if _is_unknown(answer) else _parse_owner(decode(answer, _TokenAnswer).token)
        kept_s = INVALID_S if caller is None else VALID_S
        self._kept[digest] = (self._clock.monotonic() + kept_s, caller)
        self._kept.move_to_end(digest)
        while len(self._kept) > CALLERS_KEPT:
            self._kept.popitem(last=False)
        return caller


def _is_unknown(answer: Response) -> bool:
    """Whether Keystone itself says that it knows no such token: a proxy may say 404 as well."""
    if answer.status != 404:
        return False
    try:
        return "error" in msgspec.json.decode(answer.body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _parse_owner(token: _Token) -> TokenOwner:
    project = token.project or _OfDomain()
    domain = project.domain if token.project is not None else token.domain or _NamedEntity()
    try:
        ends = datetime.fromisoformat(token.expires_at)
    except ValueError:
        raise Unavailable("gives a token without an end", place="Keystone", remedy="see its version") from None
    return TokenOwner(
        user_id=token.user.id,
        user_name=token.user.name,
        user_domain=token.user.domain.name,
        project_id=project.id,
        project_name=project.name,
        domain_id=domain.id,
        domain_name=domain.name,
        system=bool(token.system),
        roles=frozenset(role.name for role in token.roles),
        expires_at=(ends if ends.tzinfo else ends.replace(tzinfo=UTC)).timestamp(),
    )

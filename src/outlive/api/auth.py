"""Who may do what: bearer tokens with roles.

``GRANTS`` and ``WRITERS`` are what is decided by; docs/reference/http-api.md#tokens says it for people.

What a token of an operator, controller or host may write is decided object by object (``check_write``), by the table
of writers and the rules of ``outlive.node.permissions``. Tokens are kept as SHA-256 digests. The token of the state
directory is an admin's; further ones are in a file and in the store (docs/reference/http-api.md#tokens).
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from starlette.requests import Request

from outlive.api.config import SchedulerAuth
from outlive.api.errors import Unauthenticated
from outlive.base import (
    BadInput,
    Clock,
    Forbidden,
    Ids,
    Instant,
    OutliveError,
    Unavailable,
    as_instant,
    get_logger,
    read_private,
    write_whole,
)
from outlive.commitments import LiquidAction, LiquidPolicy, TokenValidator, caller_text
from outlive.node import NO_FACTS, Facts, HostWriter, build_forbidden, host_refusal, kind_refusal, write_refusal
from outlive.resources import (
    OF_A_VM,
    ROLES,
    Hypervisor,
    Reads,
    Resource,
    Verb,
    VirtualMachine,
    find_reads,
    hosts_of,
    may_write_some,
)
from outlive.store import Store, read

TOKEN_LENGTH_LEAST: Final = 16
TOKEN_LENGTH_MOST: Final = 1024
TOKENS_LIMIT: Final = 1000
TOKEN_FILE_BYTES: Final = 2 * 1024 * 1024
UNTIL: Final = "until="
"""Before the day on which a token of a file ends."""
PEER: Final = "peer"
"""Key of a request's state: whether a client certificate was verified."""

_log = get_logger("api")


class Role(enum.StrEnum):
    """What a token may be used for."""

    ADMIN = "admin"
    OPERATOR = "operator"
    VIEWER = "viewer"
    SCHEDULER = "scheduler"
    LIQUID = "liquid"
    CONTROLLER = "controller"
    HOST = "host"
    COORDINATOR = "coordinator"
    JOIN = "join"


class AccessLevel(enum.StrEnum):
    """What a request needs."""

    OPEN = "open"
    READ = "read"
    SURVEY = "read what is about the whole cluster"
    WRITE = "write"
    PLACE = "place"
    EXPLAIN = "explain"
    KNOWN = "ask what it may"
    """Any token that is known."""
    ADMIT = "ask whether a write is allowed"
    """The API server that daemons write to; by the key in the path."""
    JOIN = "join"
    RENEW = "renew itself"
    TLS = "replace the authority of the server"
    BACKUP = "take a backup"
    OPERATE = "have the server do something"
    CLUSTER_KEY = "have the key of the cluster's secrets"
    SCREEN = "have the passwords of the screens of its own VMs"
    LIQUID_READ = "read what LIQUID reports"
    LIQUID_QUOTA = "set quota"
    LIQUID_CHANGE = "change commitments"


LIQUID_ACTIONS: Final[Mapping[AccessLevel, LiquidAction]] = {
    AccessLevel.LIQUID_READ: LiquidAction.READ,
    AccessLevel.LIQUID_QUOTA: LiquidAction.QUOTA,
    AccessLevel.LIQUID_CHANGE: LiquidAction.CHANGE,
}
"""What the owner of a Keystone token must be allowed for it."""
_SOLD: Final = frozenset({AccessLevel.LIQUID_QUOTA, AccessLevel.LIQUID_CHANGE})
"""What the service that sells capacity changes, and nobody else but an admin."""

_OF_HOSTS: Final = frozenset({AccessLevel.CLUSTER_KEY, AccessLevel.SCREEN})
"""What is handed to hosts, which have to use it, and to nobody else."""
_OF_NOBODY: Final = frozenset({AccessLevel.ADMIT})
"""What no token is for."""
_OF_ADMINS: Final = frozenset({AccessLevel.TLS, AccessLevel.BACKUP})
"""What only an administrator may."""
_READER: Final = frozenset(
    {
        AccessLevel.OPEN,
        AccessLevel.READ,
        AccessLevel.SURVEY,
        AccessLevel.EXPLAIN,
        AccessLevel.KNOWN,
        AccessLevel.LIQUID_READ,
    }
)
_HOST: Final = frozenset({AccessLevel.OPEN, AccessLevel.READ, AccessLevel.KNOWN, AccessLevel.WRITE})
GRANTS: Final[dict[Role, frozenset[AccessLevel]]] = {
    Role.ADMIN: frozenset(AccessLevel) - _OF_HOSTS - _OF_NOBODY - {AccessLevel.JOIN, AccessLevel.RENEW},
    Role.OPERATOR: frozenset(AccessLevel)
    - _SOLD
    - _OF_HOSTS
    - _OF_ADMINS
    - _OF_NOBODY
    - {AccessLevel.JOIN, AccessLevel.RENEW},
    Role.VIEWER: _READER,
    Role.SCHEDULER: frozenset({AccessLevel.OPEN, AccessLevel.PLACE, AccessLevel.EXPLAIN, AccessLevel.KNOWN}),
    Role.LIQUID: _SOLD | {AccessLevel.OPEN, AccessLevel.KNOWN, AccessLevel.LIQUID_READ},
    Role.CONTROLLER: _HOST | {AccessLevel.SURVEY, AccessLevel.EXPLAIN, AccessLevel.PLACE},
    Role.HOST: _HOST | {AccessLevel.SCREEN, AccessLevel.RENEW},
    Role.COORDINATOR: _HOST | _OF_HOSTS | {AccessLevel.RENEW},
    Role.JOIN: frozenset({AccessLevel.OPEN, AccessLevel.KNOWN, AccessLevel.JOIN}),
}
"""What each role may; for reads ``resources.readers`` decides further, for writes ``may_write`` and ``check_write``."""
WRITERS: Final[Mapping[Role, tuple[str, ...]]] = {Role(role): names for role, names in ROLES.items()}
"""The names of ``KindInfo.writers`` under which each role writes; an admin writes everything, other roles nothing."""
HOSTS: Final = frozenset({Role.HOST, Role.COORDINATOR})
"""Roles of hosts, which get their tokens by joining."""
IN_FILES: Final = tuple(role for role in Role if role not in HOSTS | {Role.JOIN})
"""Roles that belong to no host."""


class Identity(msgspec.Struct, frozen=True):
    """Who a token belongs to."""

    name: str
    role: Role
    host: str = ""
    """The host that it belongs to; empty for other roles."""
    machine_id: str = ""
    """Of the machine that has joined as this host."""
    digest: str = ""
    """Of the secret that was shown, where the token is one of the store."""
    expires: datetime | None = None
    """When its secret ends."""

    @property
    def flow(self) -> str:
        """What its requests count under where tokens share something."""
        return f"{self.role}/{self.name}"

    @property
    def writer(self) -> HostWriter:
        """The host that writes."""
        return HostWriter(self.host, self.role is Role.COORDINATOR, self.machine_id)


ANYBODY: Final = Identity("anybody", Role.SCHEDULER)
"""Who asks without a token where none is asked for."""
API_SERVER: Final = Identity("kubernetes-api-server", Role.SCHEDULER)
"""Who sends reviews of writes."""
ADMISSION_PATH: Final = "/admission"
"""Before the key in the path: no log shows more of it."""
LEASES_PATH: Final = "/leases"
"""After the key: reviews of leases, which wait for no others."""
PODS_PATH: Final = "/pods"
"""After the key: reviews of network annotations of pods."""


def check_end(identity: Identity, now: Instant) -> None:
    """``Unauthenticated`` where its token has ended."""
    if identity.expires is None or now < as_instant(identity.expires):
        return
    remedy = "ask an administrator for another one: outlive token create"
    if identity.role in HOSTS:
        remedy = f"join again, which costs no VM: outlive token create --join --host {identity.host}"
    elif identity.role is Role.JOIN:
        remedy += " --join"
    raise Unauthenticated(f"the token {identity.name} ended at {identity.expires:%Y-%m-%d %H:%M} UTC", remedy=remedy)


class Tokens:
    """The tokens that are known, of files for example; ``further`` knows more, such as those of the store."""

    def __init__(
        self,
        tokens: Iterable[tuple[str, Identity]],
        further: Callable[[bytes], Identity | None] = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        self._further = further
        self._clock = clock
        self._known = {_hash_token(token.encode()): identity for token, identity in tokens}
        if len(self._known) > TOKENS_LIMIT:
            raise BadInput(f"{len(self._known)} tokens", remedy=f"at most {TOKENS_LIMIT}")

    def identify(self, authorization: bytes) -> Identity:
        """Whose ``Authorization`` header it is; ``Unauthenticated`` says what is missing."""
        token = _token_of(authorization)
        if not token:
            raise Unauthenticated(
                "a token is needed", remedy="send 'Authorization: Bearer TOKEN'; it is in the file token of --state-dir"
            )
        # How long it takes to find a digest says nothing about the token, which nobody can choose by its digest.
        found = self._known.get(_hash_token(token[: TOKEN_LENGTH_MOST + 1]))
        if found is not None and self._clock is not None:
            check_end(found, self._clock.now())
        if found is None:
            found = self._further(token)
        if found is None:
            raise Unauthenticated(
                "the token is not known",
                remedy="use the one in the file token of the server's --state-dir; a host joins: outlive node join",
            )
        return found


class KeystoneAccess(msgspec.Struct, frozen=True):
    """Tokens of Keystone, in the header ``X-Auth-Token``, for requests of LIQUID."""

    validator: TokenValidator
    policy: LiquidPolicy = LiquidPolicy()

    async def identify(self, token: str, access: AccessLevel) -> Identity:
        """The owner of the token; ``Unauthenticated``, or ``Forbidden`` where its role does not grant the access."""
        try:
            caller = await self.validator.validate(token)
        except OutliveError as error:
            _log.warning("keystone.not_asked", code=error.code, error=str(error))
            raise Unavailable("the token cannot be checked now, please retry later") from None
        if caller is None:
            raise Unauthenticated(
                "the token in X-Auth-Token is not valid or not valid any more", remedy="ask Keystone for another one"
            )
        if why := self.policy.explain_refusal(caller, LIQUID_ACTIONS[access]):
            raise Forbidden(why, remedy="see docs/reference/commitments.md#access")
        return Identity(caller_text(caller), Role.LIQUID)


class Authenticator:
    """Says who asks, and whether they may."""

    def __init__(
        self,
        tokens: Tokens,
        scheduler_auth: SchedulerAuth,
        keystone: KeystoneAccess | None = None,
        admission_key: str = "",
    ) -> None:
        self._tokens = tokens
        self._scheduler_auth = scheduler_auth
        self._keystone = keystone
        self._admission_key = admission_key

    async def authenticate(self, request: Request, access: AccessLevel) -> Identity:
        """As ``identify``, which it is for every request without a token of Keystone. A bearer token goes first."""
        token = request.headers.get("x-auth-token", "")
        if access not in LIQUID_ACTIONS or not token or "authorization" in request.headers:
            return self.identify(request, access)
        if self._keystone is None:
            raise Unauthenticated(
                "this server does not know Keystone, whose token was sent in X-Auth-Token",
                remedy="send 'Authorization: Bearer TOKEN' with a token of the role liquid, or configure Keystone",
            )
        return await self._keystone.identify(token, access)

    def identify_bearer(self, request: Request) -> Identity | None:
        """The owner of the bearer token, whatever it may do; ``None`` without a valid one.

        The audit log names this owner where the request is refused.
        """
        try:
            return self._tokens.identify(request.headers.get("authorization", "").encode("latin-1"))
        except Forbidden:
            return None

    def identify(self, request: Request, access: AccessLevel) -> Identity:
        """The owner of the token; ``Unauthenticated``, or ``Forbidden`` where its role does not grant the access."""
        if access is AccessLevel.OPEN:
            return ANYBODY
        if access is AccessLevel.ADMIT:
            presented = request.path_params.get("key", "").encode()
            request.scope["path"] = ADMISSION_PATH  # the key goes out of the path before anything is logged
            if not self._admission_key or not hmac.compare_digest(presented, self._admission_key.encode()):
                raise Unauthenticated("this is no key for reviews", remedy="apply what outlive admission prints")
            return API_SERVER
        if access in (AccessLevel.PLACE, AccessLevel.EXPLAIN):
            if self._scheduler_auth == "none":
                return ANYBODY
            if self._scheduler_auth == "mtls":
                if not request.scope["state"].get(PEER):
                    raise Unauthenticated(
                        "a client certificate is needed", remedy="connect by TLS with one of an authority that is known"
                    )
                return ANYBODY
        if request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise Forbidden("a page of another site asks", remedy="ask from this server's own pages, or a program")
        identity = self._tokens.identify(request.headers.get("authorization", "").encode("latin-1"))
        allow(identity, access)
        return identity


def _token_of(authorization: bytes) -> bytes:
    """The token of an ``Authorization`` header, or nothing.

    The password of basic authentication counts as well: kubectl sends no bearer token over plain HTTP, but it does
    send what is in the server's address (``http://outlive:TOKEN@127.0.0.1:8080``).
    """
    scheme, _, rest = authorization.partition(b" ")
    if scheme.lower() == b"bearer":
        return rest.strip()
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).partition(b":")[2]
        except ValueError:
            return b""
    return b""


def _hash_token(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def allow(identity: Identity, access: AccessLevel) -> None:
    """``Forbidden`` unless the role grants the access."""
    if access not in GRANTS[identity.role]:
        raise Forbidden(
            f"the token {identity.name!r} has the role {identity.role}, which may not {access}",
            remedy="use a token of another role; see docs/reference/http-api.md#tokens",
        )


def may_write(
    identity: Identity, kind: type[Resource], *, status: bool = False, name: str = "", verb: str = "update"
) -> None:
    """``Forbidden`` unless the identity may write that half of the kind (single documents count as spec) at all.

    ``name``, where it is known, matters for objects that are one for each host.
    """
    allow(identity, AccessLevel.WRITE)
    if identity.role is Role.ADMIN:
        return
    if not may_write_some(kind, WRITERS[identity.role], verb, status=status):
        half = "status" if status else "spec" if kind.info.halves else "document"
        raise Forbidden(
            f"the role {identity.role} may not {verb} the {half} of {kind.info.plural}",
            remedy="use a token of a role that may, see docs/reference/permissions.md#table",
        )
    if identity.role in HOSTS and (why := kind_refusal(identity.writer, kind, name, verb)):
        raise _build_refusal(identity, why)


def may_read(identity: Identity, kind: type[Resource], verb: Verb = "get") -> Reads:
    """What the identity is shown of the kind in answer to the verb; ``Forbidden`` where that is nothing."""
    allow(identity, AccessLevel.READ)
    found = find_reads(identity.role, kind, verb)
    if found is None:
        one_by_one = verb != "get" and find_reads(identity.role, kind) is not None
        raise Forbidden(
            f"the role {identity.role} may not {verb} {kind.info.plural}",
            remedy="get those that you need, by name"
            if one_by_one
            else "use a token of another role; see docs/reference/permissions.md#who-reads-what",
        )
    return found


def visible_part(
    identity: Identity, obj: Resource, verb: Verb = "get", vm: VirtualMachine | None = None
) -> Resource | None:
    """What the identity is shown of the object; ``None``: nothing. ``vm``: the one that a console or so is of."""
    found = find_reads(identity.role, type(obj), verb)
    if found is None or found.everything:
        return obj if found is not None else None
    hosts = vm.placed_hosts() if isinstance(obj, OF_A_VM) and vm is not None else hosts_of(obj)
    return found.select_part(obj, verb, own=identity.host in hosts)


def read_refusal(identity: Identity, kind: type[Resource], name: str) -> Forbidden:
    """The refusal of one object that belongs to others."""
    what = "the VM" if issubclass(kind, OF_A_VM) else "it"
    return _build_refusal(identity, f"may not read {kind.kind()}/{name}: {identity.host} has nothing to do with {what}")


async def check_coordinates(store: Store, identity: Identity) -> None:
    """``Forbidden`` unless the host is a coordinator now: its token still says what it was when it joined."""
    host = await read(store, Hypervisor, identity.host)
    if host is None or host.spec.mode != "coordinator":
        raise Forbidden(f"{identity.host} is no coordinator", remedy="set its spec.mode, if it is to be one")


def check_write(
    identity: Identity,
    before: Resource | None,
    after: Resource | None,
    facts: Facts = NO_FACTS,
    *,
    term: int = 0,
    coordinates: bool = True,
) -> None:
    """``Forbidden`` unless the identity may make this change of one object; ``may_write`` comes first.

    ``before`` is ``None`` for a creation, ``after`` for a deletion. ``term``: in which the host is the primary
    coordinator; ``coordinates``: whether a host whose token is a coordinator's is one (``api.permission``).
    """
    if identity.role in HOSTS:
        coordinator = identity.role is Role.COORDINATOR and coordinates
        who = msgspec.structs.replace(identity.writer, coordinator=coordinator, term=term)
        why = host_refusal(who, before, after, facts)
    elif identity.role in CHECKED:
        why = write_refusal(WRITERS[identity.role], before, after, facts)
    else:
        return
    if why:
        raise _build_refusal(identity, why)


CHECKED: Final = HOSTS | {Role.CONTROLLER, Role.OPERATOR}
"""Roles for which ``check_write`` looks at every object; an admin writes everything, the others nothing."""


def _build_refusal(identity: Identity, why: str) -> Forbidden:
    return build_forbidden(f"host {identity.host}" if identity.host else f"{identity.role} {identity.name}", why)


def read_tokens(path: Path) -> list[tuple[str, Identity]]:
    """The tokens of a file: lines of ``ROLE TOKEN [NAME] [until=YYYY-MM-DD]``, ``#`` begins a comment; ``BadInput``
    names the line, ``Forbidden`` a file that others can read or replace."""
    tokens: list[tuple[str, Identity]] = []
    for number, line in enumerate(_private_text(path).splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        place = f"{path}:{number}"
        until = words.pop().removeprefix(UNTIL) if words[-1].startswith(UNTIL) else ""
        if len(words) not in (2, 3) or words[0] not in IN_FILES:
            roles = ", ".join(IN_FILES)
            what = f"write ROLE TOKEN [NAME] [{UNTIL}YYYY-MM-DD]; roles: {roles}"
            raise BadInput("not a token line", place=place, remedy=what)
        role = Role(words[0])
        check_token(words[1], place)
        try:
            ends = datetime.strptime(until, "%Y-%m-%d").replace(tzinfo=UTC) if until else None
        except ValueError:
            raise BadInput(f"{until[:20]!r} is no day", place=place, remedy=f"write {UNTIL}2027-03-31") from None
        name = words[2] if len(words) == 3 else f"{role}-{number}"
        tokens.append((words[1], Identity(name, role, expires=ends)))
    return tokens


def check_token(token: str, place: str) -> None:
    """``BadInput`` for a token that is too short to be a secret, or cannot stand in a header."""
    if not TOKEN_LENGTH_LEAST <= len(token) <= TOKEN_LENGTH_MOST or not token.isascii() or not token.isprintable():
        raise BadInput(
            f"a token of {len(token)} characters",
            place=place,
            remedy=f"use {TOKEN_LENGTH_LEAST} to {TOKEN_LENGTH_MOST} ASCII characters, such as: openssl rand -hex 32",
        )


def ensure_token(path: Path, ids: Ids) -> str:
    """The token in the file, which is made (mode 600) where it is missing."""
    if not path.exists():
        write_whole(path, ids.new_token().encode() + b"\n")
    token = _private_text(path).strip()
    check_token(token, str(path))
    return token


def _private_text(path: Path) -> str:
    """The text of a file that only its owner may read."""
    try:
        return read_private(path, limit=TOKEN_FILE_BYTES).decode()
    except UnicodeDecodeError:
        raise BadInput("not a text file", place=str(path), remedy="write UTF-8") from None

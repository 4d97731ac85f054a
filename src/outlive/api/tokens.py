"""Tokens of the store: known as soon as they are written, refused as soon as they are deleted; and how hosts join.

A host uses a join token once. The token names the host; a token that names none joins a host whose name nothing in the
store refers to. The server checks the host, marks the join token as used by compare-and-swap, and only then writes the
host's own token; a host that loses an answer in between needs another join token. The server checks that a machine has
one name only before these writes, and again before it answers (docs/how-to/install.md#join).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from outlive.api.auth import HOSTS, TOKEN_LENGTH_MOST, Identity, Role, check_end
from outlive.api.errors import Unauthenticated
from outlive.api.requests import JSON, document_of, json_response, media_type
from outlive.base import (
    BadInput,
    Clock,
    Conflict,
    Forbidden,
    Ids,
    Instant,
    NotFound,
    Random,
    Refused,
    as_datetime,
    get_logger,
)
from outlive.resources import (
    HOST_LABEL,
    HOST_TOKENS,
    LASTS,
    Hypervisor,
    Membership,
    ObjectMeta,
    Token,
    VirtualMachine,
    check_name,
)
from outlive.runtime import Informer
from outlive.store import Store, compare_and_swap, list_all, read

_MACHINE: Final = re.compile(r"[0-9A-Za-z.-]{8,130}\Z")
BY_DIGEST: Final = "digest"

_replace = msgspec.structs.replace
_log = get_logger("api.tokens")


class StoredTokens:
    """Knows the tokens of the store, while it is ``follow_store`` it."""

    def __init__(self, store: Store, *, clock: Clock, random: Random) -> None:
        self._clock = clock
        self.informer = Informer(
            store,
            Token,
            clock=clock,
            random=random,
            indexes={BY_DIGEST: lambda one: filter(None, (one.digest, one.next_digest, one.former_digest))},
        )
        self.used: dict[str, tuple[str, Instant]] = {}
        """Digest and time of the last use, by name of the token, until it is written down."""

    @asynccontextmanager
    async def follow_store(self) -> AsyncIterator[None]:
        """Follow the store while the block runs, which begins once all tokens are known."""
        task = asyncio.create_task(self.informer.run(), name="tokens")
        try:
            await self.informer.wait_synced()
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    def identify(self, token: bytes) -> Identity | None:
        """Whose it is, if anybody's; ``Unauthenticated`` says why one is not good any more."""
        presented = digest_of(token[: TOKEN_LENGTH_MOST + 1])
        found = next(iter(self.informer.list_by_index(BY_DIGEST, presented)), None)
        if found is None or found.role not in list(Role):
            return None
        digests = (found.digest, found.next_digest, found.former_digest)
        if not any(hmac.compare_digest(one, presented) for one in digests):
            return None
        if found.used_by:
            again = "ask an administrator for another one: outlive token create --join"
            raise Unauthenticated(f"the join token {found.name} was used by {found.used_by}", remedy=again)
        role, now = Role(found.role), self._clock.now()
        host = found.host if role in HOSTS else ""
        identity = Identity(found.name, role, host, found.machine_id, presented, found.end_of(presented))
        check_end(identity, now)
        used, _ = self.used.get(found.name, ("", now))
        is_next = used != "" and used == found.next_digest  # which is not forgotten for a use of the old one
        if role is not Role.JOIN and (presented == used or not is_next):
            self.used[found.name] = (presented, now)
        return identity


def digest_of(token: bytes) -> str:
    """As it is kept."""
    return hashlib.sha256(token).hexdigest()


class Joining(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What a host says that joins."""

    host: str
    machine_id: str


class JoinResponse(msgspec.Struct, frozen=True, rename="camel"):
    """What it gets."""

    host: str
    role: str
    token: str
    cluster_key: str = ""
    """For coordinators: what opens the cluster's secrets."""


class HostJoin:
    """The handler of ``/join``. ``cluster_key``: what opens secrets, for coordinators."""

    def __init__(
        self,
        store: Store,
        tokens: StoredTokens,
        *,
        clock: Clock,
        ids: Ids,
        cluster_key: Callable[[], str] = str,
    ) -> None:
        self._store = store
        self._tokens = tokens
        self._clock = clock
        self._ids = ids
        self._cluster_key = cluster_key
        self._join_lock = asyncio.Lock()

    async def join(self, request: Request, identity: Identity) -> Response:
        """Exchange a join token for that of a host."""
        media_type(request, JSON)
        try:
            wish = msgspec.convert(document_of(await request.body()), Joining)
        except msgspec.ValidationError as error:
            raise BadInput(f"not what a host says that joins: {error}", remedy="use outlive node join") from None
        async with self._join_lock:
            joined = await self._exchange(identity.name, wish)
        _log.info("host.joined", host=joined.host, role=joined.role, machine=wish.machine_id)
        return json_response(msgspec.to_builtins(joined))

    async def _exchange(self, name: str, wish: Joining) -> JoinResponse:
        check_name(wish.host)
        if not _MACHINE.match(wish.machine_id):
            raise BadInput(
                f"{wish.machine_id[:80]!r} is no machine id",
                place="machineId",
                remedy="see /etc/machine-id of the host",
            )
        ticket = await self._store.get(Token, name, fresh=True)
        if ticket.role != Role.JOIN:
            raise Forbidden(f"the token {name} is no join token", remedy="outlive token create --join --host NAME")
        if ticket.host not in ("", wish.host):
            raise Refused(
                f"the join token {name} is for {ticket.host}, and {wish.host} came with it",
                remedy=f"create one for it: outlive token create --join --host {wish.host}",
            )
        await self._check_machine(wish, ticket)
        if ticket.used_by:
            raise Refused(f"the join token {name} was used by {ticket.used_by}", remedy="create another one")
        try:
            used = await self._store.replace(_replace(ticket, used_by=f"{wish.host} (machine {wish.machine_id})"))
        except (Conflict, NotFound):
            raise Refused(
                f"the join token {name} was used by another host just now", remedy="create another one"
            ) from None
        self._tokens.informer.note(used)
        role = Role.COORDINATOR if ticket.coordinator else Role.HOST
        secret, today = self._ids.new_token(), as_datetime(self._clock.now())
        wanted = Token(
            metadata=ObjectMeta(name=HOST_TOKENS + wish.host),
            role=role,
            digest=digest_of(secret.encode()),
            host=wish.host,
            machine_id=wish.machine_id,
            issued=today,
            expires=today + LASTS,
            created_by=ticket.name,
        )

        def change(found: Token | None) -> Token:
            if found is None:
                return wanted
            if found.digest == wanted.digest:  # written, and its answer was lost
                return found
            _check_name(wish, ticket, found.machine_id)
            return _replace(wanted, metadata=found.metadata)

        written = await compare_and_swap(self._store, Token, wanted.name, change, clock=self._clock)
        assert written is not None
        try:
            await self._check_names(wish)
            if not ticket.host:
                await self._check_unreferenced(wish.host, besides=written.name)
        except Refused:
            await self._withdraw(written)
            raise
        self._tokens.informer.note(written)
        key = self._cluster_key() if role is Role.COORDINATOR else ""
        return JoinResponse(wish.host, role, secret, key)

    async def _check_machine(self, wish: Joining, ticket: Token) -> None:
        """``Refused`` for a machine that has another name already, and for a name that ``_check_name`` refuses."""
        token = await read(self._store, Token, HOST_TOKENS + wish.host)
        member = await read(self._store, Membership, wish.host)
        if token is not None or member is not None:
            known = token.machine_id if token is not None else ""
            _check_name(wish, ticket, known or (member.record.machine_id if member is not None else ""))
        if not ticket.host:
            await self._check_unreferenced(wish.host)
        await self._check_names(wish)

    async def _check_unreferenced(self, host: str, besides: str = "") -> None:
        """``Refused`` where anything in the store refers to a host of this name; ``besides``: the token that it got.

        Who joins under a name gets what belongs to it: VMs that are assigned to it, for example.
        """
        found = ""
        if await read(self._store, Hypervisor, host) is not None:
            found = f"hypervisor {host}"
        elif await read(self._store, Membership, host) is not None:
            found = f"membership {host}"
        if not found:
            others = [one.name async for one in list_all(self._store, Token, whole=True) if one.host == host]
            found = next((f"token {one}" for one in others if one != besides), "")
        if not found:
            vms = [one.name async for one in list_all(self._store, VirtualMachine, whole=True) if host in hosts_of(one)]
            found = f"VM {vms[0]}" if vms else ""
        if found:
            raise Refused(
                f"the join token is for new hosts, and {found} refers to {host} already",
                remedy=f"create one for this host: outlive token create --join --host {host}",
            )

    async def _check_names(self, wish: Joining) -> None:
        """``Refused`` for a machine that has another name already.

        Asked after its token was written as well: of two servers that let it join under two names, one sees the other.
        """
        others = [
            one.host async for one in list_all(self._store, Token, whole=True) if one.machine_id == wish.machine_id
        ]
        others += [
            one.name
            async for one in list_all(self._store, Membership, whole=True)
            if one.record.machine_id == wish.machine_id
        ]
        other = next((one for one in others if one != wish.host), "")
        if other:
            raise Refused(
                f"machine {wish.machine_id} has joined as {other}: it was renamed, or its disk is a copy of that one's",
                remedy="a copy: rm -f /etc/machine-id /var/lib/dbus/machine-id, systemd-machine-id-setup, and boot it; "
                f"renamed: outlive token revoke {HOST_TOKENS}{other}, and outlive delete membership {other}",
            )

    async def _withdraw(self, token: Token) -> None:
        """Delete a host's token that nobody has been given, unless it was replaced since."""
        with contextlib.suppress(NotFound, Conflict):
            now = await self._store.get(Token, token.name, fresh=True)
            if now.digest == token.digest:
                await self._store.delete(now.ref, version=now.metadata.resource_version)


def hosts_of(vm: VirtualMachine) -> set[str]:
    """Every host that a VM refers to."""
    spec, status = vm.spec, vm.status
    found = {status.home, vm.metadata.labels.get(HOST_LABEL, ""), *spec.host_limit, *spec.preferred_hosts.weights}
    found |= {one.hypervisor for one in status.holders}
    found |= {status.assigned.hypervisor} if status.assigned is not None else set()
    found |= {status.migration.source, status.migration.target} if status.migration is not None else set()
    return found - {""}


def _check_name(wish: Joining, ticket: Token, known: str) -> None:
    """``Refused`` for the name of a host that has joined: to another machine (``known``: its own, if that is known),
    and to a join token that is not for this host. Every token that reads learns names and machine ids, so they
    prove nothing."""
    if known not in ("", wish.machine_id):
        raise Refused(
            f"{wish.host} has joined as machine {known}, and machine {wish.machine_id} wants this name",
            remedy=f"give it another name; or, if it replaces the old one: outlive token revoke {HOST_TOKENS}"
            f"{wish.host}, and outlive delete membership {wish.host}",
        )
    if ticket.host != wish.host:
        raise Refused(
            f"{wish.host} has joined before, and the join token {ticket.name} is not for it alone",
            remedy=f"create one that is: outlive token create --join --host {wish.host}",
        )

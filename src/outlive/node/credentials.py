"""Renews this host's token over its own connection, and follows the server when it replaces its authority.

Each look asks the server what it knows of the token (``/token``) and which authorities it has (``/ca``). A renewal goes
in steps, each of which may be the last before a crash: the next secret is kept on the disk; the server gets its digest;
the secret takes the place of the token; it is used. What was begun is ended by a later look, or by the next daemon: at
every instant the token on the disk is good (docs/concepts/security.md#tokens).

An authority is believed because the server names it over a connection that an authority verified which was believed
before; one that the server names no more is forgotten, if one that it still names was believed as well.
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from outlive.base import Clock, NotFound, OutliveError, Random, Refused, get_logger
from outlive.runtime import Periodic
from outlive.store import (
    AUTHORITY_PATH,
    RENEWAL_PATH,
    TOKEN_PATH,
    fingerprint_of,
    is_own,
    make_pinned_context,
    parse_certificates,
)

LOOK_S: Final = 60.0
"""How often the token and the authorities are looked at; each look comes up to half of it later."""

_log = get_logger("node.credentials")


class CredentialStore(Protocol):
    """The files of the token and of the authorities (``drivers.credentials``)."""

    async def read_pending(self) -> str:
        """The next secret, if one was made; empty otherwise."""
        ...

    async def prepare(self, make: Callable[[], str]) -> str:
        """The next secret, on the disk before it is returned; one that was made before, if there is one."""
        ...

    async def adopt(self) -> str:
        """Have the next secret in the place of the token; the one before it."""
        ...

    async def forget(self) -> None:
        """Drop the next secret."""
        ...

    async def read_authorities(self) -> tuple[bytes, ...]:
        """What is believed (DER); nothing where no authority is pinned."""
        ...

    async def believe(self, found: tuple[bytes, ...]) -> None:
        """Believe these instead."""
        ...


class ServerConnection(Protocol):
    """The connection to the server (``store.http``)."""

    async def question(self, path: str) -> Any:
        """What the server answers at a path."""
        ...

    async def command(self, path: str, body: Any) -> Any:
        """Have the server do something."""
        ...

    async def exchange(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body of any answer."""
        ...

    def use_token(self, token: str, former: str = "") -> None:
        """Send this token from now on."""
        ...

    def trust(self, tls: ssl.SSLContext) -> None:
        """Believe this from now on."""
        ...


@dataclass(frozen=True, slots=True)
class Credentials:
    """Where this host keeps them, and for which connection."""

    files: CredentialStore
    connection: ServerConnection


class CredentialRenewer:
    """See the module. Calls ``reported`` with the fingerprints of the authorities that it believes."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        clock: Clock,
        random: Random,
        make: Callable[[], str],
        reported: Callable[[tuple[str, ...]], None] = lambda _: None,
    ) -> None:
        self._files = credentials.files
        self._connection = credentials.connection
        self._clock = clock
        self._random = random
        self._make = make
        self._reported = reported
        self._failing = ""
        """Why the last look failed; empty: it did not."""

    async def run(self) -> None:
        """Until cancelled; what fails is tried again in the next look."""
        await Periodic(self._renew, lambda: LOOK_S * (1.0 + 0.5 * self._random.random()), clock=self._clock).run()

    async def _renew(self) -> None:
        why = ""
        for renew in (self.renew_authorities, self.renew_token):
            try:
                await renew()
            except (OutliveError, OSError) as error:
                why = why or str(error)
        if why and why != self._failing:
            _log.warning("credentials.not_renewed", why=why)
        self._failing = why

    async def renew_token(self) -> None:
        """Renew it where that is due, or was begun. ``OutliveError``, ``OSError``."""
        try:
            said = await self._connection.question(TOKEN_PATH)
        except NotFound:  # an older server
            return
        if not (await self._files.read_pending() or (isinstance(said, dict) and said.get("renew") is True)):
            return
        secret = await self._files.prepare(self._make)
        try:
            await self._connection.command(RENEWAL_PATH, {"digest": hashlib.sha256(secret.encode()).hexdigest()})
        except Refused:
            await self._files.forget()
            raise
        former = await self._files.adopt()
        self._connection.use_token(secret, former)
        await self._connection.question(TOKEN_PATH)  # from its first use on the server counts the end of the former one
        _log.info("credentials.token_renewed")

    async def renew_authorities(self) -> None:
        """Believe those that the server has. ``OutliveError``, ``OSError``."""
        known = await self._files.read_authorities()
        if not known:
            return
        status, raw = await self._connection.exchange("GET", AUTHORITY_PATH)
        if status == 200:
            offered = tuple(one for one in parse_certificates(raw.decode("ascii", "replace")) if is_own(one))
            if (wanted := next_authorities(known, offered)) != known:
                await self._files.believe(wanted)
                self._connection.trust(make_pinned_context(wanted))
                _log.info("credentials.authorities_changed", fingerprints=[fingerprint_of(one) for one in wanted])
                known = wanted
        self._reported(tuple(fingerprint_of(one) for one in known))


def next_authorities(known: tuple[bytes, ...], offered: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """What is to be believed: what is offered; and what was believed, unless some of that is still offered."""
    if not offered:
        return known
    if set(known) & set(offered):
        return offered
    return (*known, *offered)

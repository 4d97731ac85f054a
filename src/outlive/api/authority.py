"""``POST /tls/rotate``: replace the server's own authority without losing a host.

The first request makes the authority that is to follow; ``/ca`` answers both, and every host comes to believe both over
the connection that it has pinned, and says so in ``status.authorities``. The second one (``finish``) is refused while a
host that has joined does not, and names it; then the server shows a certificate of the new authority, and forgets the
old one, as the hosts do (docs/reference/http-api.md#authority).
"""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from outlive.api.auth import HOSTS, Identity
from outlive.api.requests import JSON, document_of, json_response, media_type
from outlive.api.tls import ServerTls
from outlive.base import BadInput, Clock, Refused, join_parts
from outlive.resources import Hypervisor, Token
from outlive.store import Store, list_all

NAMED: Final = 6
"""Hosts that a refusal names."""


class Rotation(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What an administrator asks for."""

    finish: bool = False
    leave: tuple[str, ...] = ()
    """Hosts that need not have the new authority; they have to join again."""


async def refuse_rotation(_request: Request, _identity: Identity) -> Response:
    """``Refused``: one of several servers that share an authority would show certificates that nobody else knows."""
    raise Refused(
        "several controllers share this authority, and none of them replaces it alone",
        remedy="docs/how-to/kubernetes.md#authority",
    )


class AuthorityRotation:
    """The handler."""

    def __init__(self, store: Store, tls: ServerTls, clock: Clock) -> None:
        self._store = store
        self._tls = tls
        self._clock = clock

    async def rotate(self, request: Request, _identity: Identity) -> Response:
        """See the module. Answers the fingerprints, and which hosts do not believe the next authority yet."""
        media_type(request, JSON)
        try:
            wanted = msgspec.convert(document_of(await request.body()), Rotation)
        except msgspec.ValidationError as error:
            raise BadInput(f"not a rotation: {error}", remedy="use outlive tls rotate") from None
        if not wanted.finish:
            self._tls.rotate()
        without: list[str] = []
        if wanted_next := self._tls.next_fingerprint:
            now, store = self._clock.now(), self._store
            joined = {one.host async for one in list_all(store, Token) if one.role in HOSTS and not one.is_expired(now)}
            have = {one.name async for one in list_all(store, Hypervisor) if wanted_next in one.status.authorities}
            without = sorted(joined - have)
        if wanted.finish:
            if missing := [one for one in without if one not in wanted.leave]:
                has = "does" if len(missing) == 1 else "do"
                raise Refused(
                    f"{join_parts(missing[:NAMED])} {has} not believe the new authority yet ({len(missing)} in all)",
                    remedy="see that its daemon runs: it follows within two minutes; or go on without it, and have it "
                    f"join again: --leave {missing[0]}",
                )
            self._tls.finish()
        document = {"authority": self._tls.fingerprint, "next": self._tls.next_fingerprint, "without": without}
        return json_response(document)

"""How tokens end, are renewed, and show their last use.

A host renews its token over its own connection: it makes the new secret itself, keeps it on its disk, and sends its
digest (``POST /token/renew``). From then on both are good, and the old one until ten minutes after the new one was used
for the first time (``resources.tokens``). So an answer that is lost is asked for again, and at every instant what the
host has on its disk is good. ``TokenUpkeep`` writes down what requests only remember: first and last uses; it gives an
end to tokens that have none, renews the token of the state directory, and reports what ends soon
(docs/concepts/security.md#tokens).
"""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
from cryptography import x509
from prometheus_client.core import GaugeMetricFamily, Metric
from starlette.requests import Request
from starlette.responses import Response

from outlive.api.auth import TOKEN_LENGTH_MOST, Identity, Role, check_end, ensure_token
from outlive.api.requests import JSON, document_of, json_response, media_type
from outlive.api.tokens import BY_DIGEST, StoredTokens, digest_of
from outlive.base import (
    BadInput,
    Clock,
    Ids,
    Instant,
    OutliveError,
    Refused,
    as_datetime,
    as_instant,
    get_logger,
    write_whole,
)
from outlive.resources import CLUSTER, LASTS, OVERLAP, SHARE_LEFT, WARNED_BEFORE, ObjectRef, Token
from outlive.resources.reasons import FaultCode
from outlive.runtime import ActiveFault, FaultRecorder, Periodic
from outlive.store import Store, compare_and_swap

LOOK_S: Final = 20.0
"""How often first and last uses are written down, and the age of tokens is looked at."""
USE_WRITTEN_EVERY: Final = timedelta(hours=1)
"""How often the last use of one token is written at most."""
WRITES: Final = 200
"""Tokens that are written in one look; the others have their turn in the next."""
STATE_NAME: Final = "state-dir"
"""How the token of the state directory is called."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")

_replace = msgspec.structs.replace
_log = get_logger("api.tokens")


class Renewal(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What a host says that renews its token."""

    digest: str
    """SHA-256 of the secret that it has made and keeps."""


class TokenService:
    """The handlers of ``/token`` and ``/token/renew``."""

    def __init__(self, store: Store, tokens: StoredTokens, *, clock: Clock) -> None:
        self._store = store
        self._tokens = tokens
        self._clock = clock

    async def show(self, _request: Request, identity: Identity) -> Response:
        """What is known of the token of the request, and whether its host is to renew it now."""
        found, due = self._tokens.informer.get(identity.name), False
        if found is not None and identity.digest:
            now = self._clock.now()
            due = (found.mark_used(now) if identity.digest == found.next_digest else found).renewal_due(now)
        document = {"name": identity.name, "role": identity.role, "host": identity.host, "expires": identity.expires}
        return json_response(msgspec.to_builtins({**document, "renew": due}))

    async def renew(self, request: Request, identity: Identity) -> Response:
        """Take the digest of the next secret of the token of the request."""
        media_type(request, JSON)
        try:
            wanted = msgspec.convert(document_of(await request.body()), Renewal).digest
        except msgspec.ValidationError as error:
            raise BadInput(
                f"not what a host says that renews its token: {error}", remedy="see POST /token/renew"
            ) from None
        if not _DIGEST.match(wanted):
            raise BadInput(f"{wanted[:80]!r} is no SHA-256 digest", place="digest", remedy="64 digits of 0-9 and a-f")
        others = self._tokens.informer.list_by_index(BY_DIGEST, wanted)
        if any(one.name != identity.name for one in others):
            raise Refused("this secret is that of another token", remedy="make another one")
        now = self._clock.now()

        def change(found: Token | None) -> Token | None:
            if found is None or identity.digest not in (found.digest, found.next_digest):
                raise Refused(
                    f"the token {identity.name} was renewed or revoked in the meantime",
                    remedy=f"use the newer one, or join again: outlive token create --join --host {identity.host}",
                )
            used, at = self._tokens.used.get(found.name, ("", now))
            if used and used == found.next_digest != identity.digest:
                raise Refused(
                    f"the token {identity.name} was renewed at {as_datetime(at):%H:%M:%S} UTC",
                    remedy="use the newer secret: a former one renews nothing",
                )
            if wanted == found.next_digest or wanted == found.digest == identity.digest:
                return None  # its answer was lost, and the host asks again
            if wanted in (found.digest, found.former_digest):
                raise Refused("this secret was used before", remedy="make another one")
            current = found.mark_used(now) if identity.digest == found.next_digest else found
            return current.with_next(wanted, now)

        written = await compare_and_swap(self._store, Token, identity.name, change, clock=self._clock)
        assert written is not None
        self._tokens.informer.note(written)
        _log.info("token.renewed", token=identity.name, until=written.next_expires)
        return json_response(msgspec.to_builtins({"name": written.name, "expires": written.next_expires}))


class StateToken:
    """The token of a state directory: an admin's, renewed by the server itself when a third of its time is left.

    The time counts from when the file was written. Who has read the file just before goes on for ``OVERLAP``.
    ``shared``: several servers have the same one, so that none renews it alone: somebody calls ``replace``.
    """

    def __init__(self, path: Path, *, clock: Clock, ids: Ids, shared: bool = False) -> None:
        self._path = path
        self._clock = clock
        self._ids = ids
        self._shared = shared
        self._former: tuple[str, datetime] | None = None
        """Digest of the one before, and until when it is good."""
        self._adopt(ensure_token(path, ids))
        self.renew()

    def identify(self, token: bytes) -> Identity | None:
        """Whose it is, if it is this one."""
        presented = digest_of(token[: TOKEN_LENGTH_MOST + 1])
        for digest, end in ((self._digest, self._issued + LASTS), *([self._former] if self._former else [])):
            if hmac.compare_digest(digest, presented):
                identity = Identity(STATE_NAME, Role.ADMIN, expires=end)
                check_end(identity, self._clock.now())
                return identity
        return None

    def renew(self) -> bool:
        """Write another one where it is due; whether it was. ``OSError``."""
        if self._shared or not is_renewal_due(self._issued, self._clock):
            return False
        return self.replace(self._ids.new_token(), as_datetime(self._clock.now()))

    def replace(self, secret: str, issued: datetime) -> bool:
        """Have this one instead, made at that time; whether it is another one. ``OSError``."""
        if hmac.compare_digest(digest_of(secret.encode()), self._digest):
            return False
        before = (self._digest, as_datetime(self._clock.now()) + OVERLAP)
        write_whole(self._path, secret.encode() + b"\n")
        os.utime(self._path, (issued.timestamp(), issued.timestamp()))
        self._adopt(secret)
        self._former = before
        _log.info("token.renewed", token=STATE_NAME, until=self._issued + LASTS)
        return True

    def _adopt(self, secret: str) -> None:
        """Take the secret of the file for the token."""
        self._digest = digest_of(secret.encode())
        now = as_datetime(self._clock.now())
        written = datetime.fromtimestamp(self._path.stat().st_mtime, now.tzinfo)
        self._issued = min(now, written)


def is_renewal_due(issued: datetime, clock: Clock) -> bool:
    """Whether a third of the time is left, or less, of a server's own token that was made then."""
    return as_datetime(clock.now()) - issued >= LASTS - LASTS / SHARE_LEFT


class TokenUpkeep:
    """See the module. ``further`` says what else is to be reported, such as an authority that ends.

    ``renew``: renews the token of the state directory instead of that token itself, and says whether it is another one.
    """

    def __init__(
        self,
        store: Store,
        tokens: StoredTokens,
        state: StateToken,
        *,
        clock: Clock,
        further: Callable[[Instant], Iterable[ActiveFault]] = lambda _: (),
        renew: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._store = store
        self._tokens = tokens
        self._state = state
        self._renew = renew
        self._clock = clock
        self.renewed: Callable[[], None] = lambda: None
        """Called when the token of the state directory has changed."""
        self._further = further
        self._recorder = FaultRecorder(store, clock, "server")

    async def run(self) -> None:
        """Until cancelled."""
        await Periodic(self._update_and_report, LOOK_S, clock=self._clock).run()

    async def _update_and_report(self) -> None:
        await self.update()
        await self._recorder.record([*self._end_faults(), *self._further(self._clock.now())])

    async def renew(self) -> None:
        """Renew the token of the state directory, or have it follow the shared one; what fails is repeated."""
        try:
            if await self._renew() if self._renew is not None else self._state.renew():
                self.renewed()
        except (OSError, OutliveError) as error:
            _log.error("token.not_renewed", token=STATE_NAME, error=str(error))

    async def update(self) -> None:
        """The same, and write ends and uses of the others. The next call repeats a write that failed."""
        await self.renew()
        now, writes = self._clock.now(), 0
        for one in self._tokens.informer.items():
            if writes >= WRITES:
                return
            if self._update_token(one, now) == one:
                continue
            writes += 1
            try:
                wrote = await compare_and_swap(
                    self._store,
                    Token,
                    one.name,
                    lambda found: self._update_token(found, now),
                    clock=self._clock,
                    tries=2,
                )
            except (OutliveError, TimeoutError) as error:
                _log.warning("token.not_written", token=one.name, error=str(error))
                continue
            if wrote is not None:
                self._tokens.informer.note(wrote)
                if one.expires is None:
                    _log.warning("token.given_an_end", token=one.name, role=one.role, until=wrote.expires)
        names = {one.name for one in self._tokens.informer.items()}
        for name in [name for name in self._tokens.used if name not in names]:
            del self._tokens.used[name]

    def _update_token(self, found: Token | None, now: Instant) -> Token | None:
        """The token with its end, and with its first or last use."""
        if found is None:
            return None
        after = found.with_end(now)
        digest, at = self._tokens.used.get(found.name, ("", now))
        if digest and digest == after.next_digest:
            after = after.mark_used(at)
        elif not digest or (after.last_used is not None and as_datetime(at) - after.last_used < USE_WRITTEN_EVERY):
            return after
        return _replace(after, last_used=as_datetime(at).replace(microsecond=0))

    def _end_faults(self) -> list[ActiveFault]:
        now = self._clock.now()
        return [
            ActiveFault(
                FaultCode.TOKEN_ENDS,
                ObjectRef(kind="Token", name=one.name),
                {"role": one.role, "end": f"{one.expires:%Y-%m-%d}"},
            )
            for one in self._tokens.informer.items()
            if one.role != Role.JOIN and one.ends_soon(now)
        ]


def file_faults(path: Path, known: Iterable[tuple[str, Identity]]) -> Callable[[Instant], Iterable[ActiveFault]]:
    """What is to be reported of a file of tokens: lines that end soon, and lines without an end in a file that was not
    written for as long as a token lasts."""
    identities = [identity for _, identity in known]
    subject = ObjectRef(kind="Cluster", name=CLUSTER)

    def find_faults(now: Instant) -> Iterable[ActiveFault]:
        today = as_datetime(now)
        ending = [one.name for one in identities if one.expires is not None and one.expires - today <= WARNED_BEFORE]
        if ending:
            yield ActiveFault(FaultCode.TOKENS_FILE, subject, {"file": str(path), "names": ", ".join(ending[:6])})
            return
        try:
            written = datetime.fromtimestamp(path.stat().st_mtime, today.tzinfo)
        except OSError:
            return
        endless = [one.name for one in identities if one.expires is None]
        if endless and today - written > LASTS:
            yield ActiveFault(FaultCode.TOKENS_FILE, subject, {"file": str(path), "names": ", ".join(endless[:6])})

    return find_faults


EXPIRIES: Final = 200
"""Tokens whose ends a scrape shows, the soonest first."""


class ExpiryGauges:
    """Metrics of when certificates and tokens end."""

    def __init__(self, tokens: StoredTokens, ends: Callable[[], Mapping[str, datetime]]) -> None:
        self._tokens = tokens
        self._ends = ends

    def collect(self) -> Iterable[Metric]:
        """Names are without the prefix."""
        certificates = GaugeMetricFamily(
            "certificate_expiry_timestamp_seconds",
            "When a certificate of the server ends, seconds since 1970",
            labels=["certificate"],
        )
        for name, end in sorted(self._ends().items()):
            certificates.add_metric([name], as_instant(end))
        tokens = GaugeMetricFamily(
            "token_expiry_timestamp_seconds", "When a token ends, seconds since 1970", labels=["token", "role"]
        )
        known = [one for one in self._tokens.informer.items() if one.expires is not None and one.role != Role.JOIN]
        for one in sorted(known, key=lambda each: (each.expires, each.name))[:EXPIRIES]:
            tokens.add_metric([one.name, one.role], as_instant(one.expires) if one.expires is not None else 0.0)
        return [certificates, tokens]


def certificate_end(file: Path) -> Mapping[str, datetime]:
    """When an operator's certificate of the server ends; nothing where it cannot be read."""
    try:
        return {"server": x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc}
    except (OSError, ValueError):
        return {}

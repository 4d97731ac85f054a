"""``Token``: who may use the server, kept as a digest. Hosts get theirs in exchange for one that is used once.

A token is renewed in two steps, so that no lost answer and no crash locks anybody out. Its digests are good so long::

    digest           until ``expires``; the only one for most of the time
    next_digest      since it was renewed; used for the first time, it becomes ``digest``, and that ``former_digest``
    former_digest    for ``OVERLAP`` after that, for what is on its way
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar, Final

from msgspec.structs import replace

from outlive.base import Instant, as_datetime, as_instant
from outlive.resources.meta import KindInfo, Resource, Writers

HOST_TOKENS: Final = "host."
"""Before the name of a host, the name of its token."""
LASTS: Final = timedelta(days=90)
"""How long a token is good, unless somebody says otherwise; a host renews its own before."""
LONGEST: Final = timedelta(days=400)
"""The longest time that a token may be good."""
JOIN_LASTS: Final = timedelta(hours=1)
"""How long a join token is good, unless somebody says otherwise."""
OVERLAP: Final = timedelta(minutes=10)
"""How long the former secret is good after the new one was used for the first time."""
SHARE_LEFT: Final = 3
"""A host's token is renewed when a third of its time is left."""
WARNED_BEFORE: Final = timedelta(days=14)
"""So long before its end a token is a fault, unless it was made for less."""


class Token(Resource, frozen=True, kw_only=True, tag="Token"):
    """``Token/<name>``. One document; deleting it revokes the token at once. A host's is ``host.<host>``."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="tokens",
        short_names=("otok",),
        halves=False,
        writers=Writers(fields={"": ("admin",)}, creates=("admin",), deletes=("admin",), labels="refused"),
        columns=(
            ("Role", ".role", 0),
            ("Host", ".host", 0),
            ("Expires", ".expires", 0),
            ("Last-Used", ".lastUsed", 0),
            ("Used", ".usedBy", 0),
            ("Machine", ".machineId", 1),
            ("Created-By", ".createdBy", 1),
        ),
    )

    role: str
    """Its role (docs/reference/http-api.md#tokens); ``join``: a host exchanges it for its own."""
    digest: str
    """SHA-256 of the token, in hexadecimal digits."""
    host: str = ""
    """Its host; for a join token the only one that may use it. A join token without a host is for a name to which no
    object refers."""
    machine_id: str = ""
    """Of the machine that has joined as this host."""
    coordinator: bool = False
    """Of a join token: whether the host becomes a coordinator."""
    expires: datetime | None = None
    """When it ends; a server sets an end if there is none."""
    issued: datetime | None = None
    """Since when it has its present secret; absent: since its creation."""
    used_by: str = ""
    """For a join token: the host that has used it."""
    next_digest: str = ""
    """Digest of the secret from a renewal, until its first use."""
    next_expires: datetime | None = None
    """When the secret of ``nextDigest`` ends, if it is used in time."""
    former_digest: str = ""
    """Of the secret before the present one."""
    former_until: datetime | None = None
    """Until when the secret of ``formerDigest`` is still good."""
    rotate: bool = False
    """Of a host: whether it is to renew its token now."""
    last_used: datetime | None = None
    """When it was used last, to the hour."""
    created_by: str = ""
    """The token with which it was created."""

    def is_expired(self, now: Instant) -> bool:
        """Whether its time is over."""
        return self.expires is not None and now >= as_instant(self.expires)

    def end_of(self, digest: str) -> datetime | None:
        """When the secret with this digest, one of the three, ends."""
        if digest == self.digest:
            return self.expires
        return self.next_expires if digest == self.next_digest else self.former_until

    def time_left(self, now: Instant) -> tuple[timedelta, timedelta]:
        """How long it is still good, and how long it was to be; both zero where it has no end."""
        since = self.issued or self.metadata.creation_timestamp
        if self.expires is None:
            return timedelta(), timedelta()
        return self.expires - as_datetime(now), self.expires - (since or as_datetime(now))

    def renewal_due(self, now: Instant) -> bool:
        """Whether its host is to renew it."""
        left, whole = self.time_left(now)
        return self.rotate or left * SHARE_LEFT <= whole

    def ends_soon(self, now: Instant) -> bool:
        """True if a fault should warn that it ends, or has ended; never for a token that was made for a short time."""
        left, whole = self.time_left(now)
        return whole > WARNED_BEFORE >= left

    def with_next(self, digest: str, now: Instant, lasts: timedelta = LASTS) -> Token:
        """It with another secret, which nobody has used yet."""
        return replace(self, next_digest=digest, next_expires=as_datetime(now) + lasts, rotate=False)

    def mark_used(self, now: Instant) -> Token:
        """It after its next secret was used for the first time."""
        today = as_datetime(now)
        return replace(
            self,
            digest=self.next_digest,
            expires=self.next_expires,
            issued=today,
            next_digest="",
            next_expires=None,
            former_digest=self.digest,
            former_until=today + OVERLAP,
        )

    def with_creator(self, creator: str) -> Token:
        """It as that token creates it."""
        return replace(self, created_by=creator)

    def with_end(self, now: Instant) -> Token:
        """It with an end that is not beyond ``LONGEST``; itself where it has one."""
        today = as_datetime(now)
        if self.expires is None:
            return replace(self, expires=today + (JOIN_LASTS if self.role == "join" else LASTS), issued=today)
        latest = (self.issued or self.metadata.creation_timestamp or today) + LONGEST
        return self if self.expires <= latest else replace(self, expires=latest)

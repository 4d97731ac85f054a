"""``Token``: who may use the server, kept as a digest. Hosts get theirs in exchange for one that is used once."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Final

from outlive.base.clock import Instant, as_instant
from outlive.resources.meta import KindInfo, Resource, Writers

HOST_TOKENS: Final = "host."
"""Before the name of a host, the name of its token."""


class Token(Resource, frozen=True, kw_only=True, tag="Token"):
    """``Token/<name>``. One document; deleting it revokes the token at once. A host's is named ``host.<host>``."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="tokens",
        short_names=("otok",),
        halves=False,
        writers=Writers(fields={"": ("admin",)}, creates=("admin",), deletes=("admin",), labels="refused"),
        columns=(
            ("Role", ".role", 0),
            ("Host", ".host", 0),
            ("Expires", ".expires", 0),
            ("Used", ".usedBy", 0),
            ("Machine", ".machineId", 1),
        ),
    )

    role: str
    """What it may (docs/reference/http-api.md#tokens); ``join`` for one that a host exchanges for its own."""
    digest: str
    """SHA-256 of the token, in hexadecimal digits."""
    host: str = ""
    """The host that it belongs to; of a join token: the only one that may use it, if any."""
    machine_id: str = ""
    """Of the machine that has joined as this host."""
    coordinator: bool = False
    """Of a join token: whether the host becomes a coordinator."""
    expires: datetime | None = None
    used_by: str = ""
    """Of a join token: the host that has used it; it is good for one."""

    def expired(self, now: Instant) -> bool:
        """Whether its time is over."""
        return self.expires is not None and now >= as_instant(self.expires)

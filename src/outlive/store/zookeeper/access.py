"""How an ensemble is reached, and as whom."""

from __future__ import annotations

import msgspec

SESSION_S = 6.0
"""How long a session lasts without its client. Sessions are hints only: nothing that must be safe depends on them."""


class ZooKeeperTls(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Files by which the connection is encrypted, and both sides are known to each other."""

    authority: str
    """PEM file of what signed the servers' certificates."""
    certificate: str = ""
    """PEM file of this client's own certificate; empty: it has none."""
    key: str = ""
    """PEM file of the key of that certificate."""


class ZooKeeperAccess(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One cluster's ensemble (``outlive.store.zookeeper.access.read_access``)."""

    servers: tuple[str, ...]
    """``HOST:PORT`` of each server."""
    chroot: str = "/outlive"
    """Below which znode everything lies."""
    user: str = ""
    """Of the digest scheme; empty: nobody in particular."""
    password: str = ""
    """Of that user."""
    tls: ZooKeeperTls | None = None
    """Absent: the connection is in clear text."""
    session_s: float = msgspec.field(default=SESSION_S, name="sessionS")
    """How long a session lasts without its client, in seconds; the servers have limits of their own."""

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return f"ZooKeeper {','.join(self.servers)}{self.chroot}"

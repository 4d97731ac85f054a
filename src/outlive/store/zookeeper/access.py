"""How an ensemble is reached, and as whom: one file, which only its owner may read.

::

    servers: [zk1.example:2281, zk2.example:2281, zk3.example:2281]
    chroot: /outlive
    user: controller
    password: ...
    tls: {authority: /etc/outlive/zookeeper-ca.pem, certificate: ..., key: ...}
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from outlive.base import BadInput, read_private
from outlive.resources import YamlLimits, read_yaml

ACCESS_FILE: Final = "/etc/outlive/zookeeper.yaml"
"""Where the file is, unless somebody says otherwise."""
ACCESS_BYTES: Final = 64 * 1024
HANDSHAKE_S: Final = 1.0
"""How long it is looked why no server is believed."""
SESSION_S: Final = 6.0
"""How long a session lasts without its client. Sessions are hints only: nothing that must be safe depends on them."""
SESSION_LIMITS_S: Final = (0.5, 120.0)
_SERVER: Final = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5}")
_CHROOT: Final = re.compile(r"(?:/[A-Za-z0-9._-]+)+")


class ZooKeeperTls(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Files by which the connection is encrypted, and both sides are known to each other."""

    authority: str
    """PEM file of what signed the servers' certificates."""
    certificate: str = ""
    """PEM file of this client's own certificate; empty: it has none."""
    key: str = ""
    """PEM file of the key of that certificate."""


class ZooKeeperAccess(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """One cluster's ensemble; see the module."""

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


def read_access(file: str = "", environ: Mapping[str, str] = os.environ) -> ZooKeeperAccess:
    """The access by that file, else by that of ``OUTLIVE_ZOOKEEPER``, else by the usual one.

    ``NotFound``; ``Forbidden`` for a file that others may read; ``BadInput`` names what is wrong in it.
    """
    path = Path(file or environ.get("OUTLIVE_ZOOKEEPER", "") or ACCESS_FILE)
    read = read_yaml(read_private(path, limit=ACCESS_BYTES), str(path), YamlLimits())
    documents = [one.value for one in read if one is not None]
    remedy = "docs/how-to/zookeeper.md#access has an example"
    if len(documents) != 1:
        raise BadInput("is no access file of ZooKeeper", place=str(path), remedy=remedy)
    try:
        access = msgspec.convert(documents[0], ZooKeeperAccess)
    except msgspec.ValidationError as error:
        raise BadInput(str(error), place=str(path), remedy=remedy) from None
    _check(access, str(path))
    return access


def _check(access: ZooKeeperAccess, place: str) -> None:
    """``BadInput`` for what cannot be: with the field and its value."""
    if not access.servers:
        raise BadInput("names no server", place=f"{place}: servers", remedy="write HOST:PORT of each server")
    for one in access.servers:
        if not _SERVER.fullmatch(one):
            raise BadInput(f"{one[:80]!r} is no HOST:PORT", place=f"{place}: servers", remedy="write zk1.example:2181")
    if not _CHROOT.fullmatch(access.chroot):
        what = f"{access.chroot[:80]!r} is no path of a znode"
        raise BadInput(what, place=f"{place}: chroot", remedy="write one such as /outlive")
    if bool(access.user) != bool(access.password) or ":" in access.user:
        what = "a user has a name without ':' and a password, and both are given or none"
        raise BadInput(what, place=f"{place}: user", remedy="write user and password")
    least, most = SESSION_LIMITS_S
    if not least <= access.session_s <= most:
        what = f"{access.session_s:g} is not between {least:g} and {most:g}"
        raise BadInput(what, place=f"{place}: sessionS", remedy="leave it out")
    files = (access.tls.authority, access.tls.certificate, access.tls.key) if access.tls is not None else ()
    for name in filter(None, files):
        try:
            with Path(name).open("rb") as opened:
                opened.read(1)
        except OSError as error:
            what = f"{name} cannot be read: {error.strerror}"
            raise BadInput(what, place=f"{place}: tls", remedy="check its path, owner and mode") from None


def certificate_trouble(access: ZooKeeperAccess) -> str:
    """What a handshake with one of the servers says is wrong with a certificate; empty: nothing, or none answers."""
    if access.tls is None:
        return ""
    for server in access.servers:
        host, _, port = server.rpartition(":")
        try:
            context = ssl.create_default_context(cafile=access.tls.authority)
            if access.tls.certificate:
                context.load_cert_chain(access.tls.certificate, access.tls.key or None)
            with (
                socket.create_connection((host.strip("[]"), int(port)), HANDSHAKE_S) as plain,
                context.wrap_socket(plain, server_hostname=host.strip("[]")) as wrapped,
            ):
                wrapped.settimeout(HANDSHAKE_S)
                return ""
        except ssl.SSLError as error:
            return f"a certificate is not believed: {server}: {error.reason or error}"
        except OSError:
            continue
    return ""

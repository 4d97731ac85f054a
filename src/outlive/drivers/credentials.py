"""The files with a host's token and with the authorities that it believes, as ``node.credentials`` needs them.

``node.token`` is the token. Beside it lie ``.next``, a secret that the server may or may not know yet, and ``.former``,
the one before, which a store knows that was restored from a backup. ``ca.pem.known`` has the authorities that are
believed instead of ``ca.pem``, for as long as its first line names the fingerprint in the configuration: a host
that joins another cluster, or pins another authority, does not use it. Every file is written whole, and stays after a
power loss.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from outlive.base import BadInput, NotFound, read_private, rename_whole
from outlive.drivers.files import read_input, write_private
from outlive.drivers.libvirt.threads import DiskThread
from outlive.store import AUTHORITY_BYTES, parse_certificates, pem_of, pinned_certificates

NEXT: Final = ".next"
FORMER: Final = ".former"
KNOWN: Final = ".known"
TOKEN_BYTES: Final = 4096
"""The largest file of a token."""
_HEAD: Final = "# authorities that follow "


def read_host_token(path: Path) -> str:
    """A host's token; ``BadInput`` where the file holds none."""
    token = read_private(path, limit=TOKEN_BYTES).decode(errors="replace").strip()
    if not token or not (token.isascii() and token.isprintable()) or " " in token:
        raise BadInput("holds no token", place=str(path), remedy="join again: outlive node join URL --token TOKEN")
    return token


def read_other_token(path: Path) -> str:
    """What a server may know that does not know the token: the next one, else the former one; empty where there is
    none."""
    for end in (NEXT, FORMER):
        try:
            return read_host_token(_sibling_path(path, end))
        except (NotFound, BadInput):
            continue
    return ""


def read_authorities(file: Path, pinned: str) -> tuple[bytes, ...]:
    """The authorities (DER) that a host believes: what followed the pinned one, or itself. ``BadInput``, ``Forbidden``
    where the file does not have the pinned fingerprint."""
    try:
        text = read_input(_sibling_path(file, KNOWN), limit=AUTHORITY_BYTES).decode("ascii", "replace")
    except NotFound:
        text = ""
    head, _, rest = text.partition("\n")
    if head == f"{_HEAD}{pinned}":
        return parse_certificates(rest)
    return pinned_certificates(read_input(file, limit=AUTHORITY_BYTES).decode("ascii", "replace"), pinned)


def forget_former(token: Path, authority: Path) -> None:
    """Remove what an earlier join has left beside the two files."""
    for path in (_sibling_path(token, NEXT), _sibling_path(token, FORMER), _sibling_path(authority, KNOWN)):
        path.unlink(missing_ok=True)


class CredentialFiles:
    """Reads and writes them in a thread, one call after the other; ``Unavailable`` while the disk hangs.

    ``authority``: the file of the pinned authority, if there is one.
    """

    def __init__(self, token: Path, authority: Path | None = None, pinned: str = "") -> None:
        self._token = token
        self._authority = authority
        self._pinned = pinned
        self._disk = DiskThread(token)

    async def read_pending(self) -> str:
        """The next secret, if one was made; empty otherwise."""
        return await self._disk.call(self._read_pending)

    async def prepare(self, make: Callable[[], str]) -> str:
        """The next secret: that which was made before, or another one, which is kept before it is returned."""

        def work() -> str:
            if found := self._read_pending():
                return found
            secret = make()
            write_private(_sibling_path(self._token, NEXT), secret.encode() + b"\n")
            return secret

        return await self._disk.call(work)

    async def adopt(self) -> str:
        """Have the next secret in the place of the token, for good; the one before it."""

        def work() -> str:
            former = read_host_token(self._token)
            write_private(_sibling_path(self._token, FORMER), former.encode() + b"\n")
            rename_whole(_sibling_path(self._token, NEXT), self._token)
            return former

        return await self._disk.call(work)

    async def forget(self) -> None:
        """Drop the next secret, which the server does not take."""
        await self._disk.call(lambda: _sibling_path(self._token, NEXT).unlink(missing_ok=True))

    async def read_authorities(self) -> tuple[bytes, ...]:
        """What is believed (DER); nothing where no authority is pinned."""
        file = self._authority
        return await self._disk.call(lambda: read_authorities(file, self._pinned)) if file is not None else ()

    async def believe(self, found: tuple[bytes, ...]) -> None:
        """Keep these authorities instead."""
        assert self._authority is not None
        target = _sibling_path(self._authority, KNOWN)
        text = f"{_HEAD}{self._pinned}\n" + "".join(pem_of(one) for one in found)
        await self._disk.call(lambda: write_private(target, text.encode()))

    def _read_pending(self) -> str:
        try:
            return read_host_token(_sibling_path(self._token, NEXT))
        except (NotFound, BadInput):
            return ""


def _sibling_path(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)

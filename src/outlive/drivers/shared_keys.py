"""What equal servers share besides objects, wherever the store keeps it: their keys, one token, the incarnation.

The first server makes the keys; every other one takes what is there, whatever is in its own directory.
"""

from __future__ import annotations

import base64
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

import msgspec

from outlive.base import read_private

FILE_BYTES: Final = 64 * 1024
"""Of the longest key file."""


class SharedToken(msgspec.Struct, frozen=True, kw_only=True):
    """The token that all servers know."""

    secret: str
    issued: datetime
    version: str
    """Of what has it."""


class StoreMove(msgspec.Struct, frozen=True, kw_only=True):
    """A move of objects from another store to this one."""

    incarnation: str
    """That the store has afterwards."""
    since: datetime
    over: bool
    """Whether all objects have been moved, and controllers may have run since."""


class SharedKeys(Protocol):
    """The shared keys of one cluster; errors of the store."""

    @property
    def place(self) -> str:
        """Where they are, in words."""
        ...

    @property
    def lost_remedy(self) -> str:
        """What helps where they are gone, though the cluster has had some."""
        ...

    async def read(self, directory: Path, files: tuple[str, ...]) -> bool:
        """Write the cluster's keys into the directory; False where it has none yet. ``BadInput`` where they are broken,
        ``Refused`` while objects are moved here: nothing is written then."""
        ...

    async def share(self, directory: Path, files: tuple[str, ...], incarnation: str) -> None:
        """Share the files of the directory; where another server was first, take its keys instead."""
        ...

    async def read_incarnation(self) -> str:
        """The store's incarnation; empty where nobody has said any. ``NotFound``: the keys are gone."""
        ...

    async def write_incarnation(self, incarnation: str) -> None:
        """Say that the store is another one now. ``NotFound``: the keys are gone."""
        ...

    async def read_token(self, file: str) -> SharedToken:
        """The token, which is kept under the file's name. ``NotFound``; ``BadInput`` for what is broken."""
        ...

    async def replace_token(self, file: str, before: SharedToken, secret: str, now: datetime) -> None:
        """Have another token there. ``Conflict``: another server was first."""
        ...

    async def begin_move(self, directory: Path, files: tuple[str, ...], *, source: str, incarnation: str) -> StoreMove:
        """Share the files so that no controller starts before ``end_move``; or go on where this was done before.

        ``source``: incarnation of the store that is moved. ``incarnation``: of this one, if the move begins now.
        ``Refused`` where there are keys of another cluster, or others than those of the directory.
        """
        ...

    async def end_move(self, source: str) -> None:
        """Let controllers start: all objects are there."""
        ...


def encode_key_files(directory: Path, files: tuple[str, ...]) -> dict[str, str]:
    """Each of these files of the directory, as base64."""
    found: dict[str, str] = {}
    for name in files:
        path = directory / name  # a certificate is no secret
        content = path.read_bytes() if path.suffix == ".pem" else read_private(path, limit=FILE_BYTES)
        found[name] = base64.b64encode(content).decode()
    return found

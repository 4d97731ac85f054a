"""The shared keys of servers on ZooKeeper: one znode that only controllers may read, written by compare-and-swap."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
from kazoo import exceptions as zk

from outlive.base.clock import Clock, as_datetime
from outlive.base.errors import BadInput, Conflict, NotFound, Refused
from outlive.base.files import read_private, write_whole
from outlive.drivers.shared_keys import SharedToken
from outlive.store.zookeeper import ZooKeeperStore
from outlive.store.zookeeper.requests import TransactionRefused, put

FILE_BYTES: Final = 64 * 1024
_REMEDY: Final = "put it back from a backup: docs/operating/zookeeper.md#backup"


class _Keys(msgspec.Struct, frozen=True, rename="camel"):
    """What the znode holds."""

    issued: Annotated[datetime, msgspec.Meta(tz=True)]
    """When the token was made."""
    files: dict[str, str]
    """Name of a file → its content, as base64."""
    moving_from: str = ""
    """While objects are moved here: the incarnation of the store that they come from."""


class ZnodeKeys:
    """See ``outlive.drivers.shared_keys.SharedKeys``."""

    lost_remedy = _REMEDY

    def __init__(self, store: ZooKeeperStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @property
    def place(self) -> str:
        """Where they are, in words."""
        return f"znode keys of {self._store.client.access.place}"

    async def read(self, directory: Path, files: tuple[str, ...]) -> bool:
        """Write the cluster's keys into the directory; False where it has none yet."""
        keys, _ = await self._keys()
        if keys is None:
            return False
        if keys.moving_from:
            remedy = "repeat outlive migrate-store until it ends"
            raise Refused("a cluster is being moved here", place=self.place, remedy=remedy)
        found = {name: self._content(keys, name) for name in files}
        for name, content in found.items():
            write_whole(directory / name, content)
        return True

    async def share(self, directory: Path, files: tuple[str, ...], incarnation: str) -> None:
        """Share the files of the directory; where another server was first, take its keys instead."""
        _, version = await self._keys()
        made = {name: base64.b64encode(_content(directory / name)).decode() for name in files}
        keys = _Keys(issued=as_datetime(self._clock.now()), files=made)
        layout = await self._store.layout()
        try:
            await self._store.client.commit(
                [
                    put(layout.base("keys"), msgspec.json.encode(keys), version),
                    put(layout.base("incarnation"), incarnation.encode()),
                ]
            )
        except TransactionRefused as refused:
            if not isinstance(refused.error, zk.BadVersionError):
                raise self._store.client.error(refused.error, writing=True) from None
            await self.read(directory, files)

    async def read_incarnation(self) -> str:
        """The store's incarnation; empty where nobody has said any."""
        found = await self._store.client.get((await self._store.layout()).base("incarnation"), fresh=True)
        if found is None:
            raise NotFound("it is gone", place=f"znode incarnation of {self._store.client.access.place}")
        return found[0].decode("ascii", "replace").strip()

    async def write_incarnation(self, incarnation: str) -> None:
        """Say that the store is another one now."""
        path = (await self._store.layout()).base("incarnation")
        try:
            await self._store.client.commit([put(path, incarnation.encode())])
        except TransactionRefused as refused:
            raise self._store.client.error(refused.error, writing=True) from None

    async def read_token(self, file: str) -> SharedToken:
        """The token, which is kept under the file's name."""
        keys, version = await self._keys()
        if keys is None:
            raise NotFound("they are gone", place=self.place, remedy=_REMEDY)
        secret = self._content(keys, file).decode("ascii", "replace").strip()
        return SharedToken(secret=secret, issued=keys.issued, version=str(version))

    async def replace_token(self, file: str, before: SharedToken, secret: str, now: datetime) -> None:
        """Have another token there. ``Conflict``: another server was first."""
        keys, version = await self._keys()
        if keys is None or str(version) != before.version:
            raise Conflict("the keys were changed", place=self.place, remedy="read them again")
        files = {**keys.files, file: base64.b64encode(f"{secret}\n".encode()).decode()}
        raw = msgspec.json.encode(msgspec.structs.replace(keys, issued=now, files=files))
        try:
            await self._store.client.commit([put((await self._store.layout()).base("keys"), raw, version)])
        except TransactionRefused as refused:
            raise Conflict(f"the keys were changed: {refused}", place=self.place, remedy="read them again") from None

    async def _keys(self) -> tuple[_Keys | None, int]:
        """What the znode holds, and its version."""
        found = await self._store.client.get((await self._store.layout()).base("keys"), fresh=True)
        if found is None:
            raise NotFound("it is gone", place=self.place, remedy="outlive zookeeper init makes it, empty")
        raw, stat = found
        if not raw:
            return None, stat.version
        try:
            return msgspec.json.decode(raw, type=_Keys), stat.version
        except msgspec.MsgspecError as error:
            raise BadInput(f"is broken: {error}", place=self.place, remedy=_REMEDY) from None

    def _content(self, keys: _Keys, name: str) -> bytes:
        try:
            return base64.b64decode(keys.files[name], validate=True)
        except KeyError:
            raise BadInput(f"has no {name}", place=self.place, remedy=_REMEDY) from None
        except (binascii.Error, ValueError):
            raise BadInput(f"{name} is no base64", place=self.place, remedy=_REMEDY) from None


def _content(path: Path) -> bytes:
    """Of a key file; a certificate is no secret."""
    return path.read_bytes() if path.suffix == ".pem" else read_private(path, limit=FILE_BYTES)

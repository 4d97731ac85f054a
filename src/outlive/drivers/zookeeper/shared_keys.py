"""The shared keys of servers on ZooKeeper: one znode that only controllers may read, written by compare-and-swap."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import msgspec
from kazoo import exceptions as zk

from outlive.base import BadInput, Clock, Conflict, NotFound, Refused, as_datetime, write_whole
from outlive.drivers.shared_keys import SharedToken, StoreMove, encode_key_files
from outlive.store.zookeeper import TransactionRefused, ZooKeeperStore, replace_data

_REMEDY: Final = "put it back from a backup: docs/how-to/zookeeper.md#backup"


class _Keys(msgspec.Struct, frozen=True, rename="camel"):
    """What the znode holds."""

    issued: Annotated[datetime, msgspec.Meta(tz=True)]
    """When the token was made."""
    files: dict[str, str]
    """Name of a file → its content, as base64."""
    moving_from: str = ""
    """While objects are moved here: the incarnation of the store that they come from."""
    moved_from: str = ""
    """The same, once all of them are here."""


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
        keys, _ = await self._read_keys()
        if keys is None:
            return False
        if keys.moving_from:
            remedy = "repeat outlive migrate-store until it ends"
            raise Refused("a cluster is being moved here", place=self.place, remedy=remedy)
        found = {name: self._decode_file(keys, name) for name in files}
        for name, content in found.items():
            write_whole(directory / name, content)
        return True

    async def share(self, directory: Path, files: tuple[str, ...], incarnation: str) -> None:
        """Share the files of the directory; where another server was first, take its keys instead."""
        _, version = await self._read_keys()
        keys = _Keys(issued=as_datetime(self._clock.now()), files=encode_key_files(directory, files))
        if not await self._write_first(keys, version, incarnation):
            await self.read(directory, files)

    async def read_incarnation(self) -> str:
        """The store's incarnation; empty where nobody has said any."""
        found = await self._store.client.get((await self._store.get_layout()).base_path("incarnation"), fresh=True)
        if found is None:
            raise NotFound("it is gone", place=f"znode incarnation of {self._store.client.access.place}")
        return found[0].decode("ascii", "replace").strip()

    async def write_incarnation(self, incarnation: str) -> None:
        """Say that the store is another one now."""
        path = (await self._store.get_layout()).base_path("incarnation")
        try:
            await self._store.client.commit([replace_data(path, incarnation.encode())])
        except TransactionRefused as refused:
            raise self._store.client.error_of(refused.error, writing=True) from None

    async def read_token(self, file: str) -> SharedToken:
        """The token, which is kept under the file's name."""
        keys, version = await self._read_keys()
        if keys is None:
            raise NotFound("they are gone", place=self.place, remedy=_REMEDY)
        secret = self._decode_file(keys, file).decode("ascii", "replace").strip()
        return SharedToken(secret=secret, issued=keys.issued, version=str(version))

    async def replace_token(self, file: str, before: SharedToken, secret: str, now: datetime) -> None:
        """Have another token there. ``Conflict``: another server was first."""
        keys, version = await self._read_keys()
        if keys is None or str(version) != before.version:
            raise Conflict("the keys were changed", place=self.place, remedy="read them again")
        files = {**keys.files, file: base64.b64encode(f"{secret}\n".encode()).decode()}
        raw = msgspec.json.encode(msgspec.structs.replace(keys, issued=now, files=files))
        try:
            await self._store.client.commit(
                [replace_data((await self._store.get_layout()).base_path("keys"), raw, version)]
            )
        except TransactionRefused as refused:
            raise Conflict(f"the keys were changed: {refused}", place=self.place, remedy="read them again") from None

    async def begin_move(self, directory: Path, files: tuple[str, ...], *, source: str, incarnation: str) -> StoreMove:
        """Share the files so that no controller starts before ``end_move``; or go on where this was done before."""
        made = encode_key_files(directory, files)
        keys, version = await self._read_keys()
        if keys is None:
            keys = _Keys(issued=as_datetime(self._clock.now()), files=made, moving_from=source)
            await self._write_first(keys, version, incarnation)
            keys, _ = await self._read_keys()
        if keys is None or source not in (keys.moving_from, keys.moved_from):
            raise Refused(
                "is filled already: controllers of another cluster have run there",
                place=self.place,
                remedy="if nothing of that is needed: stop them, and name another chroot in the access file",
            )
        if not keys.moved_from and keys.files != made:
            what = "has other keys than the state directory"
            raise Refused(what, place=self.place, remedy="name another chroot in the access file, and repeat")
        moved_to = await self.read_incarnation()
        return StoreMove(incarnation=moved_to, since=keys.issued, over=bool(keys.moved_from))

    async def end_move(self, source: str) -> None:
        """Let controllers start: all objects are there."""
        keys, version = await self._read_keys()
        if keys is None or keys.moving_from != source:
            raise Conflict("the keys were changed", place=self.place, remedy="repeat outlive migrate-store")
        raw = msgspec.json.encode(msgspec.structs.replace(keys, moving_from="", moved_from=source))
        try:
            await self._store.client.commit(
                [replace_data((await self._store.get_layout()).base_path("keys"), raw, version)]
            )
        except TransactionRefused as refused:
            raise Conflict(f"the keys were changed: {refused}", place=self.place, remedy="repeat it") from None

    async def _write_first(self, keys: _Keys, version: int, incarnation: str) -> bool:
        """Write keys and incarnation where nobody has written any since that version; whether that was so."""
        layout = await self._store.get_layout()
        raw = msgspec.json.encode(keys)
        try:
            await self._store.client.commit(
                [
                    replace_data(layout.base_path("keys"), raw, version),
                    replace_data(layout.base_path("incarnation"), incarnation.encode()),
                ]
            )
        except TransactionRefused as refused:
            if not isinstance(refused.error, zk.BadVersionError):
                raise self._store.client.error_of(refused.error, writing=True) from None
            return False
        return True

    async def _read_keys(self) -> tuple[_Keys | None, int]:
        """What the znode holds, and its version."""
        found = await self._store.client.get((await self._store.get_layout()).base_path("keys"), fresh=True)
        if found is None:
            raise NotFound("it is gone", place=self.place, remedy="outlive zookeeper init makes it, empty")
        raw, stat = found
        if not raw:
            return None, stat.version
        try:
            return msgspec.json.decode(raw, type=_Keys), stat.version
        except msgspec.MsgspecError as error:
            raise BadInput(f"is broken: {error}", place=self.place, remedy=_REMEDY) from None

    def _decode_file(self, keys: _Keys, name: str) -> bytes:
        try:
            return base64.b64decode(keys.files[name], validate=True)
        except KeyError:
            raise BadInput(f"has no {name}", place=self.place, remedy=_REMEDY) from None
        except (binascii.Error, ValueError):
            raise BadInput(f"{name} is no base64", place=self.place, remedy=_REMEDY) from None

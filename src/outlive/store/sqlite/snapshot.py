"""A copy of a store's file as of one point in time, taken while others write, and what such a file holds.

SQLite's own ``VACUUM INTO`` reads one snapshot of the write-ahead log, so neither waits for the other; the copy is one
compact file without a log. Everything here blocks (docs/how-to/state.md#backup).
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from pathlib import Path

import msgspec

from outlive.base import BadInput, NotFound
from outlive.store.sqlite.database import APPLICATION_ID, FILE_MODE, SCHEMA_VERSION, damaged_error, read_only


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What the file of a store holds."""

    schema: int
    incarnation: str
    resource_version: int
    """The highest version of an object in it."""
    objects: dict[str, int]
    """Kind → how many, without kinds that it has none of."""
    sealing_key: str = ""
    """Public half of the key that its secrets are sealed for."""
    secrets: int = 0
    """Sealed secrets that only that key opens."""


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = "0"


class _SnapshotStatus(msgspec.Struct, frozen=True, rename="camel"):
    sealing_key: str = ""


class _SnapshotHead(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


class _ClusterHead(_SnapshotHead, frozen=True):
    status: _SnapshotStatus = _SnapshotStatus()


def copy_store(source: Path, target: Path) -> None:
    """Write the store's file ``source`` to the new file ``target`` (mode 600, synced) as of now, writers or not.

    ``NotFound`` without such a file; ``BadInput`` for a damaged one, ``Unavailable`` where the disk is full.
    """
    if not source.is_file():
        raise NotFound(
            f"{source} is not there", remedy="name the state directory of outlive up, or a server (--server)"
        )
    descriptor = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    try:
        with read_only(source) as connection:
            connection.execute("VACUUM INTO ?", (str(target),))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_store(path: Path) -> StoreFacts:
    """Read the whole file and return what it holds; it must have no write-ahead log, and stays as it is.

    ``BadInput`` for what is no store, of a newer Outlive, damaged, or has an object that is not what was written.
    """
    with read_only(path, immutable=True) as connection:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != APPLICATION_ID:
            raise BadInput(f"{path} is not a store of Outlive", remedy="name a file that outlive backup wrote")
        meta = dict(connection.execute("SELECT key, value FROM meta"))
        schema = _schema_of(meta.get("schema", ""), path)
        ((verdict,),) = connection.execute("PRAGMA integrity_check(1)")
        if verdict != "ok":
            raise damaged_error(path, str(verdict))
        counts, newest, sealing_key = Counter[str](), 0, ""
        for kind, key, crc, document in connection.execute("SELECT kind, key, crc, document FROM objects"):
            if zlib.crc32(document) != crc:
                raise damaged_error(path, f"{kind}/{key} has a wrong checksum")
            counts[kind] += 1
            try:
                head = msgspec.json.decode(document, type=_ClusterHead if kind == "Cluster" else _SnapshotHead)
            except msgspec.MsgspecError as error:
                raise damaged_error(path, f"{kind}/{key}: {error}") from None
            newest = max(newest, int(head.metadata.resource_version or 0))
            if isinstance(head, _ClusterHead):
                sealing_key = head.status.sealing_key
    return StoreFacts(
        schema=schema,
        incarnation=meta.get("incarnation", ""),
        resource_version=newest,
        objects=dict(sorted(counts.items())),
        sealing_key=sealing_key,
        secrets=counts["Secret"],
    )


def _schema_of(text: str, path: Path) -> int:
    if not text.isdecimal():
        raise damaged_error(path, f"its schema version is {text!r}")
    if int(text) > SCHEMA_VERSION:
        raise BadInput(
            f"{path} was written by a newer Outlive: its schema version is {text}, this Outlive knows {SCHEMA_VERSION}",
            remedy="use the newer Outlive; nothing was changed",
        )
    return int(text)

"""Puts a copy of a store back into a state directory (docs/operating/state.md#restore).

A copy does not know that it is older than the cluster. So the store that is put back gets a new incarnation, and the
cluster in it is paused, before it comes into the directory. Its versions go on far beyond those that were ever given:
whoever read an object in the store that is replaced must not be able to write over the older one. The store that is
replaced is kept beside the new one. A crash in between leaves the directory without ``store.db``, which is refused.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import msgspec

from outlive.base.clock import Clock, as_datetime
from outlive.base.errors import BadInput, NotFound
from outlive.base.ids import Ids
from outlive.resources import Cluster, ObjectMeta
from outlive.resources.cluster import CLUSTER, Pause
from outlive.store.access import compare_and_swap
from outlive.store.sqlite.database import FILE_MODE, Database, DirectoryLock, sync_directory
from outlive.store.sqlite.store import DATABASE_FILE, LOCK_FILE, SqliteStore

VERSIONS_APART = 2**32
"""How far the versions of a store that is put back lie beyond those of its copy."""
LOG_SUFFIXES = ("-wal", "-shm")
"""What SQLite keeps beside a file."""


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What was put back."""

    objects: int
    incarnation: str
    replaced: Path | None
    """Where the store is now that was there before."""


async def restore(backup: Path, directory: Path, *, clock: Clock, ids: Ids) -> Restored:
    """Put the copy ``backup`` (a ``store.db``, or a directory that has one) back as the store of ``directory``.

    ``InUse`` while a process works on the directory, ``NotFound`` without such a file, ``BadInput`` for one that is no
    store, of a newer Outlive, or damaged. After any error the directory is as it was.
    """
    lock = DirectoryLock.take(directory, LOCK_FILE)
    try:
        with tempfile.TemporaryDirectory(prefix="restore-", dir=directory) as name:
            draft = Path(name)
            incarnation = ids.uuid()
            _copy(backup, draft, incarnation)
            store = await SqliteStore.open(draft, clock=clock, ids=ids)
            try:
                await _pause(store, incarnation, clock)
                objects = len(store)
            finally:
                await store.close()
            replaced = _exchange(draft, directory, f"{clock.now():.0f}")
    finally:
        lock.release()
    return Restored(objects=objects, incarnation=incarnation, replaced=replaced)


def _copy(backup: Path, draft: Path, incarnation: str) -> None:
    """The copy as a file of its own, which is another store from now on."""
    source = backup / DATABASE_FILE if backup.is_dir() else backup
    if not source.is_file():
        raise NotFound(
            f"{source} is not there", remedy=f"name a copy of {DATABASE_FILE}, or of the state directory that has it"
        )
    target = draft / DATABASE_FILE
    log = Path(f"{source}{LOG_SUFFIXES[0]}")
    for path, name in ((source, target), (log, Path(f"{target}{LOG_SUFFIXES[0]}"))):
        if path == source or path.is_file():
            shutil.copyfile(path, name)
            name.chmod(FILE_MODE)
    database = Database(target, max_bytes=target.stat().st_size + 2**20)
    database.open("")
    try:
        if not database.meta("incarnation"):
            raise BadInput(f"{source} is empty", remedy="outlive apply -f takes what outlive dump wrote")
        database.become(incarnation, int(database.meta("ceiling", "0")) + VERSIONS_APART)
    finally:
        database.close()


async def _pause(store: SqliteStore, incarnation: str, clock: Clock) -> None:
    """Say in the cluster's status that the store is another one, and pause the cluster."""

    def create(cluster: Cluster | None) -> Cluster | None:
        return Cluster(metadata=ObjectMeta(name=CLUSTER)) if cluster is None else None

    def pause(cluster: Cluster | None) -> Cluster | None:
        if cluster is None:
            return None
        since = as_datetime(clock.now())
        return msgspec.structs.replace(cluster, status=cluster.status.became(incarnation, Pause(since=since)))

    await compare_and_swap(store, Cluster, CLUSTER, create, clock=clock)
    await compare_and_swap(store, Cluster, CLUSTER, pause, clock=clock)


def _exchange(draft: Path, directory: Path, when: str) -> Path | None:
    """Move the present store aside, with its log, and the new one to its place."""
    present = directory / DATABASE_FILE
    aside = directory / f"{DATABASE_FILE}.replaced-{when}"
    replaced = aside if present.exists() else None
    for suffix in (*LOG_SUFFIXES, ""):
        if Path(f"{present}{suffix}").exists():
            os.replace(f"{present}{suffix}", f"{aside}{suffix}")  # noqa: PTH105 - both names carry the suffix
    (draft / DATABASE_FILE).replace(present)
    sync_directory(directory)
    return replaced

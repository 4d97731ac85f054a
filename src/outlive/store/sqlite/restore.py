"""Puts a copy of a store back into a state directory, with the files that belong to it.

A copy does not know that it is older than the cluster. So the store that is put back gets a new incarnation, and the
cluster in it is paused, before it comes into the directory. Its versions go on far beyond those that were ever given:
a process that read an object in the store that is replaced must not be able to write over the older one. What is
replaced is kept beside what is new, and a crash leaves the old files or the new ones, never some of each
(``exchange``). For people: docs/how-to/state.md#restore.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from outlive.base import BadInput, Clock, Ids, NotFound, as_datetime, write_whole
from outlive.resources import CLUSTER, Cluster, ObjectMeta, Pause
from outlive.store.access import compare_and_swap
from outlive.store.sqlite.database import FILE_MODE, Database, DirectoryLock, sync_directory
from outlive.store.sqlite.moved import MOVED_FILE
from outlive.store.sqlite.store import DATABASE_FILE, LOCK_FILE, SqliteStore

VERSIONS_APART = 2**32
"""How far the versions of a store that is put back lie beyond those of its copy."""
LOG_SUFFIXES = ("-wal", "-shm")
"""What SQLite keeps beside a file."""
DRAFT_PREFIX = "restore-"
REPLACED = ".replaced-"
"""In the names of files that were replaced, before the time."""

Unpack = Callable[[Path], None]
"""Writes ``store.db``, and the files that are to come into the directory with it, into an empty folder."""


RECORD_FILE: Final = "restore.pending"
_REMEDY: Final = "put the last backup back: outlive restore FILE"


class Exchange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which files of a state directory are replaced: all of them, or none, whenever the machine fails.

    ``begin`` writes this down, which is the moment from which the new files count: ``finish`` does it, and the process
    that opens the directory afterwards (``check_store_there``) ends what was interrupted.
    """

    draft: str
    """The folder in it that has the new files."""
    aside: dict[str, str]
    """Present files → the names under which they are kept; a missing one is passed over."""
    incoming: tuple[str, ...]
    """Files of the folder, each of which takes the name that it has there."""


def begin(directory: Path, exchange: Exchange) -> None:
    """Have it done, for good: the files of the folder are synced before, and the record after them."""
    for name in exchange.incoming:
        with (directory / exchange.draft / name).open("rb") as stream:
            os.fsync(stream.fileno())
    sync_directory(directory / exchange.draft)
    write_whole(directory / RECORD_FILE, msgspec.json.encode(exchange))


def finish(directory: Path) -> bool:
    """Do what was begun, from wherever it was interrupted; true if there was anything. The caller has the lock."""
    record = directory / RECORD_FILE
    try:
        exchange = msgspec.json.decode(record.read_bytes(), type=Exchange)
    except FileNotFoundError:
        return False
    except msgspec.MsgspecError as error:
        raise BadInput(f"is no record of a restore: {error}", place=str(record), remedy=_REMEDY) from None
    draft = directory / exchange.draft
    waiting = [name for name in exchange.incoming if (draft / name).exists()]
    replaced_already = set(exchange.incoming) - set(waiting)
    for name, kept in exchange.aside.items():
        if name not in replaced_already and (directory / name).exists():
            (directory / name).replace(directory / kept)
    for name in waiting:
        (draft / name).replace(directory / name)
    sync_directory(directory)
    record.unlink()
    sync_directory(directory)
    shutil.rmtree(draft, ignore_errors=True)
    return True


def finish_interrupted(directory: Path) -> bool:
    """``finish`` for a directory that nobody works on; ``InUse`` names who does. True if there was anything."""
    if not (directory / RECORD_FILE).exists():
        return False
    lock = DirectoryLock.take(directory, LOCK_FILE)
    try:
        return finish(directory)
    finally:
        lock.release()


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """What was put back."""

    objects: int
    hosts: int
    """Hosts that had registered in the store that was put back."""
    incarnation: str
    sealing_key: str
    """Public half of the key for which its secrets are sealed."""
    secrets: int
    files: tuple[str, ...]
    """What the directory has now that came with it, the store among them."""
    kept: tuple[str, ...]
    """Names in the directory of what was replaced; not those of a store's log."""


async def restore(unpack: Unpack, directory: Path, *, clock: Clock, ids: Ids, leaves: Iterable[str] = ()) -> Restored:
    """Have the files that ``unpack`` writes take the place of those in ``directory``, the store among them.

    ``leaves``: files that go as well, also where ``unpack`` wrote none of that name; so does the note of a moved store,
    since this is the way back. ``InUse`` while a process works on
    the directory; after any error, also of ``unpack``, the directory is as it was.
    """
    lock = DirectoryLock.take(directory, LOCK_FILE)
    try:
        finish(directory)
        with tempfile.TemporaryDirectory(prefix=DRAFT_PREFIX, dir=directory, ignore_cleanup_errors=True) as name:
            draft = Path(name)
            unpack(draft)
            incarnation = ids.new_uuid()
            _become(draft, incarnation)
            store = await SqliteStore.open(draft, clock=clock, ids=ids)
            try:
                cluster, uses = await _pause(store, incarnation, clock), store.usage_by_kind()
                objects = len(store)
            finally:
                await store.close()
            (draft / LOCK_FILE).unlink()
            exchange = _exchange(draft, directory, leaves, f"{clock.now():.0f}")
            begin(directory, exchange)
            finish(directory)
    finally:
        lock.release()
    kept = tuple(kept for name, kept in exchange.aside.items() if not name.endswith(LOG_SUFFIXES))
    return Restored(
        objects=objects,
        hosts=uses["memberships"][0],
        incarnation=incarnation,
        sealing_key=cluster.status.sealing_key,
        secrets=uses["secrets"][0],
        files=exchange.incoming,
        kept=kept,
    )


def copy_of(backup: Path) -> Unpack:
    """Unpacks a copy of a store's file, or of the directory that has it, with the log beside it."""

    def unpack(draft: Path) -> None:
        source = backup / DATABASE_FILE if backup.is_dir() else backup
        if not source.is_file():
            raise NotFound(
                f"{source} is not there",
                remedy=f"name a file that outlive backup wrote, a copy of {DATABASE_FILE}, or of the state directory",
            )
        target = draft / DATABASE_FILE
        log = Path(f"{source}{LOG_SUFFIXES[0]}")
        for path, name in ((source, target), (log, Path(f"{target}{LOG_SUFFIXES[0]}"))):
            if path == source or path.is_file():
                shutil.copyfile(path, name)
                name.chmod(FILE_MODE)

    return unpack


def _become(draft: Path, incarnation: str) -> None:
    """Make the store in the folder another one."""
    target = draft / DATABASE_FILE
    database = Database(target, max_bytes=target.stat().st_size + 2**20)
    database.open("")
    try:
        if not database.read_meta("incarnation"):
            raise BadInput(f"{target.name} is empty", remedy="outlive apply -f takes what outlive dump wrote")
        database.become(incarnation, int(database.read_meta("ceiling", "0")) + VERSIONS_APART)
    finally:
        database.close()


async def _pause(store: SqliteStore, incarnation: str, clock: Clock) -> Cluster:
    """Say in the cluster's status that the store is another one, and pause the cluster; the cluster as it is then."""

    def create(cluster: Cluster | None) -> Cluster | None:
        return Cluster(metadata=ObjectMeta(name=CLUSTER)) if cluster is None else None

    def pause(cluster: Cluster | None) -> Cluster | None:
        if cluster is None:
            return None
        since = as_datetime(clock.now())
        return msgspec.structs.replace(cluster, status=cluster.status.with_incarnation(incarnation, Pause(since=since)))

    await compare_and_swap(store, Cluster, CLUSTER, create, clock=clock)
    await compare_and_swap(store, Cluster, CLUSTER, pause, clock=clock)
    return await store.get(Cluster, CLUSTER)


def _exchange(draft: Path, directory: Path, leaves: Iterable[str], when: str) -> Exchange:
    """Which files come, and which go under which names; a file that is there already with this content stays."""
    names = sorted(path.name for path in draft.iterdir())
    incoming = [name for name in names if not _is_same(draft / name, directory / name)]
    stay = set(names) - set(incoming)
    going = {*incoming, *(f"{DATABASE_FILE}{suffix}" for suffix in LOG_SUFFIXES), MOVED_FILE, *leaves} - stay
    present = sorted(name for name in going if (directory / name).exists())
    end, number = f"{REPLACED}{when}", 1
    while any(directory.glob(f"*{end}*")):
        end, number = f"{REPLACED}{when}.{number}", number + 1
    aside = {name: f"{name}{end}" for name in present}
    for suffix in LOG_SUFFIXES:
        if (name := f"{DATABASE_FILE}{suffix}") in aside:
            aside[name] = f"{DATABASE_FILE}{end}{suffix}"  # so that what is kept is a store with its log
    return Exchange(draft=draft.name, aside=aside, incoming=tuple(incoming))


def _is_same(new: Path, present: Path) -> bool:
    return new.name != DATABASE_FILE and present.is_file() and new.read_bytes() == present.read_bytes()

"""Puts a copy of a store back into a state directory, with the files that belong to it.

A copy does not know that it is older than the cluster. So the store that is put back gets a new incarnation, and the
cluster in it is paused, before it comes into the directory. Its versions go on far beyond those that were ever given:
whoever read an object in the store that is replaced must not be able to write over the older one. What is replaced is
kept beside what is new, and a crash leaves the old files or the new ones, never some of each (``exchange``). For
people: docs/operating/state.md#restore.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from outlive.base.clock import Clock, as_datetime
from outlive.base.errors import BadInput, NotFound
from outlive.base.ids import Ids
from outlive.resources import Cluster, ObjectMeta
from outlive.resources.cluster import CLUSTER, Pause
from outlive.store.access import compare_and_swap
from outlive.store.sqlite.database import FILE_MODE, Database, DirectoryLock
from outlive.store.sqlite.exchange import Exchange, begin, finish
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
            incarnation = ids.uuid()
            _become(draft, incarnation)
            store = await SqliteStore.open(draft, clock=clock, ids=ids)
            try:
                cluster, uses = await _pause(store, incarnation, clock), store.uses()
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
        if not database.meta("incarnation"):
            raise BadInput(f"{target.name} is empty", remedy="outlive apply -f takes what outlive dump wrote")
        database.become(incarnation, int(database.meta("ceiling", "0")) + VERSIONS_APART)
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
        return msgspec.structs.replace(cluster, status=cluster.status.became(incarnation, Pause(since=since)))

    await compare_and_swap(store, Cluster, CLUSTER, create, clock=clock)
    await compare_and_swap(store, Cluster, CLUSTER, pause, clock=clock)
    return await store.get(Cluster, CLUSTER)


def _exchange(draft: Path, directory: Path, leaves: Iterable[str], when: str) -> Exchange:
    """Which files come, and which go under which names; a file that is there already with this content stays."""
    names = sorted(path.name for path in draft.iterdir())
    incoming = [name for name in names if not _same(draft / name, directory / name)]
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


def _same(new: Path, present: Path) -> bool:
    return new.name != DATABASE_FILE and present.is_file() and new.read_bytes() == present.read_bytes()

"""The file: opening, checking, writing one batch durably, and finding out what became of a failed one.

Everything here blocks and is called from the store's one thread. Few statements per batch, because after
each of them the thread has to win back the interpreter from the event loop
(docs/reference/store.md#sqlite).
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from outlive.base import BadInput, InUse, OutliveError, Unavailable

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700


class DirectoryLock:
    """Holds a state directory from ``take`` to ``release``."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, directory: Path, name: str) -> DirectoryLock:
        """Lock the directory, which is made if it is missing; ``InUse`` names it and who holds it."""
        path = directory / name
        try:
            directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        except (FileExistsError, NotADirectoryError):
            raise BadInput(f"{directory} is no directory", remedy="name a directory for the state") from None
        except PermissionError:
            raise BadInput(f"{directory} cannot be written", remedy="choose a directory that you own") from None
        except OSError as error:
            raise Unavailable(
                f"{directory} cannot be used: {error.strerror}", remedy="free space or repair the disk"
            ) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise InUse(
                f"state directory {directory} is in use by process {holder or 'unknown'}",
                remedy="stop that process, or choose another directory",
            ) from None
        with contextlib.suppress(OSError):  # on a full disk the lock holds without it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return cls(path, descriptor)

    def release(self) -> None:
        """Let others have the directory. The file stays, so that nobody ever locks two files of one name."""
        os.close(self._descriptor)


SCHEMA_VERSION = 1
"""Of the tables and of the shape of what is in them. A newer one is refused, an older one migrated."""
APPLICATION_ID = 0x4F75746C
"""``Outl``: distinguishes our files from other SQLite files."""
PAGE_BYTES = 4096
CACHE_KIB = 16_384
"""Pages that SQLite keeps beside the objects, which are all in memory anyway."""
READ_TRIES = 3
"""How often a file is read again that somebody began to write meanwhile."""
BUSY_S = 5.0
"""How long a write waits for another program that holds the file, such as the sqlite3 shell."""
_ROWS_A_STATEMENT = 64

_CREATE = (
    "BEGIN IMMEDIATE",
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE objects (kind TEXT NOT NULL, key TEXT NOT NULL, crc INTEGER NOT NULL, document BLOB NOT NULL, "
    "UNIQUE (kind, key))",
    f"PRAGMA application_id = {APPLICATION_ID}",
)

Place = tuple[str, str]
"""Kind and key of an object."""


class Fate(enum.Enum):
    """What became of a batch."""

    DURABLE = "durable"
    """Written and synced."""
    REFUSED = "refused"
    """Certainly not written."""
    DOUBTFUL = "doubtful"
    """It can be read back, but the disk did not confirm it."""
    HIDDEN = "hidden"
    """The file cannot be read, so nobody knows."""


class Database:
    """One open database file."""

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self._connection: sqlite3.Connection | None = None
        self.failure = ""
        """Why the last batch failed."""

    def open(self, incarnation: str) -> None:
        """Open the file, or make one. What is newer, foreign or damaged is refused before anything is touched."""
        try:
            empty = not self.path.exists() or self.path.stat().st_size == 0 or not self._probe()
            if not self.path.exists():
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
                sync_directory(self.path.parent)
                sync_directory(self.path.absolute().parent.parent)
            with self._translate_errors():
                if empty:
                    self._create(incarnation)
                else:
                    self._connect()
        except OutliveError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise Unavailable(f"{self.path} cannot be used: {error.strerror}", remedy="repair the disk") from None

    def read_meta(self, key: str, default: str = "") -> str:
        """One fact about the store as a whole."""
        with self._translate_errors():
            row = self._connect().execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return str(row[0]) if row else default

    def become(self, incarnation: str, ceiling: int) -> None:
        """Be another store from now on, which has given all versions up to ``ceiling``."""
        with self._translate_errors():
            run = self._connect().execute
            run("BEGIN IMMEDIATE")
            for fact in (("incarnation", incarnation), ("ceiling", str(ceiling))):
                run("INSERT OR REPLACE INTO meta VALUES (?, ?)", fact)
            run("COMMIT")

    def read_rows(self) -> Iterator[tuple[str, str, bytes]]:
        """Kind, key and document of all objects; ``BadInput`` names one that is not what was written."""
        with self._translate_errors():
            for kind, key, crc, document in self._connect().execute("SELECT kind, key, crc, document FROM objects"):
                if zlib.crc32(document) != crc:
                    raise damaged_error(self.path, f"{kind}/{key} has a wrong checksum")
                yield kind, key, document

    def write(self, final: Mapping[Place, bytes | None], *, ceiling: int | None) -> Fate:
        """Write a batch and wait until the disk has it. ``ceiling``, where given, is kept with it.

        ``HIDDEN`` after an error that leaves the outcome open: ``reread`` finds it out, once this is the only
        connection to the file.
        """
        if self._connection is None and not self._reopen():
            return Fate.REFUSED
        try:
            self._transact(final, ceiling)
        except sqlite3.Error as error:
            self.failure = str(error)
            return Fate.REFUSED if self._roll_back(error) else Fate.HIDDEN
        return Fate.DURABLE

    def reread(self, final: Mapping[Place, bytes | None]) -> Fate:
        """Open the file again and look whether the batch is in it: a transaction is there whole or not at all."""
        if not self._reopen():
            return Fate.HIDDEN
        try:
            for (kind, key), raw in final.items():
                row = (
                    self._connect()
                    .execute("SELECT document FROM objects WHERE kind = ? AND key = ?", (kind, key))
                    .fetchone()
                )
                if (bytes(row[0]) if row else None) != raw:
                    return Fate.REFUSED
        except sqlite3.Error as error:
            self.failure = str(error)
            self.close()
            return Fate.HIDDEN
        return Fate.DOUBTFUL

    def tidy(self) -> int | None:
        """Move what is in the write-ahead log into the file; the pages that the log has, ``None`` if not all went.

        Once all of them went, the log begins anew with the next write instead of growing.
        """
        try:
            busy, logged, moved = self._connect().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.Error as error:
            self.failure = str(error)
            return None
        return logged if not busy and logged == moved else None

    def close(self) -> None:
        """Close the file; the last one to do so tidies the write-ahead log away."""
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def read_whole(self) -> tuple[dict[str, str], dict[str, dict[str, bytes]]]:
        """Facts about the store and all documents by kind and key, of one moment; the file is only read.

        No lock of the directory is needed, and none is in anybody's way. ``BadInput`` where the file is missing, of
        another program, newer or damaged.
        """
        if not self._probe():
            return {}, {}
        for _ in range(READ_TRIES):
            log = self.path.with_name(self.path.name + "-wal")
            alone = not (log.exists() and log.stat().st_size > 0)
            with self._translate_errors():
                self._connection = sqlite3.connect(
                    f"{self.path.absolute().as_uri()}?mode=ro{'&immutable=1' if alone else ''}",
                    uri=True,
                    isolation_level=None,
                    check_same_thread=False,
                )
                self._connection.execute("BEGIN")
                facts = {str(key): str(value) for key, value in self._connection.execute("SELECT key, value FROM meta")}
                documents: dict[str, dict[str, bytes]] = {}
                for kind, key, document in self.read_rows():
                    documents.setdefault(kind, {})[key] = document
            self.close()
            if not (alone and log.exists() and log.stat().st_size > 0):
                return facts, documents
            # somebody began to write meanwhile, and what was opened does not show that
        raise Unavailable(f"{self.path} changes while it is read", remedy="try again")

    def _create(self, incarnation: str) -> None:
        """Make the tables, all in one transaction."""
        run = self._connect().execute
        for statement in _CREATE:
            run(statement)
        for fact in (("schema", str(SCHEMA_VERSION)), ("incarnation", incarnation)):
            run("INSERT INTO meta VALUES (?, ?)", fact)
        run("COMMIT")

    def _probe(self) -> bool:
        """Look at an existing file without leaving a trace; false if nothing was ever written to it."""
        log = self.path.with_name(self.path.name + "-wal")
        with read_only(self.path, immutable=not (log.exists() and log.stat().st_size > 0)) as connection:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if application != APPLICATION_ID and tables:
                raise BadInput(f"{self.path} is not a store of Outlive", remedy="choose another state directory")
            if not tables:
                return False
            row = connection.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
        found = str(row[0]) if row else "absent"
        if not found.isdecimal():
            raise damaged_error(self.path, f"its schema version is {found!r}")
        if int(found) > SCHEMA_VERSION:
            raise BadInput(
                f"state directory {self.path.parent} was written by a newer Outlive: "
                f"its schema version is {found}, this Outlive knows {SCHEMA_VERSION}",
                remedy="start the newer Outlive, or choose another state directory; nothing was changed",
            )
        return True

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(
                self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, cached_statements=256
            )
            self._connection = connection
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.execute(f"PRAGMA max_page_count = {max(1, self.max_bytes // PAGE_BYTES)}")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
        return self._connection

    def _reopen(self) -> bool:
        self.close()
        try:
            self._connect().execute("SELECT count(*) FROM meta").fetchone()
        except sqlite3.Error as error:
            self.failure = str(error)
            self.close()
            return False
        return True

    def _transact(self, final: Mapping[Place, bytes | None], ceiling: int | None) -> None:
        puts = [(kind, key, zlib.crc32(raw), raw) for (kind, key), raw in final.items() if raw is not None]
        removals = [place for place, raw in final.items() if raw is None]
        run = self._connect().execute
        alone = ceiling is None and not removals and len(puts) <= _ROWS_A_STATEMENT
        if not alone:
            run("BEGIN IMMEDIATE")
        for part in _split_rows(puts):
            run(
                f"INSERT INTO objects (kind, key, crc, document) VALUES {_render_placeholders(4, len(part))} "  # noqa: S608
                "ON CONFLICT (kind, key) DO UPDATE SET crc = excluded.crc, document = excluded.document",
                [value for row in part for value in row],
            )
        for gone in _split_rows(removals):
            run(
                f"DELETE FROM objects WHERE (kind, key) IN (VALUES {_render_placeholders(2, len(gone))})",  # noqa: S608
                [value for row in gone for value in row],
            )
        if ceiling is not None:
            run("INSERT OR REPLACE INTO meta VALUES ('ceiling', ?)", (str(ceiling),))
        if not alone:
            run("COMMIT")

    def _roll_back(self, error: sqlite3.Error) -> bool:
        """Whether nothing of the transaction can be in the file."""
        try:
            if self._connect().in_transaction:
                self._connect().rollback()
        except sqlite3.Error:
            return False
        return (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _REFUSALS

    def _translate_errors(self) -> contextlib.AbstractContextManager[None]:
        return translate_errors(self.path)


@contextlib.contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """SQLite's errors about a file, as ours."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise InUse(f"{path} is locked by another program", remedy="close it, then try again") from None
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise damaged_error(path, str(error)) from None
        raise Unavailable(f"{path}: {error}", remedy="free space on the disk, or repair it") from None


@contextlib.contextmanager
def read_only(path: Path, *, immutable: bool = False) -> Iterator[sqlite3.Connection]:
    """A connection that changes nothing; ``immutable``: nobody else does either, and no file is made beside it."""
    mode = "mode=ro&immutable=1" if immutable else "mode=ro"
    name = f"{path.absolute().as_uri()}?{mode}"
    with (
        translate_errors(path),
        contextlib.closing(sqlite3.connect(name, timeout=BUSY_S, uri=True, isolation_level=None)) as connection,
    ):
        yield connection


_REFUSALS = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_CONSTRAINT,
    }
)
"""Errors with which SQLite has rolled the whole transaction back."""


def damaged_error(path: Path, how: str) -> BadInput:
    """The error for a file that cannot be trusted."""
    return BadInput(
        f"{path} is damaged: {how}",
        remedy="stop outlive up and put the last backup back: outlive restore FILE",
    )


def _split_rows(rows: Sequence[tuple[object, ...]]) -> Iterator[Sequence[tuple[object, ...]]]:
    for start in range(0, len(rows), _ROWS_A_STATEMENT):
        yield rows[start : start + _ROWS_A_STATEMENT]


def _render_placeholders(columns: int, rows: int) -> str:
    one = f"({','.join('?' * columns)})"
    return ",".join([one] * rows)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable, as far as it may be opened."""
    if not os.access(directory, os.R_OK):
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

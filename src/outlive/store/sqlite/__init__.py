"""The embedded default: objects in one SQLite file, durable before they are acknowledged."""

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

from outlive.store.sqlite.store import DATABASE_FILE, LOCK_FILE, SqliteStore

if TYPE_CHECKING:
    from outlive.store.sqlite.database import SCHEMA_VERSION, Database, DirectoryLock, Fate, Place, sync_directory
    from outlive.store.sqlite.moved import MovedStore, check_not_moved, read_moved, write_moved
    from outlive.store.sqlite.restore import RECORD_FILE, Restored, Unpack, copy_of, finish_interrupted
    from outlive.store.sqlite.snapshot import StoreFacts, check_store, copy_store
    from outlive.store.sqlite.store import read_snapshot
else:
    __getattr__ = load_exports(__name__)

__all__ = ["DATABASE_FILE", "LOCK_FILE", "SqliteStore"]

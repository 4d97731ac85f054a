"""The embedded default: objects in one SQLite file, durable before they are acknowledged."""

from outlive.store.sqlite.store import DATABASE_FILE, LOCK_FILE, SqliteStore

__all__ = ["DATABASE_FILE", "LOCK_FILE", "SqliteStore"]

"""Replaces several files of a state directory by others: all of them, or none, whenever the machine fails.

The new files lie in a folder of their own. ``begin`` writes a record of what is to be done, which is the moment from
which the new ones count: ``finish`` does it, and whoever opens the directory afterwards (``check_store_there``) ends
what was interrupted. Files that are replaced are kept beside the new ones under another name.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

import msgspec

from outlive.base.errors import BadInput
from outlive.base.files import write_whole
from outlive.store.sqlite.database import DirectoryLock, sync_directory
from outlive.store.sqlite.store import LOCK_FILE

RECORD_FILE: Final = "restore.pending"
_REMEDY: Final = "put the last backup back: outlive restore FILE"


class Exchange(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What is to be done in a state directory."""

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

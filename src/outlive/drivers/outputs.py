"""Writes files that a user asked for: whole or not at all, and never a traceback for a wrong path."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from outlive.base.errors import BadInput, Unavailable

_REMEDY = "name a file in a directory that you may write to"


def check_output(path: Path) -> None:
    """Refuse a path that cannot become a file, before anything is computed for it."""
    if "\0" in str(path):
        raise BadInput("is no path", place=str(path), remedy=_REMEDY)
    with _told(path):
        folder, is_folder = path.parent, path.is_dir()
        found = folder.is_dir()
    if is_folder:
        raise BadInput("is a directory", place=str(path), remedy="name a file")
    if not found:
        raise BadInput("is in no directory", place=str(path), remedy=f"make {folder} first, or name another place")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput("may not be written", place=str(path), remedy=_REMEDY)


def write_output(path: Path, content: bytes) -> None:
    """Write the file; one that was there stays as it was unless everything is written."""
    with open_output(path) as stream:
        stream.write(content)


@contextmanager
def open_output(path: Path) -> Iterator[BinaryIO]:
    """The file to write to; one that was there stays as it was unless everything is written.

    A link goes on to point where it does, and what is no file, such as a pipe or /dev/null, is written to as it is.
    """
    check_output(path)
    if path.exists() and not path.is_file():
        with _told(path), path.open("wb") as stream:
            yield stream
        return
    target = path.resolve() if path.is_symlink() else path
    if target is not path:
        check_output(target)
    with _told(path):
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
    temporary = Path(name)
    try:
        with _told(path):
            with os.fdopen(handle, "wb") as stream:
                yield stream
            temporary.chmod(_mode(target))
            temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _mode(target: Path) -> int:
    """That of the file which is replaced, else what new files have."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """What the system refuses becomes an error with the path: exit code 6 for a full disk, else 3."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Unavailable("no space is left", place=str(path), remedy="free some and repeat") from None
        raise BadInput(f"cannot be written: {error.strerror or error}", place=str(path), remedy=_REMEDY) from None

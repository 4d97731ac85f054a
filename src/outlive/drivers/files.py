"""Reads input files of bounded size, writes files whole or not at all; every failure names the file and the remedy."""

from __future__ import annotations

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from outlive.base import BadInput, Forbidden, LimitExceeded, NotFound, Unavailable, limits, write_whole

STDIN = Path("-")
_REMEDY = "name a file in a directory that you may write to"


@contextmanager
def open_input(path: Path, *, limit: int = limits.IMPORT_FILE_BYTES) -> Iterator[tuple[BinaryIO, int]]:
    """The file and its size in bytes."""
    try:
        with path.open("rb") as stream:
            if path.is_dir():
                raise BadInput("is a directory", place=str(path), remedy="name a file")
            size = path.stat().st_size
            if size > limit:
                raise size_error(path, limit)
            yield stream, size
    except FileNotFoundError:
        raise NotFound("no such file", place=str(path), remedy="check the path") from None
    except IsADirectoryError:
        raise BadInput("is a directory", place=str(path), remedy="name a file") from None
    except PermissionError:
        raise Forbidden("may not be read", place=str(path), remedy="check its owner and mode") from None
    except OSError as error:
        raise Unavailable(f"cannot be read: {error.strerror}", place=str(path), remedy="check the disk") from None


def read_input(path: Path, *, limit: int = limits.IMPORT_FILE_BYTES) -> bytes:
    """The whole file, or standard input for ``-``."""
    if path == STDIN:
        raw = sys.stdin.buffer.read(limit + 1)
    else:
        with open_input(path, limit=limit) as (stream, _):
            raw = stream.read(limit + 1)
    if len(raw) > limit:
        raise size_error(path, limit)
    return raw


def size_error(path: Path, limit: int) -> LimitExceeded:
    """What a file over the limit raises."""
    shown = f"{limit // 2**20} MiB" if limit >= 2**20 else f"{limit} bytes"
    return LimitExceeded(f"is larger than {shown}", place=str(path), remedy="split the file")


def check_output(path: Path | None) -> None:
    """Refuse a path that cannot become a file, before anything is computed for it; ``None``: no file is asked for."""
    if path is None:
        return
    if "\0" in str(path):
        raise BadInput("is no path", place=str(path), remedy=_REMEDY)
    with translate_write_errors(path):
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
        with translate_write_errors(path), path.open("wb") as stream:
            yield stream
        return
    target = path.resolve() if path.is_symlink() else path
    if target is not path:
        check_output(target)
    with translate_write_errors(path):
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
    temporary = Path(name)
    try:
        with translate_write_errors(path):
            with os.fdopen(handle, "wb") as stream:
                yield stream
            temporary.chmod(_file_mode(target))
            temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _file_mode(target: Path) -> int:
    """That of the file which is replaced, else what new files have."""
    if target.exists():
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextmanager
def translate_write_errors(path: Path) -> Iterator[None]:
    """What the system refuses becomes an error with the path: exit code 6 for a full disk, else 3."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Unavailable("no space is left", place=str(path), remedy="free some and repeat") from None
        raise BadInput(f"cannot be written: {error.strerror or error}", place=str(path), remedy=_REMEDY) from None


def write_private(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, that only its owner may read (``write_whole``)."""
    with translate_write_errors(path):
        write_whole(path, content)

"""Reads input files of bounded size; every failure names the file and what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from outlive.base import limits
from outlive.base.errors import BadInput, Forbidden, LimitExceeded, NotFound, Unavailable

STDIN = Path("-")


@contextmanager
def open_input(path: Path, *, limit: int = limits.IMPORT_FILE_BYTES) -> Iterator[tuple[BinaryIO, int]]:
    """The file and its size in bytes."""
    try:
        with path.open("rb") as stream:
            if path.is_dir():
                raise BadInput("is a directory", place=str(path), remedy="name a file")
            size = path.stat().st_size
            if size > limit:
                raise too_large(path, limit)
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
        raise too_large(path, limit)
    return raw


def too_large(path: Path, limit: int) -> LimitExceeded:
    """What a file over the limit raises."""
    shown = f"{limit // 2**20} MiB" if limit >= 2**20 else f"{limit} bytes"
    return LimitExceeded(f"is larger than {shown}", place=str(path), remedy="split the file")

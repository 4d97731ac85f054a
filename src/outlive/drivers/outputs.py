"""Writes files that a user asked for: whole or not at all, and never a traceback for a wrong path."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from outlive.base.errors import BadInput

_REMEDY = "name a file in a directory that you may write to"


def check_output(path: Path) -> None:
    """Refuse a path that cannot become a file, before anything is computed for it."""
    if path.is_dir():
        raise BadInput("is a directory", place=str(path), remedy="name a file")
    folder = path.parent
    if not folder.is_dir():
        raise BadInput("is in no directory", place=str(path), remedy=f"make {folder} first, or name another place")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadInput("may not be written", place=str(path), remedy=_REMEDY)


def write_output(path: Path, content: bytes) -> None:
    """Write the file; one that was there stays as it was unless everything is written."""
    check_output(path)
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        mask = os.umask(0)
        os.umask(mask)
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(path)
    except (OSError, ValueError) as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        why = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"cannot be written: {why}", place=str(path), remedy=_REMEDY) from None

"""Replaces a file whole or not at all, also in a folder that belongs to somebody else."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600


def write_whole(path: Path, content: bytes, *, mode: int = PRIVATE) -> None:
    """Write a file whole or not at all; ``mode``: its permissions. ``OSError``.

    Where root writes what a service reads, it belongs to the owner of the file before it, else to that of its folder.
    Nothing that this owner has put there is followed: the new file has a name that nobody knows before, and its owner
    and permissions are set by its descriptor.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            if os.geteuid() == 0:
                owner = _owner(path)
                os.fchown(handle, owner.st_uid, owner.st_gid)
            os.fchmod(handle, mode)
            stream.write(content)
            stream.flush()
            os.fsync(handle)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _owner(path: Path) -> os.stat_result:
    """Whose the file is, where it is one and no link; else whose the folder is."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return path.parent.stat()
    return found if stat.S_ISREG(found.st_mode) else path.parent.stat()

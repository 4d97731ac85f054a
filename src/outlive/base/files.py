"""Replaces a file whole or not at all, also in a folder that belongs to somebody else; reads files with secrets.

A file with a secret is believed only where nobody else can read or replace it: ``read_private`` is the one check for
all of them (docs/concepts/security.md#files).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from outlive.base.errors import BadInput, Forbidden, NotFound, Unavailable

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
                owner = _stat_owner(path)
                os.fchown(handle, owner.st_uid, owner.st_gid)
            os.fchmod(handle, mode)
            stream.write(content)
            stream.flush()
            os.fsync(handle)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def rename_whole(source: Path, target: Path) -> None:
    """Give a file another name in the same folder, for good: after a power loss it has it as well. ``OSError``."""
    source.replace(target)
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Without this a power loss may bring back the file that was replaced. Some file systems cannot do it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def read_private(path: Path, *, limit: int) -> bytes:
    """The bytes of a file with a secret, at most ``limit``. ``Forbidden`` where others than its owner can read or
    replace it: group or others in its mode, another owner, a link, or a folder into which others may write.

    ``NotFound``; ``BadInput`` for what is no file, or too large; ``Unavailable`` where its disk fails.
    """
    place = str(path)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if why := _find_exposure(os.fstat(handle), path.parent.stat(), os.geteuid(), path):
                raise Forbidden(why[0], place=place, remedy=why[1])
            raw = os.read(handle, limit + 1)
        finally:
            os.close(handle)
    except FileNotFoundError:
        raise NotFound("no such file", place=place, remedy="check the path") from None
    except IsADirectoryError:
        raise BadInput("is a directory", place=place, remedy="name a file") from None
    except PermissionError:
        raise Forbidden("may not be read", place=place, remedy="check its owner and mode") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise Forbidden(
                "holds a secret and is a link", place=place, remedy="name the file itself, or put it there"
            ) from None
        raise Unavailable(f"cannot be read: {error.strerror}", place=place, remedy="check the disk") from None
    if len(raw) > limit:
        raise BadInput(f"is larger than {limit} bytes", place=place, remedy="this is no file of that kind")
    return raw


def check_private(path: Path, *, limit: int) -> None:
    """As ``read_private``, for a file that somebody else reads."""
    read_private(path, limit=limit)


def _find_exposure(found: os.stat_result, folder: os.stat_result, me: int, path: Path) -> tuple[str, str] | None:
    """Who else can read or replace the file, and the remedy.

    Root also reads what belongs to the owner of its folder, such as a service with a folder of its own.
    """
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError
    if not stat.S_ISREG(found.st_mode):
        return "holds a secret and is no ordinary file", "put it into a file"
    if stat.S_IMODE(found.st_mode) & 0o077:
        owned = "" if found.st_uid == me or me == 0 else f"chown {me} {path}, and "
        return "holds a secret, and others may read it", f"{owned}chmod 600 {path}"
    if found.st_uid not in ({0, folder.st_uid} if me == 0 else {0, me}):
        return f"holds a secret and belongs to user {found.st_uid}", f"chown it to who reads it, and chmod 600 {path}"
    if stat.S_IMODE(folder.st_mode) & 0o022 and not folder.st_mode & stat.S_ISVTX:
        return "holds a secret, and others may replace it", f"chmod go-w {path.parent}"
    return None


def _stat_owner(path: Path) -> os.stat_result:
    """Whose the file is, where it is one and no link; else whose the folder is."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return path.parent.stat()
    return found if stat.S_ISREG(found.st_mode) else path.parent.stat()

"""One process per state directory: a lock on a file that the kernel lets go of when its holder dies.

The file's content, the holder's process id, is for messages only. A process that forks without ``exec``
shares the lock with its child until both are gone.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from outlive.base.errors import BadInput, InUse, Unavailable

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
        _write_pid(descriptor)
        return cls(path, descriptor)

    def release(self) -> None:
        """Let others have the directory. The file stays, so that nobody ever locks two files of one name."""
        os.close(self._descriptor)


def _write_pid(descriptor: int) -> None:
    """Best effort: on a full disk the lock holds without it."""
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        return

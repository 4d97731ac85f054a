"""A program of its own: who has locked an image file, as JSON; it runs apart because a file system may not answer.

``python -I image_locks.py file|block PATH`` prints ``{"error": TEXT, "missing": BOOL, "empty": BOOL}``,
``{"locked": false}`` or ``{"locked": true, "pids": [...]}`` with the processes of this host that have the file open.
Standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import struct
import sys
from pathlib import Path

LOCK_BYTES = ((100, 64), (200, 64))
"""Where QEMU locks what it does, and what it does not let others do."""
FLOCK = struct.Struct("hhqqi4x")
"""``struct flock`` of 64-bit Linux: type, whence, start, length, process."""
F_OFD_GETLK = 36


def inspect_file(path: str, is_device: bool) -> dict[str, object]:
    """What is known of one file. ``OSError``."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        about = os.fstat(descriptor)
        right = stat.S_ISBLK if is_device else stat.S_ISREG
        if not right(about.st_mode):
            raise OSError(errno.EINVAL, "it is no block device" if is_device else "it is no file")
        if is_device or not any(is_locked(descriptor, start, length) for start, length in LOCK_BYTES):
            return {"locked": False}
        return {"locked": True, "pids": find_openers(about)}
    finally:
        os.close(descriptor)


def has_files(path: str) -> bool:
    """Whether the folder of the path has anything in it: that of a file system that is not mounted is empty."""
    try:
        return any(Path(path).parent.iterdir())
    except OSError:
        return False


def is_locked(descriptor: int, start: int, length: int) -> bool:
    """Whether anybody else has a lock there, shared or not; nothing is locked by asking."""
    asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    return bool(FLOCK.unpack(fcntl.fcntl(descriptor, F_OFD_GETLK, asked))[0] != fcntl.F_UNLCK)


def find_openers(about: os.stat_result) -> list[int]:
    """Processes of this host, other than this one, that have the file open."""
    found = set()
    for one in Path("/proc").glob("[0-9]*/fd/*"):
        pid = int(one.parts[2])
        if pid == os.getpid() or pid in found:
            continue
        try:
            there = one.stat()
        except OSError:  # closed meanwhile
            continue
        if (there.st_dev, there.st_ino) == (about.st_dev, about.st_ino):
            found.add(pid)
    return sorted(found)


if __name__ == "__main__":
    try:
        answer = inspect_file(sys.argv[2], sys.argv[1] == "block")
    except OSError as error:
        answer = {
            "error": (error.strerror or "it failed").lower(),
            "missing": error.errno == errno.ENOENT,
            "empty": not has_files(sys.argv[2]),
        }
    print(json.dumps(answer))

"""A program of its own: whether a path of this host answers; it runs apart because the kernel may keep it waiting.

``python -I -S reach_path.py file|block PATH`` ends with 0 once the file system of the folder PATH has said how full it
is, or the first sector of the device was read past all caches; else with the number of the error. Standard library
only.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import sys

SECTOR_BYTES = 4096


def ask(kind: str, path: str) -> None:
    """``OSError`` where it answers with an error; never returns where it does not answer."""
    if kind == "file":
        os.statvfs(path)
        return
    # to open a device of another kind may do something, such as arm a watchdog
    if not stat.S_ISBLK(os.stat(path).st_mode):  # noqa: PTH116 - as everything here
        raise OSError(errno.ENOTBLK, os.strerror(errno.ENOTBLK), path)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    try:
        with mmap.mmap(-1, SECTOR_BYTES) as aligned:
            os.preadv(descriptor, [aligned], 0)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    try:
        ask(sys.argv[1], sys.argv[2])
    except OSError as error:
        sys.exit(error.errno or 1)

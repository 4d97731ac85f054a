"""Whether file systems and block devices answer this host, asked by child processes.

A dead NFS server blocks a process that asks it in the kernel, where no signal ends it. So a child process asks, and the
daemon waits for it with a limit. While a child is blocked, the daemon starts no second one for the same path.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from pathlib import Path, PurePosixPath
from typing import Final

from outlive.base.errors import Unavailable

PROGRAM: Final = Path(__file__).with_name("reach_path.py")
LOST: Final = frozenset(
    {
        *(errno.EIO, errno.ENXIO, errno.ENODEV, errno.ESTALE, errno.EREMOTEIO),
        *(errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ECONNABORTED),
    }
)
"""Errors by which a path is not reached; any other, such as of rights, says nothing of the storage."""
MOUNTS: Final = Path("/proc/self/mountinfo")
PATHS_LIMIT: Final = 256
"""Paths of which a child may be waiting."""


class Paths:
    """See the module."""

    def __init__(self) -> None:
        self._asking: dict[tuple[str, str], asyncio.subprocess.Process] = {}

    async def check_reach(self, kind: str, path: str, limit_s: float) -> str | None:
        """Why it is not reached (``file``: the file system of a folder; ``block``: a device); empty: it is; ``None``:
        nobody can say. ``Unavailable`` where it cannot be asked."""
        key = (kind, path)
        child = self._asking.get(key)
        if child is None:
            self._asking = {one: each for one, each in self._asking.items() if each.returncode is None}
            if len(self._asking) >= PATHS_LIMIT:
                raise Unavailable(f"{len(self._asking)} questions to storage wait", remedy="see dmesg")
            child = self._asking[key] = await _start_question(kind, path)
        try:
            async with asyncio.timeout(limit_s):
                code = await child.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                child.kill()  # it ends once the kernel lets it go
            return f"{path} does not answer"
        del self._asking[key]
        if code in LOST:
            return f"{path}: {os.strerror(code).lower()}"
        return "" if code == 0 else None


def mount_point(folder: str) -> str:
    """Where the file system of the folder is mounted, by its name alone; empty: it is the root's.

    The kernel lists its mounts without asking any of them.
    """
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    mounts = (line.split(" ", 5)[4].encode().decode("unicode_escape") for line in lines)
    above = [one for one in mounts if one != "/" and PurePosixPath(folder).is_relative_to(one)]
    return max(above, key=len, default="")


async def _start_question(kind: str, path: str) -> asyncio.subprocess.Process:
    nothing = asyncio.subprocess.DEVNULL
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(PROGRAM), kind, path), stdin=nothing, stdout=nothing, stderr=nothing
        )
    except (OSError, ValueError) as error:
        raise Unavailable(f"{path} cannot be asked: {error}", remedy="see what this host lacks") from None

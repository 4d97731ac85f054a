"""Disks that are files on shared storage, and block devices: what can be seen of who has them open.

QEMU locks the images that it opens: byte ranges of the file, shared between processes that tolerate each other. Such a
lock belongs to an open file and ends with its process, whatever that dies of; nobody can take it away. Which process
has it the kernel does not say: one of this host is found by its descriptors, and where there is none another host has
it, whose name the file system does not tell. Nobody can shut a host out of a file.

A block device has no locks that another host sees: of that nothing is known but whether it is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec

from outlive.base import NotFound, Refused, Unavailable
from outlive.drivers.commands import run
from outlive.node.ports import REACH_S, DiskLock

PROGRAM: Final = Path(__file__).with_name("image_locks.py")
REACH_PROGRAM: Final = Path(__file__).with_name("reach_path.py")
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


class ImageLocks(msgspec.Struct, frozen=True):
    """What the program prints."""

    locked: bool = False
    pids: tuple[int, ...] = ()
    error: str = ""
    missing: bool = False
    empty: bool = False
    """Whether the folder of a missing one is empty, or is not there."""


class FileLocks:
    """The part of ``StoragePort`` for ``file:/PATH`` and ``block:/dev/…``; ``address`` is this host's own."""

    def __init__(self, address: str, limit_s: float) -> None:
        self._address = address
        self._limit_s = limit_s
        self._paths = Paths()

    def find_place(self, volume: str) -> str:
        """What is mounted there, as ``file:FOLDER``; the folder of a file where that is the host's own; a device."""
        kind, _, path = volume.partition(":")
        if kind == "block":
            return volume
        folder = str(Path(path).parent)
        return f"{kind}:{mount_point(folder) or folder}"

    async def check_reach(self, place: str) -> str | None:
        """By the kernel's own word."""
        kind, _, path = place.partition(":")
        why = await self._paths.check_reach(kind, path, REACH_S)
        is_own = kind == "file" and mount_point(path) != path  # an empty folder, on a host that has not mounted it
        return None if is_own and not why else why

    async def list_locks(self, volume: str) -> tuple[DiskLock, ...]:
        """Of one disk. ``NotFound``: its file system has none. ``Unavailable`` also where this host may only lack it: a
        device that is not there, or a file whose folder is empty, as that of a file system that is not mounted is."""
        kind, _, path = volume.partition(":")
        ended = await run([sys.executable, "-I", str(PROGRAM), kind, path], limit_s=self._limit_s)
        if ended.killed:
            raise Unavailable(
                f"{path} did not answer within {self._limit_s:g} s", remedy="see the server of its file system"
            )
        try:
            found = msgspec.json.decode(ended.out, type=ImageLocks)
        except msgspec.DecodeError:
            raise Unavailable(f"the locks of {path} could not be read", remedy="see the log") from None
        if found.missing and kind == "block":
            raise Unavailable(f"device {path} is not on this host", remedy="connect it, or correct the VM's disks")
        if found.missing and found.empty:
            raise Unavailable(
                f"{path} does not exist, and its folder is empty or not there", remedy="mount it, or create the disk"
            )
        if found.missing:
            raise NotFound(f"disk {volume} does not exist", remedy="correct the VM's disks, mount it, or create it")
        if found.error:
            raise Unavailable(f"{path} cannot be opened: {found.error}", remedy="see the server of its file system")
        if not found.locked:
            return ()
        who = f"process {', '.join(map(str, found.pids[:3]))}" if found.pids else "another host"
        return (DiskLock(volume=volume, id="image", locker=who, address=self._address if found.pids else ""),)

    async def release(self, lock: DiskLock) -> None:
        """Fine if it is gone; nobody can take it away."""
        for there in await self.list_locks(lock.volume):
            if there == lock:
                raise Refused(
                    f"{lock.volume} is open in {lock.locker}, and only the end of that releases it",
                    remedy="see docs/how-to/storage.md",
                )


class Paths:
    """Whether file systems and block devices answer this host, asked by child processes.

    A dead NFS server blocks a process that asks it in the kernel, where no signal ends it. So a child process asks, and
    the daemon waits for it with a limit. While a child is blocked, the daemon starts no second one for the same path.
    """

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
            argv, nothing = (sys.executable, "-I", "-S", str(REACH_PROGRAM), kind, path), asyncio.subprocess.DEVNULL
            try:
                child = await asyncio.create_subprocess_exec(*argv, stdin=nothing, stdout=nothing, stderr=nothing)
            except (OSError, ValueError) as error:
                raise Unavailable(f"{path} cannot be asked: {error}", remedy="see what this host lacks") from None
            self._asking[key] = child
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

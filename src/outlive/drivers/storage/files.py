"""Disks that are files on shared storage, and block devices: what can be seen of who has them open.

QEMU locks the images that it opens: byte ranges of the file, shared between processes that tolerate each other. Such a
lock belongs to an open file and ends with its process, whatever that dies of; nobody can take it away. Which process
has it the kernel does not say: one of this host is found by its descriptors, and where there is none another host has
it, whose name the file system does not tell. Nobody can shut a host out of a file.

A block device has no locks that another host sees: of that nothing is known but whether it is there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import msgspec

from outlive.base.errors import NotFound, Refused, Unavailable
from outlive.drivers.commands import run
from outlive.drivers.storage.reach import Paths, mount_point
from outlive.node.ports import REACH_S, DiskLock

PROGRAM: Final = Path(__file__).with_name("image_locks.py")


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

    def place(self, volume: str) -> str:
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

    async def locks(self, volume: str) -> tuple[DiskLock, ...]:
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
        for there in await self.locks(lock.volume):
            if there == lock:
                raise Refused(
                    f"{lock.volume} is open in {lock.locker}, and only the end of that releases it",
                    remedy="see docs/operating/storage.md",
                )

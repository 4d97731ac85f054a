"""Locks on disks: the second line of defence against two writers."""

from __future__ import annotations

from typing import Protocol

import msgspec


class DiskLock(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One lock on one volume."""

    volume: str
    id: str
    address: str
    """Of the client that holds it, such as ``10.0.0.1:0/77`` or ``[fd00::1]:0/77``; empty where storage does not say:
    it then is nobody's whose locks are known to be over."""
    locker: str = ""


class StoragePort(Protocol):
    """Locks on a VM's disks, looked at before a domain is created. ``Unavailable`` where storage does not answer."""

    def address(self) -> str:
        """This host's own address on the storage network; the same for as long as the daemon runs."""
        ...

    async def locks(self, volumes: tuple[str, ...]) -> tuple[DiskLock, ...]:
        """Locks of these volumes, as the servers have them at a moment after this call; all of them, or an error."""
        ...

    async def release(self, lock: DiskLock) -> None:
        """Remove exactly this lock; ``Refused`` where that fails. Fine if it is gone; a lock of another stays.

        A lock that only the end of its owner removes (QEMU's of files) is ``Refused`` as long as it is there.
        """
        ...

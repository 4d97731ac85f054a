"""Locks on a VM's disks: the second line of defence, looked at before a domain is created."""

from __future__ import annotations

from typing import Protocol

import msgspec


class DiskLock(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One lock on one volume."""

    volume: str
    id: str
    locker: str = ""
    address: str = ""


class StoragePort(Protocol):
    """See the module; ``Unavailable`` where storage does not answer."""

    def address(self) -> str:
        """This host's own address on the storage network."""
        ...

    async def locks(self, volumes: tuple[str, ...]) -> tuple[DiskLock, ...]:
        """Locks of these volumes."""
        ...

    async def release(self, lock: DiskLock) -> None:
        """Remove a lock; ``Refused`` where that fails."""
        ...

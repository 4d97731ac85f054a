"""The VMs' disks and addresses: who is shut out of them, and whose locks lie on them.

Being shut out is recorded by host and epoch, so that a host that comes back in a later epoch is let in again. A lock
is taken by the domain that opens the disk and given back when it ends in good order; what was killed leaves its lock.
Locks forbid nothing here: the judges must see what the protocol alone prevents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Literal

from outlive.base.errors import Unavailable
from outlive.node.ports import CutReport, DiskLock
from outlive.simulation.hypervisors import SimDomain
from outlive.simulation.process import Process

CutAbility = Literal["none", "disks", "all"]


class Disks:
    """See the module."""

    def __init__(self, ability: CutAbility, changed: Callable[[str], None]) -> None:
        self.ability = ability
        self._cuts: dict[str, tuple[int, tuple[str, ...]]] = {}
        self._locks: dict[str, DiskLock] = {}
        self._changed = changed

    def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        """Shut out of what is in our power; repeated, it grows."""
        able = [one for one in scope if self.ability == "all" or one.startswith("disk:")]
        before = self._cuts.get(host, (0, ()))
        self._cuts[host] = (max(epoch, before[0]), tuple(sorted({*before[1], *able})))
        self._changed(host)

    def lift(self, host: str, epoch: int) -> None:
        """Let in again, unless it was shut out anew through a later epoch."""
        if host in self._cuts and self._cuts[host][0] <= epoch:
            del self._cuts[host]
            self._changed(host)

    def scope(self, host: str, epoch: int) -> tuple[str, ...]:
        """What this epoch of the host is shut out of."""
        through, scope = self._cuts.get(host, (0, ()))
        return scope if epoch <= through else ()

    def reaches_disks(self, host: str, domain: SimDomain) -> bool:
        """Whether the domain can write any of its disks. A domain without disks writes none, but is taken to."""
        scope = self.scope(host, domain.epoch)
        return not domain.disks or any(f"disk:{disk}" not in scope for disk in domain.disks)

    def reaches_network(self, host: str, domain: SimDomain) -> bool:
        """Whether the domain answers at any of its addresses."""
        scope = self.scope(host, domain.epoch)
        return any(f"port:{port}" not in scope for port in domain.ports)

    def opened(self, host: str, domain: SimDomain) -> None:
        """A domain begins to write."""
        for disk in domain.disks:
            self._locks[disk] = DiskLock(volume=disk, id=f"auto {host}", locker=f"client.{host}", address=host)

    def closed(self, host: str, disks: Iterable[str]) -> None:
        """A domain ended in good order."""
        for disk in disks:
            if disk in self._locks and self._locks[disk].address == host:
                del self._locks[disk]

    def lock(self, volume: str, by: str) -> None:
        """Somebody opens it who is no host."""
        self._locks[volume] = DiskLock(volume=volume, id=f"auto {by}", locker=f"client.{by}", address=by)

    def unlock(self, volume: str) -> None:
        """Whoever has it open closes it."""
        self._locks.pop(volume, None)

    def unlock_strangers(self, hosts: Collection[str]) -> None:
        """Whoever is no host closes what is open."""
        for volume in [volume for volume, lock in self._locks.items() if lock.address not in hosts]:
            del self._locks[volume]

    def locks(self, volumes: tuple[str, ...]) -> tuple[DiskLock, ...]:
        """Locks of these volumes."""
        return tuple(self._locks[volume] for volume in volumes if volume in self._locks)

    def release(self, lock: DiskLock) -> None:
        """Take one away."""
        if self._locks.get(lock.volume) == lock:
            del self._locks[lock.volume]


class StorageClient:
    """Storage, and who isolates hosts from it, as one process reaches them: ``StoragePort`` and ``CutPort``."""

    def __init__(self, disks: Disks, process: Process, host: str, reached: Callable[[], bool]) -> None:
        self._disks = disks
        self._process = process
        self._host = host
        self._reached = reached

    def address(self) -> str:
        """Of this host."""
        return self._host

    async def locks(self, volumes: tuple[str, ...]) -> tuple[DiskLock, ...]:
        """Locks of these volumes."""
        await self._sent()
        return self._disks.locks(volumes)

    async def release(self, lock: DiskLock) -> None:
        """Remove one."""
        await self._sent()
        self._disks.release(lock)

    async def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        """Shut out."""
        await self._sent()
        self._disks.cut(host, epoch, scope)

    async def read_back(self, host: str, epoch: int) -> CutReport:
        """What is really shut out."""
        await self._sent()
        scope = self._disks.scope(host, epoch)
        return CutReport(scope=scope, evidence=f"blocklist of {host} through epoch {epoch}" if scope else "")

    async def lift(self, host: str, epoch: int) -> None:
        """Let in again."""
        await self._sent()
        self._disks.lift(host, epoch)

    async def _sent(self) -> None:
        self._process.check()
        await asyncio.sleep(0.01)
        self._process.check()
        if not self._reached():
            raise Unavailable(f"{self._host} does not reach the storage", remedy="see its storage network")

"""Clearing a virtual machine's disks of stale locks before it starts, and saying what stands in the way.

Which locks are stale is decided by ``outlive.node.vm.locks``, on what ``outlive.node.vm.owners`` knows of the hosts
that they name. Locks are the second line of defence: the hold was acknowledged before they are looked at. What this
does not give: a lock that is taken right after the look.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.node.decisions import START_LOCKS
from outlive.node.ports.storage import DiskLock
from outlive.node.vm.locks import StartLocksInput, StartLocksResult, VolumeLock, lock_owner
from outlive.node.vm.owners import LockOwners
from outlive.node.vm.shared import VmHost
from outlive.node.vm.states import state_of
from outlive.resources import VirtualMachine

NO_ANSWER: Final = "no answer in time"

_log = get_logger("node.vm")


class ObstacleKind(StrEnum):
    """What stands in the way of a start."""

    UNSEEN = "unseen"
    """This host did not get to know the locks; that may pass, or another host may get to know them."""
    STUCK = "stuck"
    """This host could not remove a stale lock; another one may."""
    FOREIGN = "foreign"
    """Somebody who is not proven dead has a lock: no host may start it."""
    UNTOLD = "untold"
    """A host that lives has a lock, and has not said yet whether the virtual machine is on it: it soon will."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why it does not start here now."""

    kind: ObstacleKind
    reason: str


class Clearer:
    """See the module."""

    def __init__(self, shared: VmHost) -> None:
        self._shared = shared
        self._owners = LockOwners(shared)

    async def obstacle(self, vm: VirtualMachine) -> Obstacle | None:
        """What stands in the way on its disks; ``None``: nothing does any more. Stale locks are removed."""
        if not vm.spec.disks:
            return None
        try:
            async with asyncio.timeout(float(self._shared.settings.call_limit)):
                locks = await self._shared.storage.locks(vm.spec.disks)
            if not locks:
                return None
            fenced, silent = await self._fenced(locks, vm)
            result = self._judged(vm, locks, fenced)
        except (OutliveError, TimeoutError) as error:
            why = f"the locks on its disks could not be looked at: {error or NO_ANSWER}"
            return Obstacle(ObstacleKind.UNSEEN, why)
        stuck = await self._remove(vm, [lock for lock in locks if lock.id in result.removed])
        if stuck:
            return Obstacle(ObstacleKind.STUCK, f"lock {stuck} on a disk of it could not be removed")
        if result.result == "start":
            return None
        kept = next((lock for lock in locks if lock.id == result.lock), None)
        owner = f" of {kept.locker or kept.address} on {kept.volume}" if kept is not None else ""
        if kept is not None and kept.id in silent:
            why = f"lock {kept.id}{owner} may be in use: {silent[kept.id]} lives, and its figures have yet to say that "
            return Obstacle(ObstacleKind.UNTOLD, f"{why}{vm.name} is not on it")
        return Obstacle(ObstacleKind.FOREIGN, f"lock {result.lock}{owner} says that somebody else may be writing")

    def _judged(self, vm: VirtualMachine, locks: tuple[DiskLock, ...], fenced: tuple[str, ...]) -> StartLocksResult:
        shared = self._shared
        view = StartLocksInput(
            storage_ip=shared.storage.address(),
            volumes=vm.spec.disks,
            locks=tuple(_as_input(lock) for lock in locks),
            vm_state=state_of(vm),
            fenced_ips=fenced,
        )
        return shared.decisions.use(START_LOCKS, view, subject=vm.name)

    async def _remove(self, vm: VirtualMachine, stale: list[DiskLock]) -> str:
        """Remove them all; the first that could not be removed."""
        stuck = ""
        for lock in stale:
            try:
                async with asyncio.timeout(float(self._shared.settings.call_limit)):
                    await self._shared.storage.release(lock)
            except (OutliveError, TimeoutError) as error:
                _log.warning("vm.lock_not_removed", vm=vm.name, lock=lock.id, error=str(error) or NO_ANSWER)
                stuck = stuck or lock.id
        return stuck

    async def _fenced(self, locks: tuple[DiskLock, ...], vm: VirtualMachine) -> tuple[tuple[str, ...], dict[str, str]]:
        """Addresses whose host can write these disks no more, and locks of hosts that have not said yet."""
        found: list[str] = []
        silent: dict[str, str] = {}
        mine = lock_owner(self._shared.storage.address())
        for lock in locks:
            owner = _owner(lock.address)
            if lock_owner(lock.address) == mine:
                continue
            for host in dict.fromkeys((lock.locker, lock.locker.removeprefix("client."), owner)):
                stale = await self._owners.stale(vm, lock, host) if host else False
                if stale:
                    found.append(owner)
                    break
                if stale is None:
                    silent[lock.id] = host
        return tuple(found), silent


def _as_input(lock: DiskLock) -> VolumeLock:
    return VolumeLock(volume=lock.volume, id=lock.id, address=lock.address, locker=lock.locker)


def _owner(address: str) -> str:
    """The host part of a lock's address."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.rpartition(":")[0] if address.count(":") == 1 else address

"""Clearing a virtual machine's disks of stale locks before it starts, and saying what stands in the way.

Which locks are stale is decided by ``outlive.node.vm.locks``. Locks are the second line of defence: the hold was
acknowledged before they are looked at. What this does not give: a lock that is taken right after the look.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from outlive.base.errors import NotFound, OutliveError
from outlive.base.logging import get_logger
from outlive.node.decisions import START_LOCKS
from outlive.node.membership.death import Reach, cut_off, member_view
from outlive.node.ports.storage import DiskLock
from outlive.node.vm.locks import StartLocksInput, StartLocksResult, VolumeLock
from outlive.node.vm.shared import VmHost
from outlive.node.vm.states import state_of
from outlive.resources import Holder, Membership, VirtualMachine

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


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why it does not start here now."""

    kind: ObstacleKind
    reason: str


class Clearer:
    """See the module."""

    def __init__(self, shared: VmHost) -> None:
        self._shared = shared

    async def obstacle(self, vm: VirtualMachine) -> Obstacle | None:
        """What stands in the way on its disks; ``None``: nothing does any more. Stale locks are removed."""
        if not vm.spec.disks:
            return None
        try:
            async with asyncio.timeout(float(self._shared.settings.call_limit)):
                locks = await self._shared.storage.locks(vm.spec.disks)
            if not locks:
                return None
            result = await self._judged(vm, locks)
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
        return Obstacle(ObstacleKind.FOREIGN, f"lock {result.lock}{owner} says that somebody else may be writing")

    async def _judged(self, vm: VirtualMachine, locks: tuple[DiskLock, ...]) -> StartLocksResult:
        shared = self._shared
        view = StartLocksInput(
            storage_ip=shared.storage.address(),
            volumes=vm.spec.disks,
            locks=tuple(_as_input(lock) for lock in locks),
            vm_state=state_of(vm),
            fenced_ips=await self._fenced(locks, vm),
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

    async def _fenced(self, locks: tuple[DiskLock, ...], vm: VirtualMachine) -> tuple[str, ...]:
        """Addresses whose host is proven dead (or was since it took the lock), or is cut off from these disks.

        The store has acknowledged that this host alone holds the virtual machine, so a host with a proven epoch that
        is not among the holders cannot have taken the lock since; and one that is cut off can do nothing with it.
        """
        found: list[str] = []
        holders = {one.hypervisor for one in vm.status.holders}
        for lock in locks:
            owner = _owner(lock.address)
            for host in dict.fromkeys((lock.locker, lock.locker.removeprefix("client."), owner)):
                if not host or host in holders:
                    continue
                try:
                    member = await self._shared.daemon.get(Membership, host, fresh=True)
                except NotFound:
                    continue
                if member.record.dead_through > 0 or _shut_out(member, vm):
                    found.append(owner)
                    break
        return tuple(found)


def _shut_out(member: Membership, vm: VirtualMachine) -> bool:
    """Whether the host's present epoch is cut off from every disk of the virtual machine."""
    view = member_view(member)
    entry = Holder(hypervisor=view.host, member_uid=view.uid, epoch=view.record.epoch)
    return cut_off(entry, (view,), Reach(disks=vm.spec.disks))


def _as_input(lock: DiskLock) -> VolumeLock:
    return VolumeLock(volume=lock.volume, id=lock.id, address=lock.address, locker=lock.locker)


def _owner(address: str) -> str:
    """The host part of a lock's address."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.rpartition(":")[0] if address.count(":") == 1 else address

"""Whether the host whose lock lies on a disk can still write it: what tells a stale lock from one to be kept.

A lock names a host and no epoch. The hold that was acknowledged says that every other holder is mute, so a host that
lives and is no holder either left its lock behind in an epoch that is over, or runs something that the store does not
know. Only the host itself can tell: by its figures, which list what is on it. Two of them that were written after the
lock was seen, by the same daemon, are needed, because the first may be older than its writing. What this does not
give: a lock that somebody on the host took for something that is no virtual machine counts as left behind.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from outlive.base.errors import NotFound
from outlive.node.membership.death import Reach, cut_off, member_view
from outlive.node.ports.storage import DiskLock
from outlive.node.vm.shared import VmHost
from outlive.resources import Holder, HypervisorUsage, Membership, Resource, VirtualMachine

SIGHTINGS: Final = 1024
"""Locks of living hosts that are remembered; the oldest is forgotten first, and only waits longer for it."""
WORDS: Final = 2
"""Writings of a host's figures after its lock was seen, of which the last counts."""

_R = TypeVar("_R", bound=Resource)


@dataclass(frozen=True, slots=True)
class _Sighting:
    """A lock of a host that lives, and what the host has said since it was seen."""

    lock: DiskLock
    daemon: tuple[str, int, str]
    """Membership, epoch and nonce."""
    figures: str
    """Version of its figures; empty: it had none."""
    words: int = 0


class LockOwners:
    """See the module. One for each daemon."""

    def __init__(self, shared: VmHost) -> None:
        self._shared = shared
        self._sightings: dict[tuple[str, str], _Sighting] = {}

    async def stale(self, vm: VirtualMachine, lock: DiskLock, host: str) -> bool | None:
        """Whether a lock of ``host`` is in nobody's way; ``None``: it lives and has not said yet.

        The store has acknowledged that this host alone holds the virtual machine. Errors of the store.
        """
        if any(one.hypervisor == host for one in vm.status.holders):
            return False
        member = await self._read(Membership, host)
        if member is None:
            return False
        record = member.record
        if record.dead_through >= record.epoch or _shut_out(member, vm):
            return True
        if record.state != "Held":
            return False
        return await self._said(vm, lock, member)

    async def _said(self, vm: VirtualMachine, lock: DiskLock, member: Membership) -> bool | None:
        """What the host says, which lives."""
        found = await self._read(HypervisorUsage, member.name)
        figures = "" if found is None else f"{found.metadata.uid} {found.metadata.resource_version}"
        record, key = member.record, (lock.volume, lock.id)
        daemon = (member.metadata.uid, record.epoch, record.nonce)
        seen = self._sightings.get(key)
        if seen is None or seen.lock != lock or seen.daemon != daemon:
            seen = _Sighting(lock, daemon, figures)
        elif seen.figures != figures:
            seen = replace(seen, figures=figures, words=seen.words + 1)
        self._sightings.pop(key, None)
        self._sightings[key] = seen
        while len(self._sightings) > SIGHTINGS:
            del self._sightings[next(iter(self._sightings))]
        if seen.words < WORDS or found is None or found.usage.present is None:
            return None
        return vm.name not in found.usage.present

    async def _read(self, kind: type[_R], name: str) -> _R | None:
        try:
            async with asyncio.timeout(float(self._shared.settings.call_limit)):
                return await self._shared.daemon.get(kind, name, fresh=True)
        except NotFound:
            return None


def _shut_out(member: Membership, vm: VirtualMachine) -> bool:
    """Whether the host's present epoch is cut off from every disk of the virtual machine."""
    view = member_view(member)
    entry = Holder(hypervisor=view.host, member_uid=view.uid, epoch=view.record.epoch)
    return cut_off(entry, (view,), Reach(disks=vm.spec.disks))

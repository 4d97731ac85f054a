"""The locks on a virtual machine's disks: which of them are stale, their removal, and what keeps it from starting.

A lock of this very host is stale: the host knows that the virtual machine is not running on it. A lock of a host that
was proven dead is stale as well. Any other may belong to a writer, and then nothing starts. Locks are the second line:
the hold was acknowledged before they are read (docs/reference/node-decisions.md#rbdstart_locks).

A lock names a host and no epoch. A host that lives and is no holder either left its lock behind in an epoch that is
over, or runs something that the store does not know. Only its figures, which list what is on it, show that: two of them
that were written after the lock was seen, by the same daemon, are needed, because the first may be older than
its writing. What this does not give: a lock that is taken right after it was read.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, Literal, TypeVar

import msgspec

from outlive.base.errors import NotFound, OutliveError
from outlive.base.logging import get_logger
from outlive.node.membership.states import Reach, cut_off, member_view
from outlive.node.ports.storage import DiskLock
from outlive.node.vm.context import VmContext
from outlive.node.vm.states import state_of
from outlive.resources import Holder, HypervisorUsage, Membership, Resource, VirtualMachine
from outlive.resources.reasons import Reason, VmReason, reason
from outlive.runtime.decisions import Decision


class VolumeLock(msgspec.Struct, frozen=True, kw_only=True):
    """A lock as the storage lists it."""

    volume: str
    id: str
    address: str
    """Of the client that holds it, such as ``10.0.0.1:0/77`` or ``[fd00::1]:0/77``."""
    locker: str = ""


class StartLocksInput(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine that is to start, and the locks on its storage."""

    storage_ip: str
    """This host's address on the storage network."""
    volumes: tuple[str, ...]
    locks: tuple[VolumeLock, ...]
    vm_state: str
    remove_fails: tuple[str, ...] = ()
    """Locks that could not be removed."""
    fenced_ips: tuple[str, ...] = ()
    """Addresses of hosts that are proven dead."""


class StartLocksResult(msgspec.Struct, frozen=True, kw_only=True):
    """Start or not; the locks removed on the way; and the one that forbids it."""

    result: Literal["start", "fail"]
    removed: tuple[str, ...]
    reason: Literal["foreign_lock", "lock_remove_failed"] | None
    lock: str | None


def start_locks(given: StartLocksInput) -> StartLocksResult:
    """Go through the locks in order and stop at the first that stays; what was removed before it stays removed."""
    removed: list[str] = []
    mine = {_same(address) for address in (given.storage_ip, *given.fenced_ips) if address}
    for lock in given.locks:
        if lock.volume not in given.volumes:
            continue
        if given.vm_state != "stop" and lock_owner(lock.address) not in mine:
            return StartLocksResult(result="fail", removed=tuple(removed), reason="foreign_lock", lock=lock.id)
        if lock.id in given.remove_fails:
            return StartLocksResult(result="fail", removed=tuple(removed), reason="lock_remove_failed", lock=lock.id)
        removed.append(lock.id)
    return StartLocksResult(result="start", removed=tuple(removed), reason=None, lock=None)


START_LOCKS: Final = Decision(
    "rbd.start_locks", start_locks, StartLocksInput, StartLocksResult, "Whether storage locks let it start"
)


_Owner = IPv4Address | IPv6Address | str


def lock_owner(address: str) -> _Owner:
    """The host in a lock's address, without port and nonce."""
    if address.startswith("["):
        return _same(address[1:].partition("]")[0])
    whole = _same(address)
    return whole if not isinstance(whole, str) else _same(address.rpartition(":")[0] or address)


def _same(text: str) -> _Owner:
    """One value for all spellings of an address; text that is none stays text."""
    try:
        return ip_address(text)
    except ValueError:
        return text


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

    def __init__(self, shared: VmContext) -> None:
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


NO_ANSWER: Final = "no answer in time"
_log = get_logger("node.vm")


class DiskLocks:
    """See the module."""

    def __init__(self, shared: VmContext) -> None:
        self._shared = shared
        self._owners = LockOwners(shared)

    async def obstacle(self, vm: VirtualMachine) -> Reason | None:
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
            return reason(VmReason.LOCKS_UNREADABLE, error=str(error) or NO_ANSWER)
        stuck = await self._remove(vm, [lock for lock in locks if lock.id in result.removed])
        if stuck:
            return reason(VmReason.LOCK_NOT_REMOVED, lock=stuck)
        if result.result == "start":
            return None
        kept = next((lock for lock in locks if lock.id == result.lock), None)
        owner = f" of {kept.locker or kept.address} on {kept.volume}" if kept is not None else ""
        if kept is not None and kept.id in silent:
            host = silent[kept.id]
            return reason(VmReason.LOCK_UNCONFIRMED, lock=kept.id, owner=owner, host=host, vm=vm.name)
        return reason(VmReason.LOCK_FOREIGN, lock=result.lock or "", owner=owner)

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

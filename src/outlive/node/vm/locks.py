"""The locks on a virtual machine's disks: which of them are stale, their removal, and what keeps it from starting.

A lock of this very host is stale: the host knows that the virtual machine is not running on it. A lock of a host that
was proven dead is stale as well. Any other may belong to a writer, and then nothing starts. Locks are the second line:
the hold was acknowledged before they are read (docs/reference/node-decisions.md#rbdstart_locks).

A lock names the address of a client: whose that is, hosts say themselves (``status.storageAddress``). An address that
no host says is a stranger's, and one that several say is of all of them, be it this host's own.

A lock names no epoch. A host that lives and is no holder either left its lock behind in an epoch that is over, or runs
something that the store does not know. Only its figures, which list what is on it, show that: two of them that were
written after the lock was seen, by the same daemon, are needed, because the first may be older than its writing. What
this does not give: a lock that is taken right after it was read.
"""

from __future__ import annotations

import dataclasses
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, Literal

import msgspec

from outlive.base.deadline import deadline, set_within
from outlive.base.errors import OutliveError
from outlive.base.logging import get_logger
from outlive.node.membership.states import Reach, cut_off, member_view
from outlive.node.ports import DiskLock
from outlive.node.vm.context import Addresses, LockReport, VmContext
from outlive.node.vm.states import VmState
from outlive.resources import Holder, Hypervisor, HypervisorUsage, Membership, VirtualMachine
from outlive.resources.reasons import Reason, VmReason, reason
from outlive.runtime.decisions import Decision
from outlive.store import answered, list_all, read


class StartLocksInput(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual machine that is to start, and the locks on its storage."""

    storage_ip: str
    """This host's address on the storage network."""
    volumes: tuple[str, ...]
    locks: tuple[DiskLock, ...]
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


REPORTS: Final = 1024
"""Locks of living hosts that are remembered; the oldest is forgotten first, and only waits longer for it."""
REPORTS_NEEDED: Final = 2
"""Writings of a host's figures after its lock was seen, of which the last counts."""
ADDRESSES_S: Final = 10.0
"""For how long it is remembered which host has which address."""
FLUSH_S: Final = 120.0
"""How long hosts have to report, where a user asks for locks to be removed, …"""
FLUSH_LOOK_S: Final = 5.0
"""… and how often is looked whether they have."""
NO_ANSWER: Final = "no answer in time"
_replace = msgspec.structs.replace
_log = get_logger("node.vm")


def _owner(lock: DiskLock) -> str:
    """Whose lock that is, and on what, to follow its id."""
    return f" of {lock.locker or lock.address or 'an unknown client'} on {lock.volume}"


async def obstacle(node: VmContext, vm: VirtualMachine, *, strangers: bool = False) -> Reason | None:
    """What on its storage forbids its start; ``None``: nothing does any more. Stale locks are removed.

    The hold was acknowledged before this: who had to be isolated for it was isolated before, and every server has heard
    of that when this returns. ``strangers``: a user says that clients at addresses of no host write nothing, and their
    locks are stale as well.
    """
    try:
        await node.isolation.barrier(vm)
    except OutliveError as error:
        return reason(VmReason.ISOLATION_UNCONFIRMED, error=error.message)
    if not vm.spec.disks:
        return None
    try:
        with deadline(float(node.settings.call_limit)):
            locks = await node.storage.locks(vm.spec.disks)
        if not locks:
            return None
        stale, silent, unknown = await owners(node, vm, locks)
    except (OutliveError, TimeoutError) as error:
        return reason(VmReason.LOCKS_UNREADABLE, error=str(error) or NO_ANSWER)
    given = StartLocksInput(
        storage_ip="",  # it is among the stale ones, where no other host says that it has the same
        volumes=vm.spec.disks,
        locks=locks,
        vm_state=VmState.START,
        fenced_ips=(*stale, *unknown) if strangers else stale,
    )
    result = node.decisions.use(START_LOCKS, given, subject=vm.name)
    stuck: Reason | None = None
    for lock in locks:
        if lock.id in result.removed:
            try:
                with deadline(float(node.settings.call_limit)):
                    await node.storage.release(lock)
            except (OutliveError, TimeoutError) as error:
                _log.warning("vm.lock_not_removed", vm=vm.name, lock=lock.id, error=str(error) or NO_ANSWER)
                why = error.message if isinstance(error, OutliveError) else NO_ANSWER
                stuck = stuck or reason(VmReason.LOCK_NOT_REMOVED, lock=lock.id, owner=_owner(lock), error=why)
    if stuck is not None:
        return stuck
    if result.result == "start":
        return None
    kept = next((lock for lock in locks if lock.id == result.lock), None)
    owner = _owner(kept) if kept is not None else ""
    if kept is not None and kept.id in silent:
        host = silent[kept.id]
        return reason(VmReason.LOCK_UNCONFIRMED, lock=kept.id, owner=owner, host=host, vm=vm.name)
    return reason(VmReason.LOCK_FOREIGN, lock=result.lock or "", owner=owner)


async def flush(node: VmContext, vm: VirtualMachine, disks: tuple[str, ...], *, strangers: bool) -> Reason | None:
    """Remove the locks on these disks of it, which nobody uses as long as it is as it was read; what keeps one of them.

    Locks of hosts that live and have yet to say whether it is on them are waited for (``FLUSH_S``), until something
    else happens to it here, or is wanted of it. ``strangers``: as of ``obstacle``.
    """
    changed, here = node.memory(vm.name).changed, node.domains.by_vm.get(vm.name)
    until_s = node.clock.monotonic() + FLUSH_S
    while True:
        changed.clear()
        why = await obstacle(node, _replace(vm, spec=_replace(vm.spec, disks=disks)), strangers=strangers)
        waits = why is not None and why.code == VmReason.LOCK_UNCONFIRMED
        if not waits or node.clock.monotonic() >= until_s:
            return why
        await set_within(changed, FLUSH_LOOK_S)
        now = await node.read(vm.name)
        as_before = now is not None and (now.spec, now.status.holders) == (vm.spec, vm.status.holders)
        if not as_before or node.domains.by_vm.get(vm.name) != here:
            return why


async def owners(
    node: VmContext, vm: VirtualMachine, locks: tuple[DiskLock, ...]
) -> tuple[tuple[str, ...], dict[str, str], tuple[str, ...]]:
    """Addresses whose hosts write these disks no more, or are this one; locks of hosts that have yet to report; and
    addresses of clients of which no host says that they are its own."""
    stale: list[str] = []
    silent: dict[str, str] = {}
    unknown: list[str] = []
    mine = lock_owner(node.storage.address())
    for lock in locks:
        owner = lock_owner(lock.address)
        over = {host: await _is_over(node, vm, lock, host) for host in await _hosts_at(node, owner)}
        if all(over.values()) and (over or owner == mine):
            stale.append(str(owner))
        elif over and False not in over.values():
            silent[lock.id] = next(host for host, one in over.items() if one is None)
        elif not over and lock.address:
            unknown.append(str(owner))
    return tuple(stale), silent, tuple(unknown)


async def _hosts_at(node: VmContext, address: _Owner) -> tuple[str, ...]:
    """Other hosts that say that they have this address, as read within the last ``ADDRESSES_S``."""
    known, now_s = node.addresses, node.clock.monotonic()
    if known is None or now_s - known.read_s >= ADDRESSES_S:
        found: dict[str, tuple[str, ...]] = {}
        with answered("all hosts", float(node.settings.call_limit)):
            async for host in list_all(node.store, Hypervisor):
                if host.status.storage_address and host.name != node.host:
                    key = str(_same(host.status.storage_address))
                    found[key] = (*found.get(key, ()), host.name)
        node.addresses = known = Addresses(found, now_s)
    return known.hosts.get(str(address), ())


async def _is_over(node: VmContext, vm: VirtualMachine, lock: DiskLock, host: str) -> bool | None:
    """Whether a lock of ``host`` is in nobody's way; ``None``: it lives and has not reported yet.

    The store has acknowledged that this host alone holds the virtual machine. Errors of the store.
    """
    if any(one.hypervisor == host for one in vm.status.holders):
        return False
    member = await read(node.store, Membership, host, limit_s=float(node.settings.call_limit))
    if member is None:
        return False
    view = member_view(member)
    entry = Holder(hypervisor=view.host, member_uid=view.uid, epoch=view.record.epoch)
    if view.record.dead_through >= view.record.epoch or cut_off(entry, (view,), Reach(disks=vm.spec.disks)):
        return True
    return await _reported(node, vm, lock, member) if view.record.state == "Held" else False


async def _reported(node: VmContext, vm: VirtualMachine, lock: DiskLock, member: Membership) -> bool | None:
    """What the host reports, which lives."""
    usage = await read(node.store, HypervisorUsage, member.name, limit_s=float(node.settings.call_limit))
    figures = "" if usage is None else f"{usage.metadata.uid} {usage.metadata.resource_version}"
    record, key, known = member.record, (lock.volume, lock.id, member.name), node.lock_reports
    daemon = (member.metadata.uid, record.epoch, record.nonce)
    seen = known.pop(key, None)
    if seen is None or seen.lock != lock or seen.daemon != daemon:
        seen = LockReport(lock, daemon, figures)
    elif seen.figures != figures:
        seen = dataclasses.replace(seen, figures=figures, reports=seen.reports + 1)
    known[key] = seen
    while len(known) > REPORTS:
        del known[next(iter(known))]
    if seen.reports < REPORTS_NEEDED or usage is None or usage.usage.present is None:
        return None
    return vm.name not in usage.usage.present

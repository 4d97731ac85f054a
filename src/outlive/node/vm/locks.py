"""The locks on a virtual machine's disks: which of them are stale, their removal, and what keeps it from starting.

A lock of this very host is stale where no domain of it has the disk, by what the hypervisor says of each. A lock of a
host that was proven dead is stale as well. Any other may belong to a writer, and then nothing starts. Locks are the
second line: the hold was acknowledged before they are read (docs/design/node-decisions.md#rbdstart_locks).

A lock names the address of a client: whose that is, hosts say themselves (``status.storageAddress``). An address that
no host says is a stranger's, and one that several say is of all of them, be it this host's own.

A lock names no epoch. A host that lives and is no holder either left its lock behind in an epoch that is over, or runs
something that the store does not know, or another virtual machine that has the same disk. Its lock is stale only where
no other definition has the disk, and its figures, which list what is on it, name neither the virtual machine nor one
without a document. Two of them that were written after the lock was seen, by the same daemon, are needed, because the
first may be older than its writing.

A disk that several virtual machines share (``spec.sharedDisks``) is asked for no locks: a partner that lives has it
open. Who held this very one is proven to write no more before it starts, as for every disk. Definitions keep away who
does not share it (``find_unshared_user``): one that shares a disk waits for as long as another is defined that has it
alone, and one that has it alone for as long as another may run that shares it. Each looks once its own hold is
acknowledged, and what it looks at of the other was written before the other looked: of two that start at once at least
one waits.

What this does not give: a lock that is taken right after it was read; and guests that Outlive did not make, whose disks
nobody asks for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, Literal

import msgspec

from outlive.base import NotFound, OutliveError, deadline, get_logger, set_within
from outlive.node.membership.states import Reach, cut_off, is_fenced, member_view
from outlive.node.ports import DiskLock, DomainState
from outlive.node.vm.context import Addresses, LockReport, VmContext
from outlive.node.vm.states import VmState, reach_of
from outlive.resources import SHARES_LABEL, Holder, Hypervisor, HypervisorUsage, Membership, VirtualMachine
from outlive.resources.reasons import Reason, VmReason, make_reason
from outlive.runtime import Decision
from outlive.store import LIST_S, Selector, compare_and_swap, list_all, read, require_answer


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
    mine = {_normalise_address(address) for address in (given.storage_ip, *given.fenced_ips) if address}
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
        return _normalise_address(address[1:].partition("]")[0])
    whole = _normalise_address(address)
    return whole if not isinstance(whole, str) else _normalise_address(address.rpartition(":")[0] or address)


def _normalise_address(text: str) -> _Owner:
    """One value for all spellings of an address; text that is none stays text."""
    try:
        return ip_address(text)
    except ValueError:
        return text


def is_own(node: VmContext, lock: DiskLock) -> bool:
    """Whether the lock is at this host's address; not where either is unknown: two unknown ones are not the same."""
    own = node.storage.own_address()
    return own != "" and lock_owner(lock.address) == lock_owner(own)


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
NO_LOCKS: Final = "local:"
"""How ids begin of what no other virtual machine can have as well."""
SHARERS: Final = Selector.from_labels({SHARES_LABEL: "true"})
NO_ANSWER: Final = "no answer in time"
_replace = msgspec.structs.replace
_log = get_logger("node.vm")


def _owner_text(lock: DiskLock) -> str:
    """Whose lock that is, and on what, to follow its id."""
    return f" of {lock.locker or lock.address or 'an unknown client'} on {lock.volume}"


async def find_obstacle(node: VmContext, vm: VirtualMachine, *, strangers: bool = False) -> Reason | None:
    """What on its storage forbids its start; ``None``: nothing does any more. Stale locks are removed.

    The hold was acknowledged before this: who had to be isolated for it was isolated before, and every server has heard
    of that when this returns. ``strangers``: a user says that clients at addresses of no host write nothing, and their
    locks are stale as well.
    """
    try:
        await node.isolation.wait_isolated(vm)
    except OutliveError as error:
        return make_reason(VmReason.ISOLATION_UNCONFIRMED, error=error.message)
    try:
        neighbour = await find_unshared_user(node, vm)
    except (OutliveError, TimeoutError) as error:
        return make_reason(VmReason.LOCKS_UNREADABLE, error=str(error) or NO_ANSWER)
    if neighbour is not None:
        return neighbour
    disks = tuple(disk for disk in vm.spec.disks if disk not in vm.spec.shared_disks)
    if not disks:
        return None
    try:
        with deadline(float(node.settings.call_limit)):
            locks = await node.storage.list_locks(disks)
        if not locks:
            return None
        known = await find_owners(node, vm, locks)
    except NotFound as error:
        return await _missing_reason(node, disks, error)
    except (OutliveError, TimeoutError) as error:
        return make_reason(VmReason.LOCKS_UNREADABLE, error=str(error) or NO_ANSWER)
    over = (*known.stale, *known.unknown) if strangers else known.stale
    given = StartLocksInput(
        storage_ip="",  # it is among the stale ones, where all its locks are
        volumes=disks,
        locks=locks,
        vm_state=VmState.START,
        fenced_ips=over,
    )
    result = node.decisions.use(START_LOCKS, given, subject=vm.name)
    stuck: Reason | None = None
    for lock in locks:
        # ids are those of a client on one volume: somebody else's lock on another one may have the same
        if lock.id in result.removed and str(lock_owner(lock.address)) in over:
            try:
                with deadline(float(node.settings.call_limit)):
                    await node.storage.release(lock)
            except (OutliveError, TimeoutError) as error:
                _log.warning("vm.lock_not_removed", vm=vm.name, lock=lock.id, error=str(error) or NO_ANSWER)
                why = error.message if isinstance(error, OutliveError) else NO_ANSWER
                stuck = stuck or make_reason(
                    VmReason.LOCK_NOT_REMOVED, lock=lock.id, owner=_owner_text(lock), error=why
                )
    if stuck is not None:
        return stuck
    if result.result == "start":
        return None
    staying = [lock for lock in locks if str(lock_owner(lock.address)) not in over]
    kept = next((known.stays[lock] for lock in staying if lock in known.stays), None)
    # a lock whose owner cannot be told belongs to somebody else
    return kept or make_reason(
        VmReason.LOCK_FOREIGN, lock=result.lock or "", owner=_owner_text(staying[0]) if staying else ""
    )


async def _missing_reason(node: VmContext, disks: tuple[str, ...], error: NotFound) -> Reason:
    """Whether a disk is missing for every host, or this host alone may not reach the storage where it lies."""
    places = tuple(dict.fromkeys(place for disk in disks if (place := node.storage.find_place(disk))))
    try:
        reached = await node.storage.check_reach(places)
    except OutliveError as unreached:
        return make_reason(VmReason.LOCKS_UNREADABLE, error=unreached.message)
    lost = next((why for why in reached.values() if why), "")
    if lost:
        return make_reason(VmReason.LOCKS_UNREADABLE, error=f"{error.message}, and its storage is not reached: {lost}")
    return make_reason(VmReason.DISK_MISSING, error=error.message)


async def find_unshared_user(node: VmContext, vm: VirtualMachine) -> Reason | None:
    """Who keeps it from writing a disk that not both share; ``None``: nobody. Errors of the store and the hypervisor.

    The hold was acknowledged before this. Who shares disks is labelled before it looks, so that others need not list
    every virtual machine.
    """
    shared = vm.spec.shared_disks
    if shared:
        await compare_and_swap(node.store, VirtualMachine, vm.name, _mark_shared, clock=node.clock, half="spec")
    elif not any(not disk.startswith(NO_LOCKS) for disk in vm.spec.disks):
        return None
    selector = None if shared else SHARERS
    with require_answer("virtual machines with the same disks", LIST_S):
        others = [
            one
            async for one in list_all(node.store, VirtualMachine, selector=selector, whole=True)
            if one.name != vm.name
        ]
    for disk, other in list_conflicts(vm, others, node.storage.are_same):
        if disk in shared or await _may_run(node, other):
            return make_reason(VmReason.DISK_NOT_SHARED, disk=disk, user=other.name)
    users = DiskUsers(node, vm)
    for disk in shared:
        sharers = {one.name for one in others if any(node.storage.are_same(disk, its) for its in one.spec.shared_disks)}
        if user := await users.find_on_host(disk, but=sharers):
            return make_reason(VmReason.DISK_NOT_SHARED, disk=disk, user=user)
    return None


def list_conflicts(
    vm: VirtualMachine, others: Iterable[VirtualMachine], are_same: Callable[[str, str], bool]
) -> Iterator[tuple[str, VirtualMachine]]:
    """Each disk of it that one of both shares and the other has alone, with that other virtual machine."""
    for other in others:
        for disk in vm.spec.disks:
            for its in other.spec.disks:
                unlike = (disk in vm.spec.shared_disks) is not (its in other.spec.shared_disks)
                if unlike and are_same(disk, its):
                    yield disk, other


def _mark_shared(now: VirtualMachine | None) -> VirtualMachine | None:
    return None if now is None or now.marked is now else now.marked


async def _may_run(node: VmContext, vm: VirtualMachine) -> bool:
    """Whether a host holds it that is not fenced."""
    members = await node.read_members(vm) if vm.status.holders else ()
    return any(not is_fenced(one, members, reach_of(vm)) for one in vm.status.holders)


async def flush(node: VmContext, vm: VirtualMachine, disks: tuple[str, ...], *, strangers: bool) -> Reason | None:
    """Remove the locks on these disks of it, which nobody uses as long as it is as it was read; what keeps one of them.

    Locks of hosts that live and have yet to say whether it is on them are waited for (``FLUSH_S``), until something
    else happens to it here, or is wanted of it. ``strangers``: as of ``find_obstacle``.
    """
    changed, here = node.memory_of(vm.name).changed, node.domains.by_vm.get(vm.name)
    until_s = node.clock.monotonic() + FLUSH_S
    while True:
        changed.clear()
        why = await find_obstacle(node, _replace(vm, spec=_replace(vm.spec, disks=disks)), strangers=strangers)
        waits = why is not None and why.code == VmReason.LOCK_UNCONFIRMED
        if not waits or node.clock.monotonic() >= until_s:
            return why
        await set_within(changed, FLUSH_LOOK_S)
        now = await node.read(vm.name)
        as_before = now is not None and (now.spec, now.status.holders) == (vm.spec, vm.status.holders)
        if not as_before or node.domains.by_vm.get(vm.name) != here:
            return why


@dataclass(frozen=True, slots=True)
class LockOwners:
    """Whose some locks are: addresses that may have them removed, and what keeps the others."""

    stale: tuple[str, ...]
    """Of hosts that write these disks no more, or of this one: no lock there stays."""
    unknown: tuple[str, ...]
    """Of clients of which no host says that they are its own."""
    stays: Mapping[DiskLock, Reason]
    """Each lock that is not known to be stale."""


async def find_owners(node: VmContext, vm: VirtualMachine, locks: tuple[DiskLock, ...]) -> LockOwners:
    """Whose they are, by what is looked at from now on. Errors of the store and of the hypervisor."""
    stays: dict[DiskLock, Reason] = {}
    unknown: list[str] = []
    users = DiskUsers(node, vm)
    for lock in locks:
        owner = lock_owner(lock.address)
        over = {host: await _is_over(node, vm, lock, host, users) for host in await _hosts_at(node, owner)}
        why = next((one for one in over.values() if one is not None and one.code != VmReason.LOCK_UNCONFIRMED), None)
        why = why or next((one for one in over.values() if one is not None), None)
        if why is None and is_own(node, lock) and (user := await users.find_on_host(lock.volume)):
            why = _shared_reason(lock, user)
        if why is None and not over and not is_own(node, lock):
            user = await users.find_by_definition(lock.volume)
            why = (
                _shared_reason(lock, user)
                if user
                else make_reason(VmReason.LOCK_FOREIGN, lock=lock.id, owner=_owner_text(lock))
            )
            if lock.address and not user:
                unknown.append(str(owner))
        if why is not None:
            stays[lock] = why
    kept = {str(lock_owner(lock.address)) for lock in stays}
    stale = {str(lock_owner(lock.address)): None for lock in locks}
    shared = {str(lock_owner(lock.address)) for lock, why in stays.items() if why.code != VmReason.LOCK_FOREIGN}
    return LockOwners(
        tuple(one for one in stale if one not in kept), tuple(one for one in unknown if one not in shared), stays
    )


def _shared_reason(lock: DiskLock, user: str) -> Reason:
    return make_reason(VmReason.LOCK_SHARED, lock=lock.id, owner=_owner_text(lock), user=user)


class DiskUsers:
    """Who else has a disk. All of it is looked at after the locks were read, once, and where it is first needed."""

    def __init__(self, node: VmContext, vm: VirtualMachine) -> None:
        self._node = node
        self._vm = vm
        self._are_same = node.storage.are_same
        self._defined: dict[str, tuple[str, ...]] | None = None
        self._open: dict[str, tuple[str, ...]] | None = None

    async def _read_definitions(self) -> dict[str, tuple[str, ...]]:
        """Other virtual machines, and their disks. Errors of the store."""
        if self._defined is None:
            with require_answer("all virtual machines", LIST_S):
                every = [one async for one in list_all(self._node.store, VirtualMachine, whole=True)]
            self._defined = {one.name: one.spec.disks for one in every if one.name != self._vm.name}
        return self._defined

    async def find_by_definition(self, disk: str) -> str:
        """The first other one whose definition has the disk; empty: none has."""
        return self._first_with(disk, await self._read_definitions())

    async def are_defined(self, names: Collection[str]) -> bool:
        """Whether each of them has a document, so that its disks are known."""
        defined = await self._read_definitions()
        return all(name in defined for name in names)

    async def find_on_host(self, disk: str, but: Collection[str] = ()) -> str:
        """The first other one, but none of these, with a domain on this host that has the disk, whatever its definition
        or label says.

        Errors of the store and of the hypervisor, also where that cannot say which disks a domain has.
        """
        if self._open is None:
            node, found = self._node, dict[str, tuple[str, ...]]()
            await node.domains.refresh()
            for name in node.domains.list_names():
                if name == self._vm.name:
                    continue
                domain = node.domains.by_vm.get(name)
                if domain is not None and domain.state is DomainState.OFF:
                    continue  # it has ended
                if domain is None or domain.state is DomainState.STARTING or name in node.domains.creating:
                    starting = await node.read(name)
                    found[name] = starting.spec.disks if starting is not None else ()
                if domain is not None and domain.state is not DomainState.STARTING:
                    found[name] = (
                        *found.get(name, ()),
                        *(await node.domains.list_devices(name, domain.run_id)).values(),
                    )
            self._open = found
        return self._first_with(disk, {name: disks for name, disks in self._open.items() if name not in but})

    def _first_with(self, disk: str, found: Mapping[str, tuple[str, ...]]) -> str:
        """The first by whose name there is the disk, under whatever id."""
        return next((name for name, its in found.items() if any(self._are_same(disk, one) for one in its)), "")


async def _hosts_at(node: VmContext, address: _Owner) -> tuple[str, ...]:
    """Other hosts that say that they have this address, as read within the last ``ADDRESSES_S``."""
    known, now_s = node.addresses, node.clock.monotonic()
    if known is None or now_s - known.read_s >= ADDRESSES_S:
        found: dict[str, tuple[str, ...]] = {}
        with require_answer("all hosts", float(node.settings.call_limit)):
            async for host in list_all(node.store, Hypervisor, whole=True):
                if host.status.storage_address and host.name != node.host:
                    key = str(_normalise_address(host.status.storage_address))
                    found[key] = (*found.get(key, ()), host.name)
        node.addresses = known = Addresses(found, now_s)
    return known.hosts.get(str(address), ())


async def _is_over(node: VmContext, vm: VirtualMachine, lock: DiskLock, host: str, users: DiskUsers) -> Reason | None:
    """What keeps a lock of ``host``; ``None``: it is in nobody's way.

    The store has acknowledged that this host alone holds the virtual machine. Errors of the store.
    """
    foreign = make_reason(VmReason.LOCK_FOREIGN, lock=lock.id, owner=_owner_text(lock))
    if any(one.hypervisor == host for one in vm.status.holders):
        return foreign
    member = await read(node.store, Membership, host, limit_s=float(node.settings.call_limit))
    if member is None:
        return foreign
    view = member_view(member)
    entry = Holder(hypervisor=view.host, member_uid=view.uid, epoch=view.record.epoch)
    if view.record.dead_through >= view.record.epoch or cut_off(entry, (view,), Reach(disks=vm.spec.disks)):
        return None
    if view.record.state != "Held":
        return foreign
    if user := await users.find_by_definition(lock.volume):
        return _shared_reason(lock, user)
    present = await _read_reported(node, lock, member)
    if present is not None and vm.name in present:
        return foreign
    if present is None or not await users.are_defined(present):
        return make_reason(VmReason.LOCK_UNCONFIRMED, lock=lock.id, owner=_owner_text(lock), host=host, vm=vm.name)
    return None


async def _read_reported(node: VmContext, lock: DiskLock, member: Membership) -> Collection[str] | None:
    """What is on the host, which lives, as it has reported since the lock was seen; ``None``: it has not."""
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
    return usage.usage.present if usage is not None and seen.reports >= REPORTS_NEEDED else None

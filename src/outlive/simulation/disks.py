"""The VMs' disks and addresses: who is shut out of them, and whose locks lie on them.

A host is shut out as Ceph does it: of all its disks, in whatever epoch, until somebody lets it in; the disks and the
epoch that were ordered are on record beside that. Ports are shut out one by one, also until then. It can be read back
as soon as it is on record; the servers that enforce it hear of it one after the other, a moment later. A lock
is taken by the domain that opens the disk and given back when it ends cleanly; what was killed leaves its lock.
Locks forbid nothing here: the judges must see what the protocol alone prevents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Literal

from outlive.base import NotFound, Random, Unavailable
from outlive.node.ports import CutReport, DiskLock
from outlive.resources import image_key, place_of
from outlive.runtime import outside_parts
from outlive.simulation.hypervisors import LATENCY_S, SimDomain
from outlive.simulation.process import Process

CutAbility = Literal["none", "disks", "all"]
ONE_PLACE: Final = "storage:simulated"
SPREADS_S: Final = (0.05, 0.6)
"""How long it takes until the last server has heard of a cut."""


class SimDisks:
    """See the module."""

    def __init__(self, ability: CutAbility, changed: Callable[[str], None], random: Random | None = None) -> None:
        self.ability = ability
        self._addresses: dict[str, str] = {}
        """Of hosts on the storage network."""
        self._clients = 4000
        """Numbers that the servers gave to clients."""
        self.spreads_s: tuple[float, float] = (0.0, 0.0) if random is None else SPREADS_S
        """From the record of a cut to the last server that heard of it, from and to."""
        self._random = random or Random(0)
        self._cuts: dict[str, tuple[int, tuple[str, ...]]] = {}
        """As it is on record."""
        self._enforced: dict[str, tuple[int, tuple[str, ...]]] = {}
        """As all servers have heard of it."""
        self._spreading: dict[int, asyncio.Event] = {}
        """What some servers have not heard of."""
        self._orders = 0
        self._locks: dict[str, DiskLock] = {}
        self.removed: set[str] = set()
        """Volumes that somebody has removed."""
        self._changed = changed

    def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        """Shut out of what is in our power; repeated, it grows."""
        able = self.filter_enforceable(scope)
        before = self._cuts.get(host, (0, ()))
        after = (max(epoch, before[0]), tuple(sorted({*before[1], *able})))
        if after == before:
            return
        self._cuts[host] = after
        least_s, most_s = self.spreads_s
        if most_s == 0.0:
            self._enforce(host)
            return
        self._orders += 1
        order, heard = self._orders, asyncio.Event()
        self._spreading[order] = heard
        loop, after_s = asyncio.get_running_loop(), self._random.uniform(least_s, most_s)
        loop.call_later(after_s, self._apply_order, host, order, context=outside_parts())

    def filter_enforceable(self, scope: Iterable[str]) -> tuple[str, ...]:
        """What of it is in our power."""
        return tuple(one for one in scope if self.ability == "all" or one.startswith("disk:"))

    def _apply_order(self, host: str, order: int) -> None:
        self._enforce(host)
        self._spreading.pop(order).set()

    def _enforce(self, host: str) -> None:
        if host in self._cuts:
            self._enforced[host] = self._cuts[host]
            self._changed(host)

    async def wait_all_current(self) -> None:
        """Return once every server has heard of every cut that is on record now."""
        for heard in list(self._spreading.values()):
            await heard.wait()

    def lift(self, host: str, epoch: int) -> None:
        """Let in again, unless it was shut out anew through a later epoch."""
        if host in self._cuts and self._cuts[host][0] <= epoch:
            del self._cuts[host]
            self._enforced.pop(host, None)
            self._changed(host)

    def list_hosts(self) -> dict[str, int]:
        """Who is shut out, as it is on record, and through which epoch."""
        return {host: through for host, (through, _) in self._cuts.items()}

    def cut_scope(self, host: str, epoch: int) -> tuple[str, ...]:
        """What this epoch of the host is shut out of, as it is on record."""
        through, scope = self._cuts.get(host, (0, ()))
        return scope if epoch <= through else ()

    def reaches_disks(self, host: str, domain: SimDomain, *, on_record: bool = False) -> bool:
        """Whether the domain can write any of its disks. A domain without disks writes none, but is taken to.

        ``on_record``: once all servers have heard of what is on record.
        """
        return not domain.disks or not self.is_shut_out(host, on_record=on_record)

    def is_shut_out(self, host: str, *, on_record: bool = False) -> bool:
        """Whether the host reaches no disk."""
        _, scope = (self._cuts if on_record else self._enforced).get(host, (0, ()))
        return any(one.startswith("disk:") for one in scope)

    def reaches_network(self, host: str, domain: SimDomain, ports: Iterable[str] | None = None) -> bool:
        """Whether the domain answers at any of its addresses, or at any of these ports."""
        _, scope = self._enforced.get(host, (0, ()))
        return any(f"port:{port}" not in scope for port in (domain.ports if ports is None else ports))

    def open_disks(self, host: str, domain: SimDomain) -> None:
        """A domain begins to write."""
        self.address_of(host)
        for disk in domain.disks:
            self.lock(disk, host)

    def close_disks(self, host: str, disks: Iterable[str]) -> None:
        """A domain ended cleanly."""
        for disk in disks:
            if disk in self._locks and _owner_address(self._locks[disk]) == self.address_of(host):
                del self._locks[disk]

    def address_of(self, host: str) -> str:
        """Of the host on the storage network."""
        return self._addresses.setdefault(host, f"10.64.{len(self._addresses) // 250}.{len(self._addresses) % 250 + 1}")

    def lock(self, volume: str, by: str) -> None:
        """A client opens it, of a host or of somebody else."""
        self._clients += 1
        client = str(self._clients) if by in self._addresses else by
        address = f"{self.address_of(by)}:0/{self._clients}" if by in self._addresses else by
        self._locks[volume] = DiskLock(volume=volume, id=f"auto {client}", locker=f"client.{client}", address=address)

    def unlock(self, volume: str) -> None:
        """The host that has it open closes it."""
        self._locks.pop(volume, None)

    def unlock_strangers(self, hosts: Collection[str]) -> None:
        """All that are no hosts close what they have open."""
        ours = {self.address_of(host) for host in hosts}
        for volume in [volume for volume, lock in self._locks.items() if _owner_address(lock) not in ours]:
            del self._locks[volume]

    def read_locks(self, volumes: tuple[str, ...]) -> tuple[DiskLock, ...]:
        """Locks of these volumes. ``NotFound`` for one that was removed."""
        for volume in volumes:
            if volume in self.removed:
                raise NotFound(f"disk {volume} does not exist", remedy="create it")
        return tuple(self._locks[volume] for volume in volumes if volume in self._locks)

    def release(self, lock: DiskLock) -> None:
        """Take one away."""
        if self._locks.get(lock.volume) == lock:
            del self._locks[lock.volume]


def _owner_address(lock: DiskLock) -> str:
    return lock.address.partition(":")[0]


class StorageClient:
    """Storage, and who isolates hosts from it, as one process reaches them: ``StoragePort`` and ``CutPort``."""

    def __init__(self, disks: SimDisks, process: Process, host: str, reached: Callable[[], bool]) -> None:
        self._disks = disks
        self._process = process
        self._host = host
        self._reached = reached

    def own_address(self) -> str:
        """Of this host."""
        return self._disks.address_of(self._host)

    def are_same(self, one: str, other: str) -> bool:
        """As a host that knows no Ceph cluster says it."""
        return image_key(one) == image_key(other)

    async def list_locks(self, volumes: tuple[str, ...]) -> tuple[DiskLock, ...]:
        """Locks of these volumes."""
        await self._send_request()
        return self._disks.read_locks(volumes)

    def find_place(self, volume: str) -> str:
        """As its name says; those that are named after their VMs lie in one place."""
        return place_of(volume) or ONE_PLACE

    async def check_reach(self, places: tuple[str, ...]) -> Mapping[str, str]:
        """All of them, or none."""
        self._process.check()
        await asyncio.sleep(LATENCY_S)
        self._process.check()
        return dict.fromkeys(places, "" if self._reached() else "the storage network does not answer")

    async def release(self, lock: DiskLock) -> None:
        """Remove one."""
        await self._send_request()
        self._disks.release(lock)

    def select(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """What it is able to."""
        return self._disks.filter_enforceable(scope)

    async def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        """Shut out."""
        await self._send_request()
        self._disks.cut(host, epoch, scope)

    async def read_back(self, host: str, epoch: int) -> CutReport:
        """What is really shut out."""
        await self._send_request()
        scope = self._disks.cut_scope(host, epoch)
        return CutReport(scope=scope, evidence=f"blocklist of {host} through epoch {epoch}" if scope else "")

    async def wait_isolated(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """Wait for the slowest server."""
        await self._send_request()
        if any(one.startswith("disk:") for one in scope) and self._disks.is_shut_out(self._host, on_record=True):
            raise Unavailable(f"{self._host} is shut out of the storage", remedy="it is let in by the coordinators")
        await self._disks.wait_all_current()
        self._process.check()
        return self._disks.filter_enforceable(scope)

    async def lift(self, host: str, epoch: int) -> None:
        """Let in again."""
        await self._send_request()
        self._disks.lift(host, epoch)

    async def list_hosts(self) -> Mapping[str, int]:
        """Who is shut out."""
        await self._send_request()
        return self._disks.list_hosts()

    async def _send_request(self) -> None:
        self._process.check()
        await asyncio.sleep(0.01)
        self._process.check()
        if not self._reached():
            raise Unavailable(f"{self._host} does not reach the storage", remedy="see its storage network")

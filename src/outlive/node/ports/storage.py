"""Locks on disks, the second line of defence against two writers; and what a storage cluster says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from outlive.resources import StorageClusterStatus, StorageDaemonStatus, StorageDevice, StoragePoolStatus

REACH_S: Final = 4.0
"""How long storage may take to answer; what takes longer is not reached."""
PLACES_LIMIT: Final = 32
"""Places of one host that are asked whether they are reached: all at once, so that none waits for another that hangs.
"""


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

    def are_same(self, one: str, other: str) -> bool:
        """Whether two ids name one disk, or may do so: an image of Ceph has several where definitions name monitors."""
        ...

    async def locks(self, volumes: tuple[str, ...]) -> tuple[DiskLock, ...]:
        """Locks of these volumes, as the servers have them at a moment after this call; all of them, or an error."""
        ...

    def place(self, volume: str) -> str:
        """Where it lies (``outlive.resources.storage_places``); empty: nobody can say whether that is reached."""
        ...

    async def check_reach(self, places: tuple[str, ...]) -> Mapping[str, str]:
        """Place → why this host does not reach it now; empty: it does. Left out: nobody can say.

        Ends within ``REACH_S`` and a second, whatever hangs. At most ``PLACES_LIMIT`` are given. ``Unavailable`` where
        nothing can be asked at all.
        """
        ...

    async def release(self, lock: DiskLock) -> None:
        """Remove exactly this lock; ``Refused`` where that fails. Fine if it is gone; a lock of another stays.

        A lock that only the end of its owner removes (QEMU's of files) is ``Refused`` as long as it is there.
        """
        ...


class StorageReport(msgspec.Struct, frozen=True, kw_only=True):
    """A storage cluster, its daemons and its pools, as it answered one round of questions.

    A question that was not answered in time is named in ``cluster.missing``, and its figures are left out.
    """

    cluster: StorageClusterStatus
    daemons: Mapping[str, StorageDaemonStatus] = {}
    """By id; without those that some question about daemons was not answered for."""
    pools: Mapping[str, StoragePoolStatus] = {}
    """By their own names; in the same way."""
    all_daemons: frozenset[str] | None = None
    """Ids of all that there are; ``None``: it did not say."""
    all_pools: frozenset[str] | None = None
    """Names of all that there are, and that are asked for; ``None``: it did not say."""
    out: frozenset[str] = frozenset()
    """Ids of daemons that no data is placed on."""


class StorageStatisticsPort(Protocol):
    """What a storage cluster says of itself. It is asked in child processes: an answer that hangs delays nobody."""

    def cluster(self) -> str:
        """Name of its ``StorageCluster``; empty: this host reaches none."""
        ...

    async def collect(self) -> StorageReport:
        """One round of questions, within the driver's own limit. ``Unavailable`` where none of them was answered."""
        ...

    async def devices(self) -> Mapping[str, StorageDevice]:
        """Id → where each storage daemon of this host keeps its data; ``host`` is empty. ``Unavailable``."""
        ...

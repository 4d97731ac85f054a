"""Storage: locks on disks, isolation from disks and networks, and what a storage cluster says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from outlive.resources import StorageClusterStatus, StorageDaemonStatus, StorageDevice, StoragePoolStatus


class CutReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a host is shut out of, as it was read back."""

    scope: tuple[str, ...] = ()
    """``disk:<id>`` and ``port:<id>``."""
    evidence: str = ""
    unanswered: str = ""
    """Why some storage did not say what is shut out there: then there may be more. Empty: all of them answered."""
    expires_in_s: float | None = None
    """When it ends unless renewed; ``None``: never."""


class CutPort(Protocol):
    """Isolates a host from disks and ports. ``NotFound`` if that is not possible for it."""

    def select(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """The part of ``scope`` from which this host can isolate others and release them again, as configured."""
        ...

    async def cut(self, host: str, epoch: int, scope: tuple[str, ...]) -> None:
        """Isolate the host from as much of ``scope`` as possible; renewing is the same call.

        This covers every client of the host, by any address and process, also those that connect later in this epoch;
        ``NotFound`` if the driver does not know them all. Earlier isolation stays. The host itself is not needed. A
        driver that knows neither disks nor epochs (Ceph: addresses) isolates it from more: from all its disks, in later
        epochs too, until it is released.
        """
        ...

    async def read_back(self, host: str, epoch: int) -> CutReport:
        """What is isolated now, as the servers that enforce it report; never what was ordered.

        Of ``scope`` only the parts from which **every** client of the host is isolated.
        """
        ...

    async def wait_isolated(self, scope: tuple[str, ...]) -> tuple[str, ...]:
        """Return once every isolation in ``scope`` that was ordered before this call is effective.

        Answers the part of ``scope`` for which this is certain; a part that the driver cannot isolate is not in it, and
        then a start waits until no host is recorded as isolated from it. A server may learn of an isolation after it
        can be read back (Ceph: an OSD with an older map), and until then could accept a write of the isolated host
        after a write of the next one. Called before each start on the host of the start: afterwards no such write is
        accepted. ``Unavailable`` if that is not known, or if the host of the start is itself isolated.
        """
        ...

    async def lift(self, host: str, epoch: int) -> None:
        """Release it, as far as it was isolated through that epoch; isolation through a later one stays."""
        ...

    async def list_hosts(self) -> Mapping[str, int]:
        """Every host that is isolated from anything now, and through which epoch: the lowest of several.

        Regardless of who ordered it and of records. Addresses of other machines are left out. An unreadable entry does
        not hide other hosts; a missing one is found the next time.
        """
        ...


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
    """Locks on a VM's disks, checked before a domain is created. ``Unavailable`` if storage does not answer."""

    def own_address(self) -> str:
        """This host's own address on the storage network; the same for as long as the daemon runs."""
        ...

    def are_same(self, one: str, other: str) -> bool:
        """Whether two ids may name one disk: an image of Ceph has several ids if definitions name monitors."""
        ...

    async def list_locks(self, volumes: tuple[str, ...]) -> tuple[DiskLock, ...]:
        """Locks of these volumes, as the servers have them at a moment after this call; all of them, or an error."""
        ...

    def find_place(self, volume: str) -> str:
        """Its place (``outlive.resources.storage_places``); empty: whether it is reached cannot be known."""
        ...

    async def check_reach(self, places: tuple[str, ...]) -> Mapping[str, str]:
        """Place → why this host does not reach it now; empty: it does. Absent: not known.

        Ends within ``REACH_S`` and a second in any case. At most ``PLACES_LIMIT`` are given. ``Unavailable`` if nothing
        can be asked.
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
    """Reports of a storage cluster. Child processes query it, so that an answer that hangs delays nothing else."""

    def find_cluster(self) -> str:
        """Name of its ``StorageCluster``; empty: this host reaches none."""
        ...

    async def collect(self) -> StorageReport:
        """One round of questions, within the driver's own limit. ``Unavailable`` where none of them was answered."""
        ...

    async def list_devices(self) -> Mapping[str, StorageDevice]:
        """Id → where each storage daemon of this host keeps its data; ``host`` is empty. ``Unavailable``."""
        ...

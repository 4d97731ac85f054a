"""Storage as its cluster reports it: ``StorageCluster``, its daemons and its pools.

The primary coordinator writes what the storage cluster says, under the term in which it holds that role; each host
writes on which devices its own daemons keep their data (docs/how-to/storage.md#statistics).
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Final, Literal

from outlive.resources.meta import KindInfo, Part, Quota, Resource, Writers, limit_entries

CHECKS_LIMIT: Final = 50
"""Health checks that are kept, the worst first."""
TEXT_CHARACTERS: Final = 16_384
"""Of each text of the storage cluster that is kept."""
CODE_CHARACTERS: Final = 64
SUMMARY_CHARACTERS: Final = 500
"""Of each health check that are kept; with all of them the object stays below ``limits.OBJECT_BYTES``."""

StorageHealth = Literal["ok", "warn", "error", "unknown"]


class StorageCheck(Part, frozen=True, kw_only=True):
    """A problem that the storage cluster reports."""

    code: str
    """As the storage names it, such as ``OSD_DOWN``."""
    severity: StorageHealth
    """Its severity in the storage cluster."""
    summary: str = ""
    """The problem in the words of the storage cluster."""
    muted: bool = False
    """An operator muted it."""


class StorageClusterStatus(Part, frozen=True, kw_only=True):
    """The state of a storage cluster, as it reports it."""

    id: str = ""
    """Its own id, of Ceph the ``fsid``."""
    health: StorageHealth = "unknown"
    """As the storage cluster judges itself; ``unknown``: it does not say."""
    checks: Annotated[tuple[StorageCheck, ...], limit_entries(CHECKS_LIMIT)] = ()
    """What lowers its health, the worst first."""
    text: str = ""
    """Its status, as ``ceph status`` prints it."""
    utilization: str = ""
    """How full it is, as ``ceph df`` prints it."""
    total_bytes: int = 0
    """Bytes that all its devices have together."""
    used_bytes: int = 0
    """Bytes that are used, with all copies."""
    free_bytes: int = 0
    """Free bytes; each copy of data takes some of them."""
    used_percent: float = 0.0
    """How full it is, in per cent."""
    daemons: int = 0
    """Storage daemons that it knows."""
    daemons_up: int = 0
    """Storage daemons that run."""
    daemons_in: int = 0
    """Storage daemons that data is placed on."""
    pools: int = 0
    """Pools that it has."""
    missing: Annotated[tuple[str, ...], limit_entries(64)] = ()
    """Queries without an answer in time, such as ``osd status``: their figures are old."""
    sampled_at: datetime | None = None
    """When it was sampled, at least once a minute; unchanged values are not written each time."""


class StorageCluster(Resource, frozen=True, kw_only=True, tag="StorageCluster"):
    """``StorageCluster/<name>``, named by the setting ``storage.cluster``. One document."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="storageclusters",
        short_names=("osc",),
        halves=False,
        quota=Quota(objects=100, mebibytes=64),
        writers=Writers(
            fields={"": ("primary",)},
            creates=("primary",),
            deletes=("primary",),
            labels="refused",
        ),
        columns=(
            ("Health", ".status.health", 0),
            ("Daemons", ".status.daemons", 0),
            ("Up", ".status.daemonsUp", 0),
            ("In", ".status.daemonsIn", 0),
            ("Pools", ".status.pools", 0),
            ("Used %", ".status.usedPercent", 0),
            ("Free Bytes", ".status.freeBytes", 1),
            ("Sampled", ".status.sampledAt", 1),
            ("Term", ".term", 1),
        ),
    )

    term: int
    """Of ``Election/primary``, whose holder wrote this."""
    status: StorageClusterStatus = StorageClusterStatus()


class StorageActivity(Part, frozen=True, kw_only=True):
    """What a storage daemon does now, rounded by the storage cluster."""

    host: str = ""
    """Its machine, by the machine's own name without domain."""
    used_bytes: int = 0
    """Bytes that are used on it."""
    available_bytes: int = 0
    """Bytes that are free on it."""
    write_ops: int = 0
    """Writes in a second."""
    write_bytes: int = 0
    """Bytes that are written in a second."""
    read_ops: int = 0
    """Reads in a second."""
    read_bytes: int = 0
    """Bytes that are read in a second."""
    state: str = ""
    """Its state in the words of Ceph, such as ``exists,up``."""


class StorageDaemonStatus(Part, frozen=True, kw_only=True):
    """One storage daemon, as its cluster sees it."""

    cluster: str = ""
    """Name of the ``StorageCluster``."""
    uuid: str = ""
    """The daemon's own id."""
    up: bool = False
    """Whether the daemon runs, as its cluster sees it."""
    in_: bool = False
    """Whether data is placed on it."""
    primary_affinity: float = 1.0
    """Preference as the primary of placement groups, 0 to 1."""
    device_class: str = ""
    """Kind of its device, such as ``ssd``."""
    weight: float = 0.0
    """Its share by size."""
    reweight: float = 1.0
    """What of that share it gets; 0 while it is out."""
    utilization: float = 0.0
    """How full it is, in per cent."""
    variance: float = 0.0
    """The same, by the average of all."""
    placement_groups: int = 0
    """Placement groups that it has a copy of."""
    size_bytes: int = 0
    """Bytes that its device has."""
    used_bytes: int = 0
    """Bytes that are used on it, in all."""
    data_bytes: int = 0
    """Bytes that objects take on it."""
    omap_bytes: int = 0
    """Bytes that keys and values of objects take on it (omap)."""
    meta_bytes: int = 0
    """Bytes that its own store takes for itself."""
    available_bytes: int = 0
    """Bytes that are free on it."""
    activity: StorageActivity = StorageActivity()


class StorageVolume(Part, frozen=True, kw_only=True):
    """A logical volume that a storage daemon keeps something on."""

    use: str
    """``block``, ``db`` or ``wal``."""
    path: str = ""
    """Of the logical volume."""
    group: str = ""
    """The volume group that it is in."""
    name: str = ""
    """Name of the logical volume."""
    devices: Annotated[tuple[str, ...], limit_entries(1000)] = ()
    """Block devices that it lies on."""


class StorageDevice(Part, frozen=True, kw_only=True):
    """Where a storage daemon keeps its data, as its host reports at the start of the host's daemon."""

    host: str = ""
    """Name of the ``Hypervisor``."""
    daemon_id: str = ""
    """Of the storage daemon's own store, of Ceph its ``osd fsid``."""
    cluster_id: str = ""
    """Of the storage cluster that it belongs to."""
    block_device: str = ""
    """Block device of its data, such as ``/dev/sdb``; the first one of several."""
    volumes: Annotated[tuple[StorageVolume, ...], limit_entries(64)] = ()
    """The logical volumes that it is made of."""


class StorageDaemon(Resource, frozen=True, kw_only=True, tag="StorageDaemon"):
    """``StorageDaemon/<id>``, of Ceph an OSD by its number. One document."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="storagedaemons",
        short_names=("osd",),
        halves=False,
        quota=Quota(objects=100_000, mebibytes=256, owners=("device.host",), shares=100),
        writers=Writers(
            fields={"": ("primary",), "device": ("daemon", "primary")},
            creates=("primary", "daemon"),
            deletes=("primary",),
            labels="refused",
        ),
        columns=(
            ("Host", ".status.activity.host", 0),
            ("Up", ".status.up", 0),
            ("In", ".status.in", 0),
            ("Class", ".status.deviceClass", 0),
            ("Used %", ".status.utilization", 0),
            ("PGs", ".status.placementGroups", 0),
            ("Size Bytes", ".status.sizeBytes", 1),
            ("Free Bytes", ".status.availableBytes", 1),
            ("Device", ".device.blockDevice", 1),
            ("State", ".status.activity.state", 1),
        ),
    )

    term: int = 0
    """Term of ``Election/primary`` whose holder wrote ``status``; 0: none."""
    status: StorageDaemonStatus | None = None
    device: StorageDevice | None = None


class StoragePoolStatus(Part, frozen=True, kw_only=True):
    """One pool: its data, and operations since its creation."""

    cluster: str = ""
    """Name of the ``StorageCluster``."""
    pool: str
    """Its own name, which need not be one of objects."""
    id: int = 0
    """Its number in the storage cluster."""
    stored_bytes: int = 0
    """What was written into it, before copies."""
    used_bytes: int = 0
    """What it takes of the storage, with all copies."""
    free_bytes: int = 0
    """What still fits into it, before copies."""
    used_percent: float = 0.0
    """Used share of what it could have, in per cent."""
    objects: int = 0
    """Objects that lie in it."""
    object_clones: int = 0
    """Clones of objects, which snapshots keep."""
    object_copies: int = 0
    """Copies of all objects together."""
    objects_missing_on_primary: int = 0
    """Objects that the first of their daemons lacks."""
    objects_unfound: int = 0
    """Objects of which no daemon that runs has the latest version."""
    objects_degraded: int = 0
    """Objects with fewer copies than they should have."""
    read_ops: int = 0
    """Reads since it exists."""
    read_bytes: int = 0
    """Bytes read since it exists."""
    write_ops: int = 0
    """Writes since it exists."""
    write_bytes: int = 0
    """Bytes written since it exists."""


class StoragePool(Resource, frozen=True, kw_only=True, tag="StoragePool"):
    """``StoragePool/<name>``. One document."""

    info: ClassVar[KindInfo] = KindInfo(
        plural="storagepools",
        short_names=("osp",),
        halves=False,
        quota=Quota(objects=10_000, mebibytes=64),
        writers=Writers(
            fields={"": ("primary",)},
            creates=("primary",),
            deletes=("primary",),
            labels="refused",
        ),
        columns=(
            ("Pool", ".status.pool", 0),
            ("Used %", ".status.usedPercent", 0),
            ("Objects", ".status.objects", 0),
            ("Degraded", ".status.objectsDegraded", 0),
            ("Stored Bytes", ".status.storedBytes", 1),
            ("Free Bytes", ".status.freeBytes", 1),
            ("Unfound", ".status.objectsUnfound", 1),
        ),
    )

    term: int
    """Of ``Election/primary``, whose holder wrote this."""
    status: StoragePoolStatus

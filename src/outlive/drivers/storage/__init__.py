"""Storage of real hosts: Ceph, files, block devices and DRBD (docs/how-to/storage.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlive.base.exports import load_exports

from pathlib import Path

from outlive.base import Clock
from outlive.drivers.storage.ceph import CephCommands
from outlive.drivers.storage.disks import Cuts, Disks, Locks, StorageAddresses, Unlocked
from outlive.drivers.storage.drbd import Drbd
from outlive.drivers.storage.files import FileLocks
from outlive.drivers.storage.rbd import RbdCut, RbdLocks
from outlive.drivers.storage.settings import StorageSettings
from outlive.drivers.storage.statistics import CephStatistics
from outlive.store import Store

if TYPE_CHECKING:
    from outlive.drivers.storage.drbdsetup import DrbdSetup
    from outlive.drivers.storage.files import PROGRAM
    from outlive.drivers.storage.settings import CephCluster
    from outlive.drivers.storage.statistics import DAEMON_SPACE, DAEMON_STATUS, DUMP, HEALTH, RADOS, SPACE, SPACE_TEXT
    from outlive.drivers.storage.statistics import STATUS, TEXT, DaemonSpace, merge, read_activity, read_json
    from outlive.drivers.storage.statistics import read_volumes
else:
    __getattr__ = load_exports(__name__)

__all__ = ["CephCommands", "CephStatistics", "Cuts", "Disks", "StorageSettings", "make_cuts", "make_disks"]


def make_disks(settings: StorageSettings, address: str, state: Path) -> Disks:
    """The locks on all disks of a host with this address on the storage network."""
    files = FileLocks(address, float(settings.command_limit))
    kinds: dict[str, Locks] = {
        **{kind: RbdLocks(CephCommands(one)) for kind, one in settings.ceph_clusters().items()},
        "file": files,
        "block": files,
        "drbd": Drbd(settings, state, address),
        "local": Unlocked(),
    }
    return Disks(address, kinds, {kind: one.ceph_conf for kind, one in settings.ceph_clusters().items()})


def make_cuts(settings: StorageSettings, store: Store, clock: Clock, *, host: str, address: str, state: Path) -> Cuts:
    """Who can shut hosts out of disks, as this host reaches them."""
    addresses, lasts_s = StorageAddresses(store), float(settings.blocklist)
    rbd = {
        kind: RbdCut(CephCommands(one), addresses, clock, host=host, own=address, lasts_s=lasts_s, kind=kind)
        for kind, one in settings.ceph_clusters().items()
    }
    return Cuts({**rbd, "drbd": Drbd(settings, state, address)})

"""Section ``storage`` of a host's configuration."""

from __future__ import annotations

import msgspec

from outlive.base import OutliveError
from outlive.resources import check_name, monitor_name, monitors_kind
from outlive.runtime import Duration


class CephCluster(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A further Ceph cluster: where disks lie whose definition names its monitors."""

    monitors: tuple[str, ...]
    """As in ``cephMonitors``."""
    ceph_conf: str
    """Its configuration file."""
    ceph_user: str = "outlive"
    """The daemon's user in it."""
    ceph_keyring: str = ""
    """File with that user's key."""

    def __post_init__(self) -> None:
        if not self.monitors:
            raise ValueError("monitors is empty, and definitions could not name this cluster; write its monitors")


class StorageSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Section ``storage`` of a host's configuration: how its daemon reaches what the disks lie on."""

    ceph_conf: str = "/etc/ceph/ceph.conf"
    """Configuration of the Ceph cluster of all ``rbd:`` disks that name no monitors."""
    ceph_user: str = "outlive"
    """The daemon's own user in it, without ``client.``; its rights are in docs/how-to/storage.md."""
    ceph_keyring: str = ""
    """File with that user's key; empty: where Ceph looks for it, ``/etc/ceph/ceph.client.USER.keyring``."""
    ceph_program: str = "ceph"
    """The program, by name or path."""
    rbd_program: str = "rbd"
    """The same."""
    rados_program: str = "rados"
    """The same."""
    volume_program: str = "ceph-volume"
    """The same; it lists the devices of this host's storage daemons."""
    ceph_monitors: tuple[str, ...] = ()
    """Its monitors, as definitions name them (``<host name=…/>``), with ``:PORT`` if unusual. A VM with a disk on
    others does not start here."""
    clusters: dict[str, CephCluster] = {}
    """Further Ceph clusters, by names that you choose; at most 8."""
    drbd_program: str = "drbdsetup"
    """The same."""
    command_limit: Duration = Duration(10.0)
    """How long one command to storage may take before it is killed."""
    cluster: str = "ceph"
    """Name of the cluster's ``StorageCluster``; the same on all coordinators."""
    pools: tuple[str, ...] = ()
    """Pools that have a ``StoragePool``; empty: all. The same on all coordinators."""
    statistics_limit: Duration = Duration(2.0)
    """How long Ceph may take for one query of statistics."""
    blocklist: Duration = Duration(86_400.0)
    """How long an isolation from Ceph lasts without renewal; at least half an hour."""

    def __post_init__(self) -> None:
        if self.command_limit <= 0:
            raise ValueError(f"commandLimit {self.command_limit} leaves no time for an answer")
        if self.statistics_limit <= 0:
            raise ValueError(f"statisticsLimit {self.statistics_limit} leaves no time for an answer")
        of = dict[str, str]()
        for name, monitors in (
            ("cephMonitors", self.ceph_monitors),
            *((n, c.monitors) for n, c in self.clusters.items()),
        ):
            for monitor in monitors:
                if of.setdefault(monitor_name(monitor), name) != name:
                    raise ValueError(
                        f"monitor {monitor} is one of {of[monitor_name(monitor)]} and of {name}; name it once"
                    )
        if len(self.clusters) > CLUSTERS_LIMIT:
            raise ValueError(f"clusters names {len(self.clusters)}; write at most {CLUSTERS_LIMIT}")
        try:
            check_name(self.cluster)
        except OutliveError as error:
            raise ValueError(f"cluster: {error.message}; {error.remedy}") from None
        if self.blocklist < LEAST_BLOCKLIST_S:
            raise ValueError(f"blocklist {self.blocklist} ends too soon; it has to last {LEAST_BLOCKLIST_S:g} s")

    def monitor_names(self) -> frozenset[str]:
        """The monitors that definitions may name, as ``monitor_name`` writes them."""
        named = (self.ceph_monitors, *(one.monitors for one in self.clusters.values()))
        return frozenset(monitor_name(one) for monitors in named for one in monitors)

    def ceph_clusters(self) -> dict[str, StorageSettings]:
        """The settings of each Ceph cluster, by the kind of its disks (``outlive.resources.definitions.disk_id``)."""
        found = {"rbd": self}
        if self.ceph_monitors:
            found[f"rbd{monitors_kind(self.ceph_monitors)}"] = self
        for one in self.clusters.values():
            found[f"rbd{monitors_kind(one.monitors)}"] = msgspec.structs.replace(
                self, ceph_conf=one.ceph_conf, ceph_user=one.ceph_user, ceph_keyring=one.ceph_keyring
            )
        return found


CLUSTERS_LIMIT = 8
LEAST_BLOCKLIST_S = 1800.0
"""A host that is isolated stays so while another fencer takes over (``fencing.isolation.LEAST_LASTS_S``), also where
the clocks of the monitors and of this host differ."""

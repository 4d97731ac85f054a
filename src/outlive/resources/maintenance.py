"""Who is in maintenance now: no host is condemned or powered off there, and no fault is raised.

Maintenance of a power controller alone: it gets no command and proves nothing; hosts are condemned all the same, by
other kinds of proof. Maintenance ends by itself where an end was set. That end is the only thing in fencing that is
compared with the wall clock: a clock that jumps makes maintenance longer or shorter, and nothing unsafe
(docs/operating/fencing.md#maintenance).
"""

from __future__ import annotations

from datetime import datetime

from outlive.base.clock import as_instant
from outlive.resources.cluster import ClusterSpec
from outlive.resources.hosts import FencingSpec


def cluster_maintenance(spec: ClusterSpec, now: float) -> bool:
    """Whether the whole cluster is in maintenance at ``now``, seconds since 1970."""
    return _on(spec.maintenance, spec.maintenance_until, now)


def host_maintenance(spec: FencingSpec, now: float) -> bool:
    """Whether this host is, by its own setting."""
    return _on(spec.maintenance, spec.maintenance_until, now)


def power_maintenance(spec: FencingSpec, now: float) -> bool:
    """Whether somebody works on the host's power controller."""
    return _on(spec.power_maintenance, spec.power_maintenance_until, now)


def maintenance(cluster: ClusterSpec, fencing: FencingSpec, now: float) -> str:
    """Which maintenance keeps a host from being condemned; empty: none."""
    if cluster_maintenance(cluster, now):
        return "maintenance of the cluster"
    if host_maintenance(fencing, now):
        return "maintenance of this host"
    return ""


def _on(wanted: bool, until: datetime | None, now: float) -> bool:
    return wanted and (until is None or now < as_instant(until))

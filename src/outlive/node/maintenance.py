"""Maintenance: while it is on, no host is condemned, nothing is powered off and no fault is raised.

Of a power controller alone: it gets no command and proves nothing, and fencing goes on by the other kinds of proof.

It ends by itself where an end was set. This is the only thing in fencing that is told by the wall clock, because an
operator says when; a clock that jumps makes maintenance longer or shorter, and nothing unsafe
(docs/operating/fencing.md#maintenance).
"""

from __future__ import annotations

from datetime import datetime

from outlive.base.clock import as_instant
from outlive.resources import ClusterSpec, FencingSpec


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
    """Why a host is left alone; empty where it is not."""
    if cluster_maintenance(cluster, now):
        return "maintenance of the cluster"
    if host_maintenance(fencing, now):
        return "maintenance of this host"
    return ""


def _on(wanted: bool, until: datetime | None, now: float) -> bool:
    return wanted and (until is None or now < as_instant(until))

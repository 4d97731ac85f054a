"""The pause of a cluster whose store went back, as the network sees it (docs/concepts/safety.md#restored).

What such a store says of VMs may be old: those that it lacks run, and others run elsewhere. As long as the cluster is
paused, rows of OVN that exist stay as they are. The pause is read fresh, after what is planned by was read.
Once it is over a host may still run a VM that the store lacks, which Outlive does not stop: its rows stay as well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from outlive.resources import Cluster, Fault, Membership, ObjectRef
from outlive.resources.cluster import CLUSTER, is_lost
from outlive.resources.reasons.faults import FaultCode
from outlive.runtime.faults import fault_name
from outlive.store import Store, list_all, read


class ClusterPause(NamedTuple):
    """Whether the cluster is paused now, and what the store calls itself."""

    paused: bool
    incarnation: str


PauseReader = Callable[[], Awaitable[ClusterPause]]
"""Reads the store; raises its errors."""


async def read_pause(store: Store) -> ClusterPause:
    """Read whether the cluster is paused. Errors of the store."""
    cluster = await read(store, Cluster, CLUSTER)
    if cluster is not None and cluster.status.store_incarnation:
        return ClusterPause(cluster.paused, cluster.status.store_incarnation)
    members = [one.record async for one in list_all(store, Membership, whole=True)]
    return ClusterPause(is_lost(cluster, members), "")


async def runs_unknown(store: Store, vm: str) -> bool:
    """True if a host reports that it runs a VM of this name which the store does not know. Errors of the store."""
    about = ObjectRef(kind="VirtualMachine", name=vm)
    fault = await read(store, Fault, fault_name(FaultCode.UNKNOWN_VM, about))
    return fault is not None and not fault.ended

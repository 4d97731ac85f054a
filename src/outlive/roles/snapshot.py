"""One look at a cluster with the VMs that are under way to a host: what recovery knows is handed to failover."""

from __future__ import annotations

from outlive.failover import snapshot
from outlive.failover.config import FailoverSettings
from outlive.failover.ports import VMSource
from outlive.failover.snapshot import Snapshot
from outlive.recovery.arrivals import arriving
from outlive.store import Store


async def gather(store: Store, source: VMSource, settings: FailoverSettings, *, k: int | None = None) -> Snapshot:
    """Read everything that a plan or a coverage is made from. ``k`` replaces the required slots of every VM."""
    return await snapshot.gather(store, source, settings, k=k, arrivals=arriving)

"""A daemon that is the primary coordinator and no more, as a process: real addresses, a real guard, short times.

``python -m tests.support.guarded_primary FOLDER DEVICE ADDRESS…`` in the namespace of its host.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from outlive.base import SystemClock, SystemIds
from outlive.drivers.links import KernelLinks
from outlive.drivers.services import RoleGuard
from outlive.node import Primary, PrimaryElector, RoleAddresses
from outlive.resources import Cluster, ClusterSpec, ObjectMeta
from outlive.runtime import FaultRecorder, FaultSet
from outlive.store import MemoryStore

RENEW_S, SILENCE_S = 0.3, 2.0


async def be_primary(folder: Path, device: str, addresses: list[str]) -> None:
    """Have these addresses while this process can."""
    clock = SystemClock()
    store = MemoryStore(clock, SystemIds())
    await store.create(Cluster(metadata=ObjectMeta(name="default"), spec=ClusterSpec()))
    elector = PrimaryElector(store, "a", clock=clock, ids=SystemIds(), renew_s=RENEW_S, silence_s=SILENCE_S)
    had = RoleAddresses(
        KernelLinks(clock), RoleGuard(folder / "addresses"), lambda: {"gateways": [(device, one) for one in addresses]}
    )
    faults = FaultSet(FaultRecorder(store, clock, "daemon", "a"), clock)
    await Primary(store, "a", [], elector=elector, faults=faults, clock=clock, addresses=had).run()


if __name__ == "__main__":
    asyncio.run(be_primary(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))

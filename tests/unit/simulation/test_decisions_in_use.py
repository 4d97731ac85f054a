"""The decisions that anybody can ask by name are the ones that the daemons, fencers and recovery really use."""

from __future__ import annotations

from typing import Any

import pytest

from outlive.runtime import DecisionLog
from outlive.simulation import HostsSpec, Process, SimHost, VmSpec, World, WorldSpec

OF_DAEMONS = {
    "account.node",
    "fence.evaluate",
    "fence.power",
    "flush.run",
    "host.leave",
    "host.score",
    "keepalive.cycle",
    "lifecycle.shutdown",
    "profile.validate",
    "rbd.start_locks",
    "vm.event",
    "vm.request",
    "safety.join",
    "safety.hold",
    "safety.create",
    "safety.release",
    "safety.condemn",
    "safety.attempt",
    "safety.prove.power",
}


class Listened(World):
    """A world that hears every decision of every daemon."""

    heard: dict[str, int]

    def make_daemon(self, host: SimHost, process: Process) -> Any:
        role: Any = super().make_daemon(host, process)
        log: DecisionLog = role.decisions
        log.listen(lambda use: self.heard.update({use.name: self.heard.get(use.name, 0) + 1}))
        return role


@pytest.mark.slow
async def test_daemons_and_fencers_decide_by_the_registered_functions() -> None:
    vms = tuple(VmSpec(name=f"vm-{n}", host=f"kvm-{n}", disks=(f"disk-{n}",)) for n in (1, 2, 4))
    settings = {"node": {"storeCasPerS": 1000.0}}
    spec = WorldSpec(hosts=HostsSpec(count=5, coordinators=3), vms=vms, controllers=1, settings=settings)
    world = Listened(spec, seed=1)
    world.heard = {}
    await world.build()
    await world.start()
    assert await world.wait_settled(30.0)
    await world.do("slow-disk", {"hosts": ("kvm-3",), "stall": 0.9})
    await world.clock.sleep(20.0)
    await world.do("request", {"vm": "vm-2", "verb": "restart"})
    await world.do("drain", {"host": "kvm-1"})
    await world.do("power-off", {"hosts": ("kvm-4",)})
    await world.clock.sleep(30.0)
    await world.do("stop-daemon", {"hosts": ("kvm-5",), "leaveVms": True})
    await world.clock.sleep(20.0)
    assert world.violations == []
    await world.stop()
    assert OF_DAEMONS - set(world.heard) == set()

"""The decisions that anybody can ask by name are the ones that the daemons, fencers and recovery really use."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.loops import run

from outlive.recovery import plan
from outlive.runtime.decisions import DecisionLog
from outlive.simulation.hosts import SimHost
from outlive.simulation.process import Process
from outlive.simulation.spec import HostsSpec, VmSpec, WorldSpec
from outlive.simulation.world import World

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
def test_daemons_and_fencers_decide_by_the_registered_functions() -> None:
    async def story() -> dict[str, int]:
        vms = tuple(VmSpec(name=f"vm-{n}", host=f"kvm-{n}", disks=(f"disk-{n}",)) for n in (1, 2, 4))
        settings = {"node": {"storeCasPerS": 1000.0}}
        spec = WorldSpec(hosts=HostsSpec(count=5, coordinators=3), vms=vms, controllers=1, settings=settings)
        world = Listened(spec, seed=1)
        world.heard = {}
        await world.build()
        await world.start()
        assert await world.settled(30.0)
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
        return world.heard

    assert OF_DAEMONS - set(run(story())) == set()


@pytest.mark.slow
def test_vms_without_a_slot_are_placed_by_the_registered_function(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = plan.recover

    def recorded(given: Any) -> Any:
        asked.extend(vm.uuid for vm in given.vms)
        return real(given)

    async def story() -> tuple[str, ...]:
        settings = {"failover": {"flavorFailoverRequirements": {"*": 0}}}
        vms = (VmSpec(name="vm-1", host="kvm-4"),)
        world = World(WorldSpec(hosts=HostsSpec(count=4, coordinators=3), vms=vms, settings=settings), seed=1)
        await world.build()
        await world.start()
        assert await world.settled(30.0)
        await world.do("power-off", {"hosts": ("kvm-4",)})
        await world.clock.sleep(40.0)
        there = world.running("vm-1")
        await world.stop()
        return there

    monkeypatch.setattr(plan, "recover", recorded)
    (host,) = run(story())
    assert host != "kvm-4"
    assert "vm-1" in asked

"""What becomes of virtual machines while their host gets slow."""

from __future__ import annotations

import pytest
from tests.support.loops import run_by
from tests.support.node_worlds import at, faults, host_of, play, vm_of

from outlive.node import Leaver, explain_stay
from outlive.resources import Degrading, HypervisorUsage
from outlive.simulation import VmSpec, World

QUICK = {"windowS": 10.0, "quietS": 20.0, "settleS": 10.0}
VMS = (
    VmSpec(name="vm-1", host="kvm-1"),
    VmSpec(name="vm-2", host="kvm-1", migration_method="shutdown"),
    VmSpec(name="vm-3", host="kvm-1", priority=9),
)
FAULT = "host-degrading.kvm-1"


def degrading(world: World, host: str = "kvm-1") -> Degrading | None:
    return host_of(world, host).status.degrading


async def quick(world: World, **more: object) -> None:
    await world.do("set-degrading", {"policy": QUICK | more})
    await world.clock.sleep(6.0)


@pytest.mark.slow
@pytest.mark.parametrize(("action", "told"), [("tell", True), ("off", False)])
@run_by(play, hosts=3, vms=VMS)
async def test_vms_stay_where_the_policy_says_so(world: World, *, action: str, told: bool) -> None:
    await quick(world, action=action)
    await world.do("slow-disk", {"hosts": ["kvm-1"], "stall": 0.9})
    await at(world, 90)
    assert world.running_hosts("vm-1") == ("kvm-1",)
    found = degrading(world)
    assert (found.why if found is not None else None) == ("off" if told else None)
    assert (FAULT in faults(world)) == told


def test_vms_stay_where_no_other_host_has_room() -> None:
    async def story(world: World) -> None:
        await quick(world)
        await world.do("slow-disk", {"hosts": ["kvm-1"], "stall": 0.9})
        await at(world, 90)
        assert (world.running_hosts("vm-1"), vm_of(world).status.phase) == (("kvm-1",), "start")
        found = degrading(world)
        assert found is not None
        assert found.why == "no_room"

    full = VmSpec(name="vm-2", host="kvm-2", memory="120Gi")
    play(story, vms=(VmSpec(name="vm-1", host="kvm-1", memory="16Gi"), full))


@pytest.mark.slow
@run_by(play, hosts=3, vms=VMS)
async def test_daemon_that_is_started_again_goes_on_from_what_was_published(world: World) -> None:
    await quick(world, quietS=120.0)
    await world.do("slow-disk", {"hosts": ["kvm-1"], "stall": 0.9})
    await at(world, 80)
    await world.do("slow-disk", {"hosts": ["kvm-1"], "stall": 0.0})
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    await at(world, 110)
    assert degrading(world) is not None
    await at(world, 260)
    assert degrading(world) is None
    assert FAULT not in faults(world)


@pytest.mark.slow
@run_by(play, hosts=3, vms=VMS)
async def test_what_is_published_changes_with_the_level_and_not_with_every_sample(world: World) -> None:
    await quick(world)
    await world.do("slow-disk", {"hosts": ["kvm-1"], "stall": 0.9})
    seen: list[Degrading | None] = []
    while world.clock.monotonic() < 250:
        await world.clock.sleep(0.5)
        found = degrading(world)
        if not seen or seen[-1] != found:
            seen.append(found)
    assert len(seen) <= 5
    usage = world.store.find(HypervisorUsage, "kvm-1")
    assert usage is not None
    assert usage.usage.scores == {"keepalive": 100, "store": 100, "disk": 0, "hypervisor": 100, "storage": 100}


def test_vm_leaves_only_if_it_runs_can_move_live_and_is_protected() -> None:
    assert explain_stay(Leaver(state="start")) == explain_stay(Leaver(state="start", required=2)) == ""
    assert explain_stay(Leaver(state="start", required=0)) == "unprotected"
    assert explain_stay(Leaver(state="start", method="shutdown")) == "cold_only"
    assert explain_stay(Leaver(state="start", power="stopped")) == explain_stay(Leaver(state="stop")) == "not_running"
    assert explain_stay(Leaver(state="start", moving=True)) == "moving"

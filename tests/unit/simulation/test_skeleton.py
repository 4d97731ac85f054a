"""The walking skeleton: hosts, one VM and its slots; its host dies, and it runs where it was promised to."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.loops import run

from outlive.resources import FencingPolicy, Membership, Reservation, VirtualMachine
from outlive.resources.cluster import Timing
from outlive.simulation.spec import HostsSpec, VmSpec, WorldSpec
from outlive.simulation.world import World

RENEWED_S = 20.0


def _world(seed: int = 1, **hosts: Any) -> World:
    spec = WorldSpec(
        hosts=HostsSpec(count=3, coordinators=3, **hosts),
        vms=(VmSpec(name="vm-1", host="kvm-1"),),
        controllers=1,
        settings={"failover": {"flavorFailoverRequirements": {"*": 2}}},
    )
    return World(spec, seed=seed)


async def _lost(world: World, verb: str, **arguments: Any) -> tuple[set[str], VirtualMachine, float]:
    """Settle, lose ``kvm-1``, wait; where the slots were, the VM, and after how many seconds it ran elsewhere."""
    await world.build()
    await world.start()
    assert await world.settled(30.0)
    await world.clock.sleep(RENEWED_S)
    promised = {one.status.host for one in world.store.all_of(Reservation)}
    begun = world.clock.monotonic()
    await world.do(verb, {"hosts": ("kvm-1",), **arguments})
    while world.running("vm-1") in ((), ("kvm-1",)) and world.clock.monotonic() < begun + 120.0:
        await world.clock.sleep(0.1)
    took_s = world.clock.monotonic() - begun
    await world.clock.sleep(5.0)
    vm = world.store.find(VirtualMachine, "vm-1")
    assert vm is not None
    assert [one for one in world.violations if one.invariant != "S3"] == []
    await world.stop()
    return promised, vm, took_s


@pytest.mark.slow
def test_vm_of_a_host_without_power_runs_in_its_promised_slot_within_twelve_seconds() -> None:
    async def story() -> None:
        world = _world()
        promised, vm, took_s = await _lost(world, "power-off")
        status = vm.status
        assert status.assigned is not None
        assert status.assigned.hypervisor in promised
        assert status.recovery is not None
        assert (status.recovery.phase, status.recovery.promised) == ("recovered", True)
        assert [(one.hypervisor, one.seen) for one in status.holders] == [(status.assigned.hypervisor, "running")]
        assert {one.kind for one in status.recovery.proofs} == {"power"}
        assert took_s <= 12.0

    run(story())


@pytest.mark.slow
def test_armed_host_off_the_store_loses_its_vm_to_another_by_its_watchdog() -> None:
    async def story() -> None:
        world = _world(armed=True, profile="fast", bmc="none")
        _, vm, _ = await _lost(world, "cut", network="store")
        assert vm.status.recovery is not None
        assert {one.kind for one in vm.status.recovery.proofs} == {"watchdog"}

    run(story())


@pytest.mark.slow
def test_unarmed_host_without_a_power_controller_keeps_its_vm() -> None:
    async def story() -> None:
        world = _world(bmc="none")
        _, vm, took_s = await _lost(world, "cut", network="store")
        assert took_s >= 100.0
        assert [one.hypervisor for one in vm.status.holders] == ["kvm-1"]
        member = world.store.find(Membership, "kvm-1")
        assert member is not None
        assert member.record.fence.phase == "unconfirmed"

    run(story())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_same_seed_gives_the_same_run(seed: int) -> None:
    def trace() -> str:
        async def story() -> str:
            world = _world(seed)
            await _lost(world, "power-off")
            return world.history.trace_hash()

        return run(story())

    assert trace() == trace()


def _asked_to_renew(cas_per_s: float | None, **timing: float) -> list[str]:
    """What daemons of 4 hosts have said when they were started on a store of that speed; empty: they run."""

    async def story() -> list[str]:
        settings = {"node": {} if cas_per_s is None else {"storeCasPerS": cas_per_s}}
        policy = FencingPolicy(timings={"fast": Timing(**timing)})
        world = World(WorldSpec(hosts=HostsSpec(count=4, coordinators=3), settings=settings, policy=policy), seed=1)
        await world.build()
        await world.start()
        await world.clock.sleep(5.0)
        reported = [event.text for event in world.history.events if event.kind == "process"]
        await world.stop()
        return [text for text in reported if "renew" in text]

    return run(story())


@pytest.mark.slow
def test_an_outage_that_is_over_before_the_next_look_gives_the_leader_time_to_report_anew() -> None:
    async def story() -> None:
        world = _world()
        await world.build()
        await world.start()
        assert await world.settled(30.0)
        before = world._leader()
        assert before is not None
        await world.do("store-outage", {"for": 0.1})
        assert world._leader() is None
        await world.clock.sleep(0.2)
        after = world._leader()
        assert after is not None
        assert after != before
        assert after[:2] == before[:2]
        await world.stop()

    run(story())


@pytest.mark.slow
def test_daemon_that_is_to_renew_more_often_than_the_store_bears_ends_and_names_the_shortest_interval() -> None:
    assert _asked_to_renew(20.0) == []
    reported = _asked_to_renew(19.9)
    assert len(set(reported)) == 4
    assert all("cannot renew every 1 s" in text and "1.1 s with 4 hosts" in text for text in reported)


@pytest.mark.slow
def test_daemon_starts_with_a_timing_that_is_only_doubtful() -> None:
    assert _asked_to_renew(None, guard_timeout_s=4.0) == []
    assert _asked_to_renew(1000.0, guard_timeout_s=4.0) == []

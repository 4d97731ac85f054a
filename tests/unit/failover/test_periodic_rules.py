"""Grace, brake and what counts as a slot, in whole cycles."""

from __future__ import annotations

import msgspec
from tests.support.cycles import six_hosts, slots_of
from tests.support.failover import Cloud
from tests.support.loops import run

from outlive.resources import (
    VirtualMachine,
)


def test_an_absent_limit_means_one_new_slot_a_host_and_cycle():
    async def story() -> int:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}, "limitOneNewReservationPerHypervisor": None})
        await cloud.hosts("h1", "h2")
        await cloud.vm("a", "h1")
        await cloud.vm("b", "h1")
        await cloud.cycle()
        return len(await cloud.members())

    assert run(story()) == 1


def test_an_uninitialised_slot_waits_for_its_grace_period():
    async def story() -> bool:
        cloud = Cloud()
        await cloud.hosts("h1", "h2")
        await cloud.slot("s", "h2", None)
        await cloud.cycle()
        return "s" in await cloud.slots()

    assert run(story()) is True


def test_an_initialised_slot_without_members_goes_at_once():
    async def story() -> None:
        cloud = Cloud()
        await cloud.hosts("h1", "h2")
        await cloud.slot("s", "h2", {})
        await cloud.cycle()
        assert await cloud.slots() == {}

    run(story())


def test_a_slot_that_is_not_ready_is_no_coverage():
    async def story() -> int:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2", "h3")
        await cloud.vm("a", "h1")
        await cloud.slot("s", "h2", {"a": "h1"}, ready=False)
        await cloud.cycle()
        return len(await slots_of(cloud, "a"))

    assert run(story()) == 2


def test_a_slot_without_a_condition_counts():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2", "h3")
        await cloud.vm("a", "h1")
        await cloud.slot("s", "h2", {"a": "h1"}, ready=None)
        await cloud.cycle()
        assert await slots_of(cloud, "a") == ["s"]
        assert await cloud.covered() == {"a": True}

    run(story())


async def mass_removal() -> Cloud:
    cloud = Cloud({"flavorFailoverRequirements": {"*": 1}}, {"brakeNumber": 3})
    await six_hosts(cloud)
    for number in range(8):
        await cloud.vm(f"vm{number}", f"h{number % 2 + 1}")
    await cloud.cycle()
    for number in range(5):
        await cloud.stop(f"vm{number}")
    await cloud.cycle()
    return cloud


def test_a_cycle_that_would_drop_too_much_drops_nothing():
    async def story() -> tuple[int, float, int]:
        cloud = await mass_removal()
        memberships = sum(len(members) for members in (await cloud.members()).values())
        return memberships, cloud.metric("failover_removal_brakes_total"), len(cloud.events.of("RemovalBrake"))

    assert run(story()) == (8, 1, 1)


def test_the_brake_lets_go_once_the_vms_are_back():
    async def story() -> None:
        cloud = await mass_removal()
        assert cloud.metric("failover_removals_held_back") == 5
        for number in range(4):
            vm = await cloud.memory.get(VirtualMachine, f"vm{number}")
            assert vm.status.assigned is not None
            await cloud.instances(
                vm.status.assigned.hypervisor,
                lambda there: (msgspec.structs.replace(i, active=True) for i in there),
            )
        await cloud.cycle()
        assert cloud.metric("failover_removals_held_back") == 0

    run(story())


def test_a_vm_without_a_size_is_refused_and_says_so():
    async def story() -> None:
        cloud = Cloud({"flavorFailoverRequirements": {"*": 1}})
        await cloud.hosts("h1", "h2")
        await cloud.vm("a", "h1", cpu=0)
        await cloud.cycle()
        assert await cloud.members() == {}
        assert (await cloud.coverage("a")).reason == "zero-size"

    run(story())

"""Grace, brake and what counts as a slot, in whole cycles."""

from __future__ import annotations

import msgspec
from tests.support.cycles import six_hosts
from tests.support.failover import Cloud

from outlive.resources import VirtualMachine


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


async def test_a_cycle_that_would_drop_too_much_drops_nothing():
    cloud = await mass_removal()
    memberships = sum(len(members) for members in (await cloud.members()).values())
    assert (memberships, cloud.metric("failover_removal_brakes_total"), len(cloud.events.of("RemovalBrake"))) == (
        8,
        1,
        1,
    )


async def test_the_brake_lets_go_once_the_vms_are_back():
    cloud = await mass_removal()
    assert cloud.metric("failover_removals_held_back") == 5
    for number in range(4):
        vm = await cloud.memory.get(VirtualMachine, f"vm{number}")
        assert vm.status.assigned is not None
        await cloud.instances(
            vm.status.assigned.hypervisor, lambda there: (msgspec.structs.replace(i, active=True) for i in there)
        )
    await cloud.cycle()
    assert cloud.metric("failover_removals_held_back") == 0

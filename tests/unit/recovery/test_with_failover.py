"""Failover and recovery in one role: slots are promised, consumed, deleted and given anew."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.loops import run
from tests.support.recovery import GIB, RecoveryCloud

from outlive.failover.config import FailoverConfig
from outlive.failover.ports import Inline
from outlive.resources import Coverage, Membership, Reservation
from outlive.roles.settings import RoleSettings
from outlive.roles.up import Ports, UpRole
from outlive.runtime.tasks import OrderedTaskGroup

HOSTS = tuple(f"h{n}" for n in range(8))


def role(cloud: RecoveryCloud, k: int) -> UpRole:
    failover = msgspec.convert(
        {
            "flavorFailoverRequirements": {"*": k},
            "limitOneNewReservationPerHypervisor": False,
            "maxVMsToProcess": -1,
            "reconcileInterval": "30s",
            "shortReconcileInterval": "1s",
        },
        FailoverConfig,
    )
    return UpRole(
        cloud.memory,
        RoleSettings(failover=failover),
        Ports(computer=Inline()),
        identity="ctl-1",
        clock=cloud.clock,
        random=cloud.random.fork("up"),
        ids=cloud.ids,
    )


async def covered(cloud: RecoveryCloud) -> int:
    return sum(one.status.covered for one in (await cloud.memory.list(Coverage, limit=5000)).items)


async def slots(cloud: RecoveryCloud) -> list[Reservation]:
    return list((await cloud.memory.list(Reservation, limit=5000)).items)


async def join(cloud: RecoveryCloud) -> None:
    """Every host says that it has joined under the store's present incarnation."""
    for member in (await cloud.memory.list(Membership)).items:
        record = msgspec.structs.replace(member.record, incarnation=cloud.memory.incarnation)
        await cloud.memory.replace(msgspec.structs.replace(member, record=record))


@pytest.mark.slow
@pytest.mark.parametrize("dead", [("h0",), ("h0", "h1")], ids=["one", "two"])
def test_every_vm_lands_in_a_promised_slot_and_is_protected_again(dead: tuple[str, ...]) -> None:
    async def main() -> None:
        cloud = RecoveryCloud()
        up = role(cloud, k=2)
        await up.prepare()
        async with OrderedTaskGroup() as group:
            tasks = []
            await cloud.hosts(*HOSTS, memory=64 * GIB)
            await join(cloud)
            vms = [f"v{n:02}" for n in range(16)]
            for number, vm in enumerate(vms):
                await cloud.vm(vm, HOSTS[number % len(HOSTS)])
            tasks.append(group.create_task(cloud.live(), name="hosts"))
            tasks.append(group.create_task(up.run(), name="up"))
            await cloud.clock.sleep(40)
            assert await covered(cloud) == len(vms)
            lost = [vm for vm in vms if cloud.running[vm] & set(dead)]
            await cloud.die(*dead)
            await cloud.clock.sleep(4)
            records = [await cloud.recovery(vm) for vm in lost]
            assert [one.phase for one in records] == ["recovered"] * len(lost)
            assert all(one.promised for one in records)
            assert all(len(hosts) == 1 for hosts in cloud.running.values())
            await cloud.clock.sleep(2)
            assert await covered(cloud) == len(vms)
            for slot in await slots(cloud):
                assert slot.status.host not in dead
                assert slot.status.consumer is None
            for task in tasks:
                task.cancel()

    run(main())

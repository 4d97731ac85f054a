"""After slots were lost, a running server comes back to a packing as good as that of a first plan."""

from __future__ import annotations

import csv

import msgspec
import pytest
from tests.support.failover import GIB
from tests.support.live_failover import LiveCloud
from tests.support.loops import run

from outlive.cli.example import example_files
from outlive.resources import (
    Amounts,
    Assigned,
    Instance,
    ObjectMeta,
    Reservation,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)

CONFIG = {"reconcileInterval": "30s", "shortReconcileInterval": "1s", "flavorFailoverRequirements": {"*": 2}}
SETTLED_S = 600.0
"""Ticks of so many virtual seconds have to be enough."""
AT_MOST = 1.05
"""Slots, against those of a first plan."""


def memory_of(row: dict[str, str]) -> int:
    """Bytes."""
    return int(row["memory"].removesuffix("Gi")) * GIB


async def fill(cloud: LiveCloud) -> int:
    """The example's hosts and VMs; how many VMs."""
    with example_files() as files:
        hosts = list(csv.DictReader(files.hosts.read_text().splitlines()))
        vms = list(csv.DictReader(files.vms.read_text().splitlines()))
    sizes = {row["id"]: Amounts(cpu=1000 * int(row["cpu"]), memory=memory_of(row)) for row in vms}
    for row in hosts:
        mine = [vm for vm in vms if vm["host"] == row["name"]]
        cpu, memory = 1000 * int(row["cpu"]), memory_of(row)
        await cloud.host(row["name"], zone=row["zone"], rack=row["domain-rack"], cpu=cpu, memory=memory)
        await cloud.set_host(
            await cloud.get_host(row["name"]),
            allocation=sum((sizes[vm["id"]] for vm in mine), Amounts()),
            instances=tuple(Instance(id=vm["id"], name=vm["name"]) for vm in mine),
            num_instances=len(mine),
        )
    for vm in vms:
        spec = VirtualMachineSpec(flavor=vm["flavor"], zone=vm["zone"], resources=sizes[vm["id"]])
        made = await cloud.memory.create(VirtualMachine(metadata=ObjectMeta(name=vm["id"]), spec=spec))
        status = VirtualMachineStatus(phase="ACTIVE", assigned=Assigned(hypervisor=vm["host"]))
        await cloud.memory.replace_status(msgspec.structs.replace(made, status=status))
    return len(vms)


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 2, 4])
def test_ticks_of_a_running_server_rebuild_lost_slots_as_a_first_plan_does(every: int) -> None:
    async def story() -> None:
        cloud = LiveCloud(CONFIG)
        vms = await fill(cloud)
        async with cloud.running():
            await cloud.settle(10)
            planned = await cloud.slots()
            for name in sorted(planned)[::every]:
                await cloud.memory.delete((await cloud.memory.get(Reservation, name)).ref)
            await cloud.settle(SETTLED_S)
            rebuilt = await cloud.slots()
            covered = await cloud.covered()
        assert (len(covered), all(covered.values())) == (vms, True)
        assert len(rebuilt) <= AT_MOST * len(planned), (len(rebuilt), len(planned))

    run(story(), steps=50_000_000)

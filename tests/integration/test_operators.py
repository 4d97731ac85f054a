"""What people do with a token of the role operator goes through the table, and nothing that it does not name."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from tests.support.api import HOST, api
from tests.support.host_tokens import member, refused

from outlive.api import Role
from outlive.base import SystemClock
from outlive.inventory import (
    HostRecord,
    ImportOptions,
    Inventory,
    VmRecord,
    apply_import,
    check_inventory,
    plan_import,
    read_existing,
)
from outlive.node import operator as asked
from outlive.resources import (
    Amounts,
    Fault,
    Holder,
    Hypervisor,
    HypervisorSpec,
    Membership,
    ObjectMeta,
    ObjectRef,
    VirtualMachine,
    VirtualMachineStatus,
)
from outlive.runtime import acknowledge
from outlive.store import Store

AT = datetime(2026, 3, 1, tzinfo=UTC)
_replace = msgspec.structs.replace


async def imported(store: Store, hosts: list[str], vms: dict[str, str], **facts: Any) -> int:
    """Import these hosts, and VMs with the hosts that they are on; how many objects were written."""
    inventory = Inventory(
        what="csv",
        hosts=[
            HostRecord(name=name, place=name, capacity=Amounts(cpu=8000, memory=2**35), zone="z", **facts)
            for name in hosts
        ],
        vms=[
            VmRecord(id=vm, place=vm, host=host, phase="ACTIVE", resources=Amounts(cpu=1000, memory=2**30))
            for vm, host in vms.items()
        ],
        has_hosts=True,
        has_vms=True,
    )
    options = ImportOptions(prune=True, overcommit={"cpu": 2.0})
    existing = await read_existing(store)
    plan = plan_import(check_inventory(inventory, existing, options), existing, options, landed={}, now=AT)
    return await apply_import(store, plan)


async def test_an_operator_imports_an_inventory_again_and_again() -> None:
    async with api() as served:
        operator = served.client(Role.OPERATOR)
        assert await imported(operator, ["a", "b", "c"], {"v": "a", "w": "b"})
        facts = {"traits": ("T",), "cpu_arch": "x86_64", "hypervisor_type": "kvm", "disabled": "works"}
        assert await imported(operator, ["a", "b"], {"v": "b"}, **facts)
        assert await imported(operator, ["a", "b"], {"v": "b"}, **facts) == 0
        vm, host = await operator.get(VirtualMachine, "v"), await operator.get(Hypervisor, "b")
        assert (vm.host, host.status.num_instances) == ("b", 1)
        await operator.close()


async def test_an_operator_asks_for_what_operators_ask_for() -> None:
    async with api() as served:
        clock, admin, operator = SystemClock(), served.client(), served.client(Role.OPERATOR)
        for name in (HOST, "kvm-2"):
            spec = HypervisorSpec(management="node", mode="coordinator")
            await operator.create(Hypervisor(metadata=ObjectMeta(name=name), spec=spec))
        made = await admin.create(member(HOST))
        await asked.set_maintenance(operator, clock, True, hosts=(HOST,))
        await asked.set_maintenance(operator, clock, True)
        await asked.set_drain(operator, clock, HOST, True)
        await asked.request_fence(operator, clock, HOST, name="ann", reason="smoke")
        vm = await operator.create(VirtualMachine(metadata=ObjectMeta(name="vm")))
        entry = Holder(hypervisor="kvm-2", member_uid="lost", epoch=3, run_id="r")
        held = await admin.replace_status(_replace(vm, status=VirtualMachineStatus(holders=(entry,))))
        assert "recorded" in await asked.confirm_off(operator, clock, "kvm-2", name="ann", reason="it burned")
        assert (await admin.get(Membership, "kvm-2")).record.dead_through == 3
        subject = ObjectRef(kind="VirtualMachine", name="vm")
        fault = Fault(
            metadata=ObjectMeta(name="c.vm"), code="c", subject=subject, message="m", first_seen=AT, last_seen=AT
        )
        fault = await admin.create(fault)
        await acknowledge(operator, clock, fault.name)
        fault = await operator.get(Fault, fault.name, fresh=True)
        for work in (
            operator.replace(_replace(made, record=_replace(made.record, state="Revoked"))),
            operator.replace(_replace(fault, ended=True)),
            operator.replace_status(_replace(held, status=VirtualMachineStatus())),
            operator.delete(fault.ref),
            operator.delete(made.ref),
        ):
            assert "may not" in await refused(work)
        await admin.close()
        await operator.close()

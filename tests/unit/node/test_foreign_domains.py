"""Domains that Outlive did not make: VMs of the store are ended before anything starts, others are left alone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.loops import run_by
from tests.support.node_worlds import assigned, at, faults, holders, play, record, set_status, vm_of

from outlive.node.ports import DomainState
from outlive.node.vm import VmContext
from outlive.resources import VirtualMachine
from outlive.resources.reasons import FaultCode
from outlive.simulation import SimDomain, VmSpec, World

UUID = "5f0d6ad2-63f1-4b0e-9b0a-0f4f6a1d2c3e"
LATER = "00000000-0000-4000-8000-000000000009"
VMS = (VmSpec(name=UUID, host="kvm-1"), VmSpec(name="vm-2", host="kvm-1"))


def _foreign(name: str, uuid: str = "00000000-0000-4000-8000-000000000001") -> SimDomain:
    return SimDomain(vm=name, run_id="", epoch=0, state=DomainState.RUNNING, uuid=uuid)


def _started_at_boot(world: World, *domains: SimDomain) -> list[tuple[str, int]]:
    """Have the service of ``kvm-1`` start these with the machine; what was ended then, and in which epoch."""
    hypervisor = world.hosts["kvm-1"].hypervisor
    boot, destroy = hypervisor.boot, hypervisor.destroy
    ended: list[tuple[str, int]] = []

    def with_domains() -> None:
        boot()
        for one in domains:
            hypervisor.add_domain(one)

    async def watched(vm: str, run_id: str, uuid: str = "") -> None:
        await destroy(vm, run_id, uuid)
        ended.append((vm, record(world).epoch))

    hypervisor.boot = with_domains  # type: ignore[method-assign]
    hypervisor.destroy = watched  # type: ignore[method-assign]
    return ended


def _reported(world: World, code: FaultCode) -> bool:
    return any(code in name for name in faults(world))


@pytest.mark.parametrize(
    "domain", [_foreign(UUID, UUID), _foreign("web", UUID)], ids=["under its name", "under another name"]
)
@run_by(play, vms=VMS, violations=True)
async def test_vm_that_the_service_starts_by_itself_at_a_boot_is_ended_before_its_host_joins(
    world: World, *, domain: SimDomain
) -> None:
    ended = _started_at_boot(world, domain)
    await world.do("power-off", {"hosts": ["kvm-1"]})
    for vm in VMS:  # as a recovery would have it: it runs elsewhere by now
        await set_status(world, vm.name, holders=(), assigned=None)
    await world.do("power-on", {"hosts": ["kvm-1"]})
    await at(world, 60)
    assert ended[0] == (domain.vm, 1), "it goes while the host is not back yet"
    assert record(world).epoch == 2
    assert domain.vm not in world.hosts["kvm-1"].hypervisor.domains


@run_by(play, vms=VMS, violations=True)
async def test_host_does_not_join_while_a_vm_that_the_service_started_cannot_be_ended(world: World) -> None:
    _started_at_boot(world, _foreign("web", UUID))
    await world.do("power-off", {"hosts": ["kvm-1"]})
    await world.do("unkillable", {"vms": ["web"]})
    world.hosts["kvm-1"].hypervisor.faults.unkillable["web"] = True
    await world.do("power-on", {"hosts": ["kvm-1"]})
    await at(world, 60)
    assert record(world).epoch == 1
    assert _reported(world, FaultCode.HOST_NOT_EMPTY)
    world.hosts["kvm-1"].hypervisor.faults.unkillable.clear()
    await at(world, 90)
    assert record(world).epoch == 2
    assert not _reported(world, FaultCode.HOST_NOT_EMPTY)


@run_by(play, vms=VMS, violations=True)
async def test_domain_that_is_no_vm_of_the_store_runs_on_and_is_reported_and_vms_start_beside_it(world: World) -> None:
    _started_at_boot(world, _foreign("web"))
    await world.do("power-off", {"hosts": ["kvm-1"]})
    await world.do("power-on", {"hosts": ["kvm-1"]})
    await at(world, 90)
    assert "web" in world.hosts["kvm-1"].hypervisor.domains
    assert _reported(world, FaultCode.FOREIGN_DOMAINS)
    assert holders(world, "vm-2") == [("kvm-1", 2, "running")]
    world.hosts["kvm-1"].hypervisor.domains.pop("web")
    await at(world, 105)
    assert not _reported(world, FaultCode.FOREIGN_DOMAINS)


@run_by(play, vms=VMS, violations=True)
async def test_nothing_starts_beside_a_vm_that_somebody_started_by_hand_until_that_has_ended(world: World) -> None:
    hypervisor = world.hosts["kvm-1"].hypervisor
    for vm in VMS:
        await world.do("request", {"vm": vm.name, "verb": "stop"})
    await at(world, 10)
    hypervisor.faults.unkillable["web"] = True
    hypervisor.add_domain(_foreign("web", UUID))
    await at(world, 20)
    await world.do("request", {"vm": "vm-2", "verb": "start"})
    await at(world, 40)
    assert holders(world, "vm-2") == []
    assert _reported(world, FaultCode.HYPERVISOR_AUTOSTART)
    hypervisor.faults.unkillable.clear()
    await at(world, 80)
    assert "web" not in hypervisor.domains
    assert holders(world, "vm-2") == [("kvm-1", 1, "running")]
    assert not _reported(world, FaultCode.HYPERVISOR_AUTOSTART)


def test_vm_that_may_not_start_beside_a_foreign_guest_says_so_and_asks_the_store_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads: list[float] = []
    real = VmContext.read

    async def story(world: World) -> None:
        async def counted(self: VmContext, vm: str) -> VirtualMachine | None:
            if self.host == "kvm-1" and vm == "vm-2":
                reads.append(world.clock.monotonic())
            return await real(self, vm)

        hypervisor = world.hosts["kvm-1"].hypervisor
        for vm in VMS:
            await world.do("request", {"vm": vm.name, "verb": "stop"})
        await at(world, 10)
        hypervisor.faults.unkillable["web"] = True
        hypervisor.add_domain(_foreign("web", UUID))
        await at(world, 20)
        monkeypatch.setattr(VmContext, "read", counted)
        await world.do("request", {"vm": "vm-2", "verb": "start"})
        await at(world, 50)
        assert len(reads) < 45, f"{len(reads)} reads in 30 s"
        status = vm_of(world, "vm-2").status
        assert (status.reason, "web" in status.message) == ("foreign-domain", True)
        hypervisor.faults.unkillable.clear()
        await at(world, 90)
        assert holders(world, "vm-2") == [("kvm-1", 1, "running")]
        assert vm_of(world, "vm-2").status.reason == ""

    play(story, vms=VMS, violations=True, hosts=1)


@run_by(play, vms=VMS, violations=True)
async def test_vm_that_a_recovery_brought_beside_a_foreign_guest_goes_to_the_next_host(world: World) -> None:
    hypervisor = world.hosts["kvm-1"].hypervisor
    for vm in VMS:
        await world.do("request", {"vm": vm.name, "verb": "stop"})
    await at(world, 10)
    hypervisor.faults.unkillable["web"] = True
    hypervisor.add_domain(_foreign("web", UUID))
    await at(world, 20)
    await set_status(world, "vm-2", assigned=assigned("kvm-1", "kvm-2.1.abc"), phase="start")
    await world.do("request", {"vm": "vm-2", "verb": "start"})
    await at(world, 23)
    assert vm_of(world, "vm-2").status.rejection is None, "what nobody has looked at yet may be a stranger"
    await at(world, 35)
    rejection = vm_of(world, "vm-2").status.rejection
    assert rejection is not None
    assert (rejection.hypervisor, rejection.reason) == ("kvm-1", "foreign-domain")
    assert holders(world, "vm-2") == []


@run_by(play, vms=VMS, violations=True)
async def test_foreign_domain_that_becomes_a_vm_of_the_store_is_ended_before_that_starts_here(world: World) -> None:
    hypervisor = world.hosts["kvm-1"].hypervisor
    hypervisor.add_domain(_foreign("web", LATER))
    await at(world, 15)
    assert _reported(world, FaultCode.FOREIGN_DOMAINS)
    seen: list[str] = []
    create = hypervisor.create

    async def watched(vm: VirtualMachine, *given: Any) -> None:
        seen.extend(one.vm for one in hypervisor.domains.values() if one.uuid)
        await create(vm, *given)

    hypervisor.create = watched  # type: ignore[method-assign]
    await world.do("create-vm", {"vm": LATER, "host": "kvm-1"})
    await at(world, 90)
    assert holders(world, LATER) == [("kvm-1", 1, "running")]
    assert seen == []


@run_by(play, vms=VMS, violations=True)
async def test_domain_with_the_name_of_a_vm_and_another_uuid_is_somebody_else_s(world: World) -> None:
    """It is neither ended nor taken for the VM, which is not started beside it under the same name."""
    hypervisor = world.hosts["kvm-1"].hypervisor
    await world.do("request", {"vm": "vm-2", "verb": "stop"})
    await at(world, 10)
    hypervisor.add_domain(_foreign("vm-2"))
    await at(world, 20)
    await world.do("request", {"vm": "vm-2", "verb": "start"})
    await at(world, 60)
    assert hypervisor.domains["vm-2"].uuid
    assert _reported(world, FaultCode.FOREIGN_DOMAINS)
    assert holders(world, UUID) == [("kvm-1", 1, "running")]


@run_by(play, vms=VMS, violations=True)
async def test_daemon_that_starts_again_beside_a_guest_that_cannot_be_ended_goes_on_renewing(world: World) -> None:
    hypervisor = world.hosts["kvm-1"].hypervisor
    hypervisor.faults.unkillable["web"] = True
    hypervisor.add_domain(_foreign("web", UUID))
    await world.do("request", {"vm": UUID, "verb": "stop"})
    await at(world, 20)
    await world.do("kill-daemon", {"hosts": ["kvm-1"]})
    await at(world, 120)
    assert (record(world).state, record(world).epoch) == ("Held", 1)
    assert holders(world, "vm-2") == [("kvm-1", 1, "running")]
    assert _reported(world, FaultCode.HYPERVISOR_AUTOSTART)

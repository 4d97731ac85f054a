"""Faults stay active as long as what they say is so, also when the leader changes."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.support.recovery import GIB, RecoveryCloud

from outlive.recovery import RecoveryFaults, active_faults
from outlive.resources import (
    Amounts,
    Assigned,
    Fault,
    Hypervisor,
    HypervisorSpec,
    ObjectMeta,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)
from outlive.resources.reasons import FaultCode
from outlive.runtime import FaultRecorder

_replace = msgspec.structs.replace


def host(name: str, memory: int, taken: int, *, lost: str = "", **spec: Any) -> Hypervisor:
    one = Hypervisor(
        metadata=ObjectMeta(name=name), spec=msgspec.convert({"management": "node", **spec}, HypervisorSpec)
    )
    status = _replace(
        one.status, capacity=Amounts(memory=memory * GIB), allocation=Amounts(memory=taken * GIB), lost=lost
    )
    return _replace(one, status=status)


def vm(name: str, where: str, memory: int, *, phase: Any = "start", reason: str = "") -> VirtualMachine:
    return VirtualMachine(
        metadata=ObjectMeta(name=name),
        spec=VirtualMachineSpec(resources=Amounts(cpu=1000, memory=memory * GIB)),
        status=VirtualMachineStatus(
            phase=phase, reason="start-failed" if reason else "", message=reason, assigned=Assigned(hypervisor=where)
        ),
    )


def codes(vms: list[VirtualMachine], hosts: list[Hypervisor]) -> list[str]:
    return [one.code for one in active_faults(vms, hosts)]


def test_vm_that_its_host_gave_up_is_reported_with_the_reason() -> None:
    (one,) = active_faults([vm("a", "h1", 1), vm("b", "h1", 1, phase="fail", reason="its disk is locked")], [])
    assert (one.code, one.subject.name) == (FaultCode.VM_FAILED, "b")
    assert "its disk is locked" in one.message.text
    assert one.message.remedy


def test_memory_has_to_do_without_the_largest_host() -> None:
    hosts = [host("h1", 64, 30), host("h2", 64, 30), host("h3", 100, 60)]
    assert codes([], hosts) == []
    assert codes([], [*hosts[:2], host("h3", 100, 68)]) == [FaultCode.MEMORY_OVERCOMMITTED]


def test_memory_of_vms_that_do_not_run_counts_as_less_of_a_fault() -> None:
    hosts = [host("h1", 64, 10), host("h2", 64, 10)]
    assert codes([vm("a", "h1", 63, phase="stop")], hosts) == []
    assert codes([vm("a", "h1", 64, phase="stop")], hosts) == [FaultCode.MEMORY_OVERPROVISIONED]
    assert codes([vm("a", "elsewhere", 64, phase="stop")], hosts) == []


def test_hosts_that_are_dead_or_not_ours_do_not_count() -> None:
    hosts = [host("h1", 64, 40), host("h2", 64, 20, lost="f"), host("h3", 64, 60, management="nova")]
    assert codes([], hosts) == []


def test_controller_that_fails_its_rehearsals_is_reported_while_its_host_lives() -> None:
    one = host("h1", 64, 0, fencing={"driver": "simulated"})
    for said, lost, wanted in (("ok", "", []), ("", "", []), ("no answer", "", ["h1"]), ("no answer", "f", [])):
        status = _replace(one.status, rehearsed=said, lost=lost)
        found = active_faults([], [_replace(one, status=status)])
        assert [each.subject.name for each in found] == wanted
        assert all(each.code == FaultCode.POWER_NOT_REHEARSED for each in found)


def open_faults(cloud: RecoveryCloud) -> Any:
    async def asked() -> set[str]:
        found = [one async for one in _listed(cloud)]
        return {one.name for one in found if not one.ended}

    return asked()


async def _listed(cloud: RecoveryCloud) -> Any:
    from outlive.store import list_all

    async for one in list_all(cloud.memory, Fault):
        yield one


async def test_what_one_leader_raised_the_next_one_ends() -> None:
    from tests.support.field_writers import WriterStore

    from outlive.recovery import RecoveryInformers

    class Nobody:
        """No memberships."""

        def items(self) -> list[Any]:
            return []

    class Caches:
        """What a leader sees."""

        doubtful = False

        def __init__(self, vms: list[VirtualMachine]) -> None:
            self.vms = self.hypervisors = self.clusters = self
            self.memberships = Nobody()
            self.known = vms

        def items(self) -> list[Any]:
            return self.known

        def get(self, name: str) -> None:
            return None

        def subscribe(self, *_changed: Any, **_how: Any) -> None:
            """Nothing changes."""

    cloud = RecoveryCloud()
    store = WriterStore(cloud.memory, writer="recovery")

    def leader(phase: str) -> RecoveryFaults:
        informers: Any = Caches([vm("a", "h1", 1, phase=phase, reason="broken")])
        informers.hypervisors = Caches([])
        seen: RecoveryInformers = informers
        recorder = FaultRecorder(store, cloud.clock, "recovery")
        return RecoveryFaults(seen, recorder, cloud.events, cloud.clock, lacks_coordinator=lambda: False)

    await leader("fail").record()
    first = await open_faults(cloud)
    await leader("start").record()
    assert (first, await open_faults(cloud)) == ({"vm-failed.a"}, set())

"""One virtual machine on its host: started, stopped, crashed, asked for, rejected."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from tests.support.node_worlds import (
    assigned,
    at,
    faults,
    hears,
    holders,
    host_of,
    narrated,
    play,
    set_status,
    vm_of,
)

from outlive.node.ports import DiskLock
from outlive.node.vm import reconciler
from outlive.node.vm.context import VmContext, VmMemory
from outlive.node.vm.reconciler import CALM_S, LOOKS
from outlive.resources import HOST_LABEL, Recovery, VirtualMachine
from outlive.resources.policies import RecoveryPolicy
from outlive.resources.vms import Holder
from outlive.simulation.spec import VmSpec
from outlive.simulation.verbs.operations import change_spec
from outlive.simulation.world import World


@pytest.mark.slow
def test_domain_is_created_only_after_the_store_acknowledged_the_hold() -> None:
    async def story(world: World) -> None:
        kinds = [event.kind for event in world.history.events if event.subject == "vm-1"]
        assert kinds.index("hold") < kinds.index("domain")
        assert host_of(world).status.num_instances == 1
        assert [one.id for one in host_of(world).status.instances] == ["vm-1"]

    play(story)


def test_vm_is_not_held_while_another_holder_is_not_fenced() -> None:
    async def story(world: World) -> None:
        await world.do("request", {"vm": "vm-1", "verb": "stop"})
        await at(world, 5)
        stranger = Holder(hypervisor="kvm-2", member_uid="somebody", epoch=1, run_id="other")
        await set_status(world, holders=(stranger,))
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 40)
        assert world.running("vm-1") == ()
        assert vm_of(world).status.holders == (stranger,)

    play(story)


def test_vm_that_crashes_is_started_again_after_a_wait_that_grows() -> None:
    async def story(world: World) -> None:
        await world.do("guest-crash", {"vms": ["vm-1"]})
        await at(world, 13)
        assert world.running("vm-1") == ("kvm-1",)
        await world.do("guest-crash", {"vms": ["vm-1"]})
        await at(world, 26)
        assert world.running("vm-1") == ()
        assert "2 in a row" in vm_of(world).status.message
        await at(world, 45)
        assert holders(world) == [("kvm-1", 1, "running")]
        assert vm_of(world).status.reason == ""

    play(story)


def test_stopped_vm_is_held_by_nobody_and_starts_again_when_asked() -> None:
    async def story(world: World) -> None:
        await world.do("request", {"vm": "vm-1", "verb": "stop"})
        await at(world, 5)
        assert (vm_of(world).status.phase, holders(world)) == ("stop", [])
        assert vm_of(world).status.answered.code == "accepted"
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 12)
        assert holders(world) == [("kvm-1", 1, "running")]

    play(story)


def test_guest_that_ignores_a_shutdown_is_stopped_hard_after_the_limit() -> None:
    async def story(world: World) -> None:
        await world.do("guest-ignores-shutdown", {"vms": ["vm-1"]})
        await world.do("request", {"vm": "vm-1", "verb": "shutdown"})
        await at(world, 15)
        assert world.running("vm-1") == ("kvm-1",)
        await at(world, 30)
        assert (world.running("vm-1"), vm_of(world).status.phase) == ((), "stop")

    play(story, node={"shutdownLimit": "20s"})


def test_guest_that_was_not_ready_to_hear_of_its_shutdown_is_asked_again() -> None:
    async def story(world: World) -> None:
        await world.do("guest-ignores-shutdown", {"vms": ["vm-1"]})
        await world.do("request", {"vm": "vm-1", "verb": "shutdown"})
        await at(world, 5)
        hears(world)
        await at(world, 25)
        assert (world.running("vm-1"), vm_of(world).status.phase) == ((), "stop")

    play(story)


def test_start_during_a_shutdown_lets_the_guest_run_on() -> None:
    async def story(world: World) -> None:
        await world.do("guest-ignores-shutdown", {"vms": ["vm-1"]})
        await world.do("request", {"vm": "vm-1", "verb": "shutdown"})
        await at(world, 5)
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 60)
        assert world.running("vm-1") == ("kvm-1",)
        assert vm_of(world).status.phase == "start"
        assert "destroyed" not in " ".join(narrated(world, "vm-1", "domain"))

    play(story, node={"shutdownLimit": "20s"})


def test_restart_ends_the_run_and_begins_another_one() -> None:
    async def story(world: World) -> None:
        before = vm_of(world).status.holders[0].run_id
        await world.do("request", {"vm": "vm-1", "verb": "restart"})
        await at(world, 30)
        assert holders(world) == [("kvm-1", 1, "running")]
        assert vm_of(world).status.holders[0].run_id != before

    play(story)


def test_disabled_vm_is_shut_down_first_and_stays_so() -> None:
    async def story(world: World) -> None:
        await world.do("request", {"vm": "vm-1", "verb": "disable"})
        await at(world, 40)
        assert (world.running("vm-1"), vm_of(world).status.phase, holders(world)) == ((), "disable", [])

    play(story)


def test_host_that_cannot_start_what_a_fence_brought_to_it_rejects_it_with_the_reason() -> None:
    async def story(world: World) -> None:
        await world.do("start-fails", {"hosts": ["kvm-2"], "reason": "no such CPU", "times": 5})
        await world.do("request", {"vm": "vm-1", "verb": "stop"})
        await at(world, 5)
        vm = vm_of(world)
        labels = {**vm.metadata.labels, HOST_LABEL: "kvm-2"}
        await world.store.replace(_with_labels(vm, labels))
        await set_status(world, assigned=assigned("kvm-2", "kvm-1.1.abc"), phase="start")
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 20)
        rejection = vm_of(world).status.rejection
        assert rejection is not None
        assert (rejection.hypervisor, rejection.fence) == ("kvm-2", "kvm-1.1.abc")
        assert "no such CPU" in rejection.message
        assert holders(world) == []

    play(story)


def test_vm_whose_recovery_is_over_is_tried_again_by_its_host_though_another_fence_had_brought_it() -> None:
    """Nobody acts on a rejection any more: the later recovery ended when the VM was seen running where it was."""

    async def story(world: World) -> None:
        await world.do("request", {"vm": "vm-1", "verb": "stop"})
        await at(world, 5)
        await world.do("start-fails", {"hosts": ["kvm-1"], "reason": "no memory", "times": 1})
        over = Recovery(fence="kvm-1", phase="recovered", origin="kvm-1", host="kvm-1")
        await set_status(world, assigned=assigned("kvm-1", "kvm-2.1.abc"), recovery=over)
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 30)
        assert vm_of(world).status.rejection is None
        assert world.running("vm-1") == ("kvm-1",)

    play(story)


def test_vm_that_does_not_start_is_tried_once_more_and_then_left_to_other_hosts() -> None:
    async def story(world: World) -> None:
        await world.do("request", {"vm": "vm-1", "verb": "stop"})
        await at(world, 5)
        await world.do("start-fails", {"hosts": ["kvm-1"], "reason": "no such CPU", "times": 9})
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 8)
        assert vm_of(world).status.reason == "not-created", "while it waits for the next try"
        await at(world, 60)
        rejection = vm_of(world).status.rejection
        assert rejection is not None
        assert (rejection.hypervisor, "no such CPU" in rejection.message) == ("kvm-1", True)
        assert vm_of(world).status.phase == "start"
        assert holders(world) == [], "nobody else may hold it before"

    play(story)


@pytest.mark.parametrize("mode", ["hold", "ignore"])
def test_vm_that_no_other_host_may_start_waits_for_an_operator_after_its_tries(mode: str) -> None:
    async def story(world: World) -> None:
        policy = RecoveryPolicy(mode=mode, max_restarts=2)  # type: ignore[arg-type]
        await change_spec(world, VirtualMachine, "vm-1", lambda spec: msgspec.structs.replace(spec, recovery=policy))
        await world.do("request", {"vm": "vm-1", "verb": "stop"})
        await at(world, 5)
        await world.do("start-fails", {"hosts": ["kvm-1"], "reason": "no such CPU", "times": 9})
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 60)
        assert vm_of(world).status.phase == "fail"
        assert "in 3 tries: " in vm_of(world).status.message
        assert holders(world) == []

    play(story)


def test_failed_starts_are_forgotten_once_it_ran_for_long() -> None:
    """Two starts that fail in a row are too many; here it runs in between."""

    async def story(world: World) -> None:
        policy = RecoveryPolicy(reset_s=20.0)
        await change_spec(world, VirtualMachine, "vm-1", lambda spec: msgspec.structs.replace(spec, recovery=policy))
        for moment_s in (5, 60):
            await at(world, moment_s)
            await world.do("start-fails", {"hosts": ["kvm-1"], "reason": "no such CPU", "times": 1})
            await world.do("guest-crash", {"vms": ["vm-1"]})
        await at(world, 90)
        assert vm_of(world).status.rejection is None
        assert world.running("vm-1") == ("kvm-1",)

    play(story)


def test_vm_whose_disks_cannot_be_looked_at_says_so_and_starts_once_they_can() -> None:
    """One that no other host may start: others leave the host after some tries."""

    async def story(world: World) -> None:
        policy = RecoveryPolicy(mode="hold")
        await change_spec(world, VirtualMachine, "vm-1", lambda spec: msgspec.structs.replace(spec, recovery=policy))
        await world.do("request", {"vm": "vm-1", "verb": "stop"})
        await at(world, 10)
        await world.do("cut", {"hosts": ["kvm-1"], "network": "storage"})
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 40)
        assert "could not be looked at" in vm_of(world).status.message
        assert (vm_of(world).status.phase, world.running("vm-1")) == ("start", ())
        await world.do("heal", {"hosts": ["kvm-1"], "network": "storage"})
        await at(world, 80)
        assert (vm_of(world).status.phase, vm_of(world).status.reason) == ("start", "")
        assert world.running("vm-1") == ("kvm-1",)

    play(story)


def test_vm_whose_disk_is_locked_by_somebody_else_does_not_start() -> None:
    async def story(world: World) -> None:
        await world.do("request", {"vm": "vm-1", "verb": "stop"})
        await at(world, 5)
        disk = vm_of(world).spec.disks[0]
        world.disks._locks[disk] = DiskLock(volume=disk, id="lock-7", locker="client.9", address="192.0.2.9:0/1")
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 20)
        assert vm_of(world).status.phase == "fail"
        assert "lock-7" in vm_of(world).status.message
        assert (world.running("vm-1"), holders(world)) == ((), [])

    play(story)


def test_domain_that_belongs_elsewhere_is_destroyed_and_its_entry_released() -> None:
    async def story(world: World) -> None:
        await set_status(world, assigned=assigned("kvm-2"))
        vm = vm_of(world)
        await world.store.replace(_with_labels(vm, {**vm.metadata.labels, HOST_LABEL: "kvm-2"}))
        await at(world, 20)
        assert world.running("vm-1") == ("kvm-2",)
        assert holders(world) == [("kvm-2", 1, "running")]

    play(story)


def test_many_vms_are_started_together() -> None:
    vms = tuple(VmSpec(name=f"vm-{n}", host="kvm-1", cpu="1", memory="1Gi") for n in range(1, 21))

    async def story(world: World) -> None:
        assert all(world.running(vm.name) == ("kvm-1",) for vm in vms)
        assert host_of(world).status.num_instances == 20
        assert not faults(world)

    play(story, vms=vms)


def _with_labels(vm: VirtualMachine, labels: dict[str, str]) -> VirtualMachine:
    return msgspec.structs.replace(vm, metadata=msgspec.structs.replace(vm.metadata, labels=labels))


def test_start_that_fails_after_its_hold_is_not_tried_again_at_once() -> None:
    """The hold is a change of the virtual machine itself: it must not shorten the wait for the next try."""

    async def story(world: World) -> None:
        await world.do("request", {"vm": "vm-1", "verb": "stop"})
        await at(world, 5)
        await world.do("cut", {"network": "storage", "hosts": ["kvm-1"]})
        world.hosts["kvm-1"].hypervisor.stop_service()
        before = len(list(world.history.events))
        await world.do("request", {"vm": "vm-1", "verb": "start"})
        await at(world, 15)
        holds = [one for one in list(world.history.events)[before:] if (one.kind, one.subject) == ("hold", "vm-1")]
        assert 1 <= len(holds) <= 12

    play(story)


def test_looks_that_the_vm_itself_asks_for_by_its_changes_come_to_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    async def story(world: World) -> None:
        async def changing(node: VmContext, name: str, memory: VmMemory) -> None:
            looks.append(name)
            await set_status(world, message=f"look {len(looks)}")
            await node.clock.sleep(0.02)

        monkeypatch.setattr("outlive.node.vm.reconciler.reconcile", changing)
        await set_status(world, message="changed")
        await at(world, 20)

    play(story, hosts=1, violations=True)
    assert LOOKS < len(looks) < 20 * LOOKS / CALM_S


@pytest.mark.slow
def test_worker_that_crashes_is_a_fault_with_the_name_of_its_vm_and_rests_ever_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crashed: list[float] = []

    async def story(world: World) -> None:
        true_look = reconciler.reconcile

        async def broken(node: VmContext, name: str, memory: VmMemory) -> float | None:
            if name != "vm-1":
                return await true_look(node, name, memory)
            crashed.append(world.clock.monotonic())
            node.memory(name).changed.set()
            raise RuntimeError("a defect")

        monkeypatch.setattr(reconciler, "reconcile", broken)
        await world.do("request", {"vm": "vm-1", "verb": "stop"})
        for second in range(1, 60):
            await at(world, second)
            await world.do("request", {"vm": "vm-1", "verb": "stop"})  # what changes does not shorten its rest
        assert "worker-crashed.vm-1" in faults(world)
        assert [round(later - earlier) for earlier, later in itertools.pairwise(crashed)] == [1, 2, 4, 8, 16]
        monkeypatch.setattr(reconciler, "reconcile", true_look)
        await at(world, 130)
        assert "worker-crashed.vm-1" not in faults(world)
        assert vm_of(world).status.phase == "stop"

    play(story)

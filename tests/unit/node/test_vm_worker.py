"""One virtual machine on its host: started, stopped, crashed, asked for, rejected."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from tests.support.loops import run_by
from tests.support.node_worlds import (
    assigned,
    at,
    faults,
    hears,
    holders,
    narrated,
    play,
    set_status,
    vm_of,
)

from outlive.node.vm import CALM_S, LOOKS, VmContext, VmMemory, reconciler
from outlive.resources import HOST_LABEL, Recovery, RecoveryPolicy, VirtualMachine
from outlive.simulation import World
from outlive.simulation.verbs import change_spec


@run_by(play)
async def test_guest_that_was_not_ready_to_hear_of_its_shutdown_is_asked_again(world: World) -> None:
    await world.do("guest-ignores-shutdown", {"vms": ["vm-1"]})
    await world.do("request", {"vm": "vm-1", "verb": "shutdown"})
    await at(world, 5)
    hears(world)
    await at(world, 25)
    assert (world.running_hosts("vm-1"), vm_of(world).status.phase) == ((), "stop")


@run_by(play, node={"shutdownLimit": "20s"})
async def test_start_during_a_shutdown_lets_the_guest_run_on(world: World) -> None:
    await world.do("guest-ignores-shutdown", {"vms": ["vm-1"]})
    await world.do("request", {"vm": "vm-1", "verb": "shutdown"})
    await at(world, 5)
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 60)
    assert world.running_hosts("vm-1") == ("kvm-1",)
    assert vm_of(world).status.phase == "start"
    assert "destroyed" not in " ".join(narrated(world, "vm-1", "domain"))


@run_by(play)
async def test_restart_ends_the_run_and_begins_another_one(world: World) -> None:
    before = vm_of(world).status.holders[0].run_id
    await world.do("request", {"vm": "vm-1", "verb": "restart"})
    await at(world, 30)
    assert holders(world) == [("kvm-1", 1, "running")]
    assert vm_of(world).status.holders[0].run_id != before


@run_by(play)
async def test_vm_whose_recovery_is_over_is_tried_again_by_its_host_though_another_fence_had_brought_it(
    world: World,
) -> None:
    """Nobody acts on a rejection any more: the later recovery ended when the VM was seen running where it was."""
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 5)
    await world.do("start-fails", {"hosts": ["kvm-1"], "reason": "no memory", "times": 1})
    over = Recovery(fence="kvm-1", phase="recovered", origin="kvm-1", host="kvm-1")
    await set_status(world, assigned=assigned("kvm-1", "kvm-2.1.abc"), recovery=over)
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 30)
    assert vm_of(world).status.rejection is None
    assert world.running_hosts("vm-1") == ("kvm-1",)


@pytest.mark.parametrize("mode", ["hold", "ignore"])
@run_by(play)
async def test_vm_that_no_other_host_may_start_waits_for_an_operator_after_its_tries(
    world: World, *, mode: str
) -> None:
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


@run_by(play)
async def test_failed_starts_are_forgotten_once_it_ran_for_long(world: World) -> None:
    """Two starts that fail in a row are too many; here it runs in between."""
    policy = RecoveryPolicy(reset_s=20.0)
    await change_spec(world, VirtualMachine, "vm-1", lambda spec: msgspec.structs.replace(spec, recovery=policy))
    for moment_s in (5, 60):
        await at(world, moment_s)
        await world.do("start-fails", {"hosts": ["kvm-1"], "reason": "no such CPU", "times": 1})
        await world.do("guest-crash", {"vms": ["vm-1"]})
    await at(world, 90)
    assert vm_of(world).status.rejection is None
    assert world.running_hosts("vm-1") == ("kvm-1",)


@run_by(play)
async def test_vm_whose_disks_cannot_be_looked_at_says_so_and_starts_once_they_can(world: World) -> None:
    """One that no other host may start: others leave the host after some tries."""
    policy = RecoveryPolicy(mode="hold")
    await change_spec(world, VirtualMachine, "vm-1", lambda spec: msgspec.structs.replace(spec, recovery=policy))
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 10)
    await world.do("cut", {"hosts": ["kvm-1"], "network": "storage"})
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 40)
    assert "could not be looked at" in vm_of(world).status.message
    assert (vm_of(world).status.phase, world.running_hosts("vm-1")) == ("start", ())
    await world.do("heal", {"hosts": ["kvm-1"], "network": "storage"})
    await at(world, 80)
    assert (vm_of(world).status.phase, vm_of(world).status.reason) == ("start", "")
    assert world.running_hosts("vm-1") == ("kvm-1",)


@run_by(play)
async def test_domain_that_belongs_elsewhere_is_destroyed_and_its_entry_released(world: World) -> None:
    await set_status(world, assigned=assigned("kvm-2"))
    vm = vm_of(world)
    await world.store.replace(_with_labels(vm, {**vm.metadata.labels, HOST_LABEL: "kvm-2"}))
    await at(world, 20)
    assert world.running_hosts("vm-1") == ("kvm-2",)
    assert holders(world) == [("kvm-2", 1, "running")]


def _with_labels(vm: VirtualMachine, labels: dict[str, str]) -> VirtualMachine:
    return msgspec.structs.replace(vm, metadata=msgspec.structs.replace(vm.metadata, labels=labels))


@run_by(play)
async def test_start_that_fails_after_its_hold_is_not_tried_again_at_once(world: World) -> None:
    """The hold is a change of the virtual machine itself: it must not shorten the wait for the next try."""
    await world.do("request", {"vm": "vm-1", "verb": "stop"})
    await at(world, 5)
    await world.do("cut", {"network": "storage", "hosts": ["kvm-1"]})
    world.hosts["kvm-1"].hypervisor.stop_service()
    before = len(list(world.history.events))
    await world.do("request", {"vm": "vm-1", "verb": "start"})
    await at(world, 15)
    holds = [one for one in list(world.history.events)[before:] if (one.kind, one.subject) == ("hold", "vm-1")]
    assert 1 <= len(holds) <= 12


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
            node.memory_of(name).changed.set()
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

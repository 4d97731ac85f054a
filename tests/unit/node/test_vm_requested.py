"""What a user asks for a VM: one write, under a new id."""

from __future__ import annotations

import msgspec
import pytest
from tests.support.field_writers import WriterStore
from tests.support.loops import run, run_by
from tests.support.node_worlds import at, faults, play, vm_of

from outlive.base import LoopClock, NotFound, Random, Refused, SeededIds, Usage
from outlive.node import request_vm
from outlive.recovery import active_faults
from outlive.resources import (
    Answer,
    Assigned,
    Hypervisor,
    HypervisorSpec,
    ObjectMeta,
    Request,
    VirtualMachine,
    VirtualMachineStatus,
)
from outlive.simulation import HistoryEvent, World
from outlive.simulation.verbs import change_spec
from outlive.store import MemoryStore

_replace = msgspec.structs.replace
IDS = SeededIds(Random(1))
FAILED = VirtualMachine(
    metadata=ObjectMeta(name="a"),
    status=VirtualMachineStatus(phase="fail", reason="its disk is locked", assigned=Assigned(hypervisor="h1")),
)


H1 = Hypervisor(metadata=ObjectMeta(name="h1"), spec=HypervisorSpec(management="node"))
NOVAS = Hypervisor(metadata=ObjectMeta(name="h2"), spec=HypervisorSpec(management="nova"))


def store_of(*objects: VirtualMachine | Hypervisor) -> WriterStore:
    store = MemoryStore(LoopClock(), IDS)
    store.load([*objects])
    return WriterStore(store, writer="users")


async def test_a_request_is_written_under_a_new_id_each_time() -> None:
    store = store_of(FAILED, H1)
    answer = await request_vm(store, LoopClock(), IDS, "a", "start")
    first = (await store.get(VirtualMachine, "a")).spec.request
    await request_vm(store, LoopClock(), IDS, "a", "start")
    second = (await store.get(VirtualMachine, "a")).spec.request
    assert first is not None
    assert second is not None
    assert (first.verb, second.verb) == ("start", "start")
    assert first.id != second.id
    assert (first, first.id in answer.text) == (answer.request, True)
    assert "h1 answers" in answer.text


async def test_what_nobody_would_answer_is_refused() -> None:
    imported = VirtualMachine(metadata=ObjectMeta(name="a"), status=VirtualMachineStatus(source="nova"))
    with pytest.raises(Refused):
        await request_vm(store_of(imported), LoopClock(), IDS, "a", "start")
    with pytest.raises(NotFound):
        await request_vm(store_of(), LoopClock(), IDS, "a", "start")
    with pytest.raises(NotFound):
        await request_vm(store_of(FAILED), LoopClock(), IDS, "a", "move", target="h9")
    with pytest.raises(Usage):
        await request_vm(store_of(FAILED), LoopClock(), IDS, "a", "start", target="h1")


async def test_a_host_that_others_manage_is_asked_for_nothing() -> None:
    with pytest.raises(Refused) as error:
        await request_vm(store_of(FAILED, _replace(NOVAS, metadata=H1.metadata)), LoopClock(), IDS, "a", "stop")
    assert str(error.value).startswith("h1 is managed by nova")
    store = store_of(FAILED, H1, NOVAS)
    with pytest.raises(Refused) as error:
        await request_vm(store, LoopClock(), IDS, "a", "migrate", target="h2")
    assert str(error.value).startswith("h2 is managed by nova")
    assert (await store.get(VirtualMachine, "a")).spec.request is None


def test_a_daemon_answers_also_where_the_document_of_its_host_is_lost() -> None:
    assert "h1 answers" in run(request_vm(store_of(FAILED), LoopClock(), IDS, "a", "start")).text


def test_the_fault_of_a_failed_vm_names_the_command() -> None:
    (fault,) = active_faults((FAILED,), ())
    assert fault.message.remedy == "remove the cause, then: outlive vm start a"


# A VM that is to be disabled is, whatever happens to its daemon meanwhile.


@run_by(play)
async def test_vm_is_disabled_though_its_daemon_is_killed_after_it_was_stopped_for_that(world: World) -> None:
    def destroyed(event: HistoryEvent) -> None:
        if event.kind == "domain" and event.text == "on kvm-1: destroyed":
            world.hosts["kvm-1"].daemon.kill()

    world.history.listen(destroyed)
    made = Request(id="asked", verb="disable", force=True)
    await change_spec(world, VirtualMachine, "vm-1", lambda spec: msgspec.structs.replace(spec, request=made))
    await at(world, 200)
    assert (vm_of(world).status.phase, vm_of(world).status.reason) == ("disable", ""), faults(world)


# Who asks to have a VM stopped while it moves is obeyed, wherever it arrives.


@pytest.mark.parametrize("verb", ["stop", "disable"])
@run_by(play)
async def test_vm_that_is_stopped_while_it_moves_live_does_not_run_on(world: World, *, verb: str) -> None:
    """As ``outlive vm VERB`` asks for it: nothing but the request is written."""
    await world.do("move", {"vm": "vm-1", "to": "kvm-2", "live": True})
    while (move := vm_of(world).status.migration) is None or move.phase != "transferring":
        await world.clock.sleep(0.01)
    made = Request(id="asked", verb=verb)  # type: ignore[arg-type]
    await change_spec(world, VirtualMachine, "vm-1", lambda spec: msgspec.structs.replace(spec, request=made))
    await at(world, 60)
    vm = vm_of(world)
    assert vm.status.answered == Answer(id="asked", code="accepted")
    assert (world.running_hosts("vm-1"), vm.status.phase) == ((), verb)

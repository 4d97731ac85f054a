"""What a user asks for a VM: one write, under a new id."""

from __future__ import annotations

import pytest
from tests.support.loops import run

from outlive.base.clock import LoopClock
from outlive.base.errors import NotFound, Refused, Usage
from outlive.base.ids import SeededIds
from outlive.base.random import Random
from outlive.recovery.standing import standing
from outlive.resources import Assigned, ObjectMeta, VirtualMachine
from outlive.resources.vms import VirtualMachineStatus
from outlive.roles.requesting import request_vm
from outlive.store.memory import MemoryStore
from outlive.store.writers import WriterStore

IDS = SeededIds(Random(1))
FAILED = VirtualMachine(
    metadata=ObjectMeta(name="a"),
    status=VirtualMachineStatus(phase="fail", reason="its disk is locked", assigned=Assigned(hypervisor="h1")),
)


def store_of(*vms: VirtualMachine) -> WriterStore:
    store = MemoryStore(LoopClock(), IDS)
    store.load([*vms])
    return WriterStore(store, writer="users")


def test_a_request_is_written_under_a_new_id_each_time() -> None:
    async def scene() -> None:
        store = store_of(FAILED)
        told = await request_vm(store, IDS, "a", "start")
        first = (await store.get(VirtualMachine, "a")).spec.request
        await request_vm(store, IDS, "a", "start")
        second = (await store.get(VirtualMachine, "a")).spec.request
        assert first is not None
        assert second is not None
        assert (first.verb, second.verb) == ("start", "start")
        assert first.id != second.id
        assert first.id in told
        assert "h1 answers" in told

    run(scene())


def test_what_nobody_would_answer_is_refused() -> None:
    async def scene() -> None:
        with pytest.raises(Refused):
            await request_vm(store_of(VirtualMachine(metadata=ObjectMeta(name="a"))), IDS, "a", "start")
        with pytest.raises(NotFound):
            await request_vm(store_of(), IDS, "a", "start")
        with pytest.raises(NotFound):
            await request_vm(store_of(FAILED), IDS, "a", "move", target="h9")
        with pytest.raises(Usage):
            await request_vm(store_of(FAILED), IDS, "a", "start", target="h1")

    run(scene())


def test_the_fault_of_a_failed_vm_names_the_command() -> None:
    (fault,) = standing((FAILED,), ())
    assert fault.remedy == "remove the cause, then: outlive request a start"

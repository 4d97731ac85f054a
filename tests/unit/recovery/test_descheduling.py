"""Our own VMs are moved for the descheduler as people move them: by a request that their host answers."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from outlive.base import LoopClock, Random, Refused, SeededIds
from outlive.recovery import OwnVmMoves
from outlive.resources import (
    Answer,
    Assigned,
    Migration,
    MigrationPhase,
    ObjectMeta,
    Request,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)
from outlive.store import MemoryStore


async def world(**status: Any) -> tuple[MemoryStore, OwnVmMoves]:
    clock = LoopClock()
    store = MemoryStore(clock, SeededIds(Random(1)))
    made = await store.create(VirtualMachine(metadata=ObjectMeta(name="v"), spec=VirtualMachineSpec()))
    fields = {"phase": "start", "assigned": Assigned(hypervisor="a"), **status}
    await store.replace_status(replace(made, status=VirtualMachineStatus(**fields)))
    return store, OwnVmMoves(store, clock=clock)


async def states(moves: OwnVmMoves, request: str = "r") -> tuple[str, str, str]:
    found = await moves.locate("v", request)
    assert found is not None
    return found.host, found.state, found.refusal


async def test_a_running_vm_is_asked_to_move_live_and_only_once() -> None:
    store, moves = await world()
    assert await states(moves) == ("a", "ACTIVE", "")
    await moves.migrate("v", "r")
    kept = await store.get(VirtualMachine, "v")
    assert kept.spec.request == Request(id="r", verb="migrate", force_live=True)
    assert (await states(moves))[1] == "MIGRATING"
    await moves.migrate("v", "r")
    assert (await store.get(VirtualMachine, "v")).metadata.resource_version == kept.metadata.resource_version
    with pytest.raises(Refused):
        await moves.migrate("v", "other")
    assert await moves.list_moves("v") == ()
    assert await moves.locate("nobody", "r") is None
    await moves.migrate("nobody", "r")


@pytest.mark.parametrize(
    ("status", "state", "refusal"),
    [
        ({"phase": "fail"}, "ERROR", ""),
        ({"phase": "stop"}, "STOP", ""),
        ({"answered": Answer(id="r", code="no-host", message="no host takes it")}, "ACTIVE", "no host takes it"),
        ({"answered": Answer(id="q", code="no-host", message="no host takes it")}, "ACTIVE", ""),
        ({"answered": Answer(id="r", code="accepted")}, "ACTIVE", ""),
        (
            {"answered": Answer(id="r", code="accepted"),
             "migration": Migration(id="m", source="a", target="b", phase=MigrationPhase.ABORTED, reason="too-slow")},
            "ACTIVE",
            "too-slow",
        ),
        ({"migration": Migration(id="m", source="a", target="b")}, "MIGRATING", ""),
    ],
)  # fmt: skip
async def test_what_its_host_said_is_seen(status: dict[str, Any], state: str, refusal: str) -> None:
    _, moves = await world(**status)
    assert await states(moves) == ("a", state, refusal)

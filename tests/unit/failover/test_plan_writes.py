"""A plan that is carried out: after every single write the state is valid, and nobody is worse off than before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.certified import GIB, fleet, settings
from tests.support.small_clouds import make_host, make_vm

from outlive.base import Random, SeededIds, SystemClock
from outlive.failover import CheckInput, Snapshot, gather, plan_input, repack_input, slot_view, without_room
from outlive.failover.analysis import CoverageInput, assess_state
from outlive.failover.check import check
from outlive.failover.planner.plan import plan
from outlive.failover.planner.repack import repack
from outlive.failover.reconciler import SlotWriter, actions_of, write_plan
from outlive.recovery import build_in_flight
from outlive.resources import Amounts, Assigned, Reservation, VirtualMachineStatus
from outlive.roles import RoleSettings
from outlive.store import MemoryStore


class Watched(MemoryStore):
    """Remembers the reservations after every write, as somebody would find them who stopped the process there."""

    def __init__(self, seed: int) -> None:
        super().__init__(SystemClock(), SeededIds(Random(seed).fork("store")))
        self.kept: dict[str, Reservation] = {}
        self.states: list[tuple[Reservation, ...]] = []

    async def create(self, obj: Any) -> Any:
        return self._seen(await super().create(obj))

    async def replace_status(self, obj: Any) -> Any:
        return self._seen(await super().replace_status(obj))

    async def delete(self, ref: Any, **how: Any) -> None:
        await super().delete(ref, **how)
        self.kept.pop(ref.name, None)
        self.states.append(tuple(self.kept.values()))

    def _seen(self, obj: Any) -> Any:
        if isinstance(obj, Reservation):
            self.kept[obj.name] = obj
            self.states.append(tuple(self.kept.values()))
        return obj

    def since(self) -> Iterator[tuple[Reservation, ...]]:
        """The states since the last call."""
        states, self.states = self.states, []
        yield from states


async def look(store: MemoryStore, using: RoleSettings) -> Snapshot:
    return await gather(store, using, in_flight=build_in_flight)


def judged(gathered: Snapshot, reservations: tuple[Reservation, ...]) -> dict[str, int]:
    """VM → slots that count for it, once the state is seen to be valid."""
    seen = gathered.observation
    slots = tuple(slot_view(one) for one in reservations)
    checked = check(CheckInput(vms=seen.vms, slots=slots, required=gathered.required, topology=gathered.topology))
    assert checked.holds, checked.violations[:3]
    assert without_room(seen.hypervisors, reservations, seen.vms) == {}
    reported = assess_state(
        CoverageInput(vms=seen.vms, required=gathered.required, slots=slots, topology=gathered.topology)
    )
    return {vm: len(status.slots) for vm, status in reported.items()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_every_prefix_of_a_plan_and_of_repacking_is_valid_and_nobody_has_less(seed: int) -> None:
    unit = "rack" if seed % 3 == 0 else "host"

    async def story() -> None:
        random = Random(seed)
        store = Watched(seed)
        store.load(fleet(random, random.randint(8, 14), random.randint(10, 40), racks=7))
        made = moved = 0
        for needs in ({"f*": 1, "one*": 1}, {"f*": 2, "one*": 1}):
            using = settings(needs, unit=unit)
            gathered = await look(store, using)
            writer = SlotWriter(store, clock=SystemClock(), ids=SeededIds(random.fork(str(made))), creator="test")
            result = plan(await plan_input(gathered))
            await write_plan(writer, result.actions, gathered.observation.objects)
            has: dict[str, int] = {}
            for state in store.since():
                now = judged(gathered, state)
                assert all(now[vm] >= count for vm, count in has.items())
                has, made = now, made + 1
        need = dict(has)
        gathered = await look(store, settings(needs, unit=unit))
        moves = repack(await repack_input(gathered, limit=40, effort_s=0.2, seed=seed)).actions
        held = sum(one.spec.resources.memory_bytes for one in store.kept.values())
        seen = gathered.observation
        await write_plan(writer, actions_of(moves, {slot.name: slot for slot in seen.slots}), seen.objects)
        for state in store.since():
            now = judged(gathered, state)
            assert all(now[vm] >= min(gathered.required.get(vm, 0), count) for vm, count in need.items())
            memory = sum(one.spec.resources.memory_bytes for one in state)
            assert memory <= held
            held, moved = memory, moved + 1
        assert made > 0
        assert moved <= 40

    asyncio.run(story())


def test_no_slot_is_planned_in_the_room_of_vms_that_a_host_is_about_to_start() -> None:
    """Hosts that booted report nothing yet; two of three are full of what they will start."""

    async def story() -> None:
        store = MemoryStore(SystemClock(), SeededIds(Random(1)))
        idle = {"allocation": Amounts(cpu=0, memory=0), "source": "daemon"}
        objects: list[Any] = [make_host(host, cpu=8000, memory=32 * GIB, **idle) for host in ("h1", "h2", "h3")]
        objects += [
            make_vm(
                f"{host}-{number}",
                cpu=2000,
                memory=4 * GIB,
                status=VirtualMachineStatus(phase="start", assigned=Assigned(hypervisor=host)),
                flavor="f",
            )
            for host in ("h1", "h2")
            for number in range(1, 5)
        ]
        store.load(objects)
        gathered = await look(store, settings({"f": 1}))
        assert gathered.fleet.free_amounts().tolist() == [[0, 16 * GIB], [0, 16 * GIB], [8000, 32 * GIB]]
        result = plan(await plan_input(gathered))
        assert {slot.host for slot in result.slots} == {"h3"}
        assert len(result.slots) == 4

    asyncio.run(story())

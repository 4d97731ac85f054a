"""Room for VMs that an answer sent somewhere: held from the answer on, until they arrive or their time is over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.field_writers import WriterStore
from tests.support.loops import run, run_by
from tests.support.placement import host, instances, request, slot

from outlive.base import LoopClock, Random, SeededIds, as_datetime
from outlive.placement import (
    SILENT,
    Fleet,
    InFlightController,
    InFlightWriter,
    Intent,
    PipelineTable,
    PlacementOptions,
    PlacementRequest,
    PlacementService,
    PlacementSettings,
    encode_request,
    judge_arrival,
    room_for,
)
from outlive.resources import IN_FLIGHT, Amounts, Hypervisor, ObjectMeta, Reservation, find_condition
from outlive.runtime import Informer, OrderedTaskGroup, Requeue
from outlive.store import FaultRates, FaultStore, MemoryStore, list_all

GIB = 2**30
ONE = PlacementSettings(in_flight_hosts=1)


class World:
    """Placement over a memory store, with informers that run while a story is told."""

    def __init__(self, settings: PlacementSettings) -> None:
        self.clock, self.random = LoopClock(), Random(1)
        self.store = MemoryStore(self.clock, SeededIds(self.random))
        self.fleet = Fleet(settings)
        self.hypervisors = Informer(self.store, Hypervisor, clock=self.clock, random=self.random)
        self.reservations = Informer(self.store, Reservation, clock=self.clock, random=self.random)
        self.service = PlacementService(
            self.fleet, PipelineTable.with_shipped(), clock=self.clock, random=self.random, metrics=None
        )
        self.hypervisors.subscribe(self.service.on_hypervisor)
        self.reservations.subscribe(self.service.on_reservation)
        writes = WriterStore(self.store, writer="placement")
        self.room = InFlightWriter(writes, self.fleet, self.reservations.get, clock=self.clock)
        self.service.in_flight = self.room
        self.size: Amounts | None = None
        self.controller = InFlightController(writes, self.reservations, self.fleet, self._size_of, clock=self.clock)

    async def _size_of(self, _vm: str) -> Amounts | None:
        return self.size

    async def ask(self, **fields: Any) -> tuple[str, ...]:
        return (await self.service.rank(request(**fields))).hosts

    async def see(self, name: str, *vms: str) -> None:
        kept = await self.store.get(Hypervisor, name)
        shown = host(name, instances=instances(*vms)).status.instances
        await self.store.replace_status(replace(kept, status=replace(kept.status, instances=shown)))
        await self.clock.sleep(1)

    async def write(self) -> None:
        await self.room.flush()
        await self.clock.sleep(1)

    async def look(self) -> dict[str, Requeue | None]:
        """Reconcile every in-flight reservation once."""
        return {one.name: await self.controller.reconcile(one.name) for one in self.reservations.items()}

    async def stored(self) -> list[Reservation]:
        return [one async for one in list_all(self.store, Reservation) if one.spec.type == IN_FLIGHT]

    def held(self) -> int:
        return self.fleet.ledger.in_flight_count


Story = Callable[[World], Awaitable[None]]


def told(story: Story, *hosts: str, settings: PlacementSettings | None = None) -> None:
    async def telling() -> None:
        world = World(settings or PlacementSettings())
        async with OrderedTaskGroup() as group:
            informers: list[Informer[Any]] = [world.hypervisors, world.reservations]
            tasks = [group.create_task(one.run(), name=one.name) for one in informers]
            for one in informers:
                await one.wait_synced()
            for name in hosts:
                made = host(name)
                await world.store.create(made)
                await world.store.replace_status(replace(await world.store.get(Hypervisor, name), status=made.status))
            await world.clock.sleep(1)
            await story(world)
            for task in tasks:
                task.cancel()

    run(telling())


@run_by(told, "a", "b", settings=ONE)
async def test_room_is_held_from_the_very_answer_on(world: World) -> None:
    first = await world.ask(need={"cpu": "10", "memory": "40Gi"})
    second = await world.ask(resourceId="vm-2", need={"cpu": "10", "memory": "40Gi"})
    third = await world.ask(resourceId="vm-3", need={"cpu": "10", "memory": "40Gi"})
    assert set(first) == {"a", "b"}
    assert set(second) == {"a", "b"} - {first[0]}
    assert third == ()
    assert await world.stored() == []
    await world.write()
    stored = await world.stored()
    assert {one.spec.target_host for one in stored} == {"a", "b"}
    assert {one.metadata.labels["reservations.outlive.dev/type"] for one in stored} == {"in-flight"}


@run_by(told, "a", "b", settings=ONE)
async def test_the_vm_itself_finds_its_room_and_a_new_answer_moves_it(world: World) -> None:
    size = {"cpu": "10", "memory": "40Gi"}
    first = await world.ask(need=size)
    await world.write()
    again = await world.ask(need=size, ignoreHosts=[first[0]])
    assert again == first[1:]
    assert world.held() == 1
    await world.write()
    assert [one.spec.target_host for one in await world.stored()] == [again[0]]


@run_by(told, "a", "b", "c", "d")
async def test_as_many_hosts_hold_room_as_will_be_tried(world: World) -> None:
    await world.ask()
    assert world.held() == 3
    await world.ask(resourceId="vm-2", numInstances=2)
    await world.write()
    sizes = {one.spec.in_flight_reservation.vm_id: one.spec.resources.cpu_milli
             for one in await world.stored() if one.spec.in_flight_reservation}  # fmt: skip
    assert sizes == {"vm-1": 4000, "vm-2": 8000}


@pytest.mark.parametrize(
    "fields",
    [
        {"options": {"skip_inflight": True}},
        {"options": {"read_only": True, "skip_inflight": True, "skip_history": True,
                     "skip_committed_resource_tracking": True}},
        {"intent": "reserve_for_failover"},
        {"intent": "capacity_probe"},
        {"resourceId": ""},
    ],
)  # fmt: skip
@run_by(told, "a", "b")
async def test_nothing_is_held_for_nobody(world: World, *, fields: dict[str, Any]) -> None:
    assert await world.ask(**fields)
    assert world.held() == 0


@run_by(told, "a", settings=PlacementSettings(in_flight_seconds=0))
async def test_it_can_be_switched_off(world: World) -> None:
    assert await world.ask()
    assert world.held() == 0


@run_by(told, "a", "b")
async def test_an_evacuation_into_the_own_slot_counts_once(world: World) -> None:
    await world.store.create(replace(slot("s", on="a", members=("vm-1",))))
    world.service.on_reservation(None, slot("s", on="a", members=("vm-1",)))
    body = encode_request(request(intent="evacuate", hosts=["a", "b"]))
    await world.service.answer_external(body)
    entries = world.fleet.ledger.in_flight_of_vm.get("vm-1")
    assert entries is not None
    assert [one.reservation.spec.target_host for one in entries.entries.values()] == ["b"]


@run_by(told, "a", "b", "c", "d")
async def test_a_vm_that_is_seen_anywhere_gives_up_all_its_room(world: World) -> None:
    await world.ask()
    await world.write()
    assert all(found == Requeue(10.0) for found in (await world.look()).values())
    await world.clock.sleep(1)
    ready = [find_condition(one.status.conditions, "Ready") for one in await world.stored()]
    assert {(one.status, one.reason) for one in ready if one} == {("Unknown", "InstanceNotFound")}
    await world.see("d", "vm-1")
    await world.look()
    await world.clock.sleep(1)
    assert await world.stored() == []
    assert world.held() == 0


@run_by(told, "a")
async def test_room_ends_with_its_time(world: World) -> None:
    await world.ask()
    await world.write()
    await world.clock.sleep(600)
    await world.look()
    await world.clock.sleep(1)
    assert await world.stored() == []
    assert world.held() == 0


@run_by(told, "a", "b")
async def test_a_vm_that_moves_is_not_taken_for_arrived_where_it_was(world: World) -> None:
    await world.see("a", "vm-1")
    assert await world.ask(intent="live_migration", ignoreHosts=["a"]) == ("b",)
    await world.write()
    await world.look()
    assert len(await world.stored()) == 1
    await world.see("b", "vm-1")
    await world.look()
    assert await world.stored() == []


@run_by(told, "a", "b")
async def test_a_vm_that_runs_on_where_it_was_leaves_its_room_without_a_condition(world: World) -> None:
    await world.see("a", "vm-1")
    assert await world.ask(intent="live_migration", ignoreHosts=["a"]) == ("b",)
    await world.write()
    await world.look()
    assert [one.status.conditions for one in await world.stored()] == [()]


@run_by(told, "a")
async def test_room_of_another_scheduling_domain_is_left_alone(world: World) -> None:
    await world.ask()
    await world.write()
    (ours,) = await world.stored()
    spec = replace(ours.spec, scheduling_domain="cinder", end_time=as_datetime(1))
    theirs = await world.store.create(
        Reservation(metadata=ObjectMeta(name="theirs", labels=ours.metadata.labels), spec=spec)
    )
    await world.clock.sleep(1)
    await world.look()
    await world.see("a", "vm-1")
    await world.look()
    await world.clock.sleep(1)
    (left,) = await world.stored()
    assert (left.name, left.spec, left.status) == ("theirs", theirs.spec, theirs.status)


@run_by(told, "a")
async def test_a_resize_on_the_same_host_has_arrived_with_the_new_size(world: World) -> None:
    await world.see("a", "vm-1")
    await world.ask(intent="resize")
    await world.write()
    for size in (None, Amounts(cpu=2000, memory=16 * GIB)):
        world.size = size
        await world.look()
        await world.clock.sleep(1)
        ready = find_condition((await world.stored())[0].status.conditions, "Ready")
        assert ready is not None
        assert ready.reason == "VMSizeMismatch"
    world.size = Amounts(cpu=4000, memory=16 * GIB, gpu=1)
    await world.look()
    assert await world.stored() == []


@run_by(told, "a")
async def test_room_that_cannot_be_written_is_given_up_and_the_answer_stands(world: World) -> None:
    away = FaultStore(world.store, clock=world.clock, random=world.random, rates=FaultRates(refuse=1.0))
    world.service.in_flight = InFlightWriter(away, world.fleet, world.reservations.get, clock=world.clock)
    assert await world.ask() == ("a",)
    assert world.held() == 1
    await world.service.in_flight.flush()
    assert world.held() == 0
    assert world.service.in_flight.dropped == 1


def test_beyond_the_limit_nothing_more_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlive.placement.in_flight.HELD_LIMIT", 1)

    async def story(world: World) -> None:
        await world.ask()
        assert await world.ask(resourceId="vm-2") == ("a",)
        assert world.held() == 1
        assert world.room.dropped == 1

    told(story, "a")


def _judged(end_s: float | None = 600.0, intent: Intent = Intent.UNKNOWN, seen: str = "", **parts: Any) -> Any:
    until = as_datetime(0) + timedelta(seconds=end_s or 0)
    asked = PlacementRequest(resource_id="vm", need=Amounts(cpu=1000, memory=GIB), intent=intent)
    one = room_for(asked, ["a"], group="", until=until)[0]
    if end_s is None:
        one = replace(one, spec=replace(one.spec, end_time=None))
    one = replace(one, spec=replace(one.spec, **parts))
    return judge_arrival(one, frozenset({"a"}), frozenset({seen} if seen else ()), None, 10.0)


def test_what_becomes_of_a_reservation() -> None:
    assert _judged(end_s=10.0).expired
    assert _judged(end_s=15.0).again_s == 5.0
    assert _judged(end_s=None).again_s == 10.0
    assert _judged(seen="elsewhere").arrived
    stays = _judged(seen="elsewhere", intent=Intent.EVACUATE)
    assert (stays.arrived, stays.condition, stays.again_s) == (False, None, 10.0), "it runs on where it was"
    missing = _judged(end_s=None, in_flight_reservation=None)
    assert (missing.condition.status, missing.condition.reason, missing.again_s) == ("False", "MissingSpec", 0.0)


@pytest.mark.slow
@given(st.lists(st.sampled_from([(2, 8), (4, 16), (6, 40), (10, 10)]), max_size=12), st.integers(1, 3))
def test_no_capacity_is_promised_twice(sizes: list[tuple[int, int]], hosts: int) -> None:
    async def story() -> None:
        names = [f"h{number}" for number in range(hosts)]
        clock = LoopClock()
        fleet = Fleet(ONE)
        service = PlacementService(fleet, PipelineTable.with_shipped(), clock=clock, random=Random(0))
        service.in_flight = InFlightWriter(MemoryStore(clock, SeededIds(Random(0))), fleet, lambda _: None, clock=clock)
        for name in names:
            fleet.upsert_host(host(name))
        sent: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
        for number, (cpu, memory) in enumerate(sizes):
            found = await service.rank(request(resourceId=f"vm-{number}", need={"cpu": cpu, "memory": f"{memory}Gi"}))
            if found.target is not None:
                sent[found.target].append((cpu, memory))
        for got in sent.values():
            assert sum(cpu for cpu, _ in got) <= 16
            assert sum(memory for _, memory in got) <= 64
        assert not fleet.overbooked_amounts("h0")

    run(story())


@run_by(told, "a")
async def test_options_of_failover_hold_nothing(world: World) -> None:
    await world.service.rank(replace(request(intent="evacuate"), options=SILENT))
    await world.service.rank(replace(request(), options=PlacementOptions(skip_inflight=True)))
    assert world.held() == 0

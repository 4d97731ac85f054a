"""The role of ``outlive up`` on a memory store and virtual time: it covers a fleet and keeps it covered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.support.loops import run

from outlive.base.clock import LoopClock
from outlive.base.ids import SeededIds
from outlive.base.random import Random
from outlive.failover.config import FailoverConfig, FailoverUpkeepSettings
from outlive.failover.ports import Inline
from outlive.resources import (
    FAILOVER,
    Amounts,
    Assigned,
    Coverage,
    Election,
    Hypervisor,
    HypervisorStatus,
    Instance,
    ObjectMeta,
    Pipeline,
    Reservation,
    VirtualMachine,
    VirtualMachineSpec,
    VirtualMachineStatus,
)
from outlive.resources.hosts import DomainCapabilities
from outlive.roles.settings import RoleSettings
from outlive.roles.up import Ports, UpRole
from outlive.runtime.decisions import Use
from outlive.store import Store, list_all
from outlive.store.memory import MemoryStore

GIB = 2**30
SETTINGS = RoleSettings(failover=FailoverConfig(revalidation_interval="1h").apply_defaults())
HOSTS, VMS = 12, 30


def host(name: str, vms: list[str]) -> Hypervisor:
    size = Amounts(cpu=4000, memory=8 * GIB)
    return Hypervisor(
        metadata=ObjectMeta(name=name),
        status=HypervisorStatus(
            capacity=Amounts(cpu=64_000, memory=256 * GIB),
            allocation=Amounts(cpu=size["cpu"] * len(vms), memory=size["memory"] * len(vms)),
            instances=tuple(Instance(id=vm) for vm in vms),
            domain_capabilities=DomainCapabilities(hypervisor_type="kvm"),
        ),
    )


def vm(name: str, on: str) -> VirtualMachine:
    spec = VirtualMachineSpec(flavor="m1", resources=Amounts(cpu=4000, memory=8 * GIB))
    return VirtualMachine(
        metadata=ObjectMeta(name=name), spec=spec, status=VirtualMachineStatus(assigned=Assigned(hypervisor=on))
    )


def fleet() -> list[Hypervisor | VirtualMachine]:
    placed = {f"v{number:02}": f"h{number % HOSTS:02}" for number in range(VMS)}
    hosts = [host(f"h{n:02}", [v for v, on in placed.items() if on == f"h{n:02}"]) for n in range(HOSTS)]
    return [*hosts, *(vm(name, on) for name, on in placed.items())]


def role(store: Store, seed: int, name: str = "one", settings: RoleSettings = SETTINGS) -> UpRole:
    random = Random(seed)
    return UpRole(
        store,
        settings,
        Ports(computer=Inline()),
        identity=name,
        clock=LoopClock(),
        random=random,
        ids=SeededIds(random),
    )


def lived(
    seed: int, story: Callable[[MemoryStore, UpRole], Awaitable[None]], settings: RoleSettings = SETTINGS
) -> list[Reservation]:
    """Run a role through a story; the slots at its end."""

    async def scene() -> list[Reservation]:
        store = MemoryStore(LoopClock(), SeededIds(Random(seed + 1)))
        store.load(fleet())
        made = role(store, seed, settings=settings)
        await made.prepare()
        running = asyncio.create_task(made.run())
        await story(store, made)
        made.stop()
        await running
        return [one async for one in list_all(store, Reservation)]

    return run(scene())


async def coverage(store: MemoryStore) -> dict[str, bool]:
    return {one.name: one.status.covered async for one in list_all(store, Coverage)}


async def a_minute(store: MemoryStore, made: UpRole) -> None:
    await asyncio.sleep(60)
    assert made.ready() == ""
    assert await coverage(store) == {f"v{number:02}": True for number in range(VMS)}


@pytest.mark.slow
def test_a_fleet_is_covered_within_a_minute_and_slots_are_acknowledged() -> None:
    slots = lived(1, a_minute)
    assert slots
    assert all(slot.spec.type == FAILOVER for slot in slots)
    assert all(
        slot.status.failover_reservation is not None and slot.status.failover_reservation.acknowledged_at
        for slot in slots
    )


@pytest.mark.slow
def test_the_same_seed_gives_the_same_slots() -> None:
    assert lived(2, a_minute) == lived(2, a_minute)


def test_shipped_pipelines_are_there_and_ready() -> None:
    async def story(store: MemoryStore, made: UpRole) -> None:
        await asyncio.sleep(10)
        pipelines = [one async for one in list_all(store, Pipeline)]
        assert len(pipelines) >= 5
        assert all(one.status.conditions for one in pipelines)

    lived(3, story)


@pytest.mark.slow
def test_a_vm_that_moves_is_covered_again_within_seconds() -> None:
    async def story(store: MemoryStore, made: UpRole) -> None:
        await asyncio.sleep(45)
        moved = await store.get(VirtualMachine, "v00")
        for name, vms in (("h00", ["v12", "v24"]), ("h05", ["v00", "v05", "v17", "v29"])):
            old = await store.get(Hypervisor, name)
            await store.replace_status(msgspec.structs.replace(old, status=host(name, vms).status))
        status = VirtualMachineStatus(assigned=Assigned(hypervisor="h05"))
        await store.replace_status(msgspec.structs.replace(moved, status=status))
        await asyncio.sleep(3)
        reported = await store.get(Coverage, "v00")
        assert reported.status.covered
        assert reported.status.host == "h05"

    for slot in lived(4, story):
        failover = slot.status.failover_reservation
        assert failover is not None
        assert slot.status.host != "h05" or "v00" not in failover.allocations


@pytest.mark.slow
def test_a_fleet_that_is_imported_later_is_planned_as_a_whole() -> None:
    settings = msgspec.structs.replace(SETTINGS, upkeep=FailoverUpkeepSettings(events_react=False))

    async def scene() -> int:
        store = MemoryStore(LoopClock(), SeededIds(Random(7)))
        made = role(store, 7, settings=settings)
        uses: list[Use] = []
        made.decisions.listen(uses.append)
        await made.prepare()
        running = asyncio.create_task(made.run())
        await asyncio.sleep(40)
        for number in range(200):
            name, on = f"w{number:03}", f"h{number % 40:02}"
            if number < 40:
                there = [f"w{n:03}" for n in range(number, 200, 40)]
                await made_of(store, host(f"h{number:02}", there))
            await made_of(store, vm(name, on))
        await asyncio.sleep(45)
        assert sum((await coverage(store)).values()) == 200
        made.stop()
        await running
        return sum(use.name == "failover.plan" for use in uses)

    assert run(scene()) == 1


async def made_of(store: MemoryStore, wanted: Hypervisor | VirtualMachine) -> None:
    made = await store.create(wanted)
    await store.replace_status(msgspec.structs.replace(made, status=wanted.status))


@pytest.mark.slow
def test_of_two_roles_one_leads_and_the_other_takes_over() -> None:
    async def scene() -> None:
        store = MemoryStore(LoopClock(), SeededIds(Random(9)))
        store.load(fleet())
        first, second = role(store, 5, "one"), role(store, 6, "two")
        await first.prepare()
        running = asyncio.create_task(first.run())
        await asyncio.sleep(1)
        waiting = asyncio.create_task(second.run())
        await asyncio.sleep(30)
        assert (first.elector.is_leader, second.elector.is_leader) == (True, False)
        running.cancel()
        await asyncio.wait([running])
        await asyncio.sleep(30)
        assert second.elector.is_leader
        assert (await store.get(Election, "failover")).record.holder == "two"
        assert all((await coverage(store)).values())
        second.stop()
        await waiting

    run(scene())

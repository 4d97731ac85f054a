"""The role of ``outlive up`` on a memory store and virtual time: it covers a fleet and keeps it covered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.support.loops import run, run_by

from outlive.base import LoopClock, Random, SeededIds
from outlive.failover import FailoverConfig, FailoverUpkeepSettings, Inline
from outlive.resources import (
    Amounts,
    Assigned,
    Coverage,
    DomainCapabilities,
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
from outlive.roles import Ports, RoleSettings, UpRole
from outlive.runtime import Use
from outlive.store import MemoryStore, Store, list_all

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
    assert made.explain_unready() == ""
    assert await coverage(store) == {f"v{number:02}": True for number in range(VMS)}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_slots() -> None:
    assert lived(2, a_minute) == lived(2, a_minute)


@run_by(lived, 3)
async def test_shipped_pipelines_are_there_and_ready(store: MemoryStore, made: UpRole) -> None:
    await asyncio.sleep(10)
    pipelines = [one async for one in list_all(store, Pipeline)]
    assert len(pipelines) >= 5
    assert all(one.status.conditions for one in pipelines)


@pytest.mark.slow
async def test_a_fleet_that_is_imported_later_is_planned_as_a_whole() -> None:
    settings = msgspec.structs.replace(SETTINGS, upkeep=FailoverUpkeepSettings(events_react=False))
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
    assert sum(use.name == "failover.plan" for use in uses) == 1


async def made_of(store: MemoryStore, wanted: Hypervisor | VirtualMachine) -> None:
    made = await store.create(wanted)
    await store.replace_status(msgspec.structs.replace(made, status=wanted.status))

"""The judge of the order of starts finds a start before its turn, and lets pass what is right or is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from tests.support.loops import run
from tests.support.virtual_hosts import Bench, small_vm

from outlive.node.ports import DomainState
from outlive.resources import Assigned, Holder, StartOrder, VirtualMachine
from outlive.simulation import domain_of
from outlive.simulation.judges import ON_THE_WAY_S

_replace = msgspec.structs.replace


async def assign(bench: Bench, fence: str = "f") -> None:
    stored = await bench.store.get(VirtualMachine, "service")
    status = _replace(stored.status, phase="start", holders=(), assigned=Assigned(hypervisor="h1", fence=fence))
    await bench.store.replace_status(_replace(stored, status=status))


async def start(bench: Bench, *, order: StartOrder | None = None, run_id: str = "r1") -> None:
    stored = await bench.store.get(VirtualMachine, "service")
    holder = Holder(hypervisor="h1", member_uid="uid-h1", epoch=1, run_id=run_id)
    status = _replace(stored.status, holders=(holder,), start_order=order)
    await bench.store.replace_status(_replace(stored, status=status))


def runs(bench: Bench, vm: str, host: str, run_id: str = "d1") -> None:
    bench.hypervisors[host].add_domain(domain_of(small_vm(vm), run_id, 1, DomainState.RUNNING))


def found(story: Callable[[Bench], Awaitable[None]]) -> list[str]:
    """What the judge says of the order in this story."""

    async def reported() -> list[str]:
        bench = Bench()
        bench.boot()
        vm = small_vm("service")
        await bench.store.create(_replace(vm, spec=_replace(vm.spec, start_after=("database",))))
        await assign(bench)
        await story(bench)
        return [one.text for one in bench.judge.violations if one.invariant == "order"]

    return run(reported())


def test_start_before_another_was_seen_running_is_found() -> None:
    assert found(start) == ["is started on h1 before database, and does not say why"]


def test_start_after_it_runs_is_right_and_also_just_after_it_ended_unnoticed() -> None:
    async def story(bench: Bench) -> None:
        runs(bench, "database", "h2")
        await start(bench)
        bench.hypervisors["h2"].crash("database")
        await asyncio.sleep(20)
        await assign(bench, "g")
        await start(bench, run_id="r2")

    assert found(story) == []


def test_host_that_registers_anew_what_ran_on_it_a_moment_ago_starts_nothing() -> None:
    async def story(bench: Bench) -> None:
        runs(bench, "service", "h1", run_id="r1")
        bench.hypervisors["h1"].crash("service")
        await start(bench, run_id="r1")

    assert found(story) == []


def test_what_ended_with_its_host_long_before_the_start_was_possible_was_not_seen() -> None:
    async def story(bench: Bench) -> None:
        runs(bench, "database", "h2")
        bench.hypervisors["h2"].lose_power()
        await asyncio.sleep(ON_THE_WAY_S + 2)
        await assign(bench, "g")
        await start(bench)

    assert found(story) == ["is started on h1 before database, and does not say why"]


def test_start_that_says_without_whom_is_right_if_its_own_host_says_it() -> None:
    said = StartOrder(hypervisor="h1", fence="f", without=("database",), detail="was not seen running within 180 s")

    async def honest(bench: Bench) -> None:
        await start(bench, order=said)

    async def of_another_host(bench: Bench) -> None:
        await start(bench, order=_replace(said, hypervisor="h2"))

    assert found(honest) == []
    assert len(found(of_another_host)) == 1


def test_domain_that_ran_before_and_is_registered_again_is_no_start() -> None:
    async def story(bench: Bench) -> None:
        runs(bench, "service", "h1", "r7")
        await start(bench, run_id="r7")

    assert found(story) == []

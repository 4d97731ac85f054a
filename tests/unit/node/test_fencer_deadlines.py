"""Hosts whose VMs are to run again soon are looked at less often, while guard and power controller are known good."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.fencing import Site, site
from tests.support.loops import run

from outlive.node.fencing.rehearsals import EVERY_S, STRICT_EVERY_S
from outlive.resources import GuardRecord

STEADY = GuardRecord(armed=True, timeout_s=25, watchdog_s=15)
BEFORE_S = 95.0


async def hosts(s: Site, objective_s: float | None = 40.0, **strict: Any) -> None:
    """``a`` watches; ``x`` is armed and carries a VM with an objective."""
    for name in ("a", "b", "c"):
        await s.host(name)
    await s.host("x", **{"guard": STEADY, "renews": 5.0, "mode": "hypervisor", **strict})
    await s.report("x", recovery_time_objective_s=objective_s)


async def condemned_after(s: Site) -> float:
    began = s.now()
    return await s.until("x", lambda record: record.state == "Revoked") - began


def test_host_with_a_strict_vm_is_condemned_in_time_for_it() -> None:
    async def story() -> None:
        async with site() as s:
            await hosts(s)
            s.watch("a")
            await asyncio.sleep(BEFORE_S)
            s.silence("x")
            assert 30.0 <= await condemned_after(s) <= 37.0
            reason = (await s.record("x")).fence.reason
            assert "instead of 6 times every 5 s: a VM on it is to run again within 40 s" in reason

    run(story())


def test_host_without_objectives_or_with_a_patient_vm_gets_all_its_looks() -> None:
    async def story(objective_s: float | None) -> None:
        async with site() as s:
            await hosts(s, objective_s)
            s.watch("a")
            await asyncio.sleep(BEFORE_S)
            s.silence("x")
            assert await condemned_after(s) >= 55.0
            assert "VM" not in (await s.record("x")).fence.reason

    run(story(None))
    run(story(70.0))


def test_host_whose_guard_is_not_armed_gets_all_its_looks() -> None:
    async def story() -> None:
        async with site() as s:
            await hosts(s, guard=GuardRecord(), profile="steady")
            s.watch("a")
            await asyncio.sleep(BEFORE_S)
            s.silence("x")
            assert await condemned_after(s) >= 55.0
            assert "but its guard was not found good" in (await s.record("x")).fence.reason

    run(story())


def test_host_whose_power_controller_does_not_answer_or_is_worked_on_gets_all_its_looks() -> None:
    async def story(**changes: Any) -> None:
        async with site() as s:
            await hosts(s)
            s.watch("a")
            await asyncio.sleep(5)
            if changes:
                await s.change_fencing("x", **changes)
            else:
                s.power.controllers["x"].mode = "dead"
            await asyncio.sleep(BEFORE_S)
            s.silence("x")
            assert await condemned_after(s) >= 55.0
            assert "but its power controller was not found good" in (await s.record("x")).fence.reason

    run(story())
    run(story(power_maintenance=True))


def test_looks_are_no_fewer_any_more_once_the_controller_stops_answering_in_between() -> None:
    async def story() -> None:
        async with site() as s:
            await hosts(s, 54.0)
            s.watch("a")
            await asyncio.sleep(BEFORE_S)
            s.silence("x")
            await asyncio.sleep(2)
            s.power.controllers["x"].mode = "dead"
            assert await condemned_after(s) >= 52.0
            assert "but its power controller was not found good" in (await s.record("x")).fence.reason

    run(story())


@pytest.mark.slow
def test_controllers_of_strict_hosts_are_read_every_half_minute_and_others_every_minute() -> None:
    async def story() -> None:
        async with site() as s:
            await hosts(s)
            reads: dict[str, int] = {}
            read = s.power.read

            async def counted(host: Any) -> Any:
                reads[host.name] = reads.get(host.name, 0) + 1
                return await read(host)

            s.power.read = counted  # type: ignore[method-assign]
            s.watch("a")
            await asyncio.sleep(10 * EVERY_S - 1)
            assert reads["b"] == 10
            assert reads["x"] == 10 * EVERY_S / STRICT_EVERY_S
            assert not s.power.controllers["x"].offs, "it is only read"

    run(story())


def test_wait_for_the_guard_is_as_long_as_ever() -> None:
    async def story() -> None:
        async with site() as s:
            await hosts(s, 36.0)
            s.watch("a")
            await asyncio.sleep(BEFORE_S)
            s.silence("x")
            s.power.controllers["x"].mode = "stuck"
            began = s.now()
            dead = await s.until_dead("x") - began
            record = await s.record("x")
            assert record.proof is not None
            assert record.proof.kind == "watchdog"
            assert dead >= (25 + 15 + 2) * 1.01 - 5.0  # the last renewal was up to 5 s before

    run(story())

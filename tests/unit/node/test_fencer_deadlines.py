"""Hosts whose VMs are to run again soon are looked at less often, while guard and BMC are known good."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.fencing import Site, site
from tests.support.loops import run

from outlive.node.fencing import EVERY_S, STRICT_EVERY_S
from outlive.resources import GuardRecord

STEADY = GuardRecord(armed=True, timeout_s=25, watchdog_s=15)
BEFORE_S = 95.0


async def hosts(s: Site, objective_s: float | None = 40.0, **strict: Any) -> None:
    """``a`` watches; ``x`` is armed and carries a VM with an objective."""
    await s.hosts("a", "b", "c")
    await s.host("x", **{"guard": STEADY, "renews": 5.0, "mode": "hypervisor", **strict})
    await s.report("x", recovery_time_objective_s=objective_s)


async def condemned_after(s: Site) -> float:
    began = s.now()
    return await s.until("x", lambda record: record.state == "Revoked") - began


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
            assert "but its BMC was not found good" in (await s.record("x")).fence.reason

    run(story())
    run(story(power_maintenance=True))


async def test_looks_are_no_fewer_any_more_once_the_controller_stops_answering_in_between() -> None:
    async with site() as s:
        await hosts(s, 54.0)
        s.watch("a")
        await asyncio.sleep(BEFORE_S)
        s.silence("x")
        await asyncio.sleep(2)
        s.power.controllers["x"].mode = "dead"
        assert await condemned_after(s) >= 52.0
        assert "but its BMC was not found good" in (await s.record("x")).fence.reason


@pytest.mark.slow
async def test_controllers_of_strict_hosts_are_read_every_half_minute_and_others_every_minute() -> None:
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

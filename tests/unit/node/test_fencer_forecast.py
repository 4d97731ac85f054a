"""What maintenance hides is written down by the rules that would have acted, once for each silence."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fencing import Site, site

from outlive.node.fencing import SPARED_KEPT
from outlive.resources import Hypervisor, Spared

BEFORE_S = 20.0


async def spared(s: Site, name: str) -> tuple[Spared, ...]:
    return (await s.store.get(Hypervisor, name)).status.spared


@pytest.mark.slow
async def test_who_would_have_been_condemned_in_maintenance_is_written_down_once_for_each_silence():
    async with site() as s:
        await s.hosts("a", "b", "c", "d")
        s.watch("a")
        s.watch("b")
        await s.change_fencing("d", maintenance=True)
        await asyncio.sleep(BEFORE_S)
        s.silence("d")
        await asyncio.sleep(30)
        (one,) = await spared(s, "d")
        assert one.under == "maintenance of this host"
        assert "limit" in one.why
        assert (await s.record("d")).state == "Held"
        assert await spared(s, "c") == ()
        s.kill("a")
        s.silence("a")
        await asyncio.sleep(30)
        assert len(await spared(s, "d")) == 1, "the next leader finds the entry there"
        for _ in range(SPARED_KEPT + 1):
            s.renew("d")
            await asyncio.sleep(5)
            s.silence("d")
            await asyncio.sleep(20)
        kept = await spared(s, "d")
        assert len(kept) == SPARED_KEPT
        assert one not in kept, "the oldest goes first"


async def test_short_silence_in_maintenance_and_a_storm_are_no_forecast():
    async with site() as s:
        await s.hosts("a", "b", "c", "d")
        s.watch("a")
        await s.policy(cluster={"maintenance": True})
        await asyncio.sleep(BEFORE_S)
        s.silence("d")
        await asyncio.sleep(3)
        s.renew("d")
        await asyncio.sleep(BEFORE_S)
        s.silence("b", "c", "d")
        await asyncio.sleep(30)
        assert [await spared(s, name) for name in ("b", "c", "d")] == [(), (), ()]


async def test_power_controller_in_maintenance_gets_no_command_and_the_fence_goes_on_without_it():
    async with site() as s:
        await s.hosts("a", "b", "c", "d")
        s.watch("a")
        await s.change_fencing("d", power_maintenance=True)
        await asyncio.sleep(BEFORE_S)
        s.silence("d")
        await s.until("d", lambda record: record.fence.phase == "unconfirmed", limit_s=60)
        await asyncio.sleep(60)
        assert s.power.controllers["d"].offs == []
        assert "somebody works on its BMC" in (await s.record("d")).fence.unproven_why
        assert "power-unreachable.d" not in await s.faults()
        await s.change_fencing("d", power_maintenance=False)
        await s.until_dead("d", limit_s=20)


async def test_forecast_says_which_hosts_would_have_waited_for_a_release():
    async with site() as s:
        names = [f"h{number}" for number in range(12)]
        for name in names:
            await s.host(name)
        s.watch("h0")
        await s.policy(cluster={"maintenance": True})
        await asyncio.sleep(BEFORE_S)
        s.silence("h3", "h4", "h5")
        await asyncio.sleep(30)
        waited = [(await spared(s, name))[0].why.endswith("came before it") for name in ("h3", "h4", "h5")]
        assert waited == [False, False, True]

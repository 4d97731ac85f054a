"""What fencing reports does not die with the fencer that found it."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fencing import site
from tests.support.loops import run

from outlive.base.clock import LoopClock


@pytest.mark.slow
def test_that_a_host_is_dead_is_told_although_the_fencer_that_proved_it_dies_right_then():
    async def story():
        async with site() as s:
            for name in ("a", "b", "c", "d"):
                await s.host(name)
            s.watch("a")
            s.watch("b")
            await asyncio.sleep(20)
            s.power.controllers["d"].mode = "dead"
            s.silence("d")
            await s.until("d", lambda record: record.fence.phase == "unconfirmed")
            await asyncio.sleep(3)
            assert "fence-unconfirmed.d" in await s.faults()
            s.power.controllers["d"].mode = "ok"
            while (await s.record("d")).dead_through == 0:
                await LoopClock().sleep(0.001)
            by = (await s.record("d")).fence.by
            s.kill(by)
            s.silence(by)
            await asyncio.sleep(30)
            found = await s.faults()
            assert "power" in found["host-dead.d"].message
            assert "fence-unconfirmed.d" not in found

    run(story())

"""What fencing reports does not die with the fencer that found it."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fencing import four_hosts, site

from outlive.base import LoopClock


@pytest.mark.slow
async def test_that_a_host_is_dead_is_told_although_the_fencer_that_proved_it_dies_right_then():
    async with site() as s:
        await four_hosts(s, "a", "b")
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

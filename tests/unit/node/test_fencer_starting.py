"""The time that a host has to stop and to start is over once it has started."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fencing import four_hosts, site

from outlive.resources import Condition


@pytest.mark.parametrize("stopping_s", [0.0, 8.0])
async def test_host_that_dies_soon_after_it_was_rebooted_in_order_is_noticed_as_soon_as_any_other(stopping_s: float):
    async with site() as s:
        await four_hosts(s)
        if stopping_s:
            await s.report("d", conditions=(Condition(type="Ready", status="False", reason="Stopping"),))
            await asyncio.sleep(stopping_s)  # its guests end
            s.silence("d")
            await asyncio.sleep(40)  # it boots
            await s.come_back("d")
            await s.report("d", conditions=(Condition(type="Ready", status="True", reason="DaemonRuns"),))
        await asyncio.sleep(20)
        s.silence("d")
        began = s.now()
        assert await s.until_dead("d", limit_s=600) - began < 20

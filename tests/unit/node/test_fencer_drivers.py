"""A driver of one host that breaks with an error of its own harms no other host's fence."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fencing import site

from outlive.resources import GuardRecord


@pytest.mark.slow
async def test_driver_that_breaks_for_one_host_harms_no_other_fence_and_no_other_kind_of_proof():
    async with site() as s:
        await s.hosts("a", "b", "c")
        await s.host("d", guard=GuardRecord(armed=True, timeout_s=5, watchdog_s=10), profile="fast")
        await s.host("e")
        del s.power.controllers["d"].on  # a call of it fails with an error that no port should have
        s.watch("a")
        await asyncio.sleep(20)
        s.silence("e")
        await s.until_dead("e", limit_s=30)
        s.silence("d")
        await s.until_dead("d", limit_s=60)
        assert (await s.record("d")).proof.kind == "watchdog"


@pytest.mark.slow
async def test_fence_of_a_host_whose_driver_breaks_says_so():
    async with site() as s:
        await s.hosts("a", "b", "c", "d")
        del s.power.controllers["d"].on
        s.watch("a")
        await asyncio.sleep(20)
        s.silence("d")
        await s.until("d", lambda record: record.fence.phase == "unconfirmed", limit_s=60)
        assert "AttributeError" in (await s.record("d")).fence.unproven_why
